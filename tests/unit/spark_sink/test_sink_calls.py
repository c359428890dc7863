"""The sink's writers called as Spark calls them, without Spark, against a real server."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

import barrage
from barrage.errors import ConfigError
from spark_sink.sink import batch_writer, stream_writer
from spark_sink.sink_errors import SinkWriteError
from spark_sink.sink_flight import BatchKey, abort, fitted
from spark_sink.sink_identity import checkpoint_query_id, driver_key
from spark_sink.sink_options import SinkOptions
from spark_sink.update_hook import STAGINGS_MAX, UpdateSink

SCHEMA = StructType([StructField("a", LongType()), StructField("b", StringType())])
ARROW = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.fixture
def server():
    with barrage.Server(journal="memory") as running:
        yield running


@pytest.fixture
def task(monkeypatch):
    """A task of batch 0 of query ``q``; the test may change its fields."""
    told = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}
    context = SimpleNamespace(told=told, partition=0)
    context.getLocalProperty = told.get
    context.partitionId = lambda: context.partition
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: context))
    return context


def batches(*values: int, schema: pa.Schema = ARROW):
    if not values:
        return iter(())
    columns = [pa.array(values), pa.array([str(v) for v in values])]
    return iter([pa.RecordBatch.from_arrays(columns, names=["a", "b"]).cast(schema)])


def values(server, table: str = "t") -> list[int]:
    return sorted(server.table(table).to_arrow()["a"].to_pylist())


def options(server, **given: str) -> dict[str, str]:
    return {"uri": server.uri, "table": "t", **given}


def copied(thing):
    """Between any two calls Spark pickles what it has."""
    return pickle.loads(pickle.dumps(thing))


def staging_bytes(server) -> int:
    return server._app.journals.staging.byte_count


def test_only_the_attempts_of_the_commit_count_and_only_once(server, task):
    def writer():
        return copied(stream_writer(options(server), SCHEMA, False))

    lost = writer().write(batches(1, 2))
    won = copied(writer().write(batches(1, 2)))
    assert lost.part.attempt != won.part.attempt
    task.partition = 1
    other = writer().write(batches())
    assert other.part.rows == 0
    for _ in range(3):
        writer().commit([won, None, other], 0)
        assert values(server) == [1, 2]
    assert staging_bytes(server) == 0
    task.told["streaming.sql.batchId"] = "3"
    writer().commit([writer().write(batches(3))], 3)
    assert values(server) == [1, 2, 3]


def test_an_aborted_batch_leaves_nothing(server, task):
    writer = stream_writer(options(server), SCHEMA, False)
    message = writer.write(batches(1))
    assert staging_bytes(server) > 0
    writer.abort([None, message], 0)
    assert staging_bytes(server) == 0
    writer.abort([None], 0)
    with pytest.raises(SinkWriteError, match="batch 0: staged-lost"):
        writer.commit([message], 0)


def test_a_batch_without_tasks_is_known_by_its_checkpoint(server, task, tmp_path):
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    assert checkpoint_query_id(str(tmp_path)) == "q"
    assert checkpoint_query_id(f"file:{tmp_path}") == "q"
    assert checkpoint_query_id(str(tmp_path / "none")) is None
    given = options(server, checkpointLocation=str(tmp_path))
    writer = stream_writer(given, SCHEMA, False)
    writer.commit([], 0)
    task.told["streaming.sql.batchId"] = "1"
    writer.commit([writer.write(batches(5))], 1)
    assert values(server) == [5]
    unknown = SinkOptions.of(options(server))
    assert driver_key(unknown, 0) is None
    stream_writer(options(server), SCHEMA, False).commit([], 0)


def test_complete_mode_with_nothing_left_empties_the_table(server, task, tmp_path):
    writer = stream_writer(options(server, keyColumns="a"), SCHEMA, True)
    writer.commit([writer.write(batches(1, 2))], 0)
    task.told["streaming.sql.batchId"] = "1"
    writer.commit([writer.write(batches())], 1)
    assert values(server) == []


def test_every_batch_is_fitted_not_only_the_first(server, task):
    large = pa.schema([("a", pa.int32()), ("b", pa.large_string())])
    writer = stream_writer(options(server), SCHEMA, False)
    mixed = [*batches(1), *batches(2, schema=large)]
    writer.commit([writer.write(iter(mixed))], 0)
    assert values(server) == [1, 2]
    turned = pa.RecordBatch.from_pydict({"b": ["x"], "a": [1]})
    assert fitted(turned, ARROW).schema == ARROW


def test_batch_writes_with_a_number_come_once(server, task):
    given = options(server, txnAppId="nightly", txnVersion="4")
    for _ in range(2):
        writer = copied(batch_writer(given, SCHEMA, False))
        writer.commit([copied(writer.write(batches(1)))])
    assert values(server) == [1]
    one, two = (batch_writer(options(server), SCHEMA, False) for _ in range(2))
    for writer in (one, two, one):
        writer.commit([writer.write(batches(2))])
    assert values(server) == [1, 2, 2]
    with pytest.raises(ConfigError, match="needs txnVersion"):
        batch_writer(options(server, txnAppId="nightly"), SCHEMA, False)
    two.abort([None])


def test_a_broken_upload_is_told_with_its_partition(server, task):
    task.partition = 7
    uri = server.uri
    server.stop()
    writer = stream_writer({"uri": uri, "table": "t", "fetchNumRetries": "1"}, SCHEMA, False)
    with pytest.raises(SinkWriteError, match="table 't', batch 0, partition 7"):
        writer.write(batches(1))


def test_a_task_waits_for_a_server_that_starts_again(task, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    given = {"uri": f"grpc://127.0.0.1:{port}", "table": "t"}
    given |= {"fetchNumRetries": "100", "fetchRetryIntervalMs": "20"}
    writer = stream_writer(given, SCHEMA, False)
    later = barrage.Server(port=port, journal="memory")
    starting = threading.Timer(0.3, later.start)
    starting.start()
    try:
        writer.commit([writer.write(batches(1, 2))], 0)
        assert values(later) == [1, 2]
    finally:
        starting.join()
        later.stop()


class Frame:
    """As much of a DataFrame as the update sink uses; ``after_staging`` is called before commit."""

    columns = ("a", "b")
    schema = SCHEMA
    sparkSession = SimpleNamespace()  # noqa: N815  (Spark's name)

    def __init__(self, after_staging) -> None:
        self.jobs = 0
        self._after_staging = after_staging

    def mapInArrow(self, staging, _columns):
        self._staging = staging
        return self

    def collect(self):
        self.jobs += 1
        told = [
            SimpleNamespace(**row)
            for batch in self._staging(batches(1, 2))
            for row in batch.to_pylist()
        ]
        self._after_staging(self.jobs)
        return told


@pytest.mark.parametrize("losses", [0, 1, STAGINGS_MAX - 1, STAGINGS_MAX])
def test_what_a_restart_of_the_server_took_is_staged_again(server, task, losses):
    given = options(server, keyColumns="a", txnAppId="q")

    def lose(jobs: int) -> None:
        if jobs <= losses:
            abort(SinkOptions.of(given), BatchKey(writer="q", batch=0))

    frame = Frame(lose)
    if losses == STAGINGS_MAX:
        with pytest.raises(SinkWriteError, match="staged-lost"):
            UpdateSink(given)(frame, 0)
        assert server.table_names() == []
    else:
        UpdateSink(given)(frame, 0)
        assert values(server) == [1, 2]
    assert frame.jobs == min(losses + 1, STAGINGS_MAX)
