"""Journals read through shared memory: the rows of DoGet, whatever becomes of the memory."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage import wire
from barrage.client import BodyWay
from barrage.client.bodies.body_routes import NOT_OFFERED
from barrage.errors import (
    BarrageError,
    BodyChannelError,
    ConnectionLostError,
    HistoryLostError,
    RequestRefusedError,
    TransportUnavailableError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.proto.read_exchange import HEADER, READ, encode_end, encode_read
from barrage.server.bodies.body_service import OTHER_HOST
from barrage.server.settings.config import ServerConfig
from barrage.server.statistics.body_statistics import body_rows
from barrage.transport.flight_messages import Descriptor
from barrage.transport.shared_memory import ArenaMapping, shared_bodies
from barrage.wire.dissociated.negotiation import ClaimOutcome, HostIdentity
from tests.helpers.body_peer import BodyExchange, ask_for_channel, claim_header, released
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import ServerProcess, raw_channel, wait_until

WAIT = 60
ROWS = 3_000
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64(), "s": pa.string(), "d": pa.float64()})
PLANS: dict[str, dict[str, Any]] = {
    "changes": {"mode": "changes"},
    "columns": {"mode": "changes", "columns": ["s", "k"]},
    "filter": {"mode": "changes", "filter": "v > 1 and k < 2000"},
    "preimages": {"mode": "changes", "preimage": True},
    "net": {"mode": "changes", "net": True},
    "keys": {"mode": "changes", "row_key": True, "modified_columns": True},
    "plain": {"mode": "changes", "feed_columns": []},
    "stripe": {"mode": "changes", "stripe": [1, 3]},
    "nothing": {"mode": "changes", "filter": "v > 1000"},
    "snapshot": {"mode": "snapshot"},
    "range": {"mode": "snapshot", "ids": [100, 2900], "columns": ["d"]},
}
EXCHANGE = ((HEADER, READ),)


def config(**limits: int) -> ServerConfig:
    chosen = replace(DEFAULT_LIMITS, **{"body_inline_bytes_max": 0, **limits})
    # No test is about history that is forgotten, so all of it is kept.
    return ServerConfig(bodies="shm", journal="memory", journal_memory_bytes=1 << 30, limits=chosen)


def rows(value: int, size: int = ROWS, first: int = 0) -> pa.Table:
    keys = np.arange(first, first + size)
    columns = [keys, np.full(size, value), [f"s{key % 7}" for key in keys], keys / 8]
    return pa.table(columns, schema=SCHEMA)


def filled(server: barrage.Server, name: str = "t", versions: int = 4) -> Any:
    """A table whose rows came at once and then changed, some of them, with every version."""
    table = server.create_table(name, SCHEMA, key="k")
    for value in range(versions):
        table.upsert(rows(value, ROWS if not value else ROWS // 2, 10 * value))
    table.remove(list(range(50)))
    return table


@pytest.fixture
def server():
    with barrage.Server(config=config()) as running:
        filled(running)
        yield running


@pytest.fixture
def session(server):
    with barrage.connect(server.uri) as opened:
        yield opened


def plan(uri: str, table: str = "t", **fields: Any) -> dict[str, Any]:
    """A ticket's fields for everything there is of a table."""
    with JournalClient(uri) as client:
        info = client.info(table)
    told = {"table": table, "epoch": info["epoch"], **fields}
    if fields["mode"] == "changes":
        return {"from": info["earliest"], "to": info["version"], **told}
    return {"version": info["version"], **told}


def ticket(fields: dict[str, Any]) -> bytes:
    return b"j/" + json.dumps(fields).encode()


def by_get(uri: str, fields: dict[str, Any]) -> pa.Table:
    with JournalClient(uri) as client:
        return client.reader(**fields).read_all()


def read(session: Any, fields: dict[str, Any], *, is_in_order: bool = True) -> Any:
    return session.read_journal(
        ticket(fields), table=fields["table"], is_in_order=is_in_order, timeout=WAIT
    )


def facts(server: barrage.Server) -> dict[str, Any]:
    found = server._app.bodies
    (row,) = body_rows(found.facts(), found.arena).to_pylist()
    return row


def is_quiet(server: barrage.Server) -> bool:
    """Whether nothing is under way and all memory is free."""
    found = facts(server)
    return not (found["streams"] or found["pending"] or found["arena_bytes"])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("kind", ["memory", "durable"])
def test_the_rows_are_those_of_do_get(kind, name, tmp_path):
    settings = replace(config(), journal=kind, data=str(tmp_path) if kind == "durable" else None)
    with barrage.Server(config=settings) as server, barrage.connect(server.uri) as session:
        filled(server)
        fields = plan(server.uri, **PLANS[name])
        expected = by_get(server.uri, fields)
        with read(session, fields) as batches:
            found = pa.Table.from_batches(batches, expected.schema)
        assert found.equals(expected)
        assert (found.num_rows > 0) == (name != "nothing")
        told = batches.bodies
        if found.num_rows:
            assert told.shm.count > 0
            assert told.inline.count == 0
        assert facts(server)["bodies_out"] == told.shm.count
        assert facts(server)["bytes_out"] == told.shm.bytes
        # What is held stays as it is, after the stream and while the memory is used again.
        for _ in range(5):
            with read(session, fields) as again:
                assert sum(batch.num_rows for batch in again) == expected.num_rows
        assert found.equals(expected)
        del found
        wait_until(lambda: is_quiet(server))


def test_history_of_a_session_comes_the_same_way(server, session):
    table = session.table("t")
    expected = by_get(server.uri, plan(server.uri, mode="changes"))
    before = facts(server)["bodies_out"]
    earliest = plan(server.uri, mode="changes")["from"]
    found = pa.Table.from_batches(table.changes(earliest), expected.schema)
    assert found.equals(expected)
    between = facts(server)["bodies_out"]
    assert between > before
    version = plan(server.uri, mode="snapshot")["version"]
    assert sorted(table.as_of(version)["k"].to_pylist()) == list(range(50, ROWS))
    assert facts(server)["bodies_out"] > between
    with barrage.connect(server.uri, bodies="inline") as other:
        last = facts(server)["bodies_out"]
        found = pa.Table.from_batches(other.table("t").changes(earliest), expected.schema)
        assert found.equals(expected)
        assert facts(server)["bodies_out"] == last


def test_without_the_switch_everything_is_inline():
    with barrage.Server(journal="memory") as server, barrage.connect(server.uri) as session:
        filled(server)
        fields = plan(server.uri, mode="changes")
        assert session.body_status().way is BodyWay.INLINE
        assert session.body_status().reason == NOT_OFFERED
        with read(session, fields) as batches:
            found = pa.Table.from_batches(batches)
        assert found.equals(by_get(server.uri, fields))
        assert batches.bodies.shm.count == 0
        assert batches.bodies.inline.count > 0


def test_another_host_gets_it_inline(server, monkeypatch):
    other = HostIdentity(boot_id="00000000-0000-0000-0000-000000000000", user_id=0)
    monkeypatch.setattr(shared_bodies, "host_identity", lambda: other)
    with barrage.connect(server.uri) as session:
        status = session.body_status()
        assert status.way is BodyWay.INLINE
        assert OTHER_HOST in status.reason
        fields = plan(server.uri, mode="changes")
        with read(session, fields) as batches:
            assert pa.Table.from_batches(batches).equals(by_get(server.uri, fields))
        assert facts(server)["bodies_out"] == 0


def test_the_message_that_ends_it_is_for_those_with_a_channel_only(server):
    """A plain Flight client may read this way, too."""
    fields = plan(server.uri, mode="changes")
    with JournalClient(server.uri) as client:
        options = flight.FlightCallOptions(headers=[(HEADER.encode(), READ.encode())])
        descriptor = flight.FlightDescriptor.for_command(ticket(fields))
        writer, reader = client.client.do_exchange(descriptor, options)
        with writer:
            assert reader.read_all().equals(by_get(server.uri, fields))


# --- windows, arenas, leases ---


class Reading(BodyExchange):
    """A raw reader of a journal."""

    def __init__(self, channel: grpc.Channel, fields: dict[str, Any], *, gives_back: bool) -> None:
        answer = ask_for_channel(channel)
        assert answer.arena is not None
        mapping = ArenaMapping.open(answer.arena)
        headers = (*claim_header(answer, mapping.proof()), *EXCHANGE)
        super().__init__(channel, mapping=mapping, headers=headers, gives_back=gives_back)
        self.send(encode_read(Descriptor(command=ticket(fields)).encode()))

    def read_all(self) -> int:
        """Read to the end; the number of bodies."""
        while (frame := self.read_frame()).metadata is None:
            assert frame.header is not None
        self.half_close()
        assert self.status()[0] is grpc.StatusCode.OK
        return len(self.references) + len(self.inline_bytes)


BIG = pa.table({"x": np.arange(1 << 17)})
"""One MiB a version."""


def many_versions(server: barrage.Server, versions: int) -> dict[str, Any]:
    table = server.create_table("big", BIG.schema, kind="append_only")
    for _ in range(versions):
        table.add(BIG)
    return plan(server.uri, "big", mode="changes")


def test_a_full_window_makes_what_follows_inline():
    settings = config(body_window_count=4, body_wait_ns_max=1_000_000)
    with barrage.Server(config=settings) as server, raw_channel(server.address) as channel:
        fields = many_versions(server, 12)
        with Reading(channel, fields, gives_back=False) as reading:
            bodies = reading.read_all()
            assert len(reading.references) == 4
            assert len(reading.inline_bytes) == bodies - 4 > 4
        with Reading(channel, fields, gives_back=True) as reading:
            assert reading.read_all() == bodies
            assert len(reading.references) > 4
        wait_until(lambda: is_quiet(server))


def test_a_full_arena_makes_bodies_inline():
    settings = config(body_arena_bytes=3 << 20, body_segment_bytes=3 << 20)
    with barrage.Server(config=settings) as server, barrage.connect(server.uri) as session:
        fields = many_versions(server, 8)
        with read(session, fields) as batches:
            kept = list(batches)
        told = batches.bodies
        assert told.shm.count > 0
        assert told.inline.count > 0
        assert facts(server)["refused"] > 0
        values = pa.Table.from_batches(kept)["x"].to_numpy()
        assert np.array_equal(values, np.tile(np.arange(1 << 17), 8))


def test_who_gives_nothing_back_stops_nobody():
    settings = config(body_window_count=8, body_wait_ns_max=1_000_000)
    with barrage.Server(config=settings) as server, raw_channel(server.address) as channel:
        fields = many_versions(server, 12)
        with ExitStack() as stack:
            for _ in range(3):
                idle = stack.enter_context(Reading(channel, fields, gives_back=False))
                idle.read_frame()
            with barrage.connect(server.uri) as session, read(session, fields) as batches:
                assert sum(batch.num_rows for batch in batches) == 12 << 17
                assert batches.bodies.shm.count > 0
        wait_until(lambda: is_quiet(server))


def test_a_body_that_is_kept_too_long_makes_the_rest_inline():
    settings = config(body_lease_ns_max=200_000_000, body_window_count=4)
    with barrage.Server(config=settings) as server, raw_channel(server.address) as channel:
        fields = many_versions(server, 40)
        with Reading(channel, fields, gives_back=False) as reading:
            while not reading.references:
                reading.read_frame()
            wait_until(lambda: facts(server)["fallbacks"] == 1)
            inline = 0
            while (frame := wire.decode_flight_data(reading.read())).metadata is None:
                inline += not frame.is_detached
            assert inline > 4


def test_what_is_lent_counts_until_the_rows_are_gone(server, session):
    with read(session, plan(server.uri, mode="snapshot")) as batches:
        kept = list(batches)
    wait_until(lambda: facts(server)["streams"] == 0)
    assert facts(server)["arena_bytes"] > 0
    column = kept[0].column("k").slice(3, 5)
    expected = column.to_pylist()
    del kept
    gc.collect()
    assert facts(server)["arena_bytes"] > 0, "a slice is left"
    assert column.to_pylist() == expected
    del column
    wait_until(lambda: is_quiet(server))


# --- what goes wrong ---


def failing_after(monkeypatch: pytest.MonkeyPatch, good: int) -> None:
    """The first bodies can be borrowed, and none after them."""
    calls, borrow = count(), ArenaMapping.borrow

    def borrowed(self, reference, on_release):
        if next(calls) >= good:
            raise BodyChannelError("the memory is gone")
        return borrow(self, reference, on_release)

    monkeypatch.setattr(ArenaMapping, "borrow", borrowed)


@pytest.mark.parametrize("good", [0, 1, 3])
def test_a_body_that_does_not_come_is_repeated_inline(server, session, monkeypatch, good):
    fields = many_versions(server, 4)
    expected = by_get(server.uri, fields)
    failing_after(monkeypatch, good)
    with read(session, fields) as batches:
        assert pa.Table.from_batches(batches, expected.schema).equals(expected)
    # A dictionary is copied, not borrowed.
    assert batches.bodies.shm.count == good + 1
    assert batches.bodies.inline.count > 0
    # New reads do not try.
    assert session.body_status().reason == "the memory is gone"
    wait_until(lambda: is_quiet(server))


def test_rows_without_an_order_are_repeated_only_before_the_first(monkeypatch):
    with barrage.Server(config=config()) as server, barrage.connect(server.uri) as session:
        fields = many_versions(server, 6) | {"net": True}
        failing_after(monkeypatch, 2)
        with (
            read(session, fields, is_in_order=False) as batches,
            pytest.raises(BodyChannelError, match="the memory is gone"),
        ):
            list(batches)
        with read(session, fields, is_in_order=False) as batches:
            assert sum(batch.num_rows for batch in batches) == 6 << 17


def test_a_state_whose_body_is_lost_is_read_again(server, session, monkeypatch):
    expected = session.table("t").as_of(plan(server.uri, mode="snapshot")["version"])
    failing_after(monkeypatch, 1)
    assert session.table("t").as_of(plan(server.uri, mode="snapshot")["version"]).equals(expected)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"mode": "changes", "epoch": "f" * 16}, HistoryLostError),
        ({"mode": "changes", "table": "nobody"}, BarrageError),
        ({"mode": "changes", "columns": ["nobody"]}, BarrageError),
        ({"mode": "changes", "stripe": [3, 2]}, RequestRefusedError),
    ],
)
def test_wrong_tickets_are_refused_as_by_do_get(server, session, asked, kind):
    fields = {**plan(server.uri, mode="changes"), **asked}
    with read(session, fields) as batches, pytest.raises(kind):
        list(batches)
    assert facts(server)["bodies_out"] == 0
    wait_until(lambda: is_quiet(server))


@pytest.mark.parametrize(
    "messages",
    [
        [b"\xff\xff"],
        [released(64)],
        [encode_end()],
        [encode_read(b"\xff")],
        [encode_read(Descriptor(command=b"s/t").encode())],
        [encode_read(Descriptor(path=("t",)).encode())],
        [],
    ],
)
def test_what_is_no_read_is_refused(server, messages):
    with (
        raw_channel(server.address) as channel,
        BodyExchange(channel, headers=EXCHANGE) as stream,
    ):
        for message in messages:
            stream.send(message)
        stream.half_close()
        code = stream.status()[0]
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)


def test_junk_in_the_middle_ends_the_read(server):
    with raw_channel(server.address) as channel:
        fields = plan(server.uri, mode="changes")
        with Reading(channel, fields, gives_back=False) as reading:
            reading.send(b"\xff\xff")
            code, text = reading.status()
            assert code is grpc.StatusCode.INVALID_ARGUMENT, text
        wait_until(lambda: is_quiet(server))


def test_a_claim_that_is_refused_means_inline(server):
    fields = plan(server.uri, mode="changes")
    with raw_channel(server.address) as channel:
        answer = ask_for_channel(channel)
        headers = (*claim_header(answer, bytes(16)), *EXCHANGE)
        with BodyExchange(channel, headers=headers) as stream:
            stream.send(encode_read(Descriptor(command=ticket(fields)).encode()))
            with suppress(StopIteration):
                while True:
                    stream.read_frame()
            outcome = stream.outcome()
            assert isinstance(outcome, ClaimOutcome)
            assert outcome.way is BodyWay.INLINE
            assert stream.references == []
            assert stream.inline_bytes


READER = """
import sys
import barrage

session = barrage.connect(sys.argv[1])
read = session.read_journal(sys.argv[2].encode(), table="big", is_in_order=True)
kept = [next(read), next(read)]
print(read.bodies.shm.count, flush=True)
sys.stdin.read()
"""


def test_memory_comes_back_without_a_collection():
    """Servers collect seldom, so what a stream that is cut held must not stay in a cycle."""
    gc.collect()
    gc.disable()
    try:
        with barrage.Server(config=config(body_window_count=4)) as server:
            fields = many_versions(server, 20)
            for _ in range(3):
                with barrage.connect(server.uri) as session, read(session, fields) as batches:
                    next(batches)
                    assert facts(server)["arena_bytes"] > 0
                wait_until(lambda: is_quiet(server))
    finally:
        gc.enable()


def test_the_memory_of_a_reader_that_is_killed_comes_back():
    with barrage.Server(config=config(body_window_count=4)) as server:
        fields = many_versions(server, 20)
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, server.address, ticket(fields).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        try:
            assert int(reader.stdout.readline()) >= 2
            assert facts(server)["arena_bytes"] > 0
            reader.send_signal(signal.SIGSTOP)
            with barrage.connect(server.uri) as session, read(session, fields) as batches:
                assert sum(batch.num_rows for batch in batches) == 20 << 17
        finally:
            reader.kill()
            reader.communicate()
        wait_until(lambda: is_quiet(server))


SERVER = """
import sys, threading
from dataclasses import replace
import numpy as np, pyarrow as pa
import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig

config = ServerConfig(bodies="shm", journal="memory", journal_memory_bytes=1 << 30)
server = barrage.Server(config=config).start()
table = server.create_table("big", {"x": "int64"}, kind="append_only")
for _ in range(40):
    table.add(pa.table({"x": np.arange(1 << 17)}))
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
threading.Event().wait(60)
"""


def files_of(arena: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{arena}*"))


def test_a_server_that_is_killed_mid_read():
    with ServerProcess(SERVER) as process, barrage.connect(process.address) as session:
        with raw_channel(process.address) as channel:
            arena = ask_for_channel(channel).arena
        assert arena is not None
        fields = plan(f"grpc://{process.address}", "big", mode="changes")
        with read(session, fields) as batches:
            kept = [next(batches), next(batches)]
            assert batches.bodies.shm.count >= 2
            process.process.kill()
            process.process.wait()
            assert files_of(arena)
            with pytest.raises(ConnectionLostError):
                list(batches)
        values = np.concatenate([batch["x"].to_numpy() for batch in kept])
        assert np.array_equal(values % (1 << 17), np.arange(len(values)) % (1 << 17))
        with barrage.Server(config=config()):
            assert not files_of(arena), "the next server removes what was left"


def test_a_server_that_stops_ends_its_reads(server, session):
    fields = plan(server.uri, mode="changes")
    with read(session, fields) as batches:
        kept = next(batches)
        expected = kept.to_pylist()
        server.stop()
        with suppress(BarrageError):
            list(batches)
        assert kept.to_pylist() == expected
    with pytest.raises(TransportUnavailableError):
        ArenaMapping.open("barrage-" + "0" * 32)
