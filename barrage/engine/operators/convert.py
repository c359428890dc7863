"""Columns shown in other types: same rows, same keys, cells turned when they are read.

Nothing is stored. A conversion that can fail for some values is tried on the rows that changed, in
the cycle in which they change, so that a value without a form in the new type fails this table then
and never a later read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.cells import EVALUATED_ROWS
from barrage.engine.tables.table import DerivedTable
from barrage.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnConversion:
    """How one column is turned. ``apply`` raises ``pyarrow.ArrowInvalid`` for a value it cannot
    turn, which it never does when ``may_fail`` is false."""

    apply: Callable[[pa.Array], pa.Array]
    may_fail: bool = False


class ConvertTable(DerivedTable):
    """The parent's rows with some columns converted. ``schema`` names the types that result."""

    def __init__(
        self, parent: Table, schema: pa.Schema, conversions: Mapping[int, ColumnConversion]
    ) -> None:
        super().__init__(parent, schema, parent.traits)
        self._conversions = dict(conversions)
        self.reading += work.of_conversions(_trials(conversions)).per_row
        self._checked = tuple(index for index, entry in conversions.items() if entry.may_fail)
        self._row_keys = parent.row_keys
        self._check_values(parent.row_keys, self._checked)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return ConvertTable(parents[0], self.schema, self._conversions)

    def advance(self, update: TableUpdate) -> TableUpdate:
        self._row_keys = self.parent.row_keys
        for index in self._checked:
            changed = update.added_keys_post | update.modified_keys_post[index]
            self._check_values(changed, (index,))
        return update

    def _check_values(self, keys: RowSet, columns: Sequence[int]) -> None:
        """Convert and drop the result; RowError for a value that has no form in the new type."""
        if not columns:
            return
        for start in range(0, len(keys), EVALUATED_ROWS):
            self.read_cells(keys.slice(start, start + EVALUATED_ROWS), columns)

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        cells = self.parent.read_cells(keys, columns)
        return tuple(map(self._converted, columns, cells))

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        cells = self.parent.take_cells(keys, columns)
        return tuple(
            self._convert_array(index, array) for index, array in zip(columns, cells, strict=True)
        )

    def _converted(self, index: int, cells: Cells) -> Cells:
        if index not in self._conversions:
            return cells
        if isinstance(cells, pa.ChunkedArray):
            chunks = [self._convert_array(index, chunk) for chunk in cells.chunks]
            return pa.chunked_array(chunks, type=self.schema.field(index).type)
        return self._convert_array(index, cells)

    def _convert_array(self, index: int, array: pa.Array) -> pa.Array:
        conversion = self._conversions.get(index)
        if conversion is None:
            return array
        try:
            return conversion.apply(array)
        except pa.ArrowInvalid as error:
            name = self.schema.names[index]
            raise RowError(
                f"a value does not fit {self.schema.field(index).type}: {error}", column=name
            ) from error


def _trials(conversions: Mapping[int, ColumnConversion]) -> int:
    """How many columns are tried."""
    return sum(entry.may_fail for entry in conversions.values())


def convert(
    table: Table,
    schema: pa.Schema,
    identity: Hashable,
    *,
    conversions: Mapping[int, ColumnConversion],
) -> Table:
    """The same rows with some columns turned into other types when they are read.

    ``identity`` stands for the conversions: equal ones give one table.
    """
    return derived(
        (table,),
        ("convert", schema, identity),
        lambda parent: ConvertTable(parent, schema, conversions),
        price=work.of_conversions(_trials(conversions)),
    )
