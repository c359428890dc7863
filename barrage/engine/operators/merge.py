"""The rows of several tables with the same columns, one table after another.

Each parent has a stretch of the key space: its rows have the parent's keys plus the start of the
stretch, and room to grow behind the last one. A parent that outgrows its stretch gets a larger one
in the same cycle, and the rows of all later parents move, one shift each. Nothing is stored but the
stretches; a cycle costs a few row set operations for each parent that changed.
"""

from __future__ import annotations

import functools
import itertools
import operator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables.table import DerivedTable, TableTraits
from barrage.errors import EngineError, LimitExceededError, SchemaError
from barrage.limits import ROW_KEY_MAX
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.rowset.arrays import Int64Array

ROOM_MIN = 1 << 16
"""Shortest stretch of keys of one parent."""


def merged_parents(table: Table, others: Sequence[Table]) -> tuple[Table, ...]:
    """The tables whose rows a merge shows. A merge of merges reads the inner ones' parents, so that
    a table grown one merge at a time stays one operator.

    Raises SchemaError when columns differ in name, type or order, LimitExceededError for too many
    tables or rows: what is merged with itself doubles each time.
    """
    limits = table.graph.limits
    parents: list[Table] = []
    for number, other in enumerate((table, *others)):
        other.check_alive()
        _check_columns(table.schema, other.schema, number)
        parents += other.parents if isinstance(other, MergeTable) else (other,)
        if len(parents) > limits.merged_tables_max:
            raise LimitExceededError(
                "merge", actual=len(parents), maximum=limits.merged_tables_max, unit="tables"
            )
    rows = sum(parent.size for parent in parents)
    if rows > limits.merged_rows_max:
        raise LimitExceededError("merge", actual=rows, maximum=limits.merged_rows_max, unit="rows")
    return tuple(parents)


def _check_columns(schema: pa.Schema, other: pa.Schema, number: int) -> None:
    if other.equals(schema):
        return
    if schema.names != other.names:
        raise SchemaError(
            f"tables to merge need the same columns: the first has {schema.names}, "
            f"number {number + 1} has {other.names}"
        )
    for field, wanted in zip(other, schema, strict=True):
        if field.type != wanted.type:
            raise SchemaError(
                f"tables to merge need the same columns: {field.name!r} is {wanted.type} in the "
                f"first, {field.type} in number {number + 1}"
            )


class MergeTable(DerivedTable):
    """Rows of ``parents`` in their order.

    Row k of parent i has the key ``_starts[i] + k``, and ``k < _rooms[i]``.
    """

    def __init__(self, parents: Sequence[Table]) -> None:
        traits = TableTraits(
            is_static=all(parent.is_static for parent in parents),
            is_blink=all(parent.is_blink for parent in parents),
        )
        super().__init__(parents[0], parents[0].schema, traits, others=parents[1:])
        self._parent_keys = [parent.row_keys for parent in self.parents]
        self._rooms = np.full(len(parents), ROOM_MIN, dtype=np.int64)
        self._starts = np.zeros(len(parents), dtype=np.int64)
        self._make_room()
        self._row_keys = self._joined(self._parent_keys)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return MergeTable(parents)

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        self._rooms = self._rooms.copy()

    def _make_room(self) -> None:
        """Widen the stretches of parents that have outgrown them."""
        for number, keys in enumerate(self._parent_keys):
            if len(keys) and keys.last >= self._rooms[number]:
                self._rooms[number] = min(keys.last, ROW_KEY_MAX // 2) * 2
        # In Python's numbers, which do not overflow.
        stops = list(itertools.accumulate(self._rooms.tolist()))
        if stops[-1] > ROW_KEY_MAX:
            raise EngineError(
                f"the keys of the {len(self._rooms)} merged tables do not fit 63 bits together; "
                "flatten them first"
            )
        self._starts = np.array([0, *stops[:-1]], dtype=np.int64)

    def _joined(self, sets: Iterable[RowSet]) -> RowSet:
        """The rows with these keys in the parents, one set per parent, under their own keys."""
        starts = self._starts.tolist()
        placed = (keys.offset(start) for keys, start in zip(sets, starts, strict=True))
        return functools.reduce(operator.or_, placed, RowSet.empty())

    def advance_all(self, updates: Sequence[TableUpdate]) -> TableUpdate:
        """Each parent's update in its stretch; shifts also say how the stretches moved."""
        before, starts = self._parent_keys, self._starts
        removed = self._joined(update.removed_keys_pre for update in updates)
        self._parent_keys = [parent.row_keys for parent in self.parents]
        self._make_room()
        self._row_keys = self._joined(self._parent_keys)
        shifts = [
            _shifts_of(update, keys - update.removed_keys_pre, start=start, move=move)
            for update, keys, start, move in zip(
                updates, before, starts.tolist(), (self._starts - starts).tolist(), strict=True
            )
            if move or not update.shifts.is_empty
        ]
        return TableUpdate(
            first_step=updates[0].first_step,
            last_step=updates[0].last_step,
            removed_keys_pre=removed,
            shifts=_concatenated(shifts),
            added_keys_post=self._joined(update.added_keys_post for update in updates),
            modified_keys_post=self._modified(updates),
        )

    def _modified(self, updates: Sequence[TableUpdate]) -> tuple[RowSet, ...]:
        """Per column the modified rows; columns modified alike share one set."""
        known: dict[tuple[int, ...], RowSet] = {}
        modified = []
        for sets in zip(*(update.modified_keys_post for update in updates), strict=True):
            alike = tuple(map(id, sets))
            if alike not in known:
                known[alike] = self._joined(sets)
            modified.append(known[alike])
        return tuple(modified)

    def _parents_at(self, keys: npt.ArrayLike) -> Int64Array:
        """Number of the parent that has each of the keys."""
        return np.searchsorted(self._starts, keys, side="right") - 1

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        if keys.is_empty:
            return self.parent.read_cells(keys, columns)
        first, last = self._parents_at((keys.first, keys.last)).tolist()
        parts = []
        for number in range(first, last + 1):
            start = int(self._starts[number])
            rows = keys.clip(start, start + int(self._rooms[number]) - 1)
            if len(rows):
                parts.append(self.parents[number].read_cells(rows.offset(-start), columns))
        return tuple(map(_joined_cells, zip(*parts, strict=True)))

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        which = self._parents_at(keys)
        order = np.argsort(which, kind="stable")
        numbers, firsts = np.unique(which[order], return_index=True)
        if len(numbers) < 2:
            number = int(numbers[0]) if len(numbers) else 0
            return self.parents[number].take_cells(keys - self._starts[number], columns)
        parts = [
            self.parents[number].take_cells(keys[rows] - self._starts[number], columns)
            for number, rows in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True)
        ]
        places = np.empty(len(keys), dtype=np.int64)
        places[order] = np.arange(len(keys))
        picks = pa.array(places)
        return tuple(pa.concat_arrays(cells).take(picks) for cells in zip(*parts, strict=True))


def _shifts_of(update: TableUpdate, kept: RowSet, *, start: int, move: int) -> RowSetShiftData:
    """How the rows of one parent move: ``kept`` (its keys before the update) by the parent's own
    shifts and, with the stretch that began at ``start``, by ``move``."""
    if kept.is_empty:
        return RowSetShiftData.empty()
    own = update.shifts.restrict(kept)
    shifts = RowSetShiftData.from_arrays(own.firsts + start, own.lasts + start, own.deltas)
    if move:
        after = own.apply(kept)
        stretch = RowSetShiftData.from_shifts([(after.first + start, after.last + start, move)])
        shifts = shifts.then(stretch)
    return shifts.restrict(kept.offset(start))


def _concatenated(shifts: Sequence[RowSetShiftData]) -> RowSetShiftData:
    """The shifts of several stretches, in the order of the stretches."""
    if not shifts:
        return RowSetShiftData.empty()
    return RowSetShiftData.from_arrays(
        np.concatenate([part.firsts for part in shifts]),
        np.concatenate([part.lasts for part in shifts]),
        np.concatenate([part.deltas for part in shifts]),
    )


def _joined_cells(parts: Sequence[Cells]) -> Cells:
    """The cells of one column in several parents, one after another."""
    if len(parts) == 1:
        return parts[0]
    chunks = [
        chunk
        for part in parts
        for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else (part,))
    ]
    # Parents have dictionaries of their own; readers expect one.
    if pa.types.is_dictionary(chunks[0].type):
        return pa.concat_arrays(chunks)
    return pa.chunked_array(chunks)


def merge(table: Table, *others: Table) -> Table:
    """The rows of this table, then those of the others, which have the same columns."""
    parents = merged_parents(table, others)
    if len(parents) == 1:
        return table
    return derived(parents, "merge", lambda *tables: MergeTable(tables))
