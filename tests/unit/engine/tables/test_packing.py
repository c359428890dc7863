"""Rows of a keyed table that move to the front, some in each cycle, while others come and go."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrage.engine import KeyedTable, UpdateGraph
from barrage.engine.resume.restore import restore_source
from barrage.engine.tables import keyed
from barrage.engine.tables.keyed import SLOTS_PER_ROW_MAX
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

FREE = 8
TOGETHER = 3


@pytest.fixture(autouse=True)
def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "FREE_SLOTS_MIN", FREE)
    monkeypatch.setattr(keyed, "PACKED_CELLS", 3 * TOGETHER)
    monkeypatch.setattr(keyed, "MOVED_TOGETHER", 2)


class Followed:
    """A table beside a dict, and beside somebody who only sees its updates."""

    def __init__(self) -> None:
        schema = pa.schema([("k", pa.int64()), ("s", pa.string()), ("n", pa.int32())])
        self.graph = UpdateGraph()
        self.table = KeyedTable(self.graph, schema, key="k")
        self.rows: dict[int, int] = {}
        self.seen: dict[int, dict] = {}
        """Rows by row key."""

    def upsert(self, keys: list[int], salt: int) -> None:
        rows = pa.table(
            {"k": keys, "s": [f"{k} {salt}" for k in keys], "n": pa.array([salt] * len(keys))}
        )
        self.table.stage_upsert(rows)
        self.rows |= dict.fromkeys(keys, salt)

    def remove(self, keys: list[int]) -> None:
        self.table.stage_remove(pa.table({"k": pa.array(keys, pa.int64())}))
        for key in keys:
            self.rows.pop(key, None)

    def cycle(self) -> TableUpdate | None:
        update = self.graph.run_cycle().updates.get(self.table)
        if update is not None:
            self._follow(update)
        live = self.table.row_keys.to_numpy().tolist()
        cells = self.table.to_arrow().to_pylist()
        assert self.seen == dict(zip(live, cells, strict=True))
        assert {row["k"]: row["n"] for row in cells} == self.rows
        assert all(row["s"] == f"{row['k']} {row['n']}" for row in cells)
        slots_max = SLOTS_PER_ROW_MAX * self.table.size + FREE
        assert self.table.size == 0 or live[-1] < slots_max
        return update

    def _follow(self, update: TableUpdate) -> None:
        left = {k: v for k, v in self.seen.items() if k not in update.removed_keys_pre}
        moved = update.shifts.apply(RowSet(sorted(left))).to_numpy().tolist()
        # Shifts keep the order of rows.
        self.seen = dict(zip(moved, (left[key] for key in sorted(left)), strict=True))
        after = dict(zip(self.table.row_keys, self.table.to_arrow().to_pylist(), strict=True))
        for key in update.added_keys_post:
            assert key not in self.seen
            self.seen[key] = after[key]
        for name, touched in zip(self.table.schema.names, update.modified_keys_post, strict=True):
            for key in touched:
                self.seen[key] = {**self.seen[key], name: after[key][name]}


def test_a_few_rows_are_packed_in_each_cycle() -> None:
    made = Followed()
    made.upsert(list(range(100)), 0)
    made.cycle()
    made.remove(list(range(80)))
    made.cycle()
    assert made.table.row_keys == RowSet.of_span(0, 20), "half as many as were removed, or more"
    made.upsert(list(range(200, 300)), 1)
    made.cycle()
    moved = []
    for key in range(200, 292):
        made.remove([key])
        update = made.cycle()
        assert update is not None
        moved.append(sum(last - first + 1 for first, last, _ in update.shifts))
    assert 0 < max(moved) <= TOGETHER
    for salt in range(40):
        made.upsert([201], 2 + salt)
        made.cycle()
    assert made.table.row_keys.last < 2 * made.table.size + FREE


@pytest.mark.parametrize("seed", range(24))
def test_whatever_comes_and_goes_meanwhile(seed: int) -> None:
    draw = random.Random(seed)
    made = Followed()
    for turn in range(60):
        for _ in range(draw.choice([1, 1, 2, 4])):
            known = sorted(made.rows)
            kind = draw.random()
            if kind < 0.4 or not known:
                start = draw.randrange(400)
                made.upsert(draw.sample(range(start, start + 40), draw.randrange(1, 30)), turn)
            elif kind < 0.75:
                made.remove(draw.sample(known, draw.randrange(1, min(30, len(known)) + 1)))
            elif kind < 0.85:
                begin = draw.randrange(len(known))
                made.remove(known[begin : begin + 60])
            else:
                made.upsert(draw.sample(known, min(5, len(known))), turn)
        made.cycle()


def test_churn_does_not_let_the_keys_grow() -> None:
    """As many rows come as go, with every cycle, while the table is packed."""
    made = Followed()
    made.upsert(list(range(40)), 0)
    made.cycle()
    for turn in range(200):
        made.upsert(list(range(40 + 10 * turn, 50 + 10 * turn)), turn)
        made.remove(list(range(10 * turn, 10 * turn + 10)))
        made.cycle()
    assert made.table.row_keys.last < 6 * 40 + FREE


def test_a_table_that_is_nearly_all_slots_is_packed_at_once() -> None:
    made = Followed()
    made.upsert(list(range(800)), 0)
    made.cycle()
    for key in range(440):
        made.remove([key])
        made.cycle()
    assert made.table.row_keys.first < 440, "some are packed"
    made.remove(list(range(440, 790)))
    made.cycle()
    assert made.table.row_keys == RowSet.of_span(0, 10)


def test_a_table_that_is_restored_while_it_is_packed_goes_on() -> None:
    made = Followed()
    made.upsert(list(range(60)), 0)
    made.cycle()
    for key in range(38):
        made.remove([key])
        made.cycle()
    table = made.table
    assert table._packing is not None
    graph = UpdateGraph(first_step=made.graph.step)
    again = restore_source(
        graph,
        "keyed",
        table.schema,
        key=["k"],
        capacity=None,
        keys=table.row_keys,
        rows=table.to_arrow(),
    )
    assert isinstance(again, KeyedTable)
    made.graph, made.table = graph, again
    for key in range(38, 60):
        made.upsert([key + 100], 1)
        made.remove([key])
        made.cycle()
    assert made.table.row_keys.last < 2 * made.table.size + FREE


def test_rows_with_runs_are_written_where_some_are_there_and_some_are_not() -> None:
    """Arrow takes no cells of such arrays."""
    runs = pa.run_end_encoded(pa.int32(), pa.string())
    graph = UpdateGraph()
    table = KeyedTable(
        graph, pa.schema([("k", pa.int64()), ("r", runs), ("v", pa.int64())]), key="k"
    )
    table.start_recording()

    def upsert(keys: list[int], texts: list[str | None]) -> None:
        cells = pc.run_end_encode(pa.array(texts))
        table.stage_upsert(pa.table({"k": keys, "r": cells, "v": keys}, schema=table.schema))
        graph.run_cycle()

    upsert([1, 2, 3], ["a", "a", "b"])
    upsert([2, 3, 4], ["a", None, "c"])
    assert table.failure is None
    rows = table.to_arrow()
    assert pc.run_end_decode(rows["r"].combine_chunks()).to_pylist() == ["a", "a", None, "c"]
