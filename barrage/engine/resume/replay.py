"""Tables of the past: a source as it was at some version, and the cycles it went through since.

A :class:`ReplayTable` stands in for a source in an update graph of its own. It has any row keys,
takes recorded changes instead of writes, and tells the same updates as the original did, so every
operator can be put upon it (:meth:`~barrage.engine.tables.table.DerivedTable.over`).

Cells stand in slots, one behind the other as they came; ``_slots`` says where each row's are, in
key order. Applying a change costs O(rows of the table) in numpy, and next to nothing when it only
adds rows at the end. Several changes in one cycle cost that once: first they are made one, of the
rows they touch (:class:`_Net`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from barrage.engine.tables.coercion import cast_values, coerce_rows
from barrage.engine.tables.moved_rows import union_of
from barrage.engine.tables.source import (
    SourceTable,
    StagedTable,
    operators_of,
    sources_of,
)
from barrage.errors import EngineError
from barrage.model.coalesce import coalesce

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Graph, Table, TableTraits
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array

FREE_SLOTS_MIN = 4096


class SourceState(Protocol):
    """The rows of a source at some version. The journal's table states are such."""

    @property
    def keys(self) -> RowSet:
        """Row keys."""

    @property
    def rows(self) -> pa.Table:
        """Rows in key order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEntry:
    """One recorded cycle of a source, as far as it leads forward: the cells of ``added_keys_post``
    and, in every column, of all modified rows, in key order."""

    update: TableUpdate
    added: Sequence[Cells]
    after: Sequence[Cells]
    wall_ns: int = 0
    """When the cycle was committed."""


class SourceForm(Protocol):
    """What a source is, besides its rows. Sources are such."""

    @property
    def schema(self) -> pa.Schema:
        """Columns."""

    @property
    def traits(self) -> TableTraits:
        """What a reader may rely on."""

    @property
    def kind(self) -> str:
        """Which kind of source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Net:
    """What consecutive entries come to: their updates as one, and where the cells stand that rows
    have afterwards."""

    update: TableUpdate
    keys: RowSet
    """Rows that were added or modified."""
    slots: Int64Array
    """Where the cells of each of them are."""

    def then(self, later: _Net) -> _Net:
        """Both, one after the other."""
        kept = self.keys - later.update.removed_keys_pre
        slots = self.slots[self.keys.positions_of(kept).to_numpy()]
        moved = later.update.shifts.apply(kept)
        earlier = moved - later.keys
        slots = slots[moved.positions_of(earlier).to_numpy()]
        keys = earlier | later.keys
        every = np.empty(len(keys), dtype=np.int64)
        every[keys.positions_of(earlier).to_numpy()] = slots
        every[keys.positions_of(later.keys).to_numpy()] = later.slots
        return _Net(update=coalesce(self.update, later.update), keys=keys, slots=every)


class ReplayTable(StagedTable[RecordedEntry]):
    """The rows of ``state``, then what the recorded entries make of them.

    ``like`` is the source the state is one of; it lends schema, kind and traits and is not kept.
    """

    def __init__(
        self,
        graph: Graph,
        like: SourceForm,
        state: SourceState,
        *,
        changed_step: int | None = None,
    ) -> None:
        super().__init__(graph, like.schema, like.traits)
        self.kind = like.kind
        rows = coerce_rows(self.schema, state.rows)
        if len(rows) != len(state.keys):
            raise EngineError(f"{len(state.keys)} row keys but {len(rows)} rows")
        self.storage.append(rows)
        self._slots_used = len(rows)
        self._slots: Int64Array = np.arange(len(rows), dtype=np.int64)
        self._spare: Int64Array = self._slots
        """The array that ``_slots`` is the front of: rows are mostly added at the end."""
        self._row_keys = state.keys
        if changed_step is not None:
            self.changed_step = changed_step

    def stage_entry(self, entry: RecordedEntry) -> None:
        """Apply a recorded cycle with the next cycle; several are told as one update.

        Cells may be of the types a journal has for those of the columns.
        """
        added, after = self._typed(entry.added), self._typed(entry.after)
        self._staged.append(replace(entry, added=added, after=after))

    def _typed(self, columns: Sequence[Cells]) -> list[Cells]:
        return [
            cells if cells.type == field.type else _cast(cells, field.type)
            for field, cells in zip(self.schema, columns, strict=True)
        ]

    def commit(self, step: int) -> TableUpdate:
        staged = self._take_staged()
        if not staged:
            return self._update(step)
        if len(staged) == 1:
            self._apply(staged[0])
            return staged[0].update
        nets = [self._net(entry) for entry in staged]
        # Neighbours first, so that each takes part in few merges.
        while len(nets) > 1:
            pairs = [nets[i].then(nets[i + 1]) for i in range(0, len(nets) - 1, 2)]
            nets = pairs + nets[len(pairs) * 2 :]
        self._apply_net(nets[0])
        self._pack()
        return nets[0].update

    def _net(self, entry: RecordedEntry) -> _Net:
        """Store the cells of an entry."""
        update = entry.update
        added, modified = update.added_keys_post, union_of(update.modified_keys_post)
        keys = added | modified
        if len(keys) != len(added) + len(modified):
            raise EngineError("a recorded change modifies rows that it adds")
        slots = np.empty(len(keys), dtype=np.int64)
        slots[keys.positions_of(added).to_numpy()] = self._append(entry.added, len(added))
        slots[keys.positions_of(modified).to_numpy()] = self._append(entry.after, len(modified))
        return _Net(update=update, keys=keys, slots=slots)

    def _apply_net(self, net: _Net) -> None:
        """Remove, shift, add and modify rows whose cells are stored. EngineError when that does not
        fit the rows."""
        removed, added = net.update.removed_keys_pre, net.update.added_keys_post
        before = self._row_keys
        if not (removed - before).is_empty:
            raise EngineError("recorded changes remove rows that are not there")
        kept_pre = before - removed
        kept = net.update.shifts.apply(kept_pre)
        if len(kept) != len(kept_pre) or not (kept & added).is_empty:
            raise EngineError("recorded changes add rows that are there")
        now = kept | added
        if not (net.keys - now).is_empty or not (added - net.keys).is_empty:
            raise EngineError("recorded changes modify rows that are not there")
        slots = np.empty(len(now), dtype=np.int64)
        kept_slots = self._slots[before.positions_of(kept_pre).to_numpy()]
        slots[now.positions_of(kept).to_numpy()] = kept_slots
        slots[now.positions_of(net.keys).to_numpy()] = net.slots
        self._row_keys, self._slots, self._spare = now, slots, slots

    def _apply(self, entry: RecordedEntry) -> None:
        """Remove, shift, add, modify. EngineError when the entry does not fit the rows."""
        self._apply_update(entry.update, entry.added)
        self._modify(entry.update.modified_keys_post, entry.after)
        self._pack()

    def _apply_update(self, update: TableUpdate, cells: Sequence[Cells]) -> None:
        """Remove, shift, add. EngineError when the update does not fit the rows."""
        before, removed, added = self._row_keys, update.removed_keys_pre, update.added_keys_post
        if not (removed - before).is_empty:
            raise EngineError("a recorded change removes rows that are not there")
        slots = self._slots
        if not removed.is_empty:
            slots = np.delete(slots, before.positions_of(removed).to_numpy())
        kept = update.shifts.apply(before - removed)
        if not (kept & added).is_empty:
            raise EngineError("a recorded change adds rows that are there")
        self._row_keys = now = kept | added
        fresh = self._append(cells, len(added))
        if kept.is_empty or added.is_empty or added.first > kept.last:
            self._slots = self._joined(slots, fresh)
        else:
            is_fresh = np.zeros(len(now), dtype=np.bool_)
            is_fresh[now.positions_of(added).to_numpy()] = True
            self._slots = self._spare = np.empty(len(now), dtype=np.int64)
            self._slots[is_fresh] = fresh
            self._slots[~is_fresh] = slots

    def _joined(self, slots: Int64Array, fresh: Int64Array) -> Int64Array:
        count = len(slots) + len(fresh)
        if slots is not self._slots or count > len(self._spare):
            self._spare = np.empty(count + count // 8 + FREE_SLOTS_MIN, dtype=np.int64)
            self._spare[: len(slots)] = slots
        self._spare[len(slots) : count] = fresh
        return self._spare[:count]

    def _append(self, cells: Sequence[Cells], count: int) -> Int64Array:
        start = self._slots_used
        if count:
            for column, values in zip(self.storage.columns, cells, strict=True):
                column.append(values)
            self._slots_used += count
        return np.arange(start, self._slots_used, dtype=np.int64)

    def _modify(self, modified: Sequence[RowSet], after: Sequence[Cells]) -> None:
        every = union_of(modified)
        if every.is_empty:
            return
        if not (every - self._row_keys).is_empty:
            raise EngineError("a recorded change modifies rows that are not there")
        rows = every.to_numpy()
        slots = self._slots[self._row_keys.positions_of(every).to_numpy()]
        for column, keys, values in zip(self.storage.columns, modified, after, strict=True):
            if len(keys) == len(every):
                column.write(slots, values)
            elif len(keys):
                picks = np.searchsorted(rows, keys.to_numpy())
                column.write(slots[picks], values.take(picks))

    def _pack(self) -> None:
        if self._slots_used > 2 * len(self._slots) + FREE_SLOTS_MIN:
            self.storage.compact(self._slots)
            self._slots_used = len(self._slots)
            self._slots = self._spare = np.arange(self._slots_used, dtype=np.int64)

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        if keys.is_empty:
            return self.storage.read(keys, columns)
        rows = self._row_keys.positions_of(keys)
        if rows.is_contiguous:
            slots = self._slots[rows.first : rows.last + 1]
        else:
            slots = self._slots[rows.to_numpy()]
        return self.storage.read_slots(slots, columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        rows = self._row_keys.rank_many(keys)
        return self.storage.take(self._slots[rows], columns)


def _cast(cells: Cells, data_type: pa.DataType) -> pa.ChunkedArray:
    chunked = cells if isinstance(cells, pa.ChunkedArray) else pa.chunked_array([cells])
    return cast_values(chunked, data_type)


class _StaticStandIn(SourceTable):
    """A static source in another graph, which shares its cells; they never change."""

    def __init__(self, graph: Graph, original: SourceTable) -> None:
        super().__init__(graph, original.schema, original.traits)
        self.kind = original.kind
        self.storage = original.storage
        self._row_keys = original.row_keys


def rebuilt(table: Table, graph: Graph, sources: Mapping[SourceTable, SourceTable]) -> Table:
    """The same operators as those between ``table`` and its sources, upon other sources.

    ``sources``, all of ``graph``, says what stands in for each of them; static ones need not be
    named. Reads only what never changes of ``table``, so it may run on any thread. EngineError when
    a source is not named; raises what the operators raise for the rows there.
    """
    made: dict[Table, Table] = {source: stand_in for source, stand_in in sources.items()}
    for source in sources_of(table):
        if source not in made:
            if not source.is_static:
                raise EngineError(f"nothing stands in for one of the {source.kind} tables")
            made[source] = _StaticStandIn(graph, source)
    for operator in operators_of(table):
        made[operator] = operator.over([made[parent] for parent in operator.parents])
    return made[table]
