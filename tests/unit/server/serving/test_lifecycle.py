"""Starting, draining, stopping; credentials; health and reflection; slow readers; what is left."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import threading

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import barrage
from barrage.errors import ConfigError, LocalProtocolError, TransportError
from barrage.limits import Limits
from barrage.server import AsyncServer, ServerConfig
from barrage.transport.host_names import is_loopback
from tests.helpers.server_process import (
    TIMEOUT_SECONDS,
    RawExchange,
    ServerProcess,
    raw_channel,
    subscription_request,
    unary,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("on_a_port")

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Check(request, timeout=TIMEOUT_SECONDS).status


def list_flights(channel: grpc.Channel, **options: object) -> grpc.StatusCode:
    method = channel.unary_stream("/arrow.flight.protocol.FlightService/ListFlights")
    call = method(b"", timeout=TIMEOUT_SECONDS, **options)
    with contextlib.suppress(grpc.RpcError):
        list(call)
    return call.code()


# --- credentials ---


@pytest.fixture
def guarded():
    with barrage.Server(token="open sesame") as server:
        yield server


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("Bearer open sesame", grpc.StatusCode.OK),
        ("bearer open sesame", grpc.StatusCode.OK),
        ("Basic " + base64.b64encode(b"me:open sesame").decode(), grpc.StatusCode.OK),
        ("Bearer wrong", UNAUTHENTICATED),
        ("Bearer ", UNAUTHENTICATED),
        ("Basic !!!", UNAUTHENTICATED),
        ("Anonymous", UNAUTHENTICATED),
        ("open sesame", UNAUTHENTICATED),
        (None, UNAUTHENTICATED),
    ],
)
def test_every_call_needs_the_token(guarded, header, code):
    metadata = () if header is None else (("authorization", header),)
    with raw_channel(guarded.address) as channel:
        assert list_flights(channel, metadata=metadata) is code
        with RawExchange(channel, headers=metadata) as exchange:
            exchange.half_close()
            assert exchange.status()[0] is code


def test_health_needs_no_token(guarded):
    with raw_channel(guarded.address) as channel:
        assert health(channel) == SERVING


def test_pyarrow_handshake_turns_a_password_into_a_token(guarded):
    with flight.connect(guarded.uri) as client:
        header = client.authenticate_basic_token("anybody", "open sesame")
        assert header[0] == b"authorization"
        assert header[1].startswith(b"Bearer bt_")
        told = client.list_flights(options=flight.FlightCallOptions(headers=[header]))
        assert all(each.descriptor.path[0].startswith(b"_") for each in told)
        with pytest.raises(flight.FlightUnauthenticatedError):
            client.authenticate_basic_token("anybody", "wrong")


def test_a_token_is_made_up_for_an_address_others_can_reach(capfd):
    with barrage.Server(host="0.0.0.0") as server:
        assert server.token is not None
        assert len(server.token) >= 32
        with raw_channel(f"127.0.0.1:{server.port}") as channel:
            assert list_flights(channel) is UNAUTHENTICATED
    assert server._parts.config.token is None
    assert server._app.token in capfd.readouterr().err


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_what_counts_as_loopback(host, expected):
    assert is_loopback(host) is expected


# --- health and reflection ---


def test_health_of_the_flight_service(channel):
    assert health(channel, "arrow.flight.protocol.FlightService") == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        health(channel, "nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_describes_flight(channel):
    def ask(**wish: str) -> reflection_pb2.ServerReflectionResponse:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(**wish)
        return next(stub.ServerReflectionInfo(iter([request]), timeout=TIMEOUT_SECONDS))

    listed = {service.name for service in ask(list_services="").list_services_response.service}
    assert {"arrow.flight.protocol.FlightService", "grpc.health.v1.Health"} <= listed
    found = ask(file_containing_symbol="arrow.flight.protocol.FlightService")
    assert b"DoExchange" in found.file_descriptor_response.file_descriptor_proto[0]
    found = ask(file_containing_symbol="grpc.health.v1.Health")
    assert found.file_descriptor_response.file_descriptor_proto


def test_unknown_methods_are_unimplemented(channel):
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "NoSuchMethod")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- the end ---


def test_stop_ends_streams_with_unavailable_after_what_is_queued(server, channel):
    table = server.create_table("t", {"x": "int64"})
    with RawExchange(channel) as exchange:
        exchange.send(subscription_request("t", interval_ms=10_000))
        exchange.read_update()
        table.add({"x": [1]})
        server.stop()
        assert exchange.read_update().added_columns[0].to_pylist() == [1]
        status, details = exchange.status()
    assert status is UNAVAILABLE
    assert "shutting down" in details


def test_stop_is_idempotent_and_ends_everything(server):
    server.create_table("t", {"x": "int64"})
    server.stop()
    server.stop()
    with pytest.raises(TransportError):
        server.table("t")


def test_a_draining_server_refuses_new_calls_and_says_not_serving(server, channel):
    server.create_table("t", {"x": "int64"})
    assert health(channel) == SERVING
    server._app._guard.is_draining = True
    assert list_flights(channel) is UNAVAILABLE
    with RawExchange(channel) as exchange:
        assert exchange.status()[0] is UNAVAILABLE


def test_a_reader_that_never_reads_does_not_outlast_the_grace(server):
    rows = pa.table({"x": range(2_000_000)})
    server.create_table("big", data=rows)
    with raw_channel(server.address) as channel, RawExchange(channel) as exchange:
        exchange.send(subscription_request("big"))
        exchange.read()
        server.stop(grace=0.2)
        assert exchange.status()[0] in (UNAVAILABLE, grpc.StatusCode.CANCELLED)


SCRIPT = """
import sys
import barrage
server = barrage.Server()
server.start()
server.create_table("t", {"x": "int64"}).add({"x": [1]})
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
server.serve_forever()
"""


def test_sigterm_drains_and_exits_with_zero():
    with ServerProcess(SCRIPT) as process, raw_channel(process.address) as channel:
        with RawExchange(channel) as exchange:
            exchange.send(subscription_request("t"))
            exchange.read_update()
            process.terminate()
            assert exchange.status()[0] is UNAVAILABLE
        assert process.exit_code() == 0


def test_serving_forever_ends_when_the_server_is_stopped(server):
    stopper = threading.Timer(0.05, server.stop)
    stopper.start()
    server.serve_forever()
    stopper.join()


def test_async_serving_forever_ends_when_the_server_is_stopped():
    async def scenario() -> None:
        async with AsyncServer() as server:
            serving = asyncio.create_task(server.serve_forever())
            await asyncio.sleep(0)
            await server.stop()
            await serving

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_a_config_error(server):
    with pytest.raises(ConfigError, match="cannot listen"):
        barrage.Server(port=server.port).start()


def test_a_server_knows_its_address_only_when_it_runs():
    server = barrage.Server()
    with pytest.raises(LocalProtocolError):
        _ = server.port
    server.create_table("before", {"x": "int64"})
    with server:
        assert server.table_names() == ["before"]
        with pytest.raises(LocalProtocolError):
            server.start()


@pytest.mark.parametrize("rounds", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_hundreds_of_streams_leave_nothing_behind(server, channel, rounds):
    server.create_table("t", data={"x": [1]})
    threads = threading.active_count()
    tasks = task_count(server)
    for _ in range(rounds):
        exchanges = [RawExchange(channel) for _ in range(50)]
        for exchange in exchanges:
            exchange.send(subscription_request("t"))
        for exchange in exchanges:
            exchange.read_update()
            exchange.close()
    wait_until(lambda: server.stream_count == 0)
    wait_until(lambda: task_count(server) <= tasks)
    runtime = server._parts.runtime
    assert runtime.submit(lambda: len(runtime._producers)).result() == 0
    gc.collect()
    wait_until(lambda: threading.active_count() <= threads + 2)


def task_count(server: barrage.Server) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), server._loop).result()


def test_views_nobody_uses_are_freed(server):
    table = server.create_table("t", data={"x": [1, 2]})
    view = table.where("x > 1").sort("x")
    assert len(view) == 1
    children = table._table.live_children
    del view
    gc.collect()
    wait_until(lambda: server._parts.runtime.submit(lambda: len(children())).result() == 0)


# --- slow readers ---


def test_a_slow_reader_gets_one_merged_update_and_nothing_is_lost(server):
    table = server.create_table("t", {"x": "int64"})
    part = pa.table({"x": range(100_000)})
    with (
        raw_channel(server.address) as channel,
        RawExchange(channel) as slow,
        RawExchange(channel) as brisk,
    ):
        for exchange in (slow, brisk):
            exchange.send(subscription_request("t"))
            exchange.read_update()
        for number in range(60):
            table.add(part)
            wait_until(lambda n=number: brisk_rows(brisk, part.num_rows * (n + 1)))
        updates = 0
        rows = 0
        while rows < 60 * part.num_rows:
            rows += len(slow.read_update().added_columns[0])
            updates += 1
    assert rows == 60 * part.num_rows
    assert updates < 40


def brisk_rows(exchange: RawExchange, expected: int) -> bool:
    return exchange.read_update().table_size == expected


def test_a_reader_that_stalls_too_long_is_disconnected():
    limits = Limits(stall_ns_max=200_000_000)
    with barrage.Server(config=ServerConfig(limits=limits)) as server:
        table = server.create_table("t", {"x": "int64"})
        part = pa.table({"x": range(200_000)})
        with raw_channel(server.address) as channel, RawExchange(channel) as exchange:
            exchange.send(subscription_request("t"))
            exchange.read()
            for _ in range(20):
                table.add(part)
            wait_until(lambda: server.stream_count == 0)
            status, details = exchange.status()
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "slow consumer" in details


@pytest.mark.parametrize("ending", ["cancel", "disconnect"])
def test_a_client_that_vanishes_in_the_middle_of_a_write_is_no_error(server, caplog, ending):
    server.create_table("big", data={"x": range(2_000_000)})
    with raw_channel(server.address) as channel:
        exchange = RawExchange(channel)
        exchange.send(subscription_request("big"))
        exchange.read()
        if ending == "cancel":
            exchange.close()
        else:
            channel.close()
            exchange.half_close()
    wait_until(lambda: server.stream_count == 0)
    server.stop()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# --- the asynchronous form ---


def test_async_server_has_the_same_shape():
    async def scenario() -> list:
        async with AsyncServer() as server:
            table = await server.create_table("t", {"k": "int64", "v": "string"}, key="k")
            await table.upsert([{"k": 1, "v": "a"}])
            async with server.transaction() as changes:
                changes.upsert(table, {"k": 2, "v": "b"})
                changes.remove(table, 1)
            view = await server.publish("all", await table.where("k > 0"))
            assert await server.table_names() == ["all", "t"]
            async with grpc.aio.insecure_channel(server.address) as channel:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                assert (await answer).status == SERVING
            await server.drop_table("all")
            return (await view.to_arrow()).to_pylist()

    assert asyncio.run(scenario()) == [{"k": 2, "v": "b"}]
