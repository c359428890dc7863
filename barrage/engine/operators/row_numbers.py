"""The rows of a table with their positions as further columns.

Only for tables whose rows never change place: static ones and those that only grow. There the row
key of a flat table is the position, so nothing is stored and nothing but added rows is ever told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.operators.flatten import flatten
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables.table import DerivedTable
from barrage.errors import SchemaError
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.rowset.arrays import Int64Array


def has_fixed_positions(table: Table) -> bool:
    """Whether a row of ``table`` keeps its position as long as the table lives."""
    return table.is_static or table.is_append_only


def numbered(table: Table, columns: Mapping[str, pa.DataType]) -> Table:
    """``table`` with its row positions, from 0, in new columns of whole-number types at the end.

    SchemaError when rows may change place or a name is taken.
    """
    if not has_fixed_positions(table):
        raise SchemaError("rows can only be numbered in a table that is static or only grows")
    for name in columns:
        if name in table.schema.names:
            raise SchemaError(f"the table has a column {name!r} already")
    identity = ("row_numbers", tuple(columns.items()))
    return derived((flatten(table),), identity, lambda parent: RowNumbersTable(parent, columns))


class RowNumbersTable(DerivedTable):
    """A flat parent's columns, then its row positions."""

    def __init__(self, parent: Table, columns: Mapping[str, pa.DataType]) -> None:
        schema = parent.schema
        for name, data_type in columns.items():
            schema = schema.append(pa.field(name, data_type))
        super().__init__(parent, schema, parent.traits)
        self._columns = dict(columns)
        self._types = list(columns.values())
        self._row_keys = parent.row_keys

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return RowNumbersTable(parents[0], self._columns)

    def advance(self, update: TableUpdate) -> TableUpdate:
        self._row_keys = self.parent.row_keys
        empty = RowSet.empty()
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=update.removed_keys_pre,
            shifts=update.shifts,
            added_keys_post=update.added_keys_post,
            modified_keys_post=(*update.modified_keys_post, *(empty for _ in self._types)),
        )

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self._joined(
            columns, keys.to_numpy, lambda wanted: self.parent.read_cells(keys, wanted)
        )

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self._joined(
            columns, lambda: keys, lambda wanted: self.parent.take_cells(keys, wanted)
        )

    def _joined(
        self,
        columns: Sequence[int],
        positions: Callable[[], Int64Array],
        read: Callable[[Sequence[int]], tuple[pa.Array, ...]],
    ) -> tuple[pa.Array, ...]:
        count = len(self.parent.schema)
        cells = dict(
            zip(
                [index for index in columns if index < count],
                read([index for index in columns if index < count]),
                strict=True,
            )
        )
        for index in columns:
            if index >= count:
                cells[index] = pa.array(positions()).cast(self._types[index - count])
        return tuple(cells[index] for index in columns)
