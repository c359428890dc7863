"""Tables: the read interface every source and operator offers. Tables are derived from tables by
the functions of :mod:`barrage.engine.operators.derive`.

A table never hands out its mutable state: ``row_keys`` is an immutable set and what ``read``
returns never changes. Reading is only consistent between cycles, which is the engine thread's
business.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa

from barrage.engine.tables.work import FREE
from barrage.errors import (
    BarrageError,
    CycleTooLongError,
    EngineError,
    LimitExceededError,
    TableFailedError,
)
from barrage.model.update import TableUpdate
from barrage.model.viewport import ColumnSet, effective_columns
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.work import Estimate, Price
    from barrage.limits import Limits
    from barrage.rowset.arrays import Int64Array

Result = TypeVar("Result")

GRAPH_TIMELINE = 0
"""The timeline of the graph's own steps; no serial."""


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


class Meter(Protocol):
    """The account of a request, which admits operators before they are made."""

    def admit(self, key: Hashable, estimate: Estimate) -> bool:
        """Whether the operator of that key may be made here and now; False when it is to be made
        beside the engine thread. Raises why it may not be made."""

    def keep(self, key: Hashable, table: DerivedTable) -> None:
        """Let the operator of that key live as long as the request."""

    def prepared(self, key: Hashable, byte_count: int, prepare: Callable[[], Result]) -> Result:
        """What ``prepare`` makes of texts of so many bytes, made once in a request."""


class Graph(Protocol):
    """What a table needs of the update graph it belongs to
    (:class:`~barrage.engine.tables.graph.UpdateGraph`, which runs the tables)."""

    @property
    def limits(self) -> Limits:
        """The limits of all its tables."""

    @property
    def step(self) -> int:
        """Number of the last cycle."""

    @property
    def meter(self) -> Meter | None:
        """Admits operators before they are made; None admits all."""

    def new_serial(self) -> int:
        """A number that tells one table of this graph from all others, dead ones included."""

    def add_source(self, source: LeafTable) -> None:
        """Have a table committed in every cycle, as long as somebody uses it."""

    def weigh(self, sources: Iterable[LeafTable]) -> None:
        """An operator was made below these: have worked out anew, soon, what hangs there costs."""

    def spend(self, table: DerivedTable, work: int) -> None:
        """So much is about to be done for an operator in a cycle; CycleTooLongError."""


class Table:
    """A ticking table. Subclasses provide the cells and keep ``_row_keys`` up to date."""

    depth = 0
    """Longest way from a source, in operators."""

    ways = 1
    """Number of ways from sources; a read of all columns may go all of them."""

    reading = 1
    """Row operations (:mod:`barrage.engine.tables.work`) of reading one row."""

    timeline = GRAPH_TIMELINE
    """Whose steps its updates bear: the graph's, or those of the source with this serial, which
    another server numbers. Steps of different timelines cannot be compared."""

    def __init__(self, graph: Graph, schema: pa.Schema, traits: TableTraits) -> None:
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
    def present_step(self) -> int:
        """The newest step of its timeline: of which the present rows are."""
        return self.graph.step if self.timeline == GRAPH_TIMELINE else self.changed_step

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

    def fail(self, error: BarrageError) -> BarrageError:
        """Mark the table as failed for good; returns what to tell of it. Only who runs the table
        calls this."""
        self._failure = self.told_failure(error)
        return self._failure

    def told_failure(self, error: BarrageError) -> BarrageError:
        """What readers are told of an error, and operators upon this table."""
        return error

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
        """Raise TableFailedError when the table has failed: CycleTooLongError when it was ended."""
        if isinstance(self._failure, CycleTooLongError):
            raise self._failure.anew()
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

    def child(self, identity: Hashable) -> DerivedTable | None:
        """The operator this table knows under ``identity``, if somebody uses it."""
        return self._children.get(identity)

    def know(self, identity: Hashable, child: DerivedTable) -> None:
        """Have an operator fed by this table, as long as somebody uses it."""
        self._children[identity] = child

    def live_children(self) -> list[DerivedTable]:
        """Operators fed by this table, oldest first."""
        return list(self._children.values())

    def pinned(self, known: dict[int, Table] | None = None) -> Table:
        """The table as it is now, for reading only, on any thread: later cycles do not change it.

        Cells are shared; what later cycles overwrite is saved for it as long as it is held.
        ``known`` holds what is pinned already, so that what several tables read is one.
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


class LeafTable(Table):
    """A table that is computed from no other one: a cycle begins by committing it."""

    weight_below = 1
    """For how many rows of a large write one counts because of the operators that hang below.
    Written on the engine thread, read on any."""

    weighed_step = 0
    """Step of the last cycle before that was worked out."""

    @property
    def has_pending(self) -> bool:
        """Whether the next cycle changes this table."""
        return False

    def commit(self, step: int) -> TableUpdate:
        """Move to the state the table shows from cycle ``step`` on. Only the update graph calls
        this."""
        return TableUpdate.nothing(step=step, column_count=len(self.schema))


class DerivedTable(Table):
    """An operator: a table computed from other tables of the same graph, which it keeps alive.

    ``parent`` is the first of ``parents``. Most operators have one parent and implement
    ``advance``; one with several implements ``advance_all``.
    """

    description: Hashable | None = None
    """What the operator does to its parents, equal for equal operators in every process; None for
    one that nobody else can ask for."""

    price: Price = FREE
    """What it costs in a cycle."""

    admitted_work: int | None = None
    """Row operations of a cycle that were admitted when a client made it; None for one that may
    cost what it will."""

    _never_ends = False
    is_summary = False
    """Whether of many rows that change few rows change here: those of groups, or the first."""

    def __init__(
        self, parent: Table, schema: pa.Schema, traits: TableTraits, *, others: Iterable[Table] = ()
    ) -> None:
        super().__init__(parent.graph, schema, traits)
        self.parent = parent
        self.parents: tuple[Table, ...] = (parent, *others)
        if any(table.graph is not self.graph for table in self.parents):
            raise EngineError("tables of different update graphs cannot be combined")
        self._take_time()
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
        self._take_time()

    def _take_time(self) -> None:
        """Bear the steps of the parents where all that change bear the same, else the graph's."""
        ticking = [table for table in self.parents if not table.is_static] or self.parents
        timelines = {table.timeline for table in ticking}
        if len(timelines) == 1:
            self.timeline = timelines.pop()
            self.changed_step = max(table.changed_step for table in ticking)
        else:
            self.timeline = GRAPH_TIMELINE
            self.changed_step = self.graph.step

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

    def admit(self, work: int) -> None:
        """A client makes the operator, and in a cycle it may cost so many row operations, unless it
        never ends."""
        if not self._never_ends:
            self.admitted_work = work

    def never_end(self) -> None:
        """The program that runs the server wants the operator: it may cost what it will, whatever
        client has made it, or asks for it as well. It is not taken back."""
        self._never_ends = True
        self.admitted_work = None

    def spend(self, work: int) -> None:
        """An operator says so before it does what its price does not tell: so many row operations
        more. CycleTooLongError when a client has made it, and others would wait too long."""
        if self.admitted_work is not None:
            self.graph.spend(self, work)

    def advance(self, update: TableUpdate) -> TableUpdate:
        """Follow the parent, which has already moved to the state after ``update``."""
        raise NotImplementedError

    def advance_all(self, updates: Sequence[TableUpdate]) -> TableUpdate:
        """Follow all parents, one update per entry of ``parents``; some of them may be empty."""
        return self.advance(updates[0])
