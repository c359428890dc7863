"""What an executor does with a server that shares memory: the same rows, nothing left behind."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import barrage
from barrage.errors import BodyChannelError, ConfigError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.flight.journal_exchange import JournalExchanges
from barrage.server.settings.config import ServerConfig
from barrage.server.statistics.body_statistics import body_rows
from barrage.transport.shared_memory import ArenaMapping, shared_bodies
from barrage.wire.dissociated.negotiation import HostIdentity
from spark_sink import body_reads as module
from spark_sink.body_reads import body_reads
from spark_sink.connection import Failure, ServerConnection, ServerError
from spark_sink.fetch import fetch_piece
from spark_sink.options import SourceOptions
from spark_sink.planning import change_pieces, snapshot_pieces
from tests.helpers.server_process import wait_until

PART = 1 << 16
VERSIONS = 6
TARGET = pa.schema([("x", pa.int64()), ("s", pa.string())])


@pytest.fixture(autouse=True)
def _no_sessions_left():
    yield
    body_reads.close()


def served(**settings) -> barrage.Server:
    config = ServerConfig(
        **{"bodies": "shm", "journal": "memory", **settings},
        limits=replace(DEFAULT_LIMITS, body_inline_bytes_max=0),
    )
    return barrage.Server(config=config)


@pytest.fixture
def server():
    with served() as running:
        fill(running)
        yield running


def fill(server: barrage.Server) -> None:
    table = server.create_table("t", TARGET, kind="append_only")
    for number in range(VERSIONS):
        values = np.arange(number * PART, (number + 1) * PART)
        table.add(pa.table([values, ["even", "odd"] * (PART // 2)], schema=TARGET))


def connection(server: barrage.Server, **options: str) -> ServerConnection:
    return ServerConnection.of({"uri": server.uri, "fetchRetryIntervalMs": "1", **options})


def changes(server: barrage.Server, tasks: int = 1):
    epoch, first, last = bounds(server)
    return change_pieces("t", epoch, after=first, upto=last, tasks=tasks, form={})


def bounds(server: barrage.Server) -> tuple[str, int, int]:
    found = connection(server).action("journal.info", table="t")
    return found["epoch"], found["earliest"], found["version"]


def fetched(connected: ServerConnection, pieces, *, shares: bool = True) -> list[int]:
    values = []
    for piece in pieces:
        for batch in fetch_piece(
            connected, piece, TARGET, fails_on_data_loss=True, may_share_memory=shares
        ):
            assert batch.schema == TARGET
            values += batch.column("x").to_pylist()
    return values


def facts(server: barrage.Server) -> dict:
    found = server._app.bodies
    (row,) = body_rows(found.facts(), found.arena).to_pylist()
    return row


def is_quiet(server: barrage.Server) -> bool:
    gc.collect()
    found = facts(server)
    return not (found["streams"] or found["pending"] or found["arena_bytes"])


ALL = list(range(VERSIONS * PART))


def test_rows_come_through_shared_memory_when_they_may(server):
    assert fetched(connection(server), changes(server)) == ALL
    shared = facts(server)["bodies_out"]
    assert shared > VERSIONS
    assert facts(server)["bytes_out"] > len(ALL) * 8
    assert sorted(fetched(connection(server), changes(server, 3))) == ALL
    epoch, _, last = bounds(server)
    pieces = snapshot_pieces("t", epoch, last, ids=(0, 2**63 - 1), cuts=[PART, 3 * PART], form={})
    assert sorted(fetched(connection(server), pieces)) == ALL
    assert facts(server)["bodies_out"] > 2 * shared
    wait_until(lambda: is_quiet(server))
    before = facts(server)
    assert fetched(connection(server), changes(server), shares=False) == ALL
    assert facts(server) == before


def test_a_batch_that_needs_no_cast_is_not_copied(server):
    (piece,) = changes(server)
    batches = fetch_piece(
        connection(server), piece, TARGET, fails_on_data_loss=True, may_share_memory=True
    )
    batch = next(batches)
    assert address_of(batch) in maps_of_arenas()
    batches.close()
    wait_until(lambda: facts(server)["streams"] == 0)
    expected = batch.column("x").to_pylist()
    assert expected == ALL[: len(expected)]
    assert facts(server)["arena_bytes"] > 0
    del batch
    wait_until(lambda: is_quiet(server))


def address_of(batch: pa.RecordBatch) -> int:
    return batch.column("x").buffers()[1].address


class Ranges(list[range]):
    def __contains__(self, address: object) -> bool:
        return any(address in each for each in self)


def maps_of_arenas() -> Ranges:
    found = Ranges()
    with open("/proc/self/maps") as lines:
        for line in lines:
            if "/dev/shm/barrage-" in line:
                first, last = line.split()[0].split("-")
                found.append(range(int(first, 16), int(last, 16)))
    return found


def test_a_task_that_is_given_up_gives_everything_back(server):
    for pieces in (changes(server), changes(server, 2)):
        batches = fetch_piece(
            connection(server), pieces[0], TARGET, fails_on_data_loss=True, may_share_memory=True
        )
        next(batches)
        del batches
        wait_until(lambda: is_quiet(server))


def test_a_server_that_offers_nothing_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        module, "_opened", lambda given, opened=module._opened: asked.append(opened(given))
    )
    with served(bodies="inline") as server:
        fill(server)
        for _ in range(3):
            assert fetched(connection(server), changes(server)) == ALL
    assert asked == [None]


def test_another_host_gets_rows_by_do_get(server, monkeypatch):
    other = HostIdentity(boot_id="00000000-0000-0000-0000-000000000000", user_id=0)
    monkeypatch.setattr(shared_bodies, "host_identity", lambda: other)
    assert fetched(connection(server), changes(server)) == ALL
    assert facts(server)["bodies_out"] == facts(server)["bodies_inline"] == 0


def test_options_a_session_does_not_take_mean_do_get(server):
    connected = connection(server, **{"header.x-who": "me"})
    assert fetched(connected, changes(server)) == ALL
    assert facts(server)["bodies_out"] == 0


def test_a_server_that_knows_no_such_reads(server, monkeypatch):
    async def run(self, context, session, stream_id):
        raise barrage.errors.UnsupportedError("a stream of another kind")

    monkeypatch.setattr(JournalExchanges, "run", run)
    assert fetched(connection(server), changes(server)) == ALL
    monkeypatch.undo()
    assert fetched(connection(server), changes(server)) == ALL
    assert facts(server)["bodies_out"] == 0, "it is not asked again for some time"


@pytest.mark.parametrize("good", [0, 2, 5])
def test_a_body_that_does_not_come_loses_and_doubles_nothing(server, monkeypatch, good):
    left, borrow = list(range(good)), ArenaMapping.borrow

    def borrowed(self, reference, on_release):
        if not left:
            raise BodyChannelError("the memory is gone")
        left.pop()
        return borrow(self, reference, on_release)

    monkeypatch.setattr(ArenaMapping, "borrow", borrowed)
    assert fetched(connection(server), changes(server)) == ALL
    assert not left
    wait_until(lambda: is_quiet(server))


def test_a_lost_body_of_a_snapshot_is_made_good_by_ids(server, monkeypatch):
    epoch, _, last = bounds(server)
    pieces = snapshot_pieces("t", epoch, last, ids=(0, 2**63 - 1), cuts=[], form={})
    left, borrow = [1, 2], ArenaMapping.borrow

    def borrowed(self, reference, on_release):
        if not left:
            raise BodyChannelError("the memory is gone")
        left.pop()
        return borrow(self, reference, on_release)

    monkeypatch.setattr(ArenaMapping, "borrow", borrowed)
    assert sorted(fetched(connection(server), pieces)) == ALL
    assert not left


def test_lost_history_is_told_as_by_do_get(server):
    (piece,) = changes(server)
    gone = replace(piece, ticket={**piece.ticket, "epoch": "f" * 16})
    for shares in (True, False):
        with pytest.raises(ServerError, match="history") as caught:
            fetched(connection(server), [gone], shares=shares)
        assert caught.value.failure is Failure.LOST


def test_a_server_that_went_away_is_unreachable():
    with served(drain_grace_ms=100) as server:
        fill(server)
        (piece,) = changes(server)
        batches = fetch_piece(
            connection(server, fetchNumRetries="1"),
            piece,
            TARGET,
            fails_on_data_loss=True,
            may_share_memory=True,
        )
        first = next(batches)
        server.stop()
        with pytest.raises(ServerError) as caught:
            list(batches)
        assert caught.value.failure is Failure.UNREACHABLE
        assert first.column("x").to_pylist() == ALL[: first.num_rows]


@pytest.mark.parametrize(
    ("given", "found"), [(None, "auto"), ("auto", "auto"), ("INLINE", "inline"), (" shm", "shm")]
)
def test_the_option(given, found):
    options = {"uri": "grpc://x", "table": "t"} | ({} if given is None else {"bodies": given})
    assert SourceOptions.of(options).bodies == found


@pytest.mark.parametrize("given", ["ucx", "", "yes"])
def test_other_words_are_refused(given):
    with pytest.raises(ConfigError, match="auto, inline or shm"):
        SourceOptions.of({"uri": "grpc://x", "table": "t", "bodies": given})
