"""Fetching a piece: gathered into larger batches, taken up where it broke, given up in time."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_sink.connection import Failure, ServerConnection, ServerError
from spark_sink.fetch import StallGuard, fetch_piece, gathered
from spark_sink.planning import change_pieces, snapshot_pieces, task_count
from tests.helpers.fake_journal import FakeJournalServer, FakeTable
from tests.unit.spark_sink.tables import TRADES, trades


@pytest.fixture
def server():
    with FakeJournalServer() as running:
        running.tables["trades"] = FakeTable(TRADES)
        for first in range(0, 100, 10):
            running.commit("trades", add=trades(10, first))
        yield running


def fetched(server, pieces, **options: str) -> list[int]:
    given = {"uri": server.uri, "fetchRetryIntervalMs": "1", **options}
    connection = ServerConnection.of(given)
    return [
        value
        for piece in pieces
        for batch in fetch_piece(connection, piece, TRADES, fails_on_data_loss=True)
        for value in batch.column("qty").to_pylist()
    ]


def changes(server, tasks: int = 1):
    table = server.tables["trades"]
    return change_pieces("trades", table.epoch, after=0, upto=table.version, tasks=tasks, form={})


def snapshot(server, cuts=()):
    table = server.tables["trades"]
    return snapshot_pieces(
        "trades", table.epoch, table.version, ids=(0, 2**63 - 1), cuts=cuts, form={}
    )


def test_stripes_and_ranges_have_every_row_once(server):
    assert fetched(server, changes(server)) == list(range(100))
    assert sorted(fetched(server, changes(server, 3))) == list(range(100))
    assert fetched(server, snapshot(server, [20, 70])) == list(range(100))


@pytest.mark.parametrize("broken_at", [0, 1, 5])
def test_changes_are_taken_up_where_they_broke(server, broken_at):
    server.chunk_rows, server.break_after_chunks = 7, broken_at
    assert fetched(server, changes(server)) == list(range(100))


def test_a_snapshot_that_broke_before_its_first_row_is_begun_anew(server):
    server.break_after_chunks = 0
    assert fetched(server, snapshot(server)) == list(range(100))


def test_a_snapshot_that_broke_later_goes_on_with_the_rows_that_are_missing(server):
    # Its rows may come in another order the next time.
    server.chunk_rows, server.break_after_chunks = 7, 3
    server.is_turned = True
    assert sorted(fetched(server, snapshot(server))) == list(range(100))


def test_net_changes_that_broke_later_are_the_tasks_business(server):
    server.chunk_rows, server.break_after_chunks = 7, 3
    (piece,) = changes(server)
    piece = replace(piece, ticket={**piece.ticket, "net": True})
    with pytest.raises(ServerError, match="broke the stream") as caught:
        fetched(server, [piece])
    assert caught.value.failure is Failure.UNREACHABLE


def test_a_server_that_is_away_for_some_tries_is_waited_for(server):
    server.unavailable = 8
    assert fetched(server, changes(server)) == list(range(100))


def test_a_server_that_stays_away_fails_the_fetch_with_the_last_cause(server):
    server.unavailable = 10_000
    with pytest.raises(ServerError, match=r"the fake is away.*reconnectTimeoutMs"):
        fetched(server, changes(server), reconnectTimeoutMs="100")
    assert server.unavailable < 9_999
    server.unavailable = 0


def test_small_batches_are_gathered():
    small = [pa.record_batch({"a": [number]}) for number in range(1000)]
    (joined,) = gathered(iter(small))
    assert joined.column(0).to_pylist() == list(range(1000))
    some = [pa.record_batch({"a": list(range(15_000))}) for _ in range(6)]
    assert [batch.num_rows for batch in gathered(iter(some))] == [75_000, 15_000]
    assert list(gathered(iter([pa.record_batch({"a": pa.array([], pa.int64())})]))) == []


def test_large_batches_stay_what_they_are():
    large = [pa.record_batch({"a": list(range(count))}) for count in (10, 50_000, 20_000, 10)]
    found = list(gathered(iter(large)))
    assert [batch.num_rows for batch in found] == [10, 50_000, 20_000, 10]
    addresses = [batch.column(0).buffers()[1].address for batch in (large[1], found[1])]
    assert addresses[0] == addresses[1], "it was copied"


def test_gathered_dictionaries_are_one():
    parts = [pa.record_batch({"a": pa.array([text]).dictionary_encode()}) for text in "xyx"]
    (joined,) = gathered(iter(parts))
    assert joined.column(0).to_pylist() == ["x", "y", "x"]


class Hanging:
    """A stream that sends nothing until it is cancelled."""

    def __init__(self) -> None:
        import threading

        self.cancelled = threading.Event()

    def read_chunk(self):
        assert self.cancelled.wait(60)
        raise OSError("cancelled")

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_stream_that_hangs_is_cancelled():
    guard = StallGuard(Hanging(), 0.1)
    with pytest.raises(OSError, match="cancelled"):
        next(guard.chunks())
    assert guard.has_fired


@pytest.mark.parametrize(
    ("rows", "least", "tasks"),
    [
        (10, None, 1),
        (10, 8, 1),
        (19_999, 8, 1),
        (20_000, 8, 8),
        (300_000, None, 2),
        (10_000_000, None, 4),
        (10_000_000, 16, 16),
    ],
)
def test_small_batches_are_one_task(rows, least, tasks):
    assert task_count(rows, partitions_min=least, partitions_max=4) == tasks
