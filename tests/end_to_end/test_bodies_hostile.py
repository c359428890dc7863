"""What clients may do wrong with body channels: each is served inline or refused by itself, and its
memory comes back."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

import barrage
from barrage import wire
from barrage.errors import BodyChannelError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from barrage.server.statistics.body_statistics import body_rows
from barrage.transport import flight_messages
from barrage.transport.shared_memory import ArenaMapping
from barrage.wire.dissociated.negotiation import ACTION, HEADER
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.body_peer import BodyExchange, ask_for_channel, claim_header, read_rows, released
from tests.helpers.server_process import (
    FLIGHT,
    RawExchange,
    raw_channel,
    snapshot_request,
    subscription_request,
    wait_until,
)

ROWS = 50_000
BODY = 8 * ROWS


@pytest.fixture
def server():
    with barrage.Server(bodies="shm") as running:
        running.create_table("t", data={"x": np.arange(ROWS)})
        running.create_table("b", {"x": "int64"}, kind="blink")
        yield running


@pytest.fixture
def channel(server):
    with raw_channel(server.address) as opened:
        yield opened


def facts(server: barrage.Server) -> dict:
    app = server._app
    (row,) = body_rows(app.bodies.facts(), app.bodies.arena).to_pylist()
    return row


def body(number: int) -> dict:
    return {"x": np.full(ROWS, number)}


def read_inline(stream: BodyExchange, words: str) -> None:
    """The stream was refused its channel and gets everything all the same."""
    stream.send(snapshot_request("t"))
    assert len(stream.read_update().added_columns[0]) == ROWS
    assert stream.references == []
    outcome = stream.outcome()
    assert outcome is not None
    assert outcome.way is BodyWay.INLINE
    assert words in outcome.reason


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("", "no claim"),
        ("shm", "no claim"),
        ("0" * 32, "no claim"),
        ("0" * 31 + " -", "no claim"),
        ("0" * 32 + " zz", "no claim"),
        ("0" * 32 + " " + "ab" * 2_000, "no claim"),
        ("g" * 32 + " -", "no claim"),
        ("0" * 32 + " -", "unknown"),
        ("0" * 32 + " " + "ab" * 16, "unknown"),
    ],
)
def test_claims_nobody_can_have_mean_inline(channel, claim, words):
    with BodyExchange(channel, headers=((HEADER, claim),)) as stream:
        read_inline(stream, words)


@pytest.mark.parametrize("wrong", [None, b"", b"\0", bytes(16), bytes(64)])
def test_a_wrong_proof_means_inline(server, channel, wrong):
    answer = ask_for_channel(channel)
    header = f"{answer.channel_id} {wrong.hex() if wrong is not None else '-'}"
    with BodyExchange(channel, headers=((HEADER, header),)) as stream:
        read_inline(stream, "proof" if wrong != b"" else "no claim")
    assert facts(server)["refusals"] == (wrong != b"")
    # The channel is still there for who knows the proof.
    mapping = ArenaMapping.open(answer.arena)
    with BodyExchange(
        channel, mapping=mapping, headers=claim_header(answer, mapping.proof())
    ) as stream:
        stream.send(snapshot_request("t"))
        stream.read_update()
        assert len(stream.references) == 1
    mapping.close()


def test_a_channel_nobody_claims_in_time_is_forgotten():
    limits = replace(DEFAULT_LIMITS, body_ticket_ns=100_000_000)
    with (
        barrage.Server(config=ServerConfig(bodies="shm", limits=limits)) as server,
        raw_channel(server.address) as channel,
    ):
        server.create_table("t", data={"x": np.arange(ROWS)})
        answer = ask_for_channel(channel)
        mapping = ArenaMapping.open(answer.arena)
        wait_until(lambda: facts(server)["channels"] == 0)
        headers = claim_header(answer, mapping.proof())
        with BodyExchange(channel, mapping=mapping, headers=headers) as stream:
            read_inline(stream, "its time is up")
        assert server._app.bodies.facts()[0].counts.streams == 0
        mapping.close()


def test_offers_without_end_are_bounded():
    limits = replace(DEFAULT_LIMITS, body_channels_max=3)
    with (
        barrage.Server(config=ServerConfig(bodies="shm", limits=limits)) as server,
        raw_channel(server.address) as channel,
    ):
        server.create_table("t", data={"x": np.arange(ROWS)})
        answers = [ask_for_channel(channel) for _ in range(5)]
        assert [answer.way.value for answer in answers] == ["shm"] * 3 + ["inline"] * 2
        assert "too many" in answers[-1].reason
        mapping = ArenaMapping.open(answers[0].arena)
        headers = claim_header(answers[0], mapping.proof())
        with BodyExchange(channel, mapping=mapping, headers=headers) as stream:
            stream.send(snapshot_request("t"))
            stream.read_update()
            assert ask_for_channel(channel).way is BodyWay.INLINE
        # One that was used and is idle makes room.
        wait_until(lambda: facts(server)["streams"] == 0)
        assert ask_for_channel(channel).way is BodyWay.SHM
        assert facts(server)["channels"] == 3
        mapping.close()


def hostile_offers() -> list[bytes]:
    rng = random.Random(3)
    good = b'{"order": ["shm"], "shm": {"boot_id": "x", "user_id": 0}}'
    offers = [b"", b"{", b"[]", b"null", b"1", b'{"order": 1}', b'{"shm": []}', b"x" * 100_000]
    offers += [b'{"shm": {"boot_id": 7}}', b'{"ucx": {"settings": []}}', b"[" * 10_000]
    for _ in range(60):
        changed = bytearray(good)
        for _ in range(3):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        offers.append(bytes(changed))
    return offers


def test_offers_that_are_none_are_refused(server, channel):
    statuses = set()
    for offer in hostile_offers():
        call = channel.unary_stream(FLIGHT + "DoAction")(
            flight_messages.encode_action(ACTION, offer), timeout=60
        )
        try:
            list(call)
        except grpc.RpcError as error:
            statuses.add(error.code())
    assert statuses == {grpc.StatusCode.INVALID_ARGUMENT}
    assert ask_for_channel(channel).way is BodyWay.SHM


def test_a_claim_elsewhere_is_not_looked_at(server, channel):
    answer = ask_for_channel(channel)
    mapping = ArenaMapping.open(answer.arena)
    headers = claim_header(answer, mapping.proof())
    call = channel.unary_stream(FLIGHT + "DoGet")(
        flight_messages.encode_ticket(b"s/t"), metadata=headers, timeout=60
    )
    frames = [wire.decode_flight_data(each) for each in call]
    assert HEADER not in dict(call.initial_metadata())
    assert all(frame.body_reference is None for frame in frames)
    mapping.close()


@pytest.mark.parametrize("junk", [b"\0", b"1234567", b"123456789", b"x" * 1001])
def test_releases_that_are_no_numbers_end_their_stream_alone(server, channel, junk):
    with BodyExchange(channel, gives_back=False) as healthy:
        healthy.send(subscription_request("b"))
        healthy.read_update()
        with BodyExchange(channel, gives_back=False) as stream:
            stream.send(subscription_request("b"))
            stream.read_update()
            stream.send(wire.encode_flight_data(wire.FlightFrame(released=junk)))
            assert stream.status()[0] is grpc.StatusCode.INVALID_ARGUMENT
        server.table("b").add(body(1))
        assert read_rows(healthy)[0].as_py() == 1
        assert len(healthy.references) == 1


def test_releases_of_what_was_never_lent_free_nothing(server, channel):
    with (
        BodyExchange(channel, gives_back=False) as honest,
        BodyExchange(channel, gives_back=False) as liar,
        RawExchange(channel) as inline,
    ):
        for stream in (honest, liar, inline):
            stream.send(subscription_request("b"))
            stream.read_update()
        server.table("b").add(body(1))
        for stream in (honest, liar, inline):
            stream.read_update()
        (reference,) = honest.references
        assert liar.references == [reference]
        rng = random.Random(2)
        wrong = [rng.randrange(2**64) for _ in range(500)]
        liar.send(released(*wrong, reference.address + 64, reference.address, reference.address))
        wait_until(lambda: facts(server)["pending"] == 1)
        for number in range(20):
            server.table("b").add(body(number))
            for stream in (honest, liar, inline):
                assert read_rows(stream)[0].as_py() == number
        # The honest one's first body is untouched.
        again = honest.mapping.copy(reference)
        assert np.frombuffer(again, np.int64)[0] == 1
        assert np.frombuffer(again, np.int64, ROWS)[-1] == 1


def test_releases_of_a_stream_without_a_channel_are_no_request(server, channel):
    with RawExchange(channel) as stream:
        stream.send(subscription_request("t"))
        stream.read_update()
        stream.send(released(1))
        assert stream.status()[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_memory_comes_back_when_streams_end(server, channel):
    for number in range(30):
        with BodyExchange(channel, gives_back=False) as stream:
            stream.send(subscription_request("t"))
            stream.read_update()
            assert len(stream.references) == 1
            if number % 3 == 0:
                stream.half_close()
                stream.status()
    wait_until(lambda: facts(server)["streams"] == 0)
    wait_until(lambda: facts(server)["arena_bytes"] == 0)
    assert facts(server)["segments"] == 1
    assert facts(server)["pending"] == 0


HOLDER = """
import sys
import pyarrow as pa
from tests.helpers.body_peer import BodyExchange, read_rows
from tests.helpers.server_process import raw_channel, subscription_request
from barrage.wire.dissociated.references import BodyReference
from barrage import wire

held = []
with raw_channel(sys.argv[1]) as channel:
    stream = BodyExchange(channel, gives_back=False)
    borrow = stream.mapping.borrow
    def copy(reference):
        held.append(borrow(reference, lambda _: None))
        return held[-1]
    stream.mapping.copy = copy
    stream.send(subscription_request("b"))
    stream.read_update()
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        read_rows(stream)
        print("read", flush=True)
    sys.stdin.read()
"""


class Holder:
    """A client process that borrows bodies and keeps them."""

    def __init__(self, server: barrage.Server, updates: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, server.address, str(updates)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.hear("ready")

    def hear(self, word: str) -> None:
        assert self.process.stdout.readline().strip() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.communicate()


def test_the_memory_of_a_client_that_is_killed_comes_back(server):
    with Holder(server, 3) as holder:
        for number in range(3):
            server.table("b").add(body(number))
            holder.hear("read")
        assert facts(server)["pending_bytes"] == 3 * BODY
        holder.kill()
        wait_until(lambda: facts(server)["streams"] == 0)
        wait_until(lambda: facts(server)["arena_bytes"] == 0)


def test_a_client_that_is_stopped_holds_up_nobody():
    """Its window bounds what it has; what it gets later comes inline, until gRPC holds it."""
    limits = replace(DEFAULT_LIMITS, body_window_count=8, body_wait_ns_max=20_000_000)
    config = ServerConfig(bodies="shm", limits=limits)
    with barrage.Server(config=config) as server, raw_channel(server.address) as channel:
        table = server.create_table("b", {"x": "int64"}, kind="blink")
        with Holder(server, 1000) as holder, BodyExchange(channel) as healthy:
            healthy.send(subscription_request("b"))
            healthy.read_update()
            table.add(body(0))
            holder.hear("read")
            healthy.read_update()
            holder.process.send_signal(signal.SIGSTOP)
            for number in range(1, 60):
                table.add(body(number))
                assert read_rows(healthy)[0].as_py() == number
                # It gives back what it has read a moment later, and has room for the next then.
                wait_until(lambda: facts(server)["pending"] <= 8 + 1)
            assert facts(server)["arena_bytes"] < 20 * BODY
            assert len(healthy.references) == 60
            assert sum(healthy.inline_bytes) == 0


def test_a_body_that_is_kept_for_too_long_makes_its_stream_inline(caplog):
    limits = replace(DEFAULT_LIMITS, body_lease_ns_max=1_000_000_000)
    config = ServerConfig(bodies="shm", limits=limits)
    with barrage.Server(config=config) as server, raw_channel(server.address) as channel:
        table = server.create_table("b", {"x": "int64"}, kind="blink")
        with (
            BodyExchange(channel, gives_back=False) as keeper,
            BodyExchange(channel) as healthy,
        ):
            for stream in (keeper, healthy):
                stream.send(subscription_request("b"))
                stream.read_update()
            table.add(body(1))
            for stream in (keeper, healthy):
                stream.read_update()
            kept = keeper.mapping.borrow(keeper.references[0], lambda _: None)
            wait_until(lambda: facts(server)["fallbacks"] == 1)
            # It still reads what it borrowed; nobody else gets that memory.
            assert facts(server)["orphaned_bytes"] > 0
            for number in range(2, 8):
                table.add(body(number))
                for stream in (keeper, healthy):
                    assert read_rows(stream)[0].as_py() == number
            assert np.frombuffer(kept, np.int64)[0] == 1
            assert len(keeper.references) == 1
            assert len(healthy.references) == 7
            # What it had not borrowed yet is told apart from what is there now.
            del kept
            wait_until(lambda: facts(server)["orphaned_bytes"] == 0)
            with pytest.raises(BodyChannelError):
                keeper.mapping.copy(keeper.references[0])
            keeper.send(released(keeper.references[0].address))
            table.add(body(9))
            assert read_rows(keeper)[0].as_py() == 9
        told = [r.getMessage() for r in caplog.records if "inline from now on" in r.getMessage()]
        assert len(told) == 1
        assert "1 s" in told[0]


def arena_files(server: barrage.Server) -> list[Path]:
    name = server._app.bodies.arena.name
    return [path for path in Path("/dev/shm").iterdir() if path.name.startswith(name)]


def test_a_server_that_stops_takes_its_memory_away_and_leaves_what_is_read():
    server = barrage.Server(bodies="shm").start()
    try:
        server.create_table("t", data={"x": np.arange(ROWS)})
        with raw_channel(server.address) as channel:
            stream = BodyExchange(channel, gives_back=False)
            stream.send(subscription_request("t"))
            stream.read_update()
            held = stream.mapping.borrow(stream.references[0], lambda _: None)
            files = arena_files(server)
            assert len(files) == 2
            server.stop()
            assert stream.status()[0] is grpc.StatusCode.UNAVAILABLE
            assert not any(path.exists() for path in files)
            assert np.frombuffer(held, np.int64)[ROWS - 1] == ROWS - 1
            del held
            stream.close()
            stream.mapping.close()
    finally:
        server.stop()


@pytest.mark.further
def test_many_channels_and_streams_leave_no_descriptor_and_no_memory(server, channel):
    def come_and_go() -> None:
        with BodyExchange(channel) as stream:
            stream.send(snapshot_request("t"))
            stream.read_update()
        stream.mapping.close()

    for _ in range(5):
        come_and_go()
    process = psutil.Process()
    files, threads = process.num_fds(), threading.active_count()
    for _ in range(100):
        come_and_go()
    wait_until(lambda: facts(server)["streams"] == 0)
    # What each round leaves would be a hundred; a few come and go with the rest of the process.
    wait_until(lambda: process.num_fds() <= files + 20)
    wait_until(lambda: threading.active_count() <= threads + 20)
    assert facts(server)["arena_bytes"] == 0
    assert facts(server)["segments"] == 1
