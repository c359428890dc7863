"""Deephaven's services under attack: whatever comes is answered with a status of its own, soon, and
leaves nothing behind, while a subscriber next to it misses nothing.

Over real sockets. What the limits are is tested where they stand; here are the requests that once
held the engine for minutes or left something, and random ones.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pytest

from barrage.limits import Limits
from barrage.transport.deephaven_messages import (
    APPLICATION_SERVICE,
    CONFIG_SERVICE,
    CONSOLE_SERVICE,
    MESSAGES,
    SESSION_SERVICE,
    TABLE_SERVICE,
)
from barrage.transport.flight_messages import SERVICE_NAME as FLIGHT_SERVICE
from tests.helpers.deephaven_peer import (
    DeephavenPeer,
    RandomRequests,
    export,
    place,
    reference,
    subscription,
    ticket,
    upload_frames,
)
from tests.helpers.deephaven_scene import Scene, scene_of
from tests.helpers.server_process import wait_until

Status = grpc.StatusCode


@pytest.fixture
def scene() -> Iterator[Scene]:
    with scene_of() as made:
        yield made


@pytest.fixture
def peer(scene: Scene) -> Iterator[DeephavenPeer]:
    made = DeephavenPeer(scene.server.address)
    yield made
    made.close()
    wait_until(lambda: not scene.remains())


SMALL_REFERENCE = reference(b"s/small")


def refused(peer: DeephavenPeer, method: str, request: str, **fields: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        peer.make(method, request, **fields)
    return caught.value


@contextlib.contextmanager
def soon(seconds: float = 60.0) -> Iterator[None]:
    """What is done inside takes no longer; it took minutes, or for ever."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def errors_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the server logged as an error. gRPC itself does so for answers to clients that have just
    gone."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "ERROR" and not record.name.startswith("grpc.")
    ]


# --- one request that costs much ---


def matches(regex: str) -> Any:
    column = MESSAGES.new("Reference", column_name="s")
    condition = MESSAGES.new("MatchesCondition", reference=column, regex=regex)
    return MESSAGES.new("Condition", matches=condition)


@pytest.mark.parametrize(
    ("regex", "code"),
    [
        ("((.{0,99}){0,9})z", Status.RESOURCE_EXHAUSTED),
        ("(?:a?){999}" * 20, Status.RESOURCE_EXHAUSTED),
        (".*" * 5000, Status.RESOURCE_EXHAUSTED),
        ("(" * 1001 + "a" + ")" * 1001, Status.RESOURCE_EXHAUSTED),
        ("a)(b", Status.UNIMPLEMENTED),
        ("t)|(?:x", Status.UNIMPLEMENTED),
        ("(a", Status.INVALID_ARGUMENT),
    ],
)
def test_large_and_broken_expressions_are_refused(peer, regex, code):
    with soon():
        error = refused(
            peer,
            "Filter",
            "FilterTableRequest",
            source_id=SMALL_REFERENCE,
            filters=[matches(regex)],
        )
    assert error.code() is code


@pytest.mark.parametrize(
    "regex", ["(a+)+b", "(t|e|x|.)*.*.*.*9", "(" * 400 + "t." + ")" * 400, "(.{0,9}){0,9}z"]
)
def test_expressions_that_make_others_backtrack_cost_nothing(peer, regex):
    with soon():
        peer.make(
            "Filter",
            "FilterTableRequest",
            source_id=SMALL_REFERENCE,
            filters=[matches(regex)],
        )


def doubled(first: str, times: int) -> list[str]:
    return [f"A0 = {first}", *(f"A{n} = A{n - 1} + A{n - 1}" for n in range(1, times))]


def test_formulas_that_double_are_computed_once(peer):
    with soon():
        fields = {"source_id": SMALL_REFERENCE, "column_specs": doubled("a", 60)}
        peer.make("UpdateView", "SelectOrUpdateRequest", **fields)


def test_text_that_doubles_has_an_end(peer):
    with soon():
        fields = {"source_id": SMALL_REFERENCE, "column_specs": doubled("s + s", 40)}
        error = refused(peer, "UpdateView", "SelectOrUpdateRequest", **fields)
    assert "joining text" in error.details()


def test_tables_merged_with_themselves_have_an_end(peer):
    source = b"s/ticks"
    with soon():
        for _ in range(9):
            source = peer.make(
                "MergeTables", "MergeTablesRequest", source_ids=[reference(source)] * 2
            )
        error = refused(
            peer, "MergeTables", "MergeTablesRequest", source_ids=[reference(source)] * 2
        )
    assert error.code() is Status.RESOURCE_EXHAUSTED


def test_a_request_names_only_so_many_tables(peer):
    with soon():
        error = refused(
            peer, "MergeTables", "MergeTablesRequest", source_ids=[reference(b"s/ticks")] * 200_000
        )
    assert "200000 tables" in error.details()


def test_operators_stand_only_so_high(peer):
    heads = [
        MESSAGES.new(
            "BatchTableRequest.Operation",
            head=MESSAGES.new(
                "HeadOrTailRequest",
                source_id=place(number - 1) if number else reference(b"s/ticks"),
                num_rows=1000 + number,
            ),
        )
        for number in range(1000)
    ]
    call = peer.stream(TABLE_SERVICE, "Batch", MESSAGES.encode("BatchTableRequest", ops=heads))
    with soon(), pytest.raises(grpc.RpcError, match="one upon another"):
        list(call)


def wide_table(peer: DeephavenPeer, names: list[str]) -> bytes:
    schema = pa.schema([(name, pa.int64()) for name in names]).serialize().to_pybytes()
    path = "CreateInputTableRequest.InputTableKind"
    kind = MESSAGES.new(path, in_memory_append_only=MESSAGES.new(f"{path}.InMemoryAppendOnly"))
    return peer.make("CreateInputTable", "CreateInputTableRequest", schema=schema, kind=kind)


@pytest.mark.further
@pytest.mark.held_up("a schema of very many columns is read on the loop")
def test_very_wide_tables_take_a_moment_not_a_minute(peer):
    names = [f"c{number}" for number in range(9_000)]
    wide = reference(wide_table(peer, names))
    with soon():
        peer.make("DropColumns", "DropColumnsRequest", source_id=wide, column_names=names[1:])
        peer.make("UpdateView", "SelectOrUpdateRequest", source_id=wide, column_specs=["z=1"])
        peer.make("MergeTables", "MergeTablesRequest", source_ids=[wide] * 50)
        peer.make(
            "NaturalJoinTables",
            "NaturalJoinTablesRequest",
            left_id=SMALL_REFERENCE,
            right_id=wide,
            columns_to_match=["a=c0"],
            join_type=2,
        )


@pytest.mark.held_up("a schema of very many columns is read on the loop")
def test_hints_for_wrong_names_cost_nothing(peer):
    filler = "abcdefghij" * 90
    table = reference(wide_table(peer, [f"c{number}{filler}" for number in range(3_000)]))
    with soon():
        fields = {"source_id": table, "column_names": [filler]}
        assert (
            refused(peer, "DropColumns", "DropColumnsRequest", **fields).code()
            is Status.INVALID_ARGUMENT
        )


def test_conditions_are_bounded_in_bytes(peer):
    contains = MESSAGES.new(
        "ContainsCondition",
        reference=MESSAGES.new("Reference", column_name="s"),
        search_string="x" * 2_000_000,
    )
    error = refused(
        peer,
        "Filter",
        "FilterTableRequest",
        source_id=SMALL_REFERENCE,
        filters=[MESSAGES.new("Condition", contains=contains)],
    )
    assert error.code() is Status.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("column", ["d", "f", "i32", "a", "s", "c", "l", "t", "bin"])
def test_seeking_the_largest_numbers(peer, column):
    allowed = {Status.OK, Status.INVALID_ARGUMENT}
    for value in ({"long_value": 2**63 - 1}, {"double_value": 1e308}, {"nano_time_value": -1}):
        for start in (-(2**63), 2**63 - 1):
            literal = MESSAGES.new("Literal", **value)
            request = MESSAGES.encode(
                "SeekRowRequest",
                source_id=ticket(b"s/small"),
                column_name=column,
                seek_value=literal,
                starting_row=start,
            )
            assert peer.status(TABLE_SERVICE, "SeekRow", request) in allowed


# --- exports ---


def test_an_export_onto_itself_is_refused_at_once(peer):
    request = MESSAGES.encode(
        "ExportRequest", source_id=ticket(export(7)), result_id=ticket(export(7))
    )
    with soon():
        status = peer.status(SESSION_SERVICE, "ExportFromTicket", request)
    assert status is Status.FAILED_PRECONDITION


def test_calls_given_up_while_they_wait_leave_no_export():
    with scene_of(limits=Limits()) as scene:
        peer = DeephavenPeer(scene.server.address)
        method = "GetExportedTableCreationResponse"
        requests = [MESSAGES.encode("Ticket", ticket=export(n)) for n in range(1, 51)]
        calls = [peer.begin(TABLE_SERVICE, method, request) for request in requests]
        [session] = scene.app.sessions
        wait_until(lambda: len(session.exports) == len(calls))
        for call in calls:
            call.cancel()
        wait_until(lambda: len(session.exports) == 0)
        peer.close()


def test_a_failed_export_keeps_no_table(scene, peer):
    filtered = peer.make(
        "UnstructuredFilter",
        "UnstructuredFilterTableRequest",
        source_id=SMALL_REFERENCE,
        filters=["a > 1"],
    )
    before = scene.remains()["leases alive"]
    assert before == scene.remains()["exports alive"] == 1
    fields = {"source_id": reference(filtered), "column_specs": ["z = nothing"]}
    for _ in range(20):
        refused(peer, "UpdateView", "SelectOrUpdateRequest", **fields)
    wait_until(lambda: scene.remains()["leases alive"] == before)


def test_every_call_of_a_burst_is_answered(peer):
    release = MESSAGES.encode("ReleaseRequest", id=ticket(export(1)))
    calls = [peer.begin(SESSION_SERVICE, "Release", release) for _ in range(1_000)]
    assert {call.exception().code() for call in calls} == {Status.UNAVAILABLE}


def test_clients_that_forget_their_tokens_lock_nobody_out():
    limits = Limits(sessions_max=50)
    with scene_of(limits=limits, session_lifetime_ms=60_000) as scene:
        peer = DeephavenPeer(scene.server.address)
        peer.make("Flatten", "FlattenRequest", source_id=reference(b"s/ticks"))
        method = peer.channel.unary_unary(f"/{CONFIG_SERVICE}/GetConfigurationConstants")
        for _ in range(200):
            method(b"", metadata=(("authorization", "Anonymous"),), timeout=60)
        peer.make("Flatten", "FlattenRequest", source_id=reference(b"s/ticks"))
        assert len(scene.app.sessions) == limits.sessions_max
        scene.check_the_subscriber()


# --- random requests ---

ANSWERS = {
    Status.OK,
    Status.INVALID_ARGUMENT,
    Status.FAILED_PRECONDITION,
    Status.NOT_FOUND,
    Status.ALREADY_EXISTS,
    Status.UNIMPLEMENTED,
    Status.UNAVAILABLE,
    Status.RESOURCE_EXHAUSTED,
    Status.PERMISSION_DENIED,
}


def ask_at_random(scene: Scene, seed: int, count: int) -> set[str]:
    """The methods that had success at least once."""
    requests = RandomRequests(seed)
    peer = DeephavenPeer(scene.server.address)
    successful = set()
    for _ in range(count):
        service, method, request, made = requests.request(peer)
        status = peer.status(service, method, request)
        assert status in ANSWERS, (method, request)
        if status is Status.OK:
            successful.add(method)
            requests.exports += [made] if made else []
    peer.close()
    return successful


@pytest.mark.further
def test_random_requests_are_answered_and_leave_nothing(scene, caplog):
    successful = ask_at_random(scene, seed=1, count=600)
    assert len(successful) > 20
    wait_until(lambda: not scene.remains())
    scene.check_the_subscriber()
    assert errors_of(caplog) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_random_requests_are_answered_and_leave_nothing(scene, seed, caplog):
    ask_at_random(scene, seed=seed, count=8000)
    wait_until(lambda: not scene.remains())
    scene.check_the_subscriber()
    assert errors_of(caplog) == []


# --- sessions that come and go in the middle of everything ---


def export_from(source: int, result: int) -> bytes:
    return MESSAGES.encode(
        "ExportRequest", source_id=ticket(export(source)), result_id=ticket(export(result))
    )


def open_calls(peer: DeephavenPeer, rng: random.Random) -> list[Callable[[], Any]]:
    """Calls of every kind that lasts; some wait for exports that never come, or for each other."""

    def slowly(messages: list[bytes]) -> Iterator[bytes]:
        for message in messages:
            yield message
            time.sleep(rng.random() / 100)

    rows = pa.table({"k": [1, 2, 3]})
    heads = [
        MESSAGES.new(
            "BatchTableRequest.Operation",
            head=MESSAGES.new(
                "HeadOrTailRequest",
                source_id=place(n - 1) if n else reference(b"s/ticks"),
                num_rows=5 + n,
                result_id=ticket(export(1000 + n)),
            ),
        )
        for n in range(60)
    ]
    flatten = MESSAGES.encode(
        "FlattenRequest", result_id=ticket(export(600)), source_id=reference(export(501))
    )
    share = MESSAGES.encode(
        "PublishRequest",
        result_id=ticket(b"h" + rng.randbytes(4)),
        source_id=ticket(export(1001)),
    )
    clock = MESSAGES.encode(
        "TimeTableRequest", result_id=ticket(export(700)), period_nanos=10_000_000
    )
    batch = MESSAGES.encode("BatchTableRequest", ops=heads)
    get = b"\x0a\x05" + export(500)
    return [
        lambda: peer.stream(APPLICATION_SERVICE, "ListFields"),
        lambda: peer.stream(TABLE_SERVICE, "ExportedTableUpdates"),
        lambda: peer.stream(CONSOLE_SERVICE, "SubscribeToLogs"),
        lambda: peer.begin(SESSION_SERVICE, "TerminationNotification"),
        lambda: peer.exchange(FLIGHT_SERVICE, "DoPut", slowly(upload_frames(500, rows, 5))),
        lambda: peer.exchange(FLIGHT_SERVICE, "DoExchange", iter([subscription(b"s/ticks")])),
        lambda: peer.exchange(FLIGHT_SERVICE, "DoExchange", iter([subscription(export(600))])),
        lambda: peer.stream(FLIGHT_SERVICE, "DoGet", get),
        lambda: peer.stream(TABLE_SERVICE, "Batch", batch),
        lambda: peer.begin(TABLE_SERVICE, "Flatten", flatten),
        lambda: peer.begin(SESSION_SERVICE, "ExportFromTicket", export_from(502, 501)),
        lambda: peer.begin(SESSION_SERVICE, "ExportFromTicket", export_from(501, 502)),
        lambda: peer.begin(SESSION_SERVICE, "PublishFromTicket", share),
        lambda: peer.begin(TABLE_SERVICE, "TimeTable", clock),
    ]


def live(address: str, rng: random.Random) -> None:
    """One session: everything is begun, some of it cancelled, and it ends in one of three ways."""
    peer = DeephavenPeer(address)
    begun: list[Any] = []
    possible = open_calls(peer, rng)
    for begin in rng.sample(possible, len(possible)):
        begun.append(begin())
        if rng.random() < 0.3:
            time.sleep(rng.random() / 50)
        if rng.random() < 0.25:
            rng.choice(begun).cancel()
    ending = rng.random()
    if ending < 0.4:
        peer.close()
        return
    if ending < 0.7:
        for call in begun:
            call.cancel()
    peer.channel.close()  # The session is left to run out of time.


def storm(scene: Scene, lives: int) -> None:
    rng = random.Random(3)
    for _ in range(lives):
        live(scene.server.address, rng)
    wait_until(lambda: not scene.remains(), timeout=60)
    scene.check_the_subscriber()


def test_sessions_that_come_and_go_leave_nothing(caplog):
    with scene_of(limits=Limits(), session_lifetime_ms=1000) as scene:
        storm(scene, lives=12)
    assert errors_of(caplog) == []


@pytest.mark.slow
def test_many_sessions_that_come_and_go_leave_nothing(caplog):
    with scene_of(limits=Limits(), session_lifetime_ms=3000) as scene:
        memory = psutil.Process().memory_info()
        storm(scene, lives=800)
        assert psutil.Process().memory_info().rss - memory.rss < 80_000_000
    assert errors_of(caplog) == []


# --- the end of the server ---


def test_the_server_stops_with_everything_open():
    with scene_of(limits=Limits()) as scene:
        peers = [DeephavenPeer(scene.server.address) for _ in range(3)]
        waits = [
            peer.begin(SESSION_SERVICE, "ExportFromTicket", export_from(n, n + 1))
            for peer in peers
            for n in (1, 5)
        ]
        notified = [peer.begin(SESSION_SERVICE, "TerminationNotification") for peer in peers]
        for peer in peers:
            for begin in open_calls(peer, random.Random(1)):
                begin()
        wait_until(lambda: len(scene.app._deephaven._session._waiting) >= 3)
        scene.end_ticking()
        with soon():
            scene.server.stop(2)
        assert {wait.exception().code() for wait in waits} == {Status.UNAVAILABLE}
        for call in notified:
            answer = MESSAGES.decode("TerminationNotificationResponse", call.result())
            assert "shutting down" in answer.reason
        for peer in peers:
            peer.channel.close()


def test_the_server_stops_while_the_engine_is_busy():
    """Whoever has gone meanwhile is no hindrance either."""
    with scene_of(limits=Limits()) as scene:
        peer = DeephavenPeer(scene.server.address)
        may_go_on = threading.Event()
        busy = scene.app._runtime.submit(may_go_on.wait)
        flatten = [
            MESSAGES.encode(
                "FlattenRequest", result_id=ticket(export(n)), source_id=reference(b"s/small")
            )
            for n in range(1, 11)
        ]
        calls = [peer.begin(TABLE_SERVICE, "Flatten", request) for request in flatten]
        wait_until(lambda: len(scene.app._runtime._commands) >= len(calls))
        calls[0].cancel()
        stopping = threading.Thread(target=scene.server.stop, args=(0.2,))
        stopping.start()
        codes = {call.exception().code() for call in calls[1:]}
        assert codes == {Status.UNAVAILABLE}
        may_go_on.set()
        stopping.join(60)
        assert not stopping.is_alive()
        assert busy.result()
        peer.channel.close()
