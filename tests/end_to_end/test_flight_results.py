"""Results that are kept at one step: PollFlightInfo, endpoints with an end, cancel and renew."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig
from barrage.server.history.journal_leases import GROUP_LEASE_NS
from barrage.server.serving.app import ServerApp
from barrage.transport.flight_messages import (
    FLIGHT,
    CancelStatus,
    Descriptor,
    Endpoint,
    FlightInfo,
    PollInfo,
    encode_ticket,
)
from tests.helpers.flight_peer import FlightPeer, HeldReads, status
from tests.helpers.server_process import wait_until
from tests.helpers.serving import on_loop
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.helpers.virtual_clock import VirtualClock

EACH = 1000
LIMITS = replace(
    DEFAULT_LIMITS,
    endpoint_rows=EACH,
    results_per_caller_max=16,
    result_jobs_per_caller_max=4,
    result_bytes_max=400_000,
    result_bytes_per_caller_max=400_000,
    poll_wait_ns=100_000_000,
)
CODE = grpc.StatusCode
PATH = Descriptor(path=("wide",))
SORTED = b'q/{"table": "wide", "ops": [["where", "x >= 0"], ["sort", ["-x"]]]}'


def wide(count: int = 3500) -> pa.Table:
    return pa.table({"x": pa.array(range(count), pa.int64()), "y": [i / 8 for i in range(count)]})


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    config = ServerConfig(limits=LIMITS)
    with barrage.Server("127.0.0.1", config=config) as running:
        running.create_table("wide", data=wide())
        running.create_table("still", data=wide(), kind="static")
        running.create_table("few", data=wide(EACH))
        yield running


@pytest.fixture
def peer(server: barrage.Server) -> Iterator[FlightPeer]:
    app = app_of(server)
    with FlightPeer(server.address) as connected:
        yield connected
    # Nothing of one test is there for the next one.
    on_loop(server, lambda: app.results.results.drop_all(lambda _: True))
    on_loop(server, app.results.sweep)
    wait_until(lambda: app.results.results.byte_count == 0 and app.results.running_count == 0)


def app_of(server: barrage.Server) -> ServerApp:
    app = server._app
    assert app is not None
    return app


# --- GetFlightInfo --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wide", "still"])
def test_a_large_table_has_an_endpoint_for_each_range_of_rows(peer: FlightPeer, name: str) -> None:
    info = peer.arrow.get_flight_info(flight.FlightDescriptor.for_path(name))
    assert info.ordered
    assert (info.total_records, info.total_bytes) == (3500, 3500 * 16)
    told = [json.loads(end.app_metadata) for end in info.endpoints]
    assert [each["rows"] for each in told] == [
        *([0, 1000], [1000, 2000], [2000, 3000], [3000, 3500])
    ]
    assert [each["bytes"] for each in told] == [16_000, 16_000, 16_000, 8000]
    facts = json.loads(info.app_metadata)
    assert facts["step"] == told[0]["step"]
    assert all(end.locations == [] and end.expiration_time for end in info.endpoints)
    read = [peer.arrow.do_get(end.ticket).read_all() for end in info.endpoints]
    assert pa.concat_tables(read).equals(wide())


def test_a_small_table_has_one_endpoint_and_no_end(peer: FlightPeer) -> None:
    info = peer.arrow.get_flight_info(flight.FlightDescriptor.for_path("few"))
    [endpoint] = info.endpoints
    assert endpoint.ticket.ticket == b"s/few"
    assert endpoint.expiration_time is None
    assert (info.total_records, info.total_bytes) == (EACH, EACH * 16)


def test_what_is_told_of_a_table_and_where_it_is() -> None:
    """With a history, columns of no one width, a location of its own; and within a session."""
    location = "grpc://elsewhere.example:10000"
    config = ServerConfig(limits=LIMITS, flight_location=location)
    with barrage.Server("127.0.0.1", journal="memory", config=config) as server:
        server.create_table("texts", key="x", data={"x": range(1500), "s": ["a"] * 1500})
        server.create_table("few", {"s": "string"})
        with FlightPeer(server.address) as peer:
            info = peer.info(Descriptor(path=("texts",)))
            facts = json.loads(info.metadata)
            step, epoch, result = (facts.pop(each) for each in ("step", "epoch", "result"))
            assert facts == {"kind": "keyed", "key": ["x"], "is_ticking": True}
            assert (step >= 1, len(epoch), len(result)) == (True, 16, 32)
            assert info.is_ordered
            assert [end.locations for end in info.endpoints] == [(location,)] * 2
            told = [json.loads(end.metadata) for end in info.endpoints]
            assert info.total_bytes == sum(each["bytes"] for each in told) >= 1500 * 13
            few = peer.info(Descriptor(path=("few",)))
            assert (few.total_records, few.total_bytes) == (0, -1)
            # Of rows that are kept and of tables alike; sessions get one endpoint of the table.
            handshake = peer.channel.stream_stream(FLIGHT + "Handshake", None, None)
            call = handshake(iter([b""]), timeout=60)
            list(call)
            token = dict(call.initial_metadata())["authorization"]
            peer.headers.append(("authorization", str(token)))
            [whole] = peer.info(Descriptor(path=("texts",))).endpoints
            assert (whole.ticket, whole.expires_ns) == (b"s/texts", None)


def test_our_client_asks_for_information_and_nothing_is_kept(
    server: barrage.Server, peer: FlightPeer
) -> None:
    with barrage.connect(server.uri) as session:
        assert session.table("wide").info().total_records == 3500
    assert app_of(server).results.results.count == 0


def test_without_room_a_large_table_has_one_endpoint(
    server: barrage.Server, peer: FlightPeer
) -> None:
    for _ in range(LIMITS.results_per_caller_max):
        peer.poll(b"s/few")
    [endpoint] = peer.info(PATH).endpoints
    assert endpoint.ticket == b"s/wide"


def test_a_query_that_is_wrong_is_told(peer: FlightPeer) -> None:
    for ask in (peer.poll, peer.info):
        with status(CODE.INVALID_ARGUMENT, "nope"):
            ask(b'q/{"table": "wide", "ops": [["where", "nope > 1"]]}')
        with status(CODE.NOT_FOUND, "'none' not found"):
            ask(Descriptor(path=("none",)))
        with status(CODE.FAILED_PRECONDITION, "q/<query>"):
            ask(b"zzz")


# --- PollFlightInfo -------------------------------------------------------------------------------


def test_a_query_is_polled_to_its_end(peer: FlightPeer) -> None:
    told = peer.finished(SORTED)
    assert told.progress == 1.0
    assert told.descriptor is None
    assert told.info.descriptor == Descriptor(command=SORTED)
    assert told.info.is_ordered
    assert len(told.info.endpoints) == 4
    assert {end.expires_ns for end in told.info.endpoints} == {told.expires_ns}
    assert peer.rows(told.info)["x"].to_pylist() == list(range(3499, -1, -1))


def test_endpoints_come_as_they_get_ready_and_are_read_before_the_end(
    server: barrage.Server, monkeypatch: pytest.MonkeyPatch, peer: FlightPeer
) -> None:
    held = HeldReads(monkeypatch)
    first = peer.poll(PATH)
    assert first.descriptor is not None
    told, seen = first, [len(first.info.endpoints)]
    while told.descriptor is not None:
        held.let_through(1)
        before = told
        while told.descriptor is not None and len(told.info.endpoints) == seen[-1]:
            told = peer.poll(told.descriptor)
        assert [e.ticket for e in told.info.endpoints[: seen[-1]]] == [
            e.ticket for e in before.info.endpoints
        ]
        seen.append(len(told.info.endpoints))
        assert told.progress is not None
        assert 0.5 <= told.progress <= 1
        newest = peer.get(told.info.endpoints[-1].ticket)
        assert newest["x"][0].as_py() == (seen[-1] - 1) * EACH
    assert seen == [0, 1, 2, 3, 4]
    # Descriptors of before are known as long as the result is, and answered at once.
    assert peer.poll(first.descriptor).info == told.info


def test_a_poll_without_news_is_answered_in_time(
    monkeypatch: pytest.MonkeyPatch, peer: FlightPeer
) -> None:
    held = HeldReads(monkeypatch)
    told = peer.poll(PATH)
    for _ in range(3):
        assert told.descriptor is not None
        told = peer.poll(told.descriptor)
    assert told.info.endpoints == ()
    held.let_through()
    assert told.descriptor is not None
    assert len(peer.finished(told.descriptor).info.endpoints) == 4


def test_two_pollers_of_one_job_see_the_same(
    server: barrage.Server, monkeypatch: pytest.MonkeyPatch, peer: FlightPeer
) -> None:
    held = HeldReads(monkeypatch)
    told = peer.poll(PATH)
    assert told.descriptor is not None
    descriptor, ends = told.descriptor, []

    def follow() -> None:
        with FlightPeer(server.address) as other:
            ends.append(other.finished(descriptor).info)

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    held.let_through()
    for thread in threads:
        thread.join(60)
    assert len(ends) == 2
    assert ends[0] == ends[1]


def test_commands_of_journals_are_ready_at_once() -> None:
    with barrage.Server("127.0.0.1", journal="memory") as server:
        server.create_table("j", data=wide(10))
        with FlightPeer(server.address) as other:
            told = other.poll(b'j/{"mode": "snapshot", "table": "j", "splits": 2}')
            assert told.descriptor is None
            assert told.progress == 1.0
            assert not told.info.is_ordered
            assert sum(other.get(e.ticket).num_rows for e in told.info.endpoints) == 10
            table = other.info(Descriptor(path=("j",)))
            assert len(json.loads(table.metadata)["epoch"]) == 16


def test_endpoints_of_a_journals_read_group_are_renewed_until_their_time_is_up() -> None:
    with barrage.Server("127.0.0.1", journal="memory") as server:
        table = server.create_table("j", key="x", data=wide(10))
        leases = app_of(server).journals.leases
        clock = VirtualClock()
        with FlightPeer(server.address) as other:
            leases._clock = clock
            told = other.info(
                b'j/{"mode": "snapshot", "table": "j", "splits": 2, "read_group": "g"}'
            )
            ends = [each.expires_ns for each in told.endpoints]
            assert ends == [clock.wall_ns() + GROUP_LEASE_NS] * 2
            table.upsert({"x": [1, 100], "y": [0.5, 0.5]})
            clock.advance(GROUP_LEASE_NS - 1)
            renewed = other.renew(told.endpoints[0])
            assert renewed.ticket == told.endpoints[0].ticket
            assert renewed.expires_ns == clock.wall_ns() + GROUP_LEASE_NS
            clock.advance(GROUP_LEASE_NS - 1)
            assert sum(other.get(end.ticket).num_rows for end in told.endpoints) == 10
            clock.advance(GROUP_LEASE_NS)
            with status(CODE.NOT_FOUND, "its time was up"):
                other.renew(renewed)
            with status(CODE.INVALID_ARGUMENT, "no end"):
                other.renew(other.info(b'j/{"mode": "snapshot", "table": "j"}').endpoints[0])


def test_a_ticket_of_a_read_group_never_gives_rows_of_another_version(tmp_path: Path) -> None:
    """Parts of one plan, read before its time was up, after it, and after the server was started
    again, are of one version."""
    command = b'j/{"mode": "snapshot", "table": "j", "splits": 2, "read_group": "g"}'
    with barrage.Server("127.0.0.1", data=str(tmp_path)) as server:
        table = server.create_table("j", key="x", data=wide(10))
        leases = app_of(server).journals.leases
        clock = VirtualClock()
        with FlightPeer(server.address) as other:
            leases._clock = clock
            told = other.info(command)
            table.upsert({"x": [1, 100], "y": [0.5, 0.5]})
            parts = [other.get(end.ticket) for end in told.endpoints]
            clock.advance(GROUP_LEASE_NS)
            assert [other.get(end.ticket) for end in told.endpoints] == parts
    with barrage.Server("127.0.0.1", data=str(tmp_path)) as server:
        server.table("j").upsert({"x": [2, 101], "y": [0.5, 0.5]})
        with FlightPeer(server.address) as other:
            with status(CODE.NOT_FOUND, "its time was up"):
                other.renew(told.endpoints[0])
            again = [other.get(end.ticket) for end in told.endpoints]
            assert again == parts
            assert other.renew(told.endpoints[0]).ticket == told.endpoints[0].ticket
            # The name stands for another plan, whose version is held.
            other.info(command)
            assert [other.get(end.ticket) for end in told.endpoints] == parts


# --- the same rows until the end ------------------------------------------------------------------


def test_rows_stay_what_they_are_while_the_table_changes(
    server: barrage.Server, peer: FlightPeer
) -> None:
    table = server.create_table("keyed", key="x", data=wide(2500))
    told = peer.finished(b"s/keyed")
    table.upsert(pa.table({"x": list(range(2500)), "y": [-1.0] * 2500}))
    table.remove(pa.table({"x": list(range(100))}))
    before = peer.rows(told.info)
    assert before.equals(wide(2500))
    server.drop_table("keyed")
    assert peer.rows(told.info).equals(before)


def test_bytes_of_results_are_bounded_at_the_limit_and_one_past_it(
    server: barrage.Server, peer: FlightPeer
) -> None:
    results = app_of(server).results.results
    # Fewer than there may be: one that fails after its client was told of it is known for a while.
    kept = [peer.finished(PATH) for _ in range(LIMITS.result_bytes_max // 56_000)]
    assert results.byte_count == len(kept) * 56_000
    with status(CODE.RESOURCE_EXHAUSTED, "size of"):
        peer.finished(PATH)
    assert results.byte_count == len(kept) * 56_000
    assert peer.cancel(kept[0].info) is CancelStatus.CANCELLED
    peer.finished(PATH)


def test_jobs_of_a_caller_are_bounded(
    server: barrage.Server, monkeypatch: pytest.MonkeyPatch, peer: FlightPeer
) -> None:
    held = HeldReads(monkeypatch)
    jobs = [peer.poll(PATH) for _ in range(LIMITS.result_jobs_per_caller_max)]
    with status(CODE.RESOURCE_EXHAUSTED, "queries of one caller under way"):
        peer.poll(PATH)
    assert peer.cancel(jobs[0].info) is CancelStatus.CANCELLED
    peer.poll(PATH)
    held.let_through()


def test_results_of_a_caller_are_bounded(peer: FlightPeer) -> None:
    for _ in range(LIMITS.results_per_caller_max):
        peer.finished(b"s/few")
    with status(CODE.RESOURCE_EXHAUSTED, "number of results"):
        peer.poll(b"s/few")


@pytest.mark.parametrize("method", ["GetFlightInfo", "PollFlightInfo"])
def test_who_waits_for_a_result_keeps_it(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """However long it is in coming."""
    life = 100_000_000
    limits = replace(LIMITS, result_lifetime_ns=life, poll_wait_ns=60_000_000_000)
    with barrage.Server("127.0.0.1", config=ServerConfig(limits=limits)) as server:
        server.create_table("wide", data=wide())
        results = app_of(server).results.results
        # Time passes for results when the test says so, and really for who waits.
        clock = VirtualClock(time.time_ns())
        monkeypatch.setattr(results, "_clock", clock)
        held = HeldReads(monkeypatch)
        with FlightPeer(server.address) as peer:
            asked = PATH
            if method == "PollFlightInfo":
                told = peer.poll(PATH)
                # Until the next thing to be told is a part, which is held.
                while told.descriptor is not None and not told.info.schema_message:
                    told = peer.poll(told.descriptor)
                assert told.descriptor is not None
                asked = told.descriptor
            call = peer.channel.unary_unary(FLIGHT + method, None, None)
            waiting = call.future(asked.encode(), timeout=60)
            wait_until(lambda: any(each.waiter_count for each in results._results.values()))
            clock.advance(4 * life)
            on_loop(server, app_of(server).results.sweep)
            held.let_through(1 if method == "PollFlightInfo" else 4)
            answer = waiting.result()
            if method == "PollFlightInfo":
                told = PollInfo.decode(answer)
                held.let_through()
                info = peer.finished(told.descriptor).info if told.descriptor else told.info
            else:
                info = FlightInfo.decode(answer)
            assert len(info.endpoints) == 4
            clock.advance(life)
            with pytest.raises(KeyError, match="its time was up"):
                peer.get(info.endpoints[0].ticket)


# --- cancel, renew, end ---------------------------------------------------------------------------


def test_a_job_is_cancelled_and_leaves_nothing(
    server: barrage.Server, monkeypatch: pytest.MonkeyPatch, peer: FlightPeer
) -> None:
    held = HeldReads(monkeypatch)
    app = app_of(server)
    told = peer.poll(PATH)
    assert told.descriptor is not None
    assert app.results.running_count == 1
    assert peer.cancel(told.info) is CancelStatus.CANCELLED
    assert app.results.running_count == 0
    assert peer.cancel(told.info) is CancelStatus.CANCELLED
    with status(CODE.CANCELLED, "was cancelled"):
        peer.poll(told.descriptor)
    held.let_through()
    wait_until(lambda: app.results.results.byte_count == 0)


def test_a_finished_result_is_cancelled_whoever_reads_it(
    server: barrage.Server, peer: FlightPeer
) -> None:
    told = peer.finished(PATH)
    reading = peer.stream("DoGet", encode_ticket(told.info.endpoints[0].ticket))
    next(reading)
    assert peer.cancel(told.info) is CancelStatus.CANCELLED
    # Who reads already gets everything.
    assert sum(1 for _ in reading) >= 1
    wait_until(lambda: app_of(server).results.results.byte_count == 0)
    with pytest.raises(flight.FlightCancelledError, match="was cancelled"):
        peer.get(told.info.endpoints[0].ticket)
    with status(CODE.CANCELLED):
        peer.renew(told.info.endpoints[0])


def test_what_is_not_kept_cannot_be_cancelled_or_renewed(peer: FlightPeer) -> None:
    info = peer.info(Descriptor(path=("few",)))
    assert peer.cancel(info) is CancelStatus.NOT_CANCELLABLE
    with status(CODE.INVALID_ARGUMENT, "no end"):
        peer.renew(info.endpoints[0])
    unknown = Endpoint(ticket=b"f/0123456789abcdef/0")
    with status(CODE.NOT_FOUND, "its time was up"):
        peer.renew(unknown)
    with status(CODE.NOT_FOUND):
        peer.cancel(replace(info, endpoints=(unknown,)))
    for kind in ("CancelFlightInfo", "RenewFlightEndpoint"):
        with status(CODE.INVALID_ARGUMENT):
            peer.act(kind, b"\xff\xff")
        with status(CODE.INVALID_ARGUMENT, "the body of"):
            peer.act(kind)


@pytest.mark.parametrize(
    "command", [b"p/", b"p/x", b"p/../../0", b"p/0/1/2", b"p/" + b"a" * 65 + b"/1", b"p/\xff/1"]
)
def test_descriptors_of_no_job(peer: FlightPeer, command: bytes) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        peer.poll(command)
    assert caught.value.code() in (CODE.FAILED_PRECONDITION, CODE.NOT_FOUND)
    with status(CODE.NOT_FOUND):
        peer.poll(b"p/" + b"ab" * 16 + b"/1")


def test_a_huge_descriptor_is_refused(peer: FlightPeer) -> None:
    with status(CODE.RESOURCE_EXHAUSTED):
        peer.finished(b'q/{"table": "' + b"x" * 100_000 + b'"}')
    with status(CODE.RESOURCE_EXHAUSTED):
        peer.finished(Descriptor(path=("x" * 100_000,)))


# --- callers --------------------------------------------------------------------------------------


def test_a_result_is_its_callers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(users=str(users_file(tmp_path / "users")), limits=LIMITS)
    alice, bob = (
        ("authorization", barrage.Basic(name, ALICE_PASSWORD).header) for name in ("alice", "bob")
    )
    with (
        barrage.Server("127.0.0.1", config=config) as server,
        FlightPeer(server.address, alice) as owner,
        FlightPeer(server.address, bob) as stranger,
    ):
        server.create_table("wide", data=wide())
        told = owner.finished(PATH)
        held = HeldReads(monkeypatch)
        running = owner.poll(PATH)
        assert running.descriptor is not None
        with status(CODE.NOT_FOUND, "not yours"):
            stranger.poll(running.descriptor)
        with status(CODE.NOT_FOUND, "not yours"):
            stranger.cancel(running.info)
        with status(CODE.NOT_FOUND, "not yours"):
            stranger.renew(told.info.endpoints[0])
        with pytest.raises(KeyError, match="not yours"):
            stranger.get(told.info.endpoints[0].ticket)
        held.let_through()
        assert owner.rows(told.info).equals(wide())


def test_a_result_has_what_its_caller_is_shown(tmp_path: Path) -> None:
    """And goes with the rules under which it was made."""
    read = frozenset({barrage.Operation.READ})
    rule = barrage.Rule(tables=("wide",), users=("bob",), allow=read, rows="x < 2100")
    config = ServerConfig(users=str(users_file(tmp_path / "users")), limits=LIMITS)
    bob = ("authorization", barrage.Basic("bob", ALICE_PASSWORD).header)
    with (
        barrage.Server("127.0.0.1", config=config, policy=barrage.Policy((rule,))) as server,
        FlightPeer(server.address, bob) as peer,
    ):
        server.create_table("wide", data=wide())
        server.create_table("other", data=wide())
        for info in (peer.finished(PATH).info, peer.info(PATH), peer.finished(SORTED).info):
            assert info.total_records == 2100
            assert max(peer.rows(info)["x"].to_pylist()) == 2099
        for descriptor in (b"s/other", b'q/{"table": "other"}'):
            with status(CODE.NOT_FOUND, "'other' not found"):
                peer.finished(descriptor)


def test_the_server_stops_and_polls_end(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = replace(LIMITS, poll_wait_ns=DEFAULT_LIMITS.poll_wait_ns)
    server = barrage.Server("127.0.0.1", config=ServerConfig(limits=limits))
    server.start()
    server.create_table("wide", data=wide())
    held = HeldReads(monkeypatch)
    with FlightPeer(server.address) as peer:
        told = peer.poll(PATH)
        assert told.descriptor is not None
        ended: list[grpc.StatusCode] = []

        def poll() -> None:
            try:
                peer.poll(told.descriptor)  # type: ignore[arg-type]
            except grpc.RpcError as error:
                ended.append(error.code())

        waiting = threading.Thread(target=poll)
        waiting.start()
        job = next(iter(app_of(server).results._jobs.values()))
        wait_until(lambda: bool(job._news._waiters))
        server.stop()
        waiting.join(60)
    held.let_through()
    assert ended == [CODE.UNAVAILABLE]


def test_numbers_of_our_messages_are_those_of_arrow() -> None:
    endpoint = flight.FlightEndpoint(
        b"t", ["grpc://a:1"], pa.scalar(1_500_000_007, pa.timestamp("ns", "UTC")), b"m"
    )
    descriptor = flight.FlightDescriptor.for_command(b"c")
    theirs = flight.FlightInfo(pa.schema([]), descriptor, [endpoint], 5, 6, True, b"meta")
    ours = FlightInfo.decode(theirs.serialize())
    [read] = ours.endpoints
    assert (read.ticket, read.locations, read.metadata) == (b"t", ("grpc://a:1",), b"m")
    assert read.expires_ns == 1_500_000_007
    assert (ours.total_records, ours.total_bytes, ours.is_ordered) == (5, 6, True)
    assert ours.metadata == b"meta"
    assert flight.FlightInfo.deserialize(ours.encode()) == theirs
