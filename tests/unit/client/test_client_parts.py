"""The client's small parts: addresses, arguments, input data, delays, states and counters."""

from __future__ import annotations

import asyncio
import random
import threading

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from barrage.client.connection.address import (
    Basic,
    PreSharedKey,
    Token,
    authorization_header,
    parse_address,
)
from barrage.client.connection.login import DeephavenLogin
from barrage.client.connection.reconnect import Backoff, is_worth_retrying
from barrage.client.subscriptions.rows_argument import column_indices, viewport_of
from barrage.client.subscriptions.shown_replica import ShownReplica
from barrage.client.subscriptions.state import TRANSITIONS, StatsRecorder
from barrage.client.synchronous.sync_loop import LoopThread
from barrage.client.tables.bulk_snapshot import _Collector
from barrage.client.updates.update import replacing_update
from barrage.client.updates.update_queue import UpdateQueue
from barrage.client.writing.arrow_input import to_arrow_table, without_dictionaries
from barrage.client.writing.put import PutProgress, put_rows
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ConfigError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
    SchemaError,
    SlowConsumerError,
    SubscriptionClosedError,
    TableNotFoundError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.model.snapshot_parts import SnapshotParts
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from barrage.transport.flight_messages import encode_put_result
from barrage.wire.messages import SnapshotRequest, UpdateMetadata
from barrage.wire.metadata import encode_wrapper
from barrage.wire.revision import WireRevision
from tests.helpers.virtual_clock import VirtualClock


@pytest.mark.parametrize(
    ("uri", "target", "is_tls", "is_deephaven"),
    [
        ("grpc://host:1234", "host:1234", False, False),
        ("host:1234", "host:1234", False, False),
        ("grpc://host", "host:10000", False, False),
        ("grpcs://host:1", "host:1", True, False),
        ("dh://h:2", "h:2", False, True),
        ("dhs://[::1]:3", "[::1]:3", True, True),
    ],
)
def test_addresses(uri, target, is_tls, is_deephaven):
    address = parse_address(uri)
    assert (address.target, address.is_tls, address.is_deephaven) == (target, is_tls, is_deephaven)


@pytest.mark.parametrize("uri", ["http://h:1", "grpc://:1", "grpc://h:99999", "grpc://h:x"])
def test_wrong_addresses(uri):
    with pytest.raises(ConfigError, match="cannot connect"):
        parse_address(uri)


@pytest.mark.parametrize(
    ("auth", "ours", "theirs"),
    [
        (None, None, "Anonymous"),
        ("Anonymous", "Anonymous", "Anonymous"),
        ("abc", "Bearer abc", "io.deephaven.authentication.psk.PskAuthenticationHandler abc"),
        ("Handler abc", "Handler abc", "Handler abc"),
        (("u", "p"), "Basic dTpw", "Basic dTpw"),
        (Basic("u", "p"), "Basic dTpw", "Basic dTpw"),
        (Token("t"), "Bearer t", "Bearer t"),
        (PreSharedKey("k"), "io.deephaven.authentication.psk.PskAuthenticationHandler k",
         "io.deephaven.authentication.psk.PskAuthenticationHandler k"),
    ],
)  # fmt: skip
def test_credentials(auth, ours, theirs):
    assert authorization_header(auth, is_deephaven=False) == ours
    assert authorization_header(auth, is_deephaven=True) == theirs


def test_credentials_do_not_show_in_logs():
    text = f"{Token('secret')!r} {PreSharedKey('secret')!r} {Basic('me', 'secret')!r}"
    assert "secret" not in text


@pytest.mark.parametrize(
    ("rows", "reverse", "expected"),
    [
        (None, False, None),
        ((2, 5), False, Viewport.of(2, 5)),
        (range(2, 5), True, Viewport.of(2, 5, is_reverse=True)),
        (slice(None, 5), False, Viewport.of(0, 5)),
        ((-3, None), False, Viewport.of(0, 3, is_reverse=True)),
        (RowSet([1, 9]), False, Viewport(positions=RowSet([1, 9]))),
        (Viewport.of(0, 2), True, Viewport.of(0, 2, is_reverse=True)),
        ((3, 3), False, Viewport.of(3, 3)),
    ],
)
def test_rows_become_viewports(rows, reverse, expected):
    assert viewport_of(rows, reverse=reverse) == expected


@pytest.mark.parametrize(
    ("rows", "reverse"),
    [
        (None, True), ((5, 2), False), ((0, None), False), ((-2, 5), False), ((-2, None), True),
        (range(0, 9, 2), False), ((1, 2, 3), False),
    ],
)  # fmt: skip
def test_rows_that_are_no_span(rows, reverse):
    with pytest.raises(ConfigError):
        viewport_of(rows, reverse=reverse)


def test_column_names_become_indices():
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8()), ("c", pa.int8())])
    assert column_indices(schema, None) is None
    assert column_indices(schema, ["c", "a"]) == (0, 2)
    for wrong in (["x"], ["a", "a"], "ab"):
        with pytest.raises(SchemaError):
            column_indices(schema, wrong)


TABLE = pa.table({"a": [1, 2], "b": ["x", None]})


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_reader(),
        TABLE.to_batches(),
        {"a": [1, 2], "b": ["x", None]},
        [{"a": 1, "b": "x"}, {"a": 2, "b": None}],
        iter([{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
        pl.DataFrame({"a": [1, 2], "b": ["x", None]}),
        pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=[7, 8]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_input_of_every_kind(data):
    assert without_dictionaries(to_arrow_table(data)).to_pylist() == TABLE.to_pylist()


def test_scalars_are_columns_of_one_row():
    assert to_arrow_table({"a": 1, "b": "xy"}).to_pylist() == [{"a": 1, "b": "xy"}]


@pytest.mark.parametrize("data", [17, "text", [1, 2], [], {"a": [1], "b": [1, 2]}])
def test_input_that_is_no_table(data):
    with pytest.raises(SchemaError, match="cannot make a table"):
        to_arrow_table(data)


def test_encoded_columns_become_plain():
    table = pa.table(
        {
            "d": pa.array(["x", "y", "x"]).dictionary_encode(),
            "v": pa.array(["x", "y", "z"], pa.string_view()),
            "l": pa.array([b"x", b"y", b"z"], pa.large_binary()),
            "n": pa.array([["a"], [], None], pa.large_list(pa.large_string())),
        }
    )
    plain = without_dictionaries(table)
    assert plain.schema.types == [pa.string(), pa.string(), pa.binary(), pa.list_(pa.string())]
    assert plain.to_pylist() == table.to_pylist()


def test_delays_double_with_jitter_up_to_a_maximum():
    backoff = Backoff(first_seconds=1, seconds_max=5, source=random.Random(1))
    delays = [backoff.next_delay() for _ in range(2000)]
    for delay, ceiling in zip(delays, [1, 2, 4, 5, 5], strict=False):
        assert ceiling / 2 <= delay <= ceiling
    assert max(delays) <= 5
    backoff.reset()
    assert backoff.next_delay() <= 1


@pytest.mark.parametrize(
    ("error", "was_live", "expected"),
    [
        (ConnectionLostError("x"), False, True),
        (SlowConsumerError(stalled_ns=2, stall_ns_max=1), True, True),
        (TableNotFoundError("t"), True, True),
        (TableNotFoundError("t"), False, False),
        (AuthenticationError("x"), True, False),
    ],
)
def test_what_is_tried_again(error, was_live, expected):
    assert is_worth_retrying(error, was_live=was_live) == expected


def test_final_states_stay():
    for state, after in TRANSITIONS.items():
        assert state.is_final == (not after)


def test_rates_are_means_over_five_seconds():
    clock = VirtualClock()
    recorder = StatsRecorder(clock)
    assert recorder.read().updates_per_second == 0
    for _ in range(100):
        recorder.count_frame(50)
        recorder.count_update(10)
        clock.advance(100_000_000)
    stats = recorder.read()
    assert (stats.updates, stats.rows, stats.bytes, stats.frames) == (100, 1000, 5000, 100)
    assert stats.updates_per_second == pytest.approx(10, rel=0.05)
    assert stats.rows_per_second == pytest.approx(100, rel=0.05)
    assert stats.bytes_per_second == pytest.approx(500, rel=0.05)
    clock.advance(10**11)
    assert recorder.read().rows_per_second == 0


def replacement(number):
    return replacing_update(
        pa.table({"x": [number]}), row_keys=None, table_size=1, steps=(1, 1), source_time_ns=None
    )


def test_a_queue_serves_threads():
    async def test():
        queue = UpdateQueue(1)
        got = []
        thread = threading.Thread(target=lambda: got.append(queue.next_blocking(5)))
        thread.start()
        update = replacement(1)
        queue.put(update)
        await asyncio.to_thread(thread.join)
        assert got == [update]
        with pytest.raises(TimeoutError):
            queue.next_blocking(0)
        queue.end(ConnectionLostError("x"))
        queue.end(None)
        queue.put(update)
        with pytest.raises(ConnectionLostError):
            queue.next_blocking(0)
        assert queue.next_blocking(0) is None
        assert len(queue) == 0

    asyncio.run(test())


def test_a_replacement_overtakes_what_it_replaces():
    async def test():
        queue = UpdateQueue(5)
        queue.put(replacement(1))
        last = replacement(2)
        queue.put(last)
        assert await queue.next_async() is last
        queue.abandon()
        assert queue.is_abandoned
        assert await queue.next_async() is None

    asyncio.run(test())


def test_a_mirror_without_state():
    shown = ShownReplica()
    assert (shown.row_count, shown.table_size, shown.nbytes) == (0, 0, 0)
    assert shown.replacement() is None
    with pytest.raises(BarrageError, match="no state yet"):
        shown.read()


def test_a_loop_thread_refuses_to_wait_for_itself():
    thread = LoopThread("barrage client test")

    async def nothing():
        return 1

    async def inner():
        return thread.call(nothing(), 1)

    async def sleeps():
        await asyncio.sleep(60)

    assert thread.call(nothing(), 1) == 1
    with pytest.raises(LocalProtocolError, match="wait for itself"):
        thread.call(inner(), 1)
    with pytest.raises(TimeoutError, match=r"0\.01 seconds"):
        thread.call(sleeps(), 0.01)
    thread.close()
    thread.close()
    with pytest.raises(SubscriptionClosedError):
        thread.call(nothing(), 1)


# --- one-shot snapshots in parts -----------------------------------------------------------------

SCHEMA = pa.schema([("a", pa.int64())])


def metadata(keys, *, included=None):
    return encode_wrapper(
        UpdateMetadata(
            is_snapshot=True,
            added_rows=RowSet.parse(keys),
            added_rows_included=None if included is None else RowSet.parse(included),
        ),
        WireRevision.R1_0_0,
    )


def batch(*numbers):
    return pa.record_batch({"a": pa.array(numbers, pa.int64())})


def test_parts_are_put_in_key_order():
    parts = SnapshotParts(SCHEMA, None)
    collector = _Collector(parts, DEFAULT_LIMITS)
    collector.take(batch(30, 40), metadata("0-3", included="2-3"))
    collector.take(batch(10), metadata("0-3", included="0-1"))
    collector.take(batch(20), None)
    collector.finish()
    assert parts.to_arrow()["a"].to_pylist() == [10, 20, 30, 40]
    assert parts.row_keys == RowSet.parse("0-3")


@pytest.mark.parametrize(
    "messages",
    [
        [(batch(1, 2), metadata("0"))],
        [(batch(1), None)],
        [(batch(1), metadata("0-1")), (batch(2), metadata("5"))],
        [(batch(1), metadata("0")), (batch(1), metadata("0"))],
        [(batch(1), encode_wrapper(SnapshotRequest(ticket=b"x"), WireRevision.R1_0_0))],
        [(batch(1), metadata("0-1"))],
    ],
    ids=["too many", "no metadata", "incomplete", "repeated", "no update", "too few"],
)
def test_parts_that_do_not_add_up(messages):
    collector = _Collector(SnapshotParts(SCHEMA, None), DEFAULT_LIMITS)
    with pytest.raises(RemoteProtocolError):
        for data, text in messages:
            collector.take(data, text)
        collector.finish()


# --- uploads and log-in against a stub -----------------------------------------------------------


class PutStub:
    def __init__(self, answers):
        self.answers = iter(answers)
        self.frames = 0
        self.is_cancelled = False

    async def read(self):
        await asyncio.sleep(0)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def write(self, frame):
        self.frames += 1
        await asyncio.sleep(0)

    async def half_close(self):
        return

    def cancel(self):
        self.is_cancelled = True


def test_acknowledgements_without_metadata_say_nothing():
    stub = PutStub([b"", encode_put_result(b'{"rows": 2, "step": 9}'), None])
    progress = asyncio.run(put_rows(stub, "t", {"a": [1, 2]}))
    assert progress == PutProgress(rows=2, total=2, step=9)
    assert stub.is_cancelled


@pytest.mark.parametrize("answer", [b'{"rows": "many"}', b"[]", b"{}", b"\xff"])
def test_acknowledgements_that_cannot_be_read(answer):
    with pytest.raises(RemoteProtocolError, match="acknowledgement"):
        asyncio.run(put_rows(PutStub([encode_put_result(answer), None]), "t", {"a": [1]}))


def test_a_refused_upload_stops_sending():
    stub = PutStub([SchemaError("no")])
    rows = pa.table({"a": pa.array(range(3_000_000))})
    with pytest.raises(SchemaError, match="no"):
        asyncio.run(put_rows(stub, "t", rows))
    assert stub.frames < 5


class LoginStub:
    def __init__(self, answer=b"", token="Bearer t"):
        self.authorization = "Anonymous"
        self.token = token
        self.answer = answer
        self.asked = []

    async def unary(self, method, request, *, timeout, table=None):
        self.asked.append(self.authorization)
        if isinstance(self.answer, Exception):
            raise self.answer
        self.authorization = self.token
        return self.answer


def test_logging_in_takes_the_token_and_renews_it():
    # ConfigurationConstantsResponse: 1 map entry of 1 key, 2 ConfigValue (3 string_value).
    entry = b"\x0a\x17http.session.durationMs\x12\x06\x1a\x044000"
    stub = LoginStub(b"\x0a" + bytes((len(entry),)) + entry)
    login = DeephavenLogin(stub)

    async def test():
        await login.open(1)
        assert stub.authorization == "Bearer t"
        assert login.lifetime_seconds == 4
        # Logging in again uses the credentials, not the token that may have died with the server.
        await login.open(1)
        assert stub.asked == ["Anonymous", "Anonymous"]

    asyncio.run(test())


def test_a_server_that_gives_no_token():
    login = DeephavenLogin(LoginStub(token="Anonymous"))
    assert login.lifetime_seconds == 10
    with pytest.raises(AuthenticationError):
        asyncio.run(login.open(1))
