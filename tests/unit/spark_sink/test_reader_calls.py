"""The reader as Spark calls it, without Spark: one asks, and a pickled copy of it reads."""

from __future__ import annotations

import json
import pickle
import threading

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from barrage.errors import ConfigError, SchemaError
from pyspark_barrage import DefaultSource
from spark_sink.connection import ServerError
from spark_sink.planning import ROWS_SMALL, DataLossError
from spark_sink.types import arrow_target
from tests.helpers.fake_journal import FakeJournalServer, FakeTable
from tests.unit.spark_sink.tables import TRADES, trades


@pytest.fixture
def server():
    with FakeJournalServer() as running:
        running.tables["trades"] = FakeTable(TRADES)
        running.commit("trades", add=trades(10))
        yield running


class Scene:
    """A reader and its pickled copy, with a small journal of offsets."""

    def __init__(self, server: FakeJournalServer, **options: str) -> None:
        given = {"uri": server.uri, "table": "trades", **options}
        self.server = server
        source = DefaultSource(given)
        self.schema = source.schema()
        self.reader = source.streamReader(self.schema)
        self.copy = pickle.loads(pickle.dumps(self.reader))
        self.offset = self.reader.initialOffset()

    def wait(self) -> None:
        """Until the watch has the newest version."""
        table = self.server.tables["trades"]
        for _ in range(1000):
            mark = self.reader._asked()._journal.newest()
            if (mark.epoch, mark.version) == (table.epoch, table.version):
                return
            threading.Event().wait(0.005)
        raise AssertionError("the watch does not come")

    def latest(self, limit=None) -> dict:
        self.wait()
        return self.reader.latestOffset(self.offset, limit or self.reader.getDefaultReadLimit())

    def batch(self, limit=None) -> list[dict]:
        end = self.latest(limit)
        if end == self.offset:
            return []
        rows = self.rows(self.offset, end)
        self.offset = end
        return rows

    def rows(self, start: dict, end: dict) -> list[dict]:
        target = arrow_target(self.schema)
        found: list[dict] = []
        for partition in self.reader.partitions(start, end):
            for batch in self.copy.read(pickle.loads(pickle.dumps(partition))):
                assert batch.schema.equals(target)
                found += batch.to_pylist()
        return found

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()


def kinds(rows: list[dict]) -> list[tuple[str, int]]:
    return [(row["_change_type"], row["_row_id"]) for row in rows]


def test_a_snapshot_then_changes(server):
    with Scene(server) as scene:
        assert kinds(scene.batch()) == [("insert", i) for i in range(10)]
        assert scene.batch() == []
        server.commit("trades", add=trades(1, 10), modify={3: {"qty": 33}}, remove=[0])
        rows = scene.batch()
        assert kinds(rows) == [("delete", 0), ("update_postimage", 3), ("insert", 10)]
        assert [row["_commit_version"] for row in rows] == [2, 2, 2]
        assert rows[1]["qty"] == 33


def test_offsets_keep_their_text(server):
    with Scene(server) as scene:
        assert json.dumps(scene.offset) == json.dumps(
            {"epoch": "", "version": -1, "row": -1, "sync": 0}
        )
        scene.batch()
        again = scene.latest()
        assert json.dumps(again) == json.dumps(scene.offset)
        assert list(again) == ["epoch", "version", "row", "sync"]


def test_idle_questions_are_answered_from_memory(server):
    with Scene(server) as scene:
        scene.batch()
        before = len(server.calls)
        for _ in range(100):
            scene.latest()
        assert len(server.calls) == before


def test_limits_cut_snapshot_and_changes(server):
    with Scene(server, maxRowsPerTrigger="4") as scene:
        assert scene.reader.getDefaultReadLimit() == ReadMaxRows(4)
        sizes = []
        while rows := scene.batch():
            sizes.append(len(rows))
        assert sizes == [3, 3, 4] or sum(sizes) == 10
        assert max(sizes) <= 4
        for first in (10, 12, 14):
            server.commit("trades", add=trades(2, first))
        assert [len(scene.batch()) for _ in range(3)] == [4, 2, 0]
        server.commit("trades", add=trades(9, 16))
        assert len(scene.batch()) == 9, "at least one version"


def test_a_one_time_trigger_reads_everything(server):
    with Scene(server, maxRowsPerTrigger="4") as scene:
        assert len(scene.batch(ReadAllAvailable())) == 10


def test_bytes_limit_too(server):
    with Scene(server, maxBytesPerTrigger="50") as scene:
        assert scene.reader.getDefaultReadLimit() == ReadMaxBytes(50)
        assert len(scene.batch()) == 5
    with Scene(server) as scene:
        assert scene.reader.getDefaultReadLimit() == ReadAllAvailable()


def test_a_run_that_is_to_end_stops_at_its_target(server):
    with Scene(server) as scene:
        scene.reader.prepareForTriggerAvailableNow()
        server.commit("trades", add=trades(5, 10))
        assert len(scene.batch()) == 10
        assert scene.batch() == []


def test_waiting_for_enough_rows_or_long_enough(server):
    with Scene(server, minRowsPerTrigger="3", maxTriggerDelay="300ms") as scene:
        scene.batch()
        server.commit("trades", add=trades(2, 10))
        assert scene.batch() == []
        server.commit("trades", add=trades(1, 12))
        assert len(scene.batch()) == 3
        server.commit("trades", add=trades(1, 13))
        assert scene.batch() == []
        threading.Event().wait(0.35)
        assert len(scene.batch()) == 1


@pytest.mark.parametrize("is_told_before", [False, True])
def test_rows_of_before_count_only_where_they_are_delivered(server, is_told_before):
    """The least rows of a batch, and how far it is behind."""
    shown = "true" if is_told_before else "false"
    with Scene(server, minRowsPerTrigger="4", includePreimage=shown) as scene:
        scene.batch()
        server.commit("trades", modify={row: {"qty": -row} for row in range(3)})
        first = scene.batch()
        assert len(first) == (6 if is_told_before else 0), "three rows are too few, six are not"
        if is_told_before:
            return
        assert scene.reader.reportLatestOffset()["rowsBehindLatest"] == 3
        server.commit("trades", modify={5: {"qty": -5}})
        assert len(scene.batch()) == 4
        assert scene.reader.reportLatestOffset()["rowsBehindLatest"] == 0


@pytest.mark.parametrize("is_told_before", [False, True])
def test_tasks_are_as_many_as_the_delivered_rows_are_worth(server, is_told_before):
    server.commit("trades", add=trades(ROWS_SMALL - 1, 10))
    shown = "true" if is_told_before else "false"
    with Scene(server, minPartitions="3", includePreimage=shown) as scene:
        scene.batch()
        for count, tasks in ((ROWS_SMALL - 1, 1), (ROWS_SMALL, 3)):
            server.commit("trades", modify={row: {"qty": -count} for row in range(count)})
            end = scene.latest()
            found = scene.reader.partitions(scene.offset, end)
            assert len(found) == (3 if is_told_before else tasks)
            scene.offset = end


@pytest.mark.parametrize("word", ["latest", "earliest"])
def test_starts_without_a_snapshot(server, word):
    with Scene(server, startingOffsets=word) as scene:
        assert scene.batch() == []
        server.commit("trades", add=trades(2, 10))
        if word == "earliest":
            assert len(scene.batch()) == 12
        else:
            assert len(scene.batch()) == 2


def test_a_start_at_a_version_or_time(server):
    for number in range(10, 14):
        server.commit("trades", add=trades(1, number))
    with Scene(server, startingVersion="4") as scene:
        assert scene.batch() == []
        assert [row["qty"] for row in scene.batch()] == [12, 13]
    with Scene(server, startingTimestamp="1970-01-01T00:00:00.004") as scene:
        scene.batch()
        assert [row["qty"] for row in scene.batch()] == [12, 13]


def test_a_cut_journal_is_an_error_or_a_new_snapshot(server):
    table = server.tables["trades"]
    with Scene(server) as failing, Scene(server, failOnDataLoss="false") as going_on:
        failing.batch(), going_on.batch()
        for number in range(10, 14):
            server.commit("trades", add=trades(1, number))
        table.earliest = 3
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            failing.batch()
        rows = going_on.batch()
        assert kinds(rows)[0] == ("truncate", None)
        assert rows[0]["_commit_version"] == table.version
        assert rows[0]["sym"] is None
        assert len(rows) == 1 + 14


def test_a_new_epoch_is_an_error_or_a_new_snapshot(server):
    table = server.tables["trades"]
    with Scene(server) as failing, Scene(server, failOnDataLoss="false") as going_on:
        failing.batch(), going_on.batch()
        table.begin_epoch()
        server.commit("trades", add=trades(3))
        with pytest.raises(DataLossError, match="began anew"):
            failing.batch()
        assert kinds(going_on.batch()) == [("truncate", None), *(("insert", i) for i in range(3))]


def test_an_epoch_that_ends_between_planning_and_reading(server):
    table = server.tables["trades"]
    for option, is_quiet in (("false", True), ("true", False)):
        with Scene(server, failOnDataLoss=option) as scene:
            end = scene.latest()
            (partition,) = scene.reader.partitions(scene.offset, end)
            table.begin_epoch()
            server.commit("trades", add=trades(10))
            if is_quiet:
                assert list(scene.copy.read(partition)) == []
            else:
                with pytest.raises(ServerError, match="another epoch"):
                    list(scene.copy.read(partition))


def test_a_journal_cut_between_planning_and_reading_raises_in_any_case(server):
    table = server.tables["trades"]
    with Scene(server, failOnDataLoss="false") as scene:
        scene.batch()
        server.commit("trades", add=trades(1, 10))
        server.commit("trades", add=trades(1, 11))
        (partition,) = scene.reader.partitions(scene.offset, scene.latest())
        table.earliest = 2
        with pytest.raises(ServerError, match="was cut"):
            list(scene.copy.read(partition))


def test_a_broken_stream_of_changes_is_taken_up_where_it_broke(server):
    with Scene(server) as scene:
        scene.batch()
        for number in range(10, 110):
            server.commit("trades", add=trades(1, number))
        server.chunk_rows, server.break_after_chunks = 7, 5
        assert [row["qty"] for row in scene.batch()] == list(range(10, 110))


def test_plain_rows_of_a_table_that_only_grows(server):
    server.tables["trades"] = FakeTable(TRADES, kind="append_only")
    server.commit("trades", add=trades(3))
    with Scene(server, readChangeFeed="false") as scene:
        assert scene.schema.names == ["sym", "qty"]
        assert scene.batch() == trades(3)
        server.commit("trades", add=trades(2, 3))
        assert scene.batch() == trades(2, 3)


def test_plain_rows_of_a_table_that_changes_are_refused(server):
    with Scene(server, readChangeFeed="false") as scene, pytest.raises(ConfigError) as caught:
        scene.batch()
    assert "readChangeFeed=true" in str(caught.value)
    with pytest.raises(ConfigError, match="failOnDataLoss=false needs"):
        Scene(server, readChangeFeed="false", failOnDataLoss="false")


def test_columns_filter_and_forms_travel_in_the_ticket(server):
    with Scene(
        server,
        columns="qty",
        filter="qty > 3",
        includePreimage="true",
        netChanges="true",
    ) as scene:
        assert scene.schema.names[4:] == ["qty"]
        scene.batch()
    ticket = next(body for body in server.asked("get") if body["mode"] == "snapshot")
    assert ticket["columns"] == ["qty"]
    assert ticket["filter"] == "qty > 3"
    assert ticket["preimage"] is True
    assert ticket["net"] is True


def test_large_batches_are_split_by_row_id(server):
    with Scene(server, minPartitions="3") as scene:
        scene.batch()
        server.commit("trades", add=trades(21_000, 10))
        end = scene.latest()
        partitions = scene.reader.partitions(scene.offset, end)
        assert len(partitions) == 3
        rows = scene.rows(scene.offset, end)
        assert sorted(row["qty"] for row in rows) == list(range(10, 21_010))
    with Scene(server, minPartitions="3") as scene:
        end = scene.latest()
        assert len(scene.reader.partitions(scene.offset, end)) == 3
        assert len(scene.batch()) == 21_010


def test_progress_is_told_to_the_server(server):
    with Scene(server, consumerId="me", consumerLease="5s") as scene:
        scene.batch()
        first = scene.offset
        server.commit("trades", add=trades(1, 10))
        scene.batch()
        scene.reader.commit(first)
        scene.reader.commit(scene.offset)
    told = server.asked("journal.cursor")
    assert [body["version"] for body in told] == [1, 2]
    assert told[0]["consumer"] == "me"
    assert told[0]["lease_ms"] == 5000
    watch = next(body for body in server.asked("get") if body["mode"] == "watch")
    assert (watch["consumer"], watch["lease_ms"]) == ("me", 5000)


def test_the_report_says_how_far_behind(server):
    with Scene(server, maxRowsPerTrigger="2") as scene:
        while scene.batch():
            pass
        for number in range(10, 15):
            server.commit("trades", add=trades(2, number))
        scene.batch()
        told = scene.reader.reportLatestOffset()
        assert told["version"] == 6
        assert (told["versionsBehindLatest"], told["rowsBehindLatest"]) == (4, 8)
        assert told["secondsBehindLatest"] in (0.004, 0.005)  # versions are told conflated
        json.dumps(told)


def test_a_changed_schema_wants_a_restart(server):
    with Scene(server) as scene:
        scene.batch()
        table = server.tables["trades"]
        table.schema = pa.schema([*TRADES, ("price", pa.float64())])
        server.commit("trades", add=trades(1, 10))
        with pytest.raises(SchemaError, match="restart the query"):
            scene.batch()


def test_a_table_that_is_not_there_is_named(server):
    with pytest.raises(ServerError, match="option table"):
        DefaultSource({"uri": server.uri, "table": "tirades"}).schema()


# --- batch ----------------------------------------------------------------------------------------


def read(server: FakeJournalServer, **options: str) -> list[dict]:
    source = DefaultSource({"uri": server.uri, "table": "trades", **options})
    schema = source.schema()
    reader = pickle.loads(pickle.dumps(source.reader(schema)))
    rows: list[dict] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert batch.schema.equals(arrow_target(schema))
            rows += batch.to_pylist()
    return rows


def test_a_batch_read_is_the_table(server):
    assert read(server, readChangeFeed="false") == trades(10)
    assert [row["_change_type"] for row in read(server)] == ["insert"] * 10


def test_a_batch_read_at_a_version_or_time(server):
    server.commit("trades", remove=[0])
    assert len(read(server, versionAsOf="1")) == 10
    assert len(read(server, versionAsOf="2")) == 9
    assert len(read(server, timestampAsOf="1")) == 10
    with pytest.raises(Exception, match="versionAsOf"):
        read(server, versionAsOf="3")


def test_a_batch_read_of_changes(server):
    for number in range(10, 14):
        server.commit("trades", add=trades(1, number))
    told = {"readChangeFeed": "true"}
    assert len(read(server, **told)) == 14
    rows = read(server, **told, startingVersion="2", endingVersion="4")
    assert [row["qty"] for row in rows] == [10, 11, 12]
    epoch = server.tables["trades"].epoch
    offset = json.dumps({"epoch": epoch, "version": 3})
    assert len(read(server, **told, startingOffsets=offset)) == 2
    assert len(read(server, **told, startingOffsets="snapshot", endingVersion="1")) == 10
    with pytest.raises(Exception, match="its epoch"):
        read(server, **told, startingOffsets=offset.replace(epoch, "0" * 16))
    with pytest.raises(ConfigError, match="after the end"):
        read(server, **told, startingVersion="5", endingVersion="2")


def test_a_live_view_names_a_read_group_instead_of_a_version(server):
    assert len(read(server, liveView="true")) == 10
    ticket = server.asked("get")[-1]
    assert "version" not in ticket
    assert ticket["read_group"]
