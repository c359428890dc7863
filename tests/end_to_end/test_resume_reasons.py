"""Cursors that cannot be resumed are told why, and those of other processes can."""

from __future__ import annotations

import re

import grpc
import pytest

import barrage
from barrage.client import Backoff, Cursor
from barrage.proto.resumption import (
    CURSOR_HEADER,
    EPOCH_HEADER,
    RESUME_HEADER,
    RESUMED_HEADER,
)
from barrage.server.exchange.resume_planner import FROM_THE_FUTURE, OTHER_EPOCH
from barrage.server.settings.config import ServerConfig
from tests.helpers.cutter import Cutter
from tests.helpers.server_process import RawExchange, raw_channel, subscription_request, wait_until

SCHEMA = {"k": "int64", "v": "int64"}
SOON = Backoff(first_seconds=0.01, seconds_max=0.1)


@pytest.fixture
def server():
    with barrage.Server(port=0, journal="memory") as server:
        yield server


@pytest.fixture
def session(server):
    with barrage.connect(server.address) as session:
        yield session


def fill(server, name="t", rows=5, **options):
    table = server.create_table(name, SCHEMA, key="k", **options)
    for number in range(rows):
        table.upsert({"k": [number], "v": [number]})
    return table


def resumed(remote, cursor, rows, **options):
    return remote.subscribe(
        interval_ms=10, resume_from=cursor, rows=rows, **options
    ).wait_ready(60)  # fmt: skip


def test_another_process_goes_on_from_a_checkpoint(server, session):
    table = fill(server)
    with session.table("t").subscribe(interval_ms=10).wait_ready(60) as live:
        cursor, rows = live.checkpoint()
    table.upsert({"k": [1, 9], "v": [11, 99]})
    table.remove({"k": [0]})
    seen = []
    with (
        barrage.connect(server.address) as other,
        resumed(other.table("t"), str(cursor), rows) as live,
    ):
        with live.updates(timeout=60) as updates:
            seen.append(next(updates))
            while live.to_arrow() != table.to_arrow():
                seen.append(next(updates))
        assert live.resumption == "replayed 2 steps"
        assert live.cursor == table.cursor
    assert seen[0].is_replacement


def test_a_filtered_and_sorted_view_goes_on_from_a_checkpoint(server, session):
    table = fill(server)
    remote = session.table("t").where("v > 1").sort("-v")
    with remote.subscribe(interval_ms=10, columns=["v"]).wait_ready(60) as live:
        cursor, rows = live.checkpoint()
        assert rows.to_pydict() == {"v": [4, 3, 2]}
    table.upsert({"k": [0, 4], "v": [50, 1]})
    with resumed(remote, cursor, rows, columns=["v"]) as live:
        wait_until(lambda: live.to_arrow().to_pydict() == {"v": [50, 3, 2]})
        assert live.resumption == "replayed 1 step"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda c: Cursor("0" * 16, c.version), OTHER_EPOCH),
        (lambda c: Cursor(c.epoch, c.version + 1000), FROM_THE_FUTURE),
    ],
)
def test_a_cursor_of_nowhere(server, session, other, reason):
    table = fill(server)
    rows = table.to_arrow().slice(0, 2)
    with resumed(session.table("t"), other(table.cursor), rows) as live:
        assert live.resumption == f"resnapshot ({reason})"
        assert live.to_arrow() == table.to_arrow()


def test_a_cursor_of_another_table_or_view(server, session):
    one, two = fill(server, "one"), fill(server, "two")
    server.publish("low", one.where("v < 3"))
    server.publish("lower", one.where("v < 2"))
    with session.table("low").subscribe(interval_ms=10).wait_ready(60) as live:
        low, low_rows = live.checkpoint()
    for name in ("one", "lower"):
        with resumed(session.table(name), low, low_rows) as live:
            assert live.resumption == f"resnapshot ({OTHER_EPOCH})"
    with resumed(session.table("two"), one.cursor, one.to_arrow()) as live:
        assert live.resumption == f"resnapshot ({OTHER_EPOCH})"
    # The same view by other words is the same history.
    with resumed(session.table("one").where("v < 3"), low, low_rows) as live:
        assert live.resumption == "live"
    with resumed(session.table("two"), two.cursor, two.to_arrow()) as live:
        assert live.resumption == "live"


def test_a_table_that_was_made_anew(server):
    fill(server)
    with (
        Cutter(server.address) as cutter,
        barrage.connect(cutter.uri) as session,
        session.table("t").subscribe(interval_ms=10, reconnect=SOON).wait_ready(60) as live,
    ):
        cutter.close()
        server.drop_table("t")
        table = fill(server, rows=2)
        cutter.open()
        wait_until(lambda: live.resumption is not None)
        live.wait_ready(60)
        assert live.resumption == f"resnapshot ({OTHER_EPOCH})"
        assert live.to_arrow() == table.to_arrow()
        assert live.cursor == table.cursor


def test_a_history_that_was_cut_off():
    config = ServerConfig(port=0, journal="memory", journal_memory_bytes=100_000)
    with barrage.Server(config=config) as server, barrage.connect(server.address) as session:
        table = server.create_table("t", {"k": "int64", "s": "string"}, key="k")
        table.upsert({"k": [1], "s": ["first"]})
        cursor, rows = table.cursor, table.to_arrow()
        for number in range(100):
            table.upsert({"k": [number % 4], "s": [f"{number}" * 5_000]})
        journal = server._parts.journals.journal_named("t")
        wait_until(lambda: journal.earliest_version > cursor.version)
        with resumed(session.table("t"), cursor, rows) as live:
            begins = re.search(r"the journal begins at step (\d+)", live.resumption)
            assert int(begins[1]) > cursor.version
            assert live.to_arrow() == table.to_arrow()


@pytest.mark.further
def test_more_changes_than_rows_are_a_snapshot(server, session):
    table = fill(server)
    cursor, rows = table.cursor, table.to_arrow()
    many = {"k": list(range(5)), "v": [0] * 5}
    for number in range(1100):
        table.upsert({**many, "v": [100 + number] * 5})
    with resumed(session.table("t"), cursor, rows) as live:
        assert live.resumption == "resnapshot (11000 rows changed, more than the 5 there are)"
        assert live.to_arrow() == table.to_arrow()
    # Whoever wants to know every step is told every step.
    with resumed(session.table("t"), cursor, rows, resume="steps") as live:
        wait_until(lambda: live.to_arrow() == table.to_arrow())
        assert live.resumption == "replayed 1100 steps"


# --- what strangers see ---------------------------------------------------------------------------


def headers_of(call: RawExchange) -> dict[str, str]:
    return dict(call.call.initial_metadata())


def test_strangers_are_told_the_epoch_and_nothing_else(server):
    table = fill(server)
    server.create_table("bare", SCHEMA, journal="none")
    with raw_channel(server.address) as channel:
        with RawExchange(channel) as call:
            call.send(subscription_request("t"))
            update = call.read_update()
            headers = headers_of(call)
            assert headers[EPOCH_HEADER] == table.cursor.epoch
            assert RESUMED_HEADER not in headers
            assert update.is_snapshot
        with RawExchange(channel) as call:
            call.send(subscription_request("bare"))
            call.read_update()
            assert not {EPOCH_HEADER, RESUMED_HEADER} & headers_of(call).keys()


def test_a_stranger_may_resume_too(server):
    table = fill(server)
    cursor = table.cursor
    table.remove({"k": [2]})
    headers = ((CURSOR_HEADER, str(cursor)),)
    with raw_channel(server.address) as channel, RawExchange(channel, headers=headers) as call:
        call.send(subscription_request("t"))
        update = call.read_update()
        assert headers_of(call)[RESUMED_HEADER] == "replayed 1"
        assert not update.is_snapshot
        assert update.removed_keys_pre.to_numpy().tolist() == [2]
        assert update.last_step == table.cursor.version


def test_a_deephaven_session_is_told_only_what_it_asks_for(server):
    table = fill(server)
    cursor = table.cursor
    with barrage.connect(server.uri.replace("grpc://", "dh://")) as session:
        token = session._session._connection.channel.authorization
        authorized = (("authorization", token),)
        with raw_channel(server.address) as channel:
            with RawExchange(channel, headers=authorized) as call:
                call.send(subscription_request("t"))
                call.read_update()
                assert not {EPOCH_HEADER, RESUMED_HEADER} & headers_of(call).keys()
                assert "authorization" in headers_of(call)
            # Its tables are views with other types, which have a history of their own.
            headers = (*authorized, (CURSOR_HEADER, str(cursor)))
            with RawExchange(channel, headers=headers) as call:
                call.send(subscription_request("t"))
                assert call.read_update().added_keys_post.size in (0, 5)
                assert headers_of(call)[RESUMED_HEADER]
                assert "authorization" in headers_of(call)


@pytest.mark.parametrize(
    "headers",
    [
        ((CURSOR_HEADER, "nonsense"),),
        ((CURSOR_HEADER, "0123456789abcdef:1"), (RESUME_HEADER, "sometimes")),
        ((CURSOR_HEADER, "0123456789abcdef:1"), (RESUME_HEADER, "off")),
    ],
)
def test_cursors_that_cannot_be_read_are_refused(server, headers):
    fill(server)
    with raw_channel(server.address) as channel, RawExchange(channel, headers=headers) as call:
        call.send(subscription_request("t"))
        assert call.status()[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_a_wrong_request_with_a_cursor_is_told_as_without(server):
    table = fill(server)
    with raw_channel(server.address) as channel:
        for name in ("t", "nowhere"):
            with RawExchange(channel, headers=((CURSOR_HEADER, str(table.cursor)),)) as call:
                call.send(subscription_request(name, interval_ms=-1))
                code = call.status()[0]
                expected = "INVALID_ARGUMENT" if name == "t" else "NOT_FOUND"
                assert code is grpc.StatusCode[expected]


def test_a_client_that_leaves_while_its_plan_is_made_leaves_nothing(server):
    table = fill(server)
    with raw_channel(server.address) as channel:
        for _ in range(20):
            with RawExchange(channel, headers=((CURSOR_HEADER, str(table.cursor)),)) as call:
                call.send(subscription_request("t"))
    wait_until(lambda: server.stream_count == 0)
    wait_until(lambda: not server._parts.runtime._producers)
