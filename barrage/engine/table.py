"""Tables: the read interface every source and operator offers, and the operators as methods.

A table never hands out its mutable state: ``row_keys`` is an immutable set and what ``read``
returns never changes. Reading is only consistent between cycles, which is the engine thread's
business.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from barrage.errors import BarrageError, EngineError, TableFailedError
from barrage.model.viewport import ColumnSet, effective_columns
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import numpy as np
    import numpy.typing as npt

    from barrage.engine.expression import Expression
    from barrage.engine.graph import UpdateGraph
    from barrage.engine.operators.sort import SortKey
    from barrage.model.update import TableUpdate

    Int64Array = npt.NDArray[np.int64]

Cells: TypeAlias = pa.Array | pa.ChunkedArray
"""The values of one column for some rows."""


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

    def __init__(self, graph: UpdateGraph, schema: pa.Schema, traits: TableTraits) -> None:
        self.graph = graph
        self.schema: pa.Schema = schema
        self.traits = traits
        self._row_keys = RowSet.empty()
        self._failure: BarrageError | None = None
        self._children: weakref.WeakValueDictionary[Hashable, DerivedTable] = (
            weakref.WeakValueDictionary()
        )

    @property
    def row_keys(self) -> RowSet:
        """Keys of all rows, in row order."""
        return self._row_keys

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self._row_keys)

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

    def live_children(self) -> list[DerivedTable]:
        """Operators fed by this table, oldest first."""
        return list(self._children.values())

    def _derive(self, identity: Hashable, make: Callable[[], DerivedTable]) -> Table:
        """The operator of that identity: the existing one while somebody uses it, else a new
        one."""
        self.check_alive()
        child = self._children.get(identity)
        if child is None or child.failure is not None:
            child = make()
            self._children[identity] = child
        return child

    def select(self, *columns: str, **computed: str) -> Table:
        """The named columns, then ``new_name="expression"`` ones; a bare name renames or copies."""
        from barrage.engine.operators.select import SelectTable, parse_selection

        selection = parse_selection(self.schema, columns, computed)
        return self._derive(("select", selection.identity), lambda: SelectTable(self, selection))

    def drop(self, *columns: str) -> Table:
        """All columns but these."""
        from barrage.engine.operators.select import names_without

        return self.select(*names_without(self.schema, columns))

    def where(self, condition: str | Expression) -> Table:
        """The rows for which the condition is true (not false, not null)."""
        from barrage.engine.expression import bind_condition
        from barrage.engine.operators.where import WhereTable

        bound = bind_condition(condition, self.schema)
        return self._derive(("where", bound.text), lambda: WhereTable(self, bound))

    def sort(self, *keys: str | tuple[str, str] | SortKey) -> Table:
        """Rows in the order of the sort keys, equal ones in the order they have here.

        A key is a column name, ``(name, "ascending" | "descending")``, ``"-name"`` or a
        ``SortKey``.
        """
        from barrage.engine.operators.sort import SortTable, parse_sort_keys

        parsed = parse_sort_keys(self.schema, keys)
        return self._derive(("sort", parsed), lambda: SortTable(self, parsed))

    def head(self, count: int) -> Table:
        """The first ``count`` rows."""
        from barrage.engine.operators.head import HeadTable

        check_count(count)
        return self._derive(("head", count), lambda: HeadTable(self, count))

    def tail(self, count: int) -> Table:
        """The last ``count`` rows."""
        from barrage.engine.operators.tail import TailTable

        check_count(count)
        return self._derive(("tail", count), lambda: TailTable(self, count))

    def last_by(self, *columns: str) -> Table:
        """The last row for each combination of values in ``columns``; these become the key
        columns."""
        from barrage.engine.operators.last_by import LastByTable, parse_key_columns

        names = parse_key_columns(self.schema, columns)
        return self._derive(("last_by", names), lambda: LastByTable(self, names))


class DerivedTable(Table):
    """An operator: a table computed from one parent, which it keeps alive."""

    def __init__(self, parent: Table, schema: pa.Schema, traits: TableTraits) -> None:
        super().__init__(parent.graph, schema, traits)
        self.parent = parent

    def advance(self, update: TableUpdate) -> TableUpdate:
        """Follow the parent, which has already moved to the state after ``update``."""
        raise NotImplementedError


def check_count(count: int) -> None:
    """EngineError unless ``count`` is a possible number of rows."""
    if count < 0:
        raise EngineError(f"a table cannot show {count} rows; ask for 0 or more")
