"""Edges that the engine tells, against a naive recomputation of every state."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    StaticTable,
    UpdateGraph,
)
from barrage.engine.aggregation import grouping
from barrage.engine.operators.last_by import last_by
from barrage.engine.operators.where import where
from barrage.server.alerting import edge_tap
from barrage.server.alerting.edge_tap import EdgeTap
from tests.helpers.examples import examples
from tests.helpers.virtual_clock import VirtualClock

SCHEMA = pa.schema({"id": pa.int64(), "sym": pa.string(), "price": pa.int64()})
CONDITION = "price > 5"


class Followed:
    """A tap below a table, and what was told of it, as a receiver would keep it."""

    def __init__(self, table, *, key=("sym",), keys_max=10_000, edges_max=10_000, begins=True):
        self.graph, self.key = table.graph, key
        self.table = table
        true = where(table, CONDITION)
        self.true = last_by(true, *key) if key else true
        self.tap = EdgeTap(
            self.true,
            [0, 1, 2],
            is_keyed=bool(key),
            keys_max=keys_max,
            edges_max=edges_max,
            clock=VirtualClock(7),
        )
        self.true.know(("edges", self.tap.serial), self.tap)
        self.told = []
        self.firing = {}
        self.tap.tell = self.told.append
        if begins:
            self.tap.begin()

    def take(self):
        """What has begun and ended since, as keys."""
        ended, begun = [], []
        for edges in self.told:
            for number in edges.ended.tolist():
                ended.append(self.firing.pop(number))
            for number, row in zip(edges.begun.tolist(), edges.rows.to_pylist(), strict=True):
                assert number not in self.firing
                self.firing[number] = tuple(row[name] for name in self.key)
                begun.append(self.firing[number])
                assert row["price"] > 5
            self.tap.taken(edges.rows)
        further = self.told[-1].further_count if self.told else None
        self.told.clear()
        return begun, ended, further

    def expected(self):
        rows = self.table.to_arrow().to_pylist()
        return {tuple(row[name] for name in self.key) for row in rows if row["price"] > 5}


def rows(*triples):
    return pa.table(dict(zip(SCHEMA.names, zip(*triples, strict=True), strict=True)), SCHEMA)


def random_rows(random, ids):
    triples = [(each, random.choice("ABCDE"), random.randrange(12)) for each in ids]
    return rows(*triples)


def keyed_edit(random, table):
    ids = random.sample(range(30), random.randrange(1, 8))
    if random.random() < 0.3:
        table.stage_remove(pa.table({"id": ids}, pa.schema({"id": pa.int64()})))
    else:
        table.stage_upsert(random_rows(random, ids))


def list_edit(random, table):
    size, kind = table.size, random.randrange(3)
    if kind == 0 and size:
        start = random.randrange(size)
        table.stage_delete(start, min(size, start + random.randrange(1, 4)))
    elif kind == 1 and random.random() < 0.2:
        table.stage_replace(random_rows(random, range(random.randrange(1, 9))))
    else:
        table.stage_insert(random.randrange(size + 1), random_rows(random, range(2)))


def appended(random, table):
    table.stage_add(random_rows(random, range(random.randrange(1, 4))))


KINDS = {
    "keyed": (lambda graph: KeyedTable(graph, SCHEMA, key=("id",)), keyed_edit),
    "list": (lambda graph: ListTable(graph, SCHEMA), list_edit),
    "append_only": (lambda graph: AppendOnlyTable(graph, SCHEMA), appended),
    "ring": (lambda graph: RingTable(graph, SCHEMA, capacity=7), appended),
    "blink": (lambda graph: BlinkTable(graph, SCHEMA), appended),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key", [("sym",), ("id",), ("sym", "id"), ()], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_the_difference_of_two_states(kind, key, monkeypatch):
    # Groups are renumbered soon, which shifts the rows below the tap.
    monkeypatch.setattr(grouping, "FREE_GROUPS_MIN", 2)
    make, edit = KINDS[kind]
    for seed in range(3):
        random = Random(f"{kind} {key} {seed}")
        followed = Followed(make(UpdateGraph()), key=key)
        before = set()
        for _ in range(40):
            if random.random() < 0.9:
                edit(random, followed.table)
            elif kind == "blink":
                pass  # A cycle without rows.
            followed.graph.run_cycle()
            now = followed.expected()
            begun, ended, _ = followed.take()
            assert sorted(begun) == sorted(now - before)
            assert sorted(ended) == sorted(before - now)
            assert set(followed.firing.values()) == now
            before = now


def test_rows_that_are_there_are_told_as_initial():
    table = StaticTable(UpdateGraph(), rows((1, "A", 9), (2, "B", 1)))
    followed = Followed(table)
    [edges] = followed.told
    assert edges.is_initial
    assert edges.rows.to_pylist() == [{"id": 1, "sym": "A", "price": 9}]
    assert (edges.at_ns, edges.wall_ns) == (7, 7)


@pytest.mark.parametrize("key", [("sym",), ()], ids=str)
def test_cycles_before_it_begins_tell_what_is_new_and_leave_what_was_there(key):
    table = KeyedTable(UpdateGraph(), SCHEMA, key=("id",))
    table.stage_upsert(rows((1, "A", 9)))
    table.graph.run_cycle()
    followed = Followed(table, key=key, begins=False)
    table.stage_upsert(rows((2, "B", 9)))
    table.graph.run_cycle()
    followed.tap.begin()
    told = [(each.is_initial, each.rows["sym"].to_pylist()) for each in followed.told]
    # About whether there is any row: there was one.
    assert told == ([(False, ["B"]), (True, ["A"])] if key else [(True, ["B"])])


def test_a_row_that_changes_and_goes_on_to_fulfil_it_is_no_edge():
    followed = Followed(KeyedTable(UpdateGraph(), SCHEMA, key=("id",)))
    for price in (9, 10, 11):
        followed.table.stage_upsert(rows((1, "A", price)))
        followed.graph.run_cycle()
    assert len(followed.told) == 1


@pytest.mark.parametrize("count", [3, 4])
def test_so_many_keys_are_held_and_further_ones_are_counted(count):
    followed = Followed(KeyedTable(UpdateGraph(), SCHEMA, key=("id",)), key=("id",), keys_max=3)
    followed.table.stage_upsert(rows(*((n, "A", 9) for n in range(count))))
    followed.graph.run_cycle()
    [edges] = followed.told
    assert (len(edges.begun), edges.further_count, edges.is_full) == (3, count - 3, True)
    followed.take()
    # One goes: a further one has its room, and is told then.
    followed.table.stage_upsert(rows((0, "A", 1)))
    followed.graph.run_cycle()
    begun, ended, further = followed.take()
    assert (len(begun), ended, further) == (count - 3, [(0,)], 0)


def test_nothing_more_is_told_than_is_taken_and_nothing_is_lost():
    """A loop that does not take anything bounds what waits for it; what came and went meanwhile was
    seen by nobody, what is there in the end is told."""
    followed = Followed(KeyedTable(UpdateGraph(), SCHEMA, key=("id",)), key=("id",), edges_max=4)
    random = Random(1)
    for _ in range(50):
        keyed_edit(random, followed.table)
        followed.graph.run_cycle()
    assert sum(len(edges.begun) for edges in followed.told) == 4
    assert not followed.told[-1].is_full
    for _ in range(20):
        followed.take()
        followed.tap.refill()
    assert set(followed.firing.values()) == followed.expected()


def test_so_many_bytes_of_rows_wait_at_most(monkeypatch):
    monkeypatch.setattr(edge_tap, "EDGES_BYTES_MAX", 10_000)
    schema = pa.schema({"id": pa.int64(), "sym": pa.string(), "price": pa.int64()})
    followed = Followed(KeyedTable(UpdateGraph(), schema, key=("id",)), key=("id",))
    followed.table.stage_upsert(rows(*((n, "x" * 1_000, 9) for n in range(40))))
    followed.table.stage_upsert(rows((40, "x" * 50_000, 9)))
    followed.graph.run_cycle()
    waiting = sum(edges.rows.nbytes for edges in followed.told)
    assert 0 < waiting <= 10_000
    for _ in range(60):
        waiting = sum(edges.rows.nbytes for edges in followed.told)
        assert waiting <= 10_000 or len(followed.told[0].rows) == 1
        followed.take()
        followed.tap.refill()
    assert set(followed.firing.values()) == followed.expected()


def test_dictionaries_are_not_told_with_each_row():
    schema = pa.schema({"id": pa.int64(), "sym": pa.dictionary(pa.int32(), pa.string())})
    table = KeyedTable(UpdateGraph(), schema.append(pa.field("price", pa.int64())), key=("id",))
    followed = Followed(table, key=("id",))
    words = pa.array([f"{'x' * 1_000}{n}" for n in range(1_000)]).dictionary_encode()
    columns = {"id": list(range(1_000)), "sym": words, "price": [9] * 3 + [1] * 997}
    table.stage_upsert(pa.table(columns, schema=table.schema))
    table.graph.run_cycle()
    [edges] = followed.told
    assert len(edges.rows) == 3
    assert edges.rows.nbytes < 5_000


def test_a_portion_has_so_many_bytes_at_most():
    table = StaticTable(UpdateGraph(), rows(*((n, "x" * 1_000, 9) for n in range(9))))
    [edges] = Followed(table, key=("id",)).told
    assert len(edges.split(100, 3_000)[0].rows) <= 3
    assert len(edges.split(100, 10)[0].rows) == 1


def test_a_portion_ends_keys_before_it_begins_others():
    followed = Followed(KeyedTable(UpdateGraph(), SCHEMA, key=("id",)), key=("id",))
    followed.table.stage_upsert(rows(*((n, "A", 9) for n in range(5))))
    followed.graph.run_cycle()
    followed.table.stage_upsert(rows(*((n, "A", 1) for n in range(5))))
    followed.table.stage_upsert(rows(*((n, "A", 9) for n in range(5, 12))))
    followed.graph.run_cycle()
    rest, parts = followed.told[1], []
    while rest is not None:
        part, rest = rest.split(3, 10_000)
        parts.append((len(part.ended), len(part.begun), part.rows.num_rows))
    assert parts == [(3, 0, 0), (2, 3, 3), (0, 3, 3), (0, 1, 1)]


def test_a_failure_is_told():
    followed = Followed(KeyedTable(UpdateGraph(), SCHEMA, key=("id",)))
    told = []
    followed.tap.tell_failure = told.append
    followed.tap.advance = None  # What calls it raises.
    followed.table.stage_upsert(rows((1, "A", 9)))
    followed.graph.run_cycle()
    assert "TypeError" in str(told[0])
    followed.tap.refill()


@pytest.mark.slow
def test_edges_of_many_seeds():
    for seed in range(examples(200)):
        random = Random(seed)
        make, edit = KINDS[random.choice(list(KINDS))]
        followed = Followed(make(UpdateGraph()), key=random.choice([("sym",), ("id",), ()]))
        before = set()
        for _ in range(60):
            edit(random, followed.table)
            followed.graph.run_cycle()
            now = followed.expected()
            begun, ended, _ = followed.take()
            assert (sorted(begun), sorted(ended)) == (sorted(now - before), sorted(before - now))
            before = now
