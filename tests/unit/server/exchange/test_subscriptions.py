"""Subscriptions and snapshots over real sockets, frame by frame."""

from __future__ import annotations

import grpc
import pyarrow as pa
import pytest

import barrage
from barrage import wire
from barrage.rowset import RowSet
from barrage.server import ServerConfig
from barrage.wire.updates.update_assembler import SchemaReceived
from tests.helpers.server_process import (
    RawExchange,
    raw_channel,
    snapshot_request,
    subscription_request,
    wait_until,
)

DRAFT = wire.WireRevision.DRAFT_2020


@pytest.fixture
def ten(server):
    return server.create_table("ten", key="k", data={"k": list(range(10)), "v": [0.5] * 10})


def values(update, column: int = 0) -> list:
    return update.added_columns[column].to_pylist()


def received(exchange: RawExchange) -> object:
    """What the next frame means."""
    return exchange.assembler.receive_frame(wire.decode_flight_data(exchange.read()))


def test_full_subscription_follows_every_change(ten, channel):
    with RawExchange(channel) as exchange:
        exchange.send(subscription_request("ten"))
        assert isinstance(received(exchange), SchemaReceived)
        snapshot = exchange.read_update()
        assert snapshot.is_snapshot
        assert values(snapshot) == list(range(10))
        ten.upsert({"k": 3, "v": 9.0})
        change = exchange.read_update()
        assert [len(rows) for rows in change.modified_keys_post] == [0, 1]
        assert change.modified_columns[1].to_pylist() == [9.0]
        ten.remove(5)
        assert len(exchange.read_update().removed_keys_pre) == 1
        ten.upsert({"k": 50, "v": 1.0})
        assert values(exchange.read_update()) == [50]


def test_viewport_moves_and_columns_change(ten, channel):
    with RawExchange(channel, is_viewport=True) as exchange:
        exchange.send(subscription_request("ten", viewport=RowSet.of_span(0, 3)))
        assert values(exchange.read_update()) == [0, 1, 2]
        exchange.send(subscription_request("ten", viewport=RowSet.of_span(2, 5)))
        moved = exchange.read_update()
        assert moved.effective_viewport == RowSet.of_span(2, 5)
        assert values(moved)[-2:] == [3, 4]
        exchange.send(subscription_request("ten", viewport=RowSet.of_span(2, 5), columns=(1,)))
        assert exchange.read_update().effective_columns == (1,)


def test_a_flood_of_viewport_changes_ends_at_the_last_one(ten, channel):
    with RawExchange(channel, is_viewport=True) as exchange:
        for start in range(500):
            exchange.send(subscription_request("ten", viewport=RowSet.of_span(start, start + 2)))
        last = RowSet.of_span(499, 501)
        while exchange.read_update().effective_viewport != last:
            pass  # a read has a limit of its own for a hang


def test_reverse_viewport_follows_the_end(server, channel):
    table = server.create_table("log", {"x": "int64"})
    table.add({"x": [0, 1, 2]})
    with RawExchange(channel, is_viewport=True) as exchange:
        exchange.send(subscription_request("log", viewport=RowSet.of_span(0, 2), is_reverse=True))
        assert values(exchange.read_update()) == [1, 2]
        table.add({"x": [3]})
        assert values(exchange.read_update()) == [3]


def test_subscription_to_an_empty_table_is_answered_at_once(server, channel):
    server.create_table("empty", {"x": "int64"})
    with RawExchange(channel) as exchange:
        exchange.send(subscription_request("empty"))
        assert exchange.read_update().table_size == 0


def test_many_subscribers_get_the_same_bytes(ten, channel):
    exchanges = [RawExchange(channel) for _ in range(20)]
    for exchange in exchanges:
        exchange.send(subscription_request("ten"))
        exchange.read_update()
    ten.upsert({"k": 1, "v": 7.0})
    frames = {exchange.read() for exchange in exchanges}
    assert len(frames) == 1
    for exchange in exchanges:
        exchange.close()


def test_half_close_of_a_subscription_finishes_with_ok(ten, server, channel):
    with RawExchange(channel) as exchange:
        exchange.send(subscription_request("ten"))
        exchange.read_update()
        exchange.half_close()
        assert exchange.status()[0] is grpc.StatusCode.OK
    wait_until(lambda: server.stream_count == 0)


def test_half_close_without_a_request_finishes_the_call(server, channel):
    with RawExchange(channel) as exchange:
        exchange.half_close()
        assert exchange.status()[0] is grpc.StatusCode.OK


def test_a_snapshot_completes_only_after_the_half_close(ten, channel):
    with RawExchange(channel) as exchange:
        exchange.send(snapshot_request("ten", viewport=RowSet.of_span(8, 20)))
        answer = exchange.read_update()
        assert values(answer) == [8, 9]
        assert exchange.call.is_active()
        exchange.half_close()
        assert exchange.status()[0] is grpc.StatusCode.OK


def test_a_snapshot_of_nothing_static_is_the_schema_and_ok(server, channel):
    server.create_table("none", {"x": "int64"}, kind="static")
    with RawExchange(channel) as exchange:
        exchange.send(snapshot_request("none"))
        exchange.half_close()
        assert isinstance(received(exchange), SchemaReceived)
        with pytest.raises(StopIteration):
            exchange.read()
        assert exchange.call.code() is grpc.StatusCode.OK


def test_cancelling_frees_the_stream_and_the_producer(ten, server, channel):
    exchange = RawExchange(channel)
    exchange.send(subscription_request("ten"))
    exchange.read_update()
    assert server.stream_count == 1
    exchange.close()
    wait_until(lambda: server.stream_count == 0)
    runtime = server._parts.runtime
    wait_until(lambda: runtime.submit(lambda: len(runtime._producers)).result() == 0)


def test_dropping_a_table_tells_its_subscribers(ten, server, channel):
    with RawExchange(channel) as exchange:
        exchange.send(subscription_request("ten"))
        exchange.read_update()
        server.drop_table("ten")
        status, details = exchange.status()
    assert status is grpc.StatusCode.NOT_FOUND
    assert "dropped" in details


@pytest.mark.further
def test_a_large_update_is_split_and_shared(server, channel):
    rows = pa.table({"x": range(400_000)})
    server.create_table("big", data=rows)
    exchanges = [RawExchange(channel) for _ in range(3)]
    for exchange in exchanges:
        exchange.send(subscription_request("big"))
    for exchange in exchanges:
        update = exchange.read_update()
        assert pa.chunked_array([update.added_columns[0]]).equals(rows["x"]) or (
            update.added_columns[0].equals(rows["x"])
        )
        exchange.close()


def test_source_time_comes_on_request_only(ten, channel):
    headers = (("x-barrage-extensions", "other, source-time"),)
    with RawExchange(channel, headers=headers) as asked, RawExchange(channel) as silent:
        for exchange in (asked, silent):
            exchange.send(subscription_request("ten"))
            exchange.read_update()
        ten.upsert({"k": 1, "v": 3.0})
        assert asked.read_update().source_time_ns is not None
        assert silent.read_update().source_time_ns is None


def test_a_failing_view_ends_its_subscribers_and_nobody_else(server, channel, monkeypatch):
    table = server.create_table("t", data={"a": [4, 2]})
    server.publish("large", table.where("a > 3"))

    def explode(*_: object) -> None:
        raise ZeroDivisionError("broken operator")

    with RawExchange(channel) as failing, RawExchange(channel) as healthy:
        failing.send(subscription_request("large"))
        healthy.send(subscription_request("t"))
        assert values(failing.read_update()) == [4]
        healthy.read_update()
        monkeypatch.setattr("barrage.engine.operators.where.WhereTable.advance", explode)
        table.add({"a": [9]})
        assert values(healthy.read_update()) == [9]
        assert failing.status()[0] is grpc.StatusCode.FAILED_PRECONDITION
    with RawExchange(channel) as late:
        late.send(subscription_request("large"))
        assert late.status()[0] is grpc.StatusCode.FAILED_PRECONDITION


# --- revisions ---


def test_the_draft_is_spoken_when_the_header_asks(ten, channel):
    headers = (("x-barrage-revision", "2020"),)
    with RawExchange(channel, headers=headers, revision=DRAFT) as exchange:
        exchange.send(subscription_request("ten", revision=DRAFT))
        assert values(exchange.read_update()) == list(range(10))


@pytest.mark.parametrize(("draft", "header"), [("off", "2020"), ("header", "1999")])
def test_a_revision_that_is_off_or_unknown_is_refused(draft, header):
    with (
        barrage.Server(config=ServerConfig(draft_2020=draft)) as server,
        raw_channel(server.address) as channel,
        RawExchange(channel, headers=(("x-barrage-revision", header),)) as exchange,
    ):
        assert exchange.status()[0] is grpc.StatusCode.UNIMPLEMENTED


def test_an_endpoint_that_always_speaks_the_draft():
    with (
        barrage.Server(config=ServerConfig(draft_2020="always")) as server,
        raw_channel(server.address) as channel,
        RawExchange(channel, revision=DRAFT) as exchange,
    ):
        server.create_table("t", data={"x": [1]})
        exchange.send(subscription_request("t", revision=DRAFT))
        assert values(exchange.read_update()) == [1]
