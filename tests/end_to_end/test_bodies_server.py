"""Bodies in shared memory: raw clients that claim a channel get what others get inline."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import barrage
from barrage.errors import ConfigError, TransportUnavailableError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from barrage.server.statistics.body_statistics import body_rows
from barrage.transport import shared_memory
from barrage.transport.shared_memory import ArenaMapping, host_identity
from barrage.wire import WireRevision
from barrage.wire.dissociated.negotiation import ConnectionTerms, HostIdentity, Offer
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.updates.update_assembler import UpdateAssembler
from tests.end_to_end.random_tables import ALL_TYPES, arrow_rows, some_rows
from tests.helpers.body_peer import (
    BodyExchange,
    all_rows,
    ask_for_channel,
    claim_header,
    read_rows,
    released,
)
from tests.helpers.receivers import KeyReceiver, ViewReceiver
from tests.helpers.server_process import (
    FLIGHT,
    RawExchange,
    ServerProcess,
    raw_channel,
    snapshot_request,
    subscription_request,
    wait_until,
)

EVERYTHING_OUTSIDE = replace(DEFAULT_LIMITS, body_inline_bytes_max=0)
SHAPES = {
    "full": {},
    "viewport": {"viewport": all_rows(7)},
    "reverse": {"viewport": all_rows(100), "is_reverse": True},
    "columns": {"viewport": all_rows(7), "columns": (0, 6, 13)},
    "list": {"columns_as_list": True},
    "batches": {"batch_size": 3},
}


def config(**limits: int) -> ServerConfig:
    return ServerConfig(bodies="shm", limits=replace(DEFAULT_LIMITS, **limits))


@pytest.fixture
def server():
    with barrage.Server(bodies="shm") as running:
        yield running


@pytest.fixture
def channel(server):
    with raw_channel(server.address) as opened:
        yield opened


def keyed_rows(rng: random.Random, count: int, keys: int) -> pa.Table:
    """Random rows of every type under random keys; the first key is always there."""
    rows = some_rows(rng, ALL_TYPES, count)
    for row, key in zip(rows, [0, *rng.sample(range(1, keys), count - 1)], strict=True):
        row["n"] = key
    return arrow_rows(ALL_TYPES, rows)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("shape", "revision"),
    [
        (shape, revision)
        for shape in SHAPES
        for revision in WireRevision
        if revision.has_columns_as_list or shape not in ("list", "reverse")
    ],
)
def test_subscribers_of_shared_memory_see_what_others_see(shape, revision):
    """Updates of every column type: adds, modifications and removals."""
    rng = random.Random(5)
    options = SHAPES[shape]
    has_positions = "viewport" in options and revision.has_view_positions
    receivers = [(ViewReceiver if has_positions else KeyReceiver)(len(ALL_TYPES)) for _ in "ab"]
    settings = ServerConfig(bodies="shm", limits=EVERYTHING_OUTSIDE)
    with ExitStack() as stack:
        server = stack.enter_context(barrage.Server(config=settings))
        table = server.create_table("k", ALL_TYPES, key="n")
        table.upsert(keyed_rows(rng, 30, 50))
        channel = stack.enter_context(raw_channel(server.address))
        headers = (("x-barrage-revision", revision.value),)
        streams = [
            BodyExchange(channel, is_viewport=has_positions, revision=revision),
            RawExchange(channel, headers=headers, is_viewport=has_positions, revision=revision),
        ]
        for stream in streams:
            stack.enter_context(stream)
            stream.assembler = UpdateAssembler(
                revision=revision,
                is_viewport=has_positions,
                columns_as_list=options.get("columns_as_list", False),
            )
            stream.send(subscription_request("k", revision=revision, **options))
        for _ in range(12):
            with server.transaction() as change:
                change.upsert(table, keyed_rows(rng, 6, 50))
                change.remove(table, rng.sample(range(1, 50), 2))
            for stream, receiver in zip(streams, receivers, strict=True):
                while receiver.last_step is None or receiver.last_step < change.step:
                    receiver.receive(stream.read_update())
            ours, theirs = receivers
            if has_positions:
                assert ours.rows == theirs.rows
            else:
                assert (ours.keys, ours.cells) == (theirs.keys, theirs.cells)
        assert len(streams[0].references) > 12
        assert streams[0].inline_bytes.count(0) == len(streams[0].inline_bytes)


@pytest.mark.parametrize("rows", [1, 1000, 300_000])
def test_snapshots_by_shared_memory_equal_those_inline(server, channel, rows):
    rng = np.random.default_rng(1)
    data = {
        "i": np.arange(rows),
        "x": rng.normal(size=rows),
        "s": [f"w{n % 100}" for n in range(rows)],
    }
    server.create_table("t", data=data)
    answers = []
    for stream in (BodyExchange(channel), RawExchange(channel)):
        with stream:
            stream.send(snapshot_request("t"))
            update = stream.read_update()
            answers.append(pa.table(update.added_columns, names=["i", "x", "s"]))
            stream.half_close()
            assert stream.status()[0].name == "OK"
    assert answers[0].equals(answers[1])
    assert answers[0].num_rows == rows


def test_small_bodies_stay_in_their_messages_and_large_ones_come_in_few(server, channel):
    server.create_table("small", data={"x": np.arange(4096)})  # 32 KiB
    server.create_table("large", data={"x": np.arange(1_000_000)})  # 8 MB
    for table, references, inline in (("small", 0, 1), ("large", 2, 0)):
        with BodyExchange(channel) as stream:
            stream.send(snapshot_request(table))
            assert len(stream.read_update().added_columns[0])
            assert len(stream.references) == references
            assert len(stream.inline_bytes) == inline
            assert all(reference.length > 1024 * 1024 for reference in stream.references)


def test_subscribers_of_one_way_share_bodies_and_those_of_another_have_their_own():
    settings = config(body_inline_bytes_max=1000)
    with barrage.Server(config=settings) as server, raw_channel(server.address) as channel:
        table = server.create_table("b", {"x": "int64"}, kind="blink")
        with ExitStack() as stack:
            ours = [stack.enter_context(BodyExchange(channel, gives_back=False)) for _ in range(3)]
            theirs = [stack.enter_context(RawExchange(channel)) for _ in range(2)]
            for stream in (*ours, *theirs):
                stream.send(subscription_request("b"))
                stream.read_update()
            table.add({"x": np.arange(10_000)})
            updates = [stream.read_update() for stream in (*ours, *theirs)]
            assert {
                update.added_columns[0].equals(pa.array(np.arange(10_000))) for update in updates
            } == {True}
            # One copy in memory, leased three times.
            assert len({stream.references[0] for stream in ours}) == 1
            assert statistics_of(server)["pending"] == 3
            assert statistics_of(server)["arena_bytes"] < 2 * 80_000


def statistics_of(server: barrage.Server) -> dict:
    """The line about shared memory, as true as it is now."""
    app = server._app
    (row,) = body_rows(app.bodies.facts(), app.bodies.arena).to_pylist()
    return row


def test_statistics_are_a_table(server, channel):
    server.create_table("t", data={"x": np.arange(100_000)})
    with BodyExchange(channel, gives_back=False) as stream:
        stream.send(snapshot_request("t"))
        stream.read_update()
        with barrage.connect(server.uri, bodies="inline") as session:
            seen = {}

            def is_told() -> bool:
                (row,) = session.table("_bodies").snapshot().to_pylist()
                seen.update(row)
                return row["bodies_out"] == 1

            wait_until(is_told)
    assert seen["way"] == "shm"
    assert (seen["streams"], seen["pending"], seen["pending_bytes"]) == (1, 1, 800_000)
    assert seen["arena_bytes"] >= 800_000
    assert (seen["bodies_inline"], seen["fallbacks"], seen["refusals"]) == (0, 0, 0)


def test_a_full_window_waits_a_little_and_goes_on_inline():
    settings = config(body_window_count=2, body_wait_ns_max=20_000_000)
    with barrage.Server(config=settings) as server, raw_channel(server.address) as channel:
        table = server.create_table("b", {"x": "int64"}, kind="blink")
        with BodyExchange(channel, gives_back=False) as stream:
            stream.send(subscription_request("b"))
            stream.read_update()
            for number in range(4):
                table.add({"x": np.full(10_000, number)})
                assert read_rows(stream)[0].as_py() == number
            assert len(stream.references) == 2
            assert [size for size in stream.inline_bytes if size] == [80_000, 80_000]
            # Credit opens it again.
            stream.send(released(stream.references[0].address))
            wait_until(lambda: statistics_of(server)["pending"] == 1)
            table.add({"x": np.full(10_000, 9)})
            assert read_rows(stream)[0].as_py() == 9
            assert len(stream.references) == 3
            assert statistics_of(server)["bodies_inline"] == 2


def test_a_window_that_gets_credit_in_time_keeps_all_bodies_outside():
    settings = config(
        body_window_bytes=9_000_000, message_bytes_target=1024 * 1024, body_wait_ns_max=10**10
    )
    with barrage.Server(config=settings) as server, raw_channel(server.address) as channel:
        server.create_table("t", data={"x": np.arange(8_000_000)})  # 64 MB in 16 bodies
        with BodyExchange(channel) as stream:
            stream.send(snapshot_request("t"))
            column = stream.read_update().added_columns[0]
            assert len(column) == 8_000_000
            assert column[-1].as_py() == 7_999_999
            assert len(stream.references) == 16
            assert max(stream.inline_bytes, default=0) == 0


def test_a_full_arena_means_inline():
    settings = config(body_arena_bytes=2 * 1024 * 1024, body_segment_bytes=1024 * 1024)
    with barrage.Server(config=settings) as server, raw_channel(server.address) as channel:
        server.create_table("t", data={"x": np.arange(2_000_000)})  # 16 MB in bodies of 4 MiB
        with BodyExchange(channel) as stream:
            stream.send(snapshot_request("t"))
            assert stream.read_update().added_columns[0][-1].as_py() == 1_999_999
            assert stream.references == []
            assert stream.outcome().way is BodyWay.SHM
        assert statistics_of(server)["refused"] >= 4


@pytest.mark.further
def test_nothing_is_offered_or_loaded_unless_switched_on():
    script = """
import sys, barrage
server = barrage.Server().start()
server.create_table("t", data={"x": [1, 2, 3]})
with barrage.connect(server.uri, bodies="inline") as session:
    assert session.table("t").snapshot().num_rows == 3
names = ("shared_memory", "ucx", "cffi")
loaded = [module for module in sys.modules if any(name in module for name in names)]
sys.stdout.write(server.address + " " + repr(loaded) + "\\n")
sys.stdout.flush()
server.serve_forever()
"""
    with ServerProcess(script, is_cold=True) as server:
        address, _, loaded = server.address.partition(" ")
        assert loaded == "[]"
        with raw_channel(address) as channel:
            listed = channel.unary_stream(FLIGHT + "ListActions")(b"", timeout=60)
            assert not any(b"barrage.bodies" in each for each in listed)
            headers = (("x-barrage-bodies", "0" * 32 + " " + "00" * 16),)
            with BodyExchange(channel, headers=headers) as stream:
                stream.send(snapshot_request("t"))
                assert stream.outcome() is None
                assert len(stream.read_update().added_columns[0]) == 3


def test_the_answer_says_why_a_way_cannot_be_had(server, channel):
    here = host_identity()
    elsewhere = HostIdentity(boot_id="another", user_id=here.user_id)
    somebody = HostIdentity(boot_id=here.boot_id, user_id=here.user_id + 1)
    ucx = {BodyWay.UCX: ConnectionTerms(release="1.22.0", settings={})}
    for offer, words in (
        (Offer(shm=elsewhere, order=(BodyWay.SHM,)), "another host"),
        (Offer(shm=somebody, order=(BodyWay.SHM,)), "another user"),
        (Offer(order=(BodyWay.SHM,)), "does not offer"),
        (Offer(terms=ucx, order=(BodyWay.UCX,)), "not switched on"),
        (Offer(shm=here, order=(BodyWay.INLINE, BodyWay.SHM)), "nothing else"),
        (Offer(shm=here), "nothing else"),
    ):
        answer = ask_for_channel(channel, offer)
        assert answer.way is BodyWay.INLINE
        assert words in answer.reason
    answer = ask_for_channel(channel, Offer(terms=ucx, shm=here, order=(BodyWay.UCX, BodyWay.SHM)))
    assert (answer.way, answer.window_count) == (BodyWay.SHM, DEFAULT_LIMITS.body_window_count)


def test_one_channel_serves_many_streams(server, channel):
    server.create_table("t", data={"x": np.arange(50_000)})
    answer = ask_for_channel(channel)
    mapping = ArenaMapping.open(answer.arena)
    headers = claim_header(answer, mapping.proof())
    for _ in range(3):
        with (
            BodyExchange(channel, mapping=mapping, headers=headers) as one,
            BodyExchange(channel, mapping=mapping, headers=headers) as other,
        ):
            for stream in (one, other):
                stream.send(snapshot_request("t"))
                assert stream.outcome().way is BodyWay.SHM
                assert len(stream.read_update().added_columns[0]) == 50_000
                assert len(stream.references) == 1
    mapping.close()


def test_sessions_of_deephaven_clients_get_their_bodies_inline(server, channel):
    server.create_table("t", data={"x": np.arange(50_000)})
    handshake = channel.stream_stream(FLIGHT + "Handshake")(
        iter(()), metadata=(("authorization", "Anonymous"),), timeout=60
    )
    headers = dict(handshake.initial_metadata())
    assert list(handshake) == []
    answer = ask_for_channel(channel)
    mapping = ArenaMapping.open(answer.arena)
    session = (("authorization", headers["authorization"]),)
    claim = claim_header(answer, mapping.proof())
    with BodyExchange(channel, mapping=mapping, headers=(*session, *claim)) as stream:
        stream.send(snapshot_request("t"))
        assert len(stream.read_update().added_columns[0]) == 50_000
        assert stream.references == []
        assert stream.outcome() is None
    mapping.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bodies": "fast"}, "inline, shm, ucx, or shm,ucx"),
        ({"bodies": ""}, "inline, shm, ucx, or shm,ucx"),
        ({"bodies": "shm,shm"}, "inline, shm, ucx, or shm,ucx"),
        ({"bodies": "inline,shm"}, "inline alone"),
        ({"ucx_host": "0.0.0.0"}, "ucx_allow_network"),
        ({"ucx_host": "192.0.2.1", "bodies": "ucx"}, "ucx_allow_network"),
        ({"ucx_port": 65_536}, "0 to 65535"),
        ({"ucx_devices": ""}, "network devices"),
    ],
)
def test_wrong_settings_are_told(settings, words):
    with pytest.raises(ConfigError, match=words):
        ServerConfig(**settings)


def test_settings_name_the_ways():
    assert ServerConfig().body_ways == frozenset()
    assert ServerConfig(bodies="inline").body_ways == frozenset()
    assert ServerConfig(bodies="shm, ucx").body_ways == {"shm", "ucx"}
    network = ServerConfig(ucx_host="192.0.2.1", ucx_allow_network=True)
    assert network.ucx_host == "192.0.2.1"


def test_a_server_without_shared_memory_says_so_at_its_start(monkeypatch):
    def create(limits):
        raise TransportUnavailableError("no room for shared memory in /dev/shm")

    monkeypatch.setattr(shared_memory.Arena, "create", create)
    server = barrage.Server(bodies="shm")
    with pytest.raises(TransportUnavailableError, match="no room"):
        server.start()
    server.stop()


def test_a_resumed_subscription_gets_what_it_missed_by_shared_memory():
    with barrage.Server(bodies="shm", journal="memory") as server:
        table = server.create_table("log", {"x": "int64"}, kind="append_only")
        table.add({"x": np.arange(100)})
        with barrage.connect(server.uri, bodies="shm") as session:
            remote = session.table("log")
            with remote.subscribe(interval_ms=10) as live:
                live.wait_ready(60)
                rows, cursor = live.to_arrow(), live.cursor
            table.add({"x": np.arange(50_000)})
            with remote.subscribe(interval_ms=10, resume_from=cursor, rows=rows) as live:
                wait_until(lambda: len(live) == 50_100)
                assert live.bodies.way is BodyWay.SHM
                assert live.stats.bodies.shm.count == 1
                assert live.stats.bodies.shm.bytes == 400_000
                assert live.to_arrow().column("x").to_pylist() == [*range(100), *range(50_000)]


def test_the_asynchronous_server_has_it_too():
    async def work() -> str:
        async with barrage.server.AsyncServer(bodies="shm") as server:
            await server.create_table("t", data={"x": np.arange(100_000)})
            async with (
                barrage.aconnect(server.uri, bodies="shm") as session,
                session.table("t").subscribe() as live,
            ):
                await live.wait_ready(60)
                assert live.bodies.way is BodyWay.SHM
                assert live.stats.bodies.shm.count == 1
                return server._app.bodies.arena.name

    name = asyncio.run(work())
    assert not list(Path("/dev/shm").glob(f"{name}*"))
