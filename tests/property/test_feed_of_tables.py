"""From writes to a table of the engine, through its journal, to the feed: rows carry their identity
in a column, which the row ids of the feed must agree with."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    UpdateGraph,
)
from barrage.journal import JournalOptions, JournalStore, TableIdentity
from barrage.journal.change_feed.feed import (
    FeedOptions,
    change_batches,
    id_bounds,
    snapshot_batches,
)
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barrage.engine.tables.source import SourceTable
    from barrage.journal import TableJournal

SCHEMA = pa.schema([("identity", pa.int64()), ("value", pa.string())])
OPTIONS = JournalOptions(
    reserve_bytes=0, segment_bytes=20_000, checkpoint_bytes_min=10_000, retain_bytes=None
)
CAPACITY = 40
Content = Counter[tuple[int, str]]


class Writer:
    """Writes at random, one cycle at a time, and keeps what the table showed after each."""

    def __init__(self, kind: str, seed: int, journal_class: Any) -> None:
        self.random = Random(seed)
        self.graph = UpdateGraph()
        self.table = table_of(kind, self.graph)
        self.table.start_recording()
        self.born = 0
        storage = MemoryStorage() if journal_class == "durable" else None
        self.store = JournalStore(storage, OPTIONS, clock=VirtualClock())
        self.store.open_all()
        identity = TableIdentity(
            name="t", kind=kind, schema=SCHEMA, journal_class=journal_class, capacity=CAPACITY
        )
        self.journal = self.store.create(identity, step=self.graph.step)
        self.contents: dict[int, Content] = {self.journal.latest_version: Counter()}

    def run(self, cycles: int) -> None:
        for number in range(cycles):
            self.write()
            self.graph.run_cycle()
            change = self.table.take_change()
            if change is not None:
                step = self.graph.step
                self.journal.append(change, step=step, wall_ns=number * 10**6, positions={})
                self.contents[step] = content_of(self.table.to_arrow().to_pylist())
            self.store.step_committed(self.graph.step)
            if self.random.random() < 0.3:
                self.store.pump(number * 10**9)
        self.store.pump(10**15)

    def fresh(self) -> list[int]:
        count = self.random.choice((0, 1, 3, 30))
        self.born += count
        return list(range(self.born - count, self.born))

    def rows(self, identities: Iterable[int]) -> pa.Table:
        names = list(identities)
        values = [f"v{self.random.randrange(5)}" for _ in names]
        return pa.table({"identity": names, "value": values}, schema=SCHEMA)

    def write(self) -> None:
        table, random = self.table, self.random
        living = table.to_arrow()["identity"].to_pylist()
        match table:
            case KeyedTable():
                some = random.sample(living, min(len(living), random.choice((0, 2, 20))))
                table.stage_upsert(self.rows([*self.fresh(), *some]))
                gone = random.sample(living, min(len(living), random.choice((0, 1, 15))))
                table.stage_remove(pa.table({"identity": pa.array(gone, pa.int64())}))
            case ListTable():
                self.edit(table, living)
            case _:
                table.stage_add(self.rows(self.fresh()))

    def edit(self, table: ListTable, living: list[int]) -> None:
        random, size = self.random, len(living)
        start = random.randrange(size + 1)
        stop = min(size, start + random.choice((0, 2, 9)))
        table.stage_overwrite(start, self.rows(living[start:stop]))
        start = random.randrange(size + 1)
        stop = min(size, start + random.choice((0, 1, 8)))
        table.stage_delete(start, stop)
        table.stage_insert(random.randrange(table.staged_size + 1), self.rows(self.fresh()))


def table_of(kind: str, graph: UpdateGraph) -> SourceTable:
    match kind:
        case "keyed":
            return KeyedTable(graph, SCHEMA, key="identity")
        case "list":
            return ListTable(graph, SCHEMA)
        case "ring":
            return RingTable(graph, SCHEMA, capacity=CAPACITY)
        case "blink":
            return BlinkTable(graph, SCHEMA)
    return AppendOnlyTable(graph, SCHEMA)


def content_of(rows: Iterable[dict[str, Any]]) -> Content:
    return Counter((row["identity"], row["value"]) for row in rows)


def fed(journal: TableJournal, after: int, upto: int, **options: Any) -> list[dict[str, Any]]:
    batches = change_batches(journal.entries(after, upto), FeedOptions(**options))
    return [row for batch in batches for row in batch.to_pylist()]


class Consumer:
    """Rows by row id; a row id and an identity name each other for ever."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.identity_of: dict[int, int] = {}
        self.id_of: dict[int, int] = {}

    def apply(self, row: dict[str, Any]) -> None:
        name, identity = row["_row_id"], row["identity"]
        assert self.identity_of.setdefault(name, identity) == identity
        assert self.id_of.setdefault(identity, name) == name
        if row["_change_type"] == "insert":
            assert name not in self.rows
        else:
            old = self.rows.pop(name)
        if row["_change_type"] == "delete":
            assert old["value"] == row["value"]
        else:
            self.rows[name] = row

    @property
    def content(self) -> Content:
        return content_of(self.rows.values())


@pytest.fixture(params=["durable", "memory"])
def journal_class(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["append", "keyed", "list", "ring"])
def writer(request: pytest.FixtureRequest, journal_class: str) -> Iterator[Writer]:
    writer = Writer(request.param, 7, journal_class)
    writer.run(80)
    yield writer
    writer.store.close()


@pytest.mark.sampled(3)
def test_replay_from_the_beginning_shows_every_version(writer: Writer) -> None:
    consumer = Consumer()
    versions = sorted(writer.contents)
    told = iter(fed(writer.journal, versions[0], versions[-1]))
    row = next(told, None)
    for version in versions:
        while row is not None and row["_commit_version"] <= version:
            consumer.apply(row)
            row = next(told, None)
        assert consumer.content == writer.contents[version]
    assert row is None
    assert len(consumer.identity_of) == writer.born


@pytest.mark.sampled(3)
def test_snapshots_then_changes_show_the_table(writer: Writer) -> None:
    versions = sorted(writer.contents)
    for version in versions[::9]:
        consumer = Consumer()
        bounds = id_bounds(writer.journal.row_ids_at(version), 3)
        for ids in bounds:
            for batch in snapshot_batches(writer.journal, version, FeedOptions(), ids=ids):
                for row in batch.to_pylist():
                    assert ids[0] <= row["_row_id"] < ids[1]
                    assert row["_commit_version"] == version
                    consumer.apply(row)
        assert consumer.content == writer.contents[version]
        for row in fed(writer.journal, version, versions[-1]):
            consumer.apply(row)
        assert consumer.content == writer.contents[versions[-1]]


@pytest.mark.sampled(3)
def test_net_changes_and_stripes_lead_from_one_state_to_another(writer: Writer) -> None:
    versions = sorted(writer.contents)
    for start, stop in [(0, 9), (3, 40), (20, 21), (0, len(versions) - 1)]:
        after, upto = versions[start], versions[stop]
        consumer = Consumer()
        for row in fed(writer.journal, versions[0], after):
            consumer.apply(row)
        net = [fed(writer.journal, after, upto, net=True, stripe=(part, 3)) for part in range(3)]
        assert all(row["_row_id"] // 64 % 3 == part for part in range(3) for row in net[part])
        for row in (row for part in net for row in part):
            consumer.apply(row)
        assert consumer.content == writer.contents[upto]


@pytest.mark.sampled(3)
def test_stripes_of_any_length_have_every_row_once(writer: Writer) -> None:
    versions = sorted(writer.contents)
    every = fed(writer.journal, versions[0], versions[-1])
    for count, ids in ((2, 64), (3, 128), (4, 1 << 16)):
        for part in range(count):
            rows = fed(
                *(writer.journal, versions[0], versions[-1]), stripe=(part, count), stripe_ids=ids
            )
            assert rows == [row for row in every if row["_row_id"] // ids % count == part]


def test_rows_of_a_blink_table_are_inserts_only(journal_class: str) -> None:
    writer = Writer("blink", 3, journal_class)
    writer.run(40)
    versions = sorted(writer.contents)
    for net in (False, True):
        rows = fed(writer.journal, versions[0], versions[-1], net=net)
        assert {row["_change_type"] for row in rows} == {"insert"}
        assert sorted(row["identity"] for row in rows) == list(range(writer.born))
    for version in versions[::5]:
        batches = snapshot_batches(writer.journal, version, FeedOptions(row_key=True))
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert content_of(rows) == writer.contents[version]
        assert sorted(row["_row_key"] for row in rows) == list(range(len(rows)))
    writer.store.close()
