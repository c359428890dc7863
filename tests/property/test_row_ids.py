"""The map from shifting row keys to stable row ids, against rows that carry their identity."""

from __future__ import annotations

import random
from functools import reduce
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine import KeyedTable, ListTable, UpdateGraph
from barrage.engine.operators import derive
from barrage.model import row_ids
from barrage.model.coalesce import coalesce
from barrage.model.row_ids import RowIdMap
from barrage.rowset import RowSet, RowSetShiftData
from tests.helpers.strategies_rows import Rows, histories

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table
    from barrage.model.update import TableUpdate

History = tuple[list[Rows], list["TableUpdate"]]


def identities(rows: Rows, keys: RowSet) -> np.ndarray:
    return np.array([rows.cells[key][0] for key in keys], dtype=np.int64)


def map_of(rows: Rows) -> RowIdMap:
    return RowIdMap.of(rows.keys, identities(rows, rows.keys))


def in_blocks_of(runs: int) -> Any:
    """Small blocks, so that cycles touch some and leave others."""
    return patch.object(row_ids, "BLOCK_RUNS", runs)


block_sizes = st.sampled_from((1, 2, 3, 1024))


def check(ids: RowIdMap, rows: Rows) -> None:
    ids.validate()
    assert ids.keys == rows.keys
    assert ids.ids.tolist() == identities(rows, rows.keys).tolist()
    assert len(ids) == len(rows.cells)


def after(ids: RowIdMap, update: TableUpdate, truth: Rows) -> RowIdMap:
    added = update.added_keys_post
    return ids.apply(update.removed_keys_pre, update.shifts, added, identities(truth, added))


@given(history=histories(steps_max=6), size=block_sizes)
def test_ids_follow_their_rows_cycle_by_cycle(history: History, size: int) -> None:
    states, updates = history
    with in_blocks_of(size):
        ids = map_of(states[0])
        check(ids, states[0])
        for update, state in zip(updates, states[1:], strict=True):
            old, ids = ids, after(ids, update, state)
            check(ids, state)
            assert old.ids_of(old.keys).tolist() == old.ids.tolist()


@given(history=histories(steps_max=5), data=st.data(), size=block_sizes)
def test_ids_follow_their_rows_through_merged_cycles(
    history: History, data: st.DataObject, size: int
) -> None:
    states, updates = history
    at = data.draw(st.integers(0, len(updates)))
    with in_blocks_of(size):
        check(after(map_of(states[0]), reduce(coalesce, updates), states[-1]), states[-1])
        ids = map_of(states[0])
        for part, state in ((updates[:at], states[at]), (updates[at:], states[-1])):
            if part:
                ids = after(ids, reduce(coalesce, part), state)
        check(ids, states[-1])


@given(history=histories(steps_max=8), size=block_sizes)
def test_many_cycles_at_once_are_each_in_turn(history: History, size: int) -> None:
    check_all_at_once(*history, size)


@given(history=histories(steps_max=8, has_shifts=False), size=block_sizes)
def test_many_cycles_without_shifts_at_once(history: History, size: int) -> None:
    check_all_at_once(*history, size)


def check_all_at_once(states: list[Rows], updates: list[TableUpdate], size: int) -> None:
    cycles = [
        (
            update.removed_keys_pre,
            update.shifts,
            update.added_keys_post,
            identities(state, update.added_keys_post),
        )
        for update, state in zip(updates, states[1:], strict=True)
    ]
    with in_blocks_of(size):
        check(map_of(states[0]).apply_all(iter(cycles)), states[-1])
        for row in states[-1].keys.slice(0, 2):
            again = (RowSet.empty(), RowSetShiftData.empty(), RowSet([row]), np.array([10**9]))
            with pytest.raises(ValueError, match="two rows under key"):
                map_of(states[0]).apply_all([*cycles, again])
        absent = next(key for key in range(64) if key not in states[-1].keys)
        gone = (RowSet([absent]), RowSetShiftData.empty(), RowSet.empty(), np.arange(0))
        with pytest.raises(ValueError, match="there is no row under key"):
            map_of(states[0]).apply_all([*cycles, gone])


@given(
    keys=st.sets(st.integers(0, 60), max_size=40),
    cuts=st.sets(st.integers(0, 60), min_size=2, max_size=6),
    deltas=st.lists(st.integers(-20, 20).filter(bool), min_size=5, max_size=5),
    added=st.sets(st.integers(0, 80), max_size=3),
    size=block_sizes,
)
def test_shifts_that_move_rows_onto_others_are_refused(
    keys: set[int], cuts: set[int], deltas: list[int], added: set[int], size: int
) -> None:
    edges = sorted(cuts)
    triples = [
        (first, stop - 1, delta)
        for first, stop, delta in zip(edges[::2], edges[1::2], deltas, strict=False)
    ]
    try:
        shifts = RowSetShiftData.from_shifts(triples)
    except ValueError:
        return  # The list itself is not in order.
    moves = {key: sum(s.delta for s in shifts if s.first <= key <= s.last) for key in keys}
    targets = [key + move for key, move in moves.items()] + sorted(added)
    with in_blocks_of(size):
        ids = RowIdMap.of(RowSet(keys), np.arange(len(keys))[::-1].copy())
        cycle = (RowSet.empty(), shifts, RowSet(added), np.arange(100, 100 + len(added)))
        if len(set(targets)) < len(targets):
            with pytest.raises(ValueError, match="two rows under key"):
                ids.apply(*cycle)
            return
        try:
            after = ids.apply(*cycle)
        except ValueError:
            # Rows that overtake others are no update either, and need not be found out.
            assert sorted(moves, key=lambda key: key + moves[key]) != sorted(moves)
            return
        after.validate()
    old = dict(zip(sorted(keys), range(len(keys))[::-1], strict=True))
    truth = {key + move: old[key] for key, move in moves.items()}
    truth |= dict(zip(sorted(added), range(100, 100 + len(added)), strict=True))
    assert dict(zip(after.keys, after.ids.tolist(), strict=True)) == truth


@given(history=histories(steps_max=2), data=st.data(), size=block_sizes)
def test_ids_of_some_rows_are_those_under_their_keys(
    history: History, data: st.DataObject, size: int
) -> None:
    (before, state), update = history[0][-2:], history[1][-1]
    with in_blocks_of(size):
        ids = after(map_of(before), update, state)
    keys = sorted(state.cells)
    some = RowSet(data.draw(st.sets(st.sampled_from(keys))) if keys else set())
    assert ids.ids_of(some).tolist() == identities(state, some).tolist()
    absent = data.draw(st.integers(0, 63)) * 2
    if absent not in state.cells:
        with pytest.raises(ValueError, match=f"key {absent}"):
            ids.ids_of(some | RowSet([absent]))


@given(history=histories(steps_max=1), size=block_sizes, data=st.data())
def test_an_update_of_another_table_is_refused(
    history: History, size: int, data: st.DataObject
) -> None:
    states, (update,) = history
    removed, kept = update.removed_keys_pre, update.added_keys_post
    with in_blocks_of(size):
        if not removed.is_empty:
            gone = data.draw(st.sampled_from(removed.to_numpy().tolist()))
            stranger = states[0].keys - RowSet([gone])
            ids = RowIdMap.of(stranger, np.arange(len(stranger)))
            with pytest.raises(ValueError, match=f"no row under key {gone}"):
                after(ids, update, states[1])
        stayed = states[1].keys - kept
        if not stayed.is_empty:
            again = RowSet([data.draw(st.sampled_from(stayed.to_numpy().tolist()))])
            ids = map_of(states[0])
            with pytest.raises(ValueError, match="two rows under key"):
                ids.apply(removed, update.shifts, kept | again, np.arange(len(kept) + 1) + 10**9)


# -- rows of the engine, with their identity in a column ------------------------------------------


class Tracked:
    """Follows one engine table whose column ``identity`` names every row for ever."""

    def __init__(self, graph: UpdateGraph, table: Table) -> None:
        self.graph, self.table = graph, table
        self.column = table.schema.get_field_index("identity")
        self.ids = RowIdMap.of(table.row_keys, self.truth())
        self.late = self.ids
        self.pending: TableUpdate | None = None
        self.shift_count = 0

    def truth(self, keys: RowSet | None = None) -> np.ndarray:
        keys = self.table.row_keys if keys is None else keys
        cells = self.table.read(keys)[self.column]
        values = pa.chunked_array([cells]) if isinstance(cells, pa.Array) else cells
        return np.asarray(values.to_numpy(), dtype=np.int64)

    def cycle(self) -> None:
        update = self.graph.run_cycle().updates.get(self.table)
        if update is None:
            return
        self.shift_count += len(update.shifts)
        self.ids = self.advanced(self.ids, update)
        self.compare(self.ids)
        self.pending = update if self.pending is None else coalesce(self.pending, update)

    def catch_up(self) -> None:
        """The cycles since the last call as one."""
        if self.pending is not None:
            self.late = self.advanced(self.late, self.pending)
            self.pending = None
        self.compare(self.late)

    def advanced(self, ids: RowIdMap, update: TableUpdate) -> RowIdMap:
        added = update.added_keys_post
        return ids.apply(update.removed_keys_pre, update.shifts, added, self.truth(added))

    def compare(self, ids: RowIdMap) -> None:
        ids.validate()
        assert ids.keys == self.table.row_keys
        assert np.array_equal(ids.ids, self.truth())


SCHEMA = pa.schema([("identity", pa.int64()), ("value", pa.int64())])


def pairs(identity: list[int], value: list[int]) -> pa.Table:
    return pa.table({"identity": identity, "value": value}, schema=SCHEMA)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("spread", [3, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_rows_of_a_sorted_table_keep_their_ids(
    seed: int, spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserts at the same places use up the gaps between keys, so that windows are re-spread."""
    monkeypatch.setattr(row_ids, "BLOCK_RUNS", (8, 1024)[seed % 2])
    chance = random.Random(seed)
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="identity")
    tracked = Tracked(graph, derive.sort(source, "value"))
    living: list[int] = []
    born = 0
    for _ in range(60):
        fresh = list(range(born, born + chance.choice((0, 1, 5, 300))))
        born += len(fresh)
        moved = chance.sample(living, min(len(living), chance.choice((0, 1, 40))))
        rows = fresh + moved
        source.stage_upsert(pairs(rows, [chance.randrange(spread) for _ in rows]))
        gone = chance.sample(living, min(len(living), chance.choice((0, 0, 2, 100))))
        if gone:
            source.stage_remove(pa.table({"identity": pa.array(gone, pa.int64())}))
        living = [row for row in living + fresh if row not in set(gone)]
        tracked.cycle()
        if chance.random() < 0.3:
            tracked.catch_up()
    tracked.catch_up()
    assert tracked.shift_count > 0
    assert len(tracked.ids) == len(living)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_a_list_keep_their_ids(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ids, "BLOCK_RUNS", (8, 1024)[seed % 2])
    chance = random.Random(seed)
    graph = UpdateGraph()
    source = ListTable(graph, SCHEMA)
    tracked = Tracked(graph, source)
    filtered = Tracked(graph, derive.where(source, "value > 3"))
    born = size = 0
    for _ in range(60):
        count = chance.choice((0, 1, 2, 50))
        source.stage_insert(
            chance.randrange(size + 1),
            pairs(list(range(born, born + count)), [chance.randrange(9) for _ in range(count)]),
        )
        born, size = born + count, size + count
        for _ in range(chance.choice((0, 1, 5))):
            start = chance.randrange(size + 1)
            stop = min(size, start + chance.choice((1, 7)))
            source.stage_delete(start, stop)
            size -= stop - start
        update = graph.run_cycle()
        for one in (tracked, filtered):
            change = update.updates.get(one.table)
            if change is not None:
                one.shift_count += len(change.shifts)
                one.ids = one.advanced(one.ids, change)
                one.compare(one.ids)
    assert tracked.shift_count > 0
    assert filtered.shift_count > 0
