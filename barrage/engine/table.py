"""Tables: the read interface every source and operator offers, and the operators as methods.

A table never hands out its mutable state: ``row_keys`` is an immutable set and what ``read``
returns never changes. Reading is only consistent between cycles, which is the engine thread's
business.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa

from barrage.engine import work
from barrage.errors import BarrageError, EngineError, LimitExceededError, TableFailedError
from barrage.model.viewport import ColumnSet, effective_columns
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from barrage.engine.aggregation import Aggregation
    from barrage.engine.expression import Expression
    from barrage.engine.graph import UpdateGraph
    from barrage.engine.operators.convert import ColumnConversion
    from barrage.engine.operators.sort import SortKey
    from barrage.model.update import TableUpdate

    Int64Array = npt.NDArray[np.int64]

Result = TypeVar("Result")

Cells: TypeAlias = pa.Array | pa.ChunkedArray
"""The values of one column for some rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPlan:
    """An operator that is to be made: of which tables, how, and at what price."""

    parents: tuple[Table, ...]
    description: Hashable
    make: Callable[..., DerivedTable]
    per_row: int

    @property
    def identity(self) -> Hashable:
        """Tells the operators upon the first parent apart."""
        others = self.parents[1:]
        if not others:
            return self.description
        return self.description, tuple(other.serial for other in others)

    @property
    def key(self) -> Hashable:
        """Tells the operators of a graph apart."""
        return self.parents[0].serial, self.identity

    @property
    def work(self) -> int:
        """Row operations of making it: a number that is known before anything is done."""
        return sum(self.work_on(parent, parent.size) for parent in self.parents) + sum(
            parent.row_keys.range_count for parent in self.parents
        )

    def work_on(self, parent: Table, rows: int) -> int:
        """Row operations for some rows of one parent."""
        return rows * (self.per_row + parent.reading) if self.per_row else 0

    def existing(self) -> DerivedTable | None:
        """The operator, if somebody uses it."""
        child = self.parents[0]._children.get(self.identity)
        return None if child is None or child.failure is not None else child

    def enter(self, child: DerivedTable) -> None:
        """Let the parents know the operator."""
        first, identity = self.parents[0], self.identity
        child.description = self.description
        first._children[identity] = child
        for other in self.parents[1:]:
            if other is not first:
                other._children["fed by", first.serial, identity] = child


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTraits:
    """What a reader may rely on for the whole life of a table."""

    is_static: bool = False
    """Never changes at all."""
    is_append_only: bool = False
    """Only ever adds rows after the last one: no removals, shifts or modifications."""
    is_blink: bool = False
    """Every row lives for one cycle."""
    is_flat: bool = False
    """Row keys are always 0..size-1."""
    key_columns: tuple[str, ...] = ()
    """Columns whose values name a row uniquely; empty when there are none."""

    def changed(self, **changes: object) -> TableTraits:
        return replace(self, **changes)  # type: ignore[arg-type]


class Table:
    """A ticking table. Subclasses provide the cells and keep ``_row_keys`` up to date."""

    depth = 0
    """Longest way from a source, in operators."""

    ways = 1
    """Number of ways from sources; a read of all columns may go all of them."""

    reading = 1
    """Row operations (:mod:`barrage.engine.work`) of reading one row."""

    def __init__(self, graph: UpdateGraph, schema: pa.Schema, traits: TableTraits) -> None:
        self.graph = graph
        self.serial = graph.new_serial()
        """Tells the tables of a graph apart, in the order they were made; never used twice."""
        self.schema: pa.Schema = schema
        self.traits = traits
        self.changed_step = graph.step
        """Step of the last cycle that changed the table: the version of its rows. At first that
        of the graph, for an operator the greatest of its parents'."""
        self._row_keys = RowSet.empty()
        self._failure: BarrageError | None = None
        self._children: weakref.WeakValueDictionary[Hashable, DerivedTable] = (
            weakref.WeakValueDictionary()
        )
        self.trails: list[list[TableUpdate]] = []
        """What wants to know the updates of the next cycles."""

    @property
    def row_keys(self) -> RowSet:
        """Keys of all rows, in row order."""
        return self._row_keys

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._row_keys)

    @property
    def overwritten_nbytes(self) -> int:
        """Bytes of cells of its own that later cycles may overwrite, and that reading copies."""
        return 0

    @property
    def is_static(self) -> bool:
        return self.traits.is_static

    @property
    def is_append_only(self) -> bool:
        return self.traits.is_append_only

    @property
    def is_blink(self) -> bool:
        return self.traits.is_blink

    @property
    def is_flat(self) -> bool:
        return self.traits.is_flat

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.traits.key_columns

    @property
    def failure(self) -> BarrageError | None:
        """Why the table has no consistent state any more; None while all is well."""
        return self._failure

    def fail(self, error: BarrageError) -> None:
        """Mark the table as failed for good. Only the update graph calls this."""
        self._failure = error

    def read(self, keys: RowSet, columns: ColumnSet | None = None) -> tuple[Cells, ...]:
        """The cells of existing rows ``keys`` in key order, one entry per selected column (all:
        None).

        Entries follow ascending column index. Raises TableFailedError when the table has failed.
        """
        self.check_alive()
        return self.read_cells(keys, effective_columns(columns, len(self.schema)))

    def to_arrow(self) -> pa.Table:
        """The whole table as it stands now."""
        return pa.table(list(self.read(self.row_keys)), schema=self.schema)

    def check_alive(self) -> None:
        """Raise TableFailedError when the table has failed."""
        if self._failure is not None:
            raise TableFailedError(str(self._failure)) from self._failure

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        """``read`` without checks; for operators."""
        raise NotImplementedError

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        """Cells of existing rows in any order, repeats allowed; for operators that search."""
        raise NotImplementedError

    @property
    def order_is_reproducible(self) -> bool:
        """Whether the rows, their order and all cells follow from the present rows of the sources,
        whatever happened before: then an equal operator on equal rows shows equal rows."""
        return True

    def live_children(self) -> list[DerivedTable]:
        """Operators fed by this table, oldest first."""
        return list(self._children.values())

    def pinned(self, known: dict[int, Table] | None = None) -> Table:
        """The table as it is now, for reading only, on any thread: later cycles do not change it.

        Cells that may be overwritten are copied, everything else is shared. ``known`` holds what
        is pinned already, so that what several tables read is one.
        """
        known = {} if known is None else known
        found = known.get(self.serial)
        if found is None:
            found = known[self.serial] = copy.copy(self)
            found._children = weakref.WeakValueDictionary()
            found._pin(known)
        return found

    def _pin(self, known: dict[int, Table]) -> None:
        """Make this copy of a table independent of what it is a copy of."""
        raise NotImplementedError

    def _derive(
        self,
        identity: Hashable,
        make: Callable[..., DerivedTable],
        others: Sequence[Table] = (),
        *,
        per_row: int = 0,
    ) -> Table:
        """The operator of that identity: the existing one while somebody uses it, else a new one.

        ``others`` are its further parents, each of which learns about it as well. ``make`` gets
        all parents; what it does takes ``per_row`` row operations besides reading.
        """
        parents = (self, *others)
        for parent in parents:
            parent.check_alive()
        plan = OperatorPlan(parents=parents, description=identity, make=make, per_row=per_row)
        child = plan.existing()
        meter = self.graph.meter
        if child is None:
            if meter is not None:
                meter.admit(plan)
            child = make(*parents)
            plan.enter(child)
        if meter is not None:
            meter.keep(child)
        return child

    def prepared(self, *texts: Hashable, prepare: Callable[[], Result]) -> Result:
        """What ``prepare`` makes of texts and the schema of this table, and of nothing else. In a
        request it is made once, and beside the engine thread where the texts are long."""
        meter = self.graph.meter
        if meter is None:
            return prepare()
        key = self.serial, _meaning(texts)
        return meter.prepared(key, sum(map(_length, texts)), prepare)

    def select(self, /, *columns: str, **computed: str | Expression) -> Table:
        """The named columns, then ``new_name="expression"`` ones; a bare name renames or copies."""
        from barrage.engine.operators.select import SelectTable, parse_selection

        schema = self.schema
        selection = self.prepared(
            *("select", columns, tuple(computed.items())),
            prepare=lambda: parse_selection(schema, columns, computed),
        )
        return self._derive(
            ("select", selection.identity),
            lambda table: SelectTable(table, selection),
            per_row=work.of_selection(selection),
        )

    def drop(self, *columns: str) -> Table:
        """All columns but these."""
        from barrage.engine.operators.select import names_without

        return self.select(*names_without(self.schema, columns))

    def where(self, condition: str | Expression) -> Table:
        """The rows for which the condition is true (not false, not null)."""
        from barrage.engine.expression import bind_condition
        from barrage.engine.operators.where import WhereTable

        schema = self.schema
        bound = self.prepared(
            *("where", condition, getattr(condition, "scope", "")),
            prepare=lambda: bind_condition(condition, schema),
        )
        return self._derive(
            ("where", bound.identity),
            lambda table: WhereTable(table, bound),
            per_row=work.of_expression(bound),
        )

    def sort(self, *keys: str | tuple[str, str] | SortKey) -> Table:
        """Rows in the order of the sort keys, equal ones in the order they have here.

        A key is a column name, ``(name, "ascending" | "descending")``, ``"-name"`` or a
        ``SortKey``.
        """
        from barrage.engine.operators.sort import SortTable, parse_sort_keys

        parsed = parse_sort_keys(self.schema, keys)
        return self._derive(
            ("sort", parsed), lambda table: SortTable(table, parsed), per_row=work.of_sort(parsed)
        )

    def head(self, count: int) -> Table:
        """The first ``count`` rows."""
        from barrage.engine.operators.head import HeadTable

        check_count(count)
        return self._derive(("head", count), lambda table: HeadTable(table, count))

    def tail(self, count: int) -> Table:
        """The last ``count`` rows."""
        from barrage.engine.operators.tail import TailTable

        check_count(count)
        return self._derive(("tail", count), lambda table: TailTable(table, count))

    def last_by(self, *columns: str) -> Table:
        """The last row for each combination of values in ``columns``; these become the key
        columns."""
        from barrage.engine.operators.last_by import LastByTable, parse_key_columns

        names = parse_key_columns(self.schema, columns)
        return self._derive(
            ("last_by", names),
            lambda table: LastByTable(table, names),
            per_row=work.of_keys(len(names)),
        )

    def agg_by(self, /, *by: str, **aggregations: str) -> Table:
        """One row per combination of values in ``by``: these columns, then the aggregations.

        An aggregation is ``name="function(column)"``, such as ``total="sum(price)"`` or
        ``n="count()"``.
        """
        from barrage.engine.aggregation import parse_aggregations

        return self.aggregate(by, parse_aggregations(self.schema, by, aggregations))

    def aggregate(self, by: Sequence[str], aggregations: Sequence[Aggregation]) -> Table:
        """``agg_by`` with aggregations that are parsed already."""
        from barrage.engine.operators.agg_by import AggByTable

        names, parsed = tuple(by), tuple(aggregations)
        return self._derive(
            ("agg_by", names, parsed),
            lambda table: AggByTable(table, names, parsed),
            per_row=work.of_keys(len(names)) + work.of_aggregations(len(parsed)),
        )

    def select_distinct(self, *columns: str) -> Table:
        """Each combination of values in ``columns`` (none: all columns) once, in order of first
        appearance."""
        from barrage.engine.operators.select_distinct import SelectDistinctTable

        names = tuple(columns) or tuple(self.schema.names)
        return self._derive(
            ("select_distinct", names),
            lambda table: SelectDistinctTable(table, names),
            per_row=work.of_keys(len(names)),
        )

    def natural_join(self, right: Table, on: Sequence[str], add: Sequence[str] = ()) -> Table:
        """Every row, with columns of the one row of ``right`` that has the same key; null where
        there is none.

        ``on`` names the key columns as ``"name"`` or ``"left=right"``, ``add`` the columns wanted
        as ``"name"`` or ``"new=right"`` (none: all of ``right`` but its key columns). Two rows of
        ``right`` with one key are an error.
        """
        from barrage.engine.operators.natural_join import NaturalJoinTable, parse_join

        join = parse_join(self.schema, right.schema, on, add)
        return self._derive(
            ("natural_join", join.identity),
            lambda left, partner: NaturalJoinTable(left, partner, join),
            (right,),
            per_row=work.of_keys(len(join.left_keys)),
        )

    def merge(self, *others: Table) -> Table:
        """The rows of this table, then those of the others, which have the same columns."""
        from barrage.engine.operators.merge import MergeTable, merged_parents

        parents = merged_parents(self, others)
        if len(parents) == 1:
            return self
        return parents[0]._derive("merge", lambda *tables: MergeTable(tables), parents[1:])

    def flatten(self) -> Table:
        """The same rows under the keys 0 to size-1."""
        from barrage.engine.operators.flatten import FlattenTable

        return self if self.is_flat else self._derive("flatten", FlattenTable)

    def slice(self, start: int, stop: int) -> Table:
        """The rows at positions ``start`` to ``stop`` (exclusive).

        Negative positions count from the end, as does a ``stop`` of 0 after a negative ``start``:
        ``slice(-3, 0)`` is the last three rows.
        """
        from barrage.engine.operators.slice_rows import SliceTable, check_slice

        check_slice(start, stop)
        return self._derive(("slice", start, stop), lambda table: SliceTable(table, start, stop))

    def snapshot(self) -> Table:
        """A static table of the rows as they are now."""
        from barrage.engine.operators.snapshot_copy import snapshot_of

        return snapshot_of(self)

    def convert(
        self, schema: pa.Schema, identity: Hashable, conversions: Mapping[int, ColumnConversion]
    ) -> Table:
        """The same rows with some columns turned into other types when they are read.

        ``identity`` stands for the conversions: equal ones give one table.
        """
        from barrage.engine.operators.convert import ConvertTable

        return self._derive(
            ("convert", schema, identity),
            lambda table: ConvertTable(table, schema, conversions),
            per_row=work.of_conversions(conversions),
        )


class DerivedTable(Table):
    """An operator: a table computed from other tables of the same graph, which it keeps alive.

    ``parent`` is the first of ``parents``. Most operators have one parent and implement
    ``advance``; one with several implements ``advance_all``.
    """

    description: Hashable | None = None
    """What the operator does to its parents, equal for equal operators in every process; None for
    one that nobody else can ask for."""

    def __init__(
        self, parent: Table, schema: pa.Schema, traits: TableTraits, others: Iterable[Table] = ()
    ) -> None:
        super().__init__(parent.graph, schema, traits)
        self.parent = parent
        self.parents: tuple[Table, ...] = (parent, *others)
        if any(table.graph is not self.graph for table in self.parents):
            raise EngineError("tables of different update graphs cannot be combined")
        self.changed_step = max(table.changed_step for table in self.parents)
        self.depth = 1 + max(table.depth for table in self.parents)
        if self.depth > self.graph.limits.operators_depth_max:
            raise LimitExceededError(
                "number of operators one upon another",
                actual=self.depth,
                maximum=self.graph.limits.operators_depth_max,
                unit="operators",
            )
        self.ways = sum(table.ways for table in self.parents)
        if self.ways > self.graph.limits.operators_ways_max:
            raise LimitExceededError(
                "number of ways from the sources to a table",
                actual=self.ways,
                maximum=self.graph.limits.operators_ways_max,
                unit="ways",
            )

        self.reading = 1 + sum(table.reading for table in self.parents)

    @property
    def order_is_reproducible(self) -> bool:
        return all(parent.order_is_reproducible for parent in self.parents)

    def _pin(self, known: dict[int, Table]) -> None:
        self.parents = tuple(parent.pinned(known) for parent in self.parents)
        self.parent = self.parents[0]

    def stand_upon(self, parents: Sequence[Table]) -> None:
        """Read from other tables from now on, which have the rows, row keys and cells of the
        parents so far."""
        self.parents = tuple(parents)
        self.parent = self.parents[0]
        self.changed_step = max(table.changed_step for table in self.parents)

    def over(self, parents: Sequence[Table]) -> DerivedTable:
        """The same operator upon other parents of equal schemas, all of one graph.

        Not shared with anybody; raises what the operator raises for the rows of the parents.
        """
        if len(parents) != len(self.parents):
            raise EngineError(f"{len(self.parents)} parents are needed, {len(parents)} are given")
        made = self._like_this(tuple(parents))
        for parent in made.parents:
            parent._children["made over", made.serial] = made
        return made

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        """A new operator with the parameters of this one."""
        raise NotImplementedError

    def advance(self, update: TableUpdate) -> TableUpdate:
        """Follow the parent, which has already moved to the state after ``update``."""
        raise NotImplementedError

    def advance_all(self, updates: Sequence[TableUpdate]) -> TableUpdate:
        """Follow all parents, one update per entry of ``parents``; some of them may be empty."""
        return self.advance(updates[0])


def _meaning(text: Any) -> Hashable:
    """What tells texts and expressions apart; the tree of an expression nests too deep for that."""
    if isinstance(text, tuple):
        return tuple(map(_meaning, text))
    return (text.scope, text.text) if hasattr(text, "scope") else text


def _length(text: object) -> int:
    """Characters or bytes of a text, of an expression that has one, or of several."""
    if isinstance(text, tuple):
        return sum(map(_length, text))
    return len(text) if isinstance(text, str | bytes) else len(getattr(text, "text", ""))


def check_count(count: int) -> None:
    """EngineError unless ``count`` is a possible number of rows."""
    if count < 0:
        raise EngineError(f"a table cannot show {count} rows; ask for 0 or more")
