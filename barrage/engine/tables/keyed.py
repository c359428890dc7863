"""A table with a unique key: upserts, removals by key, replacement of the whole content.

Row key == slot; new rows get the slots behind the last live row's, in ascending order. A row keeps
its key while it exists. When more than half of the slots are free, this cycle and those after it
move rows to the front with shifts (:mod:`.packing`).
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.tables.coercion import coerce_rows
from barrage.engine.tables.moved_rows import each_once, union_of
from barrage.engine.tables.packing import PackingPass
from barrage.engine.tables.slots import cells_at, rows_at
from barrage.engine.tables.source import Rows, StagedTable, check_keys
from barrage.engine.tables.table import TableTraits
from barrage.errors import RowError, SchemaError, near_miss
from barrage.model.storage import cells_differ
from barrage.model.storage.hashing import UInt64Array, hash_rows, is_hashable
from barrage.model.storage.key_index import KeyIndex, first_duplicate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.packing import PackedRows
    from barrage.engine.tables.recording import RecordedCells
    from barrage.engine.tables.table import Graph
    from barrage.model.storage.hashing import Int64Array
    from barrage.model.update import TableUpdate

FREE_SLOTS_MIN = 4096
"""Below this many free slots the rows of a table are never packed."""

PACKED_CELLS = 1 << 17
"""Cells that one cycle packs, at least: those of a quarter more rows than it adds and half of those
that it removes, where that is more, so that packing comes to an end."""

MOVED_TOGETHER = 1 << 14
"""Rows that are packed are taken and written so many at a time, so that no 32-bit offset of Arrow's
overflows."""

SLOTS_PER_ROW_MAX = 32
"""A table that has more slots for each row, besides :data:`FREE_SLOTS_MIN`, is packed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """One staged batch. ``rows`` is None for removals; ``keys`` are its key columns."""

    keys: tuple[pa.Array, ...]
    hashes: UInt64Array
    rows: pa.Table | None
    is_replacement: bool = False


def distinct_keys(
    rows: pa.Table, key_columns: Sequence[str]
) -> tuple[tuple[pa.Array, ...], UInt64Array]:
    """The key of each row, and its hash. RowError for one with a null and one that occurs twice."""
    keys = _single_chunks(rows.select(list(key_columns)))
    _refuse_null_keys(key_columns, keys)
    hashes = hash_rows(keys)
    duplicate = first_duplicate(keys, hashes)
    if duplicate is not None:
        shown = ", ".join(repr(column[duplicate].as_py()) for column in keys)
        raise RowError(
            f"key {shown} occurs twice in the batch", column=", ".join(key_columns), row=duplicate
        )
    return keys, hashes


def check_keys_of(rows: pa.Table, key_columns: Sequence[str], *, is_each_once: bool) -> None:
    """RowError for rows that a keyed table would refuse for their keys, ``is_each_once`` or not."""
    if is_each_once:
        distinct_keys(rows, key_columns)
    else:
        _refuse_null_keys(key_columns, _single_chunks(rows.select(list(key_columns))))


class KeyedTable(StagedTable[_Write]):
    """At most one row per combination of values in the key columns, none of them null."""

    kind = "keyed"

    def __init__(self, graph: Graph, schema: pa.Schema, *, key: Sequence[str] | str) -> None:
        names = (key,) if isinstance(key, str) else tuple(key)
        super().__init__(graph, schema, TableTraits(key_columns=names))
        self._key_indices = check_key_columns(self.schema, names)
        self._key_schema = pa.schema([self.schema.field(i) for i in self._key_indices])
        self._index = KeyIndex(lambda: [self.storage.columns[i] for i in self._key_indices])
        self._slots_used = 0
        self._packing: PackingPass | None = None

    def stage_add(self, rows: Rows) -> None:
        """The same as an upsert: a keyed table has no other way to take rows."""
        self.stage_upsert(rows)

    def stage_upsert(self, rows: Rows) -> None:
        write = self._write_of(rows)
        if len(write.hashes):
            self._staged.append(write)

    def stage_replace(self, rows: Rows) -> None:
        write = self._write_of(rows)
        self._staged.append(
            _Write(keys=write.keys, hashes=write.hashes, rows=write.rows, is_replacement=True)
        )

    def stage_remove(self, keys: Rows) -> None:
        self.check_alive()
        given = set(keys.schema.names)
        chosen = keys.select([name for name in self.key_columns if name in given])
        table = coerce_rows(self._key_schema, chosen)
        columns = _single_chunks(table)
        _refuse_null_keys(self.key_columns, columns)
        if len(table):
            self._staged.append(_Write(keys=columns, hashes=hash_rows(columns), rows=None))

    def _write_of(self, rows: Rows) -> _Write:
        table = self._coerced(rows)
        keys, hashes = distinct_keys(table, self.key_columns)
        return _Write(keys=keys, hashes=hashes, rows=table)

    def touched_keys(self, mark: int = 0) -> RowSet:
        staged = self._staged_after(mark)
        if any(write.is_replacement for write in staged):
            return self.row_keys
        found = [self._index.lookup(write.keys, write.hashes) for write in staged]
        slots = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        return RowSet.from_keys(slots[slots >= 0])

    def latest_row(self, key: pa.Table) -> pa.Table | None:
        """The row with a key (one row with the key columns) as the next cycle will have it, what is
        staged counted in; None when there is none. SchemaError, RowError."""
        self.check_alive()
        columns = _single_chunks(coerce_rows(self._key_schema, key))
        _refuse_null_keys(self.key_columns, columns)
        for write in reversed(self._staged):
            found = _place_of(columns, write.keys)
            if found is not None:
                return None if write.rows is None else write.rows.slice(found, 1)
            if write.is_replacement:
                return None
        slot = self._index.lookup(columns, hash_rows(columns))
        if slot[0] < 0:
            return None
        cells = self.storage.take(slot, range(len(self.schema)))
        return pa.table(list(cells), schema=self.schema)

    def restore(self, keys: RowSet, rows: pa.Table) -> None:
        used = keys.last + 1 if len(keys) else 0
        slots_max = SLOTS_PER_ROW_MAX * len(keys) + FREE_SLOTS_MIN
        check_keys(self.kind, keys, rows, is_possible=used <= slots_max)
        self.storage.append(self._coerced(rows))
        if used > len(keys):
            self.storage.spread(keys.to_numpy(), used)
        self._row_keys = keys
        self._slots_used = used
        self._index.rebuild(keys.to_numpy())

    def commit(self, step: int) -> TableUpdate:
        changes = _Changes(len(self.schema), self._slots_used)
        for write in self._take_staged():
            if write.rows is None:
                self._remove(write, changes)
            else:
                if write.is_replacement:
                    self._remove_others(write, changes)
                self._upsert(write, write.rows, changes)
        before = self._row_keys
        removed_slots = changes.removed_set()
        new_slots = RowSet.of_span(changes.first_new, self._slots_used) - removed_slots
        removed = removed_slots & before
        self._row_keys = (before - removed) | new_slots
        kept = before - removed
        modified = each_once(changes.modified_sets(), lambda keys: keys & kept)
        recorded = self._recorded(removed, modified, new_slots)
        shifts = RowSetShiftData.empty()
        self._drop_free_tail()
        packed = self._pack(len(new_slots), len(removed))
        self.storage.tidy(PACKED_CELLS)
        if packed is not None:
            shifts = packed.shifts_of(kept)
            new_slots = packed.applied_to(new_slots)
            modified = each_once(modified, packed.applied_to)
        update = self._update(
            step, removed=removed, shifts=shifts, added=new_slots, modified=modified
        )
        if recorded is not None:
            self._record(update, recorded)
        return update

    def _recorded(
        self, removed: RowSet, modified: tuple[RowSet, ...], added: RowSet
    ) -> RecordedCells | None:
        """The cells of the cycle by slot, which are row keys as long as nothing is renumbered."""
        if self._recorder is None:
            return None
        return self._recorder.cells(
            self.storage,
            removed=removed.to_numpy(),
            modified=union_of(modified).to_numpy(),
            added=added.to_numpy(),
        )

    def _drop_free_tail(self) -> None:
        """Let new rows have the keys behind the last live row.

        So the keys of later rows follow from the present ones, and a table restored from its rows
        and their keys goes on as this one would, unless this one is being packed.
        """
        used = self._row_keys.last + 1 if self.size else 0
        if used < self._slots_used:
            self.storage.truncate(used)
            self._slots_used = used

    def _remove(self, write: _Write, changes: _Changes) -> None:
        slots = self._index.lookup(write.keys, write.hashes)
        present = np.flatnonzero(slots >= 0)
        # A batch of removals may name a key twice.
        slots, first = np.unique(slots[present], return_index=True)
        self._index.remove(write.hashes[present[first]], slots)
        changes.removed.append(slots)

    def _remove_others(self, write: _Write, changes: _Changes) -> None:
        """Remove every live row whose key does not occur in ``write``."""
        live = (
            self._row_keys | RowSet.of_span(changes.first_new, self._slots_used)
        ) - changes.removed_set()
        named = self._index.lookup(write.keys, write.hashes)
        kept = RowSet.from_keys(named[named >= 0])
        doomed = (live - kept).to_numpy()
        if len(doomed) > len(kept):
            # The few that stay are entered anew, which costs what the batch has.
            self._index.rebuild(kept.to_numpy())
        else:
            hashes = hash_rows([self.storage.columns[i].take(doomed) for i in self._key_indices])
            self._index.remove(hashes, doomed)
        changes.removed.append(doomed)

    def _upsert(self, write: _Write, rows: pa.Table, changes: _Changes) -> None:
        slots = self._index.lookup(write.keys, write.hashes)
        present = np.flatnonzero(slots >= 0)
        if len(present):
            existing = rows if len(present) == len(slots) else rows_at(rows, present)
            self._overwrite(slots[present], existing, changes)
        if len(present) < len(slots):
            absent = np.flatnonzero(slots < 0)
            fresh = rows if len(present) == 0 else rows_at(rows, absent)
            stop = self._slots_used + len(absent)
            self.storage.append(fresh)
            self._index.add(write.hashes[absent], np.arange(self._slots_used, stop, dtype=np.int64))
            self._slots_used = stop

    def _overwrite(self, slots: Int64Array, rows: pa.Table, changes: _Changes) -> None:
        """Write the cells that differ, column by column; key cells cannot."""
        order = np.argsort(slots)
        ascending = slots[order]
        everything = RowSet.from_sorted_keys(ascending)
        for index, store in enumerate(self.storage.columns):
            if index in self._key_indices:
                continue
            values = rows.column(index).combine_chunks()
            was = store.take(slots)
            differ = cells_differ(was, values)
            changed = np.flatnonzero(differ)
            if self._recorder is not None and len(changed):
                # In ascending order, because in that order they are asked for.
                picks = order if len(changed) == len(slots) else order[differ[order]]
                self._recorder.overwritten(index, slots[picks], cells_at(was, picks))
            if len(changed) == len(slots):
                # Columns that changed in every row share one set, which spares much work later.
                store.write(slots, values)
                changes.modified[index].append(everything)
            elif len(changed):
                store.write(slots[changed], cells_at(values, changed))
                touched = RowSet.from_sorted_keys(ascending[differ[order]])
                changes.modified[index].append(touched)

    def _pack(self, added_count: int, removed_count: int) -> PackedRows | None:
        """Move some rows to the front if that is due, in a cycle that adds and removes so many;
        which ones, if any."""
        pace = added_count + added_count // 4 + removed_count // 2
        count = max(PACKED_CELLS // len(self.schema), pace, 1)
        slots = self._slots_used - FREE_SLOTS_MIN
        if slots > SLOTS_PER_ROW_MAX * self.size:
            self._packing, count = None, self.size
        if self._packing is None:
            if slots <= 2 * self.size:
                return None
            self._packing = PackingPass(self._row_keys)
        packed = self._packing.step(self._row_keys, count)
        if packed is not None:
            self._move(packed)
        if self._packing.is_over(self._row_keys):
            self._packing = None
            self._drop_free_tail()
            self._index.give_up_spare()
        return packed

    def _move(self, packed: PackedRows) -> None:
        # What is written stands before all that is still to be taken.
        for start in range(0, len(packed.was), MOVED_TOGETHER):
            piece = slice(start, start + MOVED_TOGETHER)
            was, now = packed.was.to_numpy()[piece], packed.now[piece]
            cells = self.storage.take(was, range(len(self.schema)))
            self.storage.write(now, cells)
            self._index.moved(hash_rows([cells[i] for i in self._key_indices]), was, now)
        self._row_keys = packed.applied_to(self._row_keys)


class _Changes:
    """What the batches of one cycle did, in slots."""

    def __init__(self, column_count: int, first_new: int) -> None:
        self.first_new = first_new
        """Slots from here on were handed out in this cycle."""
        self.removed: list[Int64Array] = []
        self.modified: list[list[RowSet]] = [[] for _ in range(column_count)]

    def removed_set(self) -> RowSet:
        if not self.removed:
            return RowSet.empty()
        return RowSet.from_keys(np.concatenate(self.removed))

    def modified_sets(self) -> list[RowSet]:
        empty = RowSet.empty()
        return [functools.reduce(operator.or_, parts, empty) for parts in self.modified]


def check_key_columns(schema: pa.Schema, names: Sequence[str]) -> tuple[int, ...]:
    """The indices of key columns; SchemaError when one is unknown, repeated or of an unsuitable
    type."""
    if not names:
        raise SchemaError("at least one key column is needed")
    indices = []
    for name in names:
        index = schema.get_field_index(name)
        if index < 0:
            raise SchemaError(f"key column {name!r} does not exist{near_miss(name, schema.names)}")
        if index in indices:
            raise SchemaError(f"key column {name!r} is named twice")
        if not is_hashable(schema.field(index).type):
            raise SchemaError(f"column {name!r} of type {schema.field(index).type} cannot be a key")
        indices.append(index)
    return tuple(indices)


def _place_of(key: Sequence[pa.Array], among: Sequence[pa.Array]) -> int | None:
    """Where a key stands among others; None when it does not."""
    places = np.arange(len(among[0]))
    for cell, column in zip(key, among, strict=True):
        alike = cell.take(pa.array(np.zeros(len(places), np.int64)))
        places = places[~cells_differ(column.take(pa.array(places)), alike)]
    return int(places[0]) if len(places) else None


def _single_chunks(table: pa.Table) -> tuple[pa.Array, ...]:
    return tuple(column.combine_chunks() for column in table.columns)


def _refuse_null_keys(names: Sequence[str], columns: Sequence[pa.Array]) -> None:
    for name, column in zip(names, columns, strict=True):
        if column.null_count:
            row = int(pc.index(column.is_null(), True).as_py())
            raise RowError("a key must not be null", column=name, row=row)
