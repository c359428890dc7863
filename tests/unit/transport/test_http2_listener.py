"""The HTTP/2 listener against gRPC's own clients, and against sockets that are none."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from hyperframe.frame import SettingsFrame

from barrage.errors import ConfigError
from barrage.server.access.reflection import offer_reflection
from barrage.supervision import living
from barrage.transport.call_running import CALL
from barrage.transport.over_http2 import http2_protocol
from barrage.transport.over_http2.http2_listener import Http2Listener
from tests.unit.transport.contract import TOLD_SECONDS, until
from tests.unit.transport.http2_peer import PREFACE, REQUEST
from tests.unit.transport.http2_served import (
    PARTED,
    SERVICE,
    answer_of,
    gone,
    greeted,
    listener_on,
    raw,
    run,
    unary,
    with_client,
)

# --- gRPC -----------------------------------------------------------------------------------------


def test_metadata_goes_both_ways_binary_too():
    async def scene(channel, listener, behaviors):
        sent = (("x-text", "word"), ("x-bytes-bin", b"\0\xff,"), ("authorization", "Bearer x"))
        assert await unary(channel, "Echo")(b"x", metadata=sent) == b"x"
        assert set(sent) <= set(behaviors.seen["metadata"])
        names = {name for name, _ in behaviors.seen["metadata"]}
        assert "user-agent" in names
        assert not names & {"te", "content-type", ":path"}
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Refuse")(b"x")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert caught.value.details() == "100 % naïve\n\x7f→"
        assert tuple(caught.value.initial_metadata()) == (("x-bytes-bin", b"\0\xff"),)
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["x-trailer"] == "end"
        assert trailers["x-end-bin"] == b"\xff" * 5

    with_client(scene)


def test_all_four_kinds_of_methods_run():
    async def scene(channel, listener, behaviors):
        count = channel.unary_stream(f"/{SERVICE}/Count")
        assert [answer async for answer in count(b"5")] == [b"0", b"1", b"2", b"3", b"4"]
        backwards = channel.stream_stream(f"/{SERVICE}/Reversed")
        assert [answer async for answer in backwards(iter([b"ab", b"", b"cd"]))] == [
            b"ba",
            b"",
            b"dc",
        ]
        join = channel.stream_unary(f"/{SERVICE}/Join")
        assert await join(iter([b"ab", b"", b"cd"])) == b"abcd"

    with_client(scene)


def test_an_unknown_method_is_unimplemented():
    async def scene(channel, listener, behaviors):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Nothing")(b"x")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with_client(scene)


def test_compression_is_unimplemented_and_the_others_go_on():
    async def scene(channel, listener, behaviors):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Echo")(b"x" * 1000, compression=grpc.Compression.Gzip)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await unary(channel, "Echo")(b"x") == b"x"

    with_client(scene)


def test_a_deadline_ends_the_call_on_both_sides():
    async def scene(channel, listener, behaviors):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Wait")(b"x", timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: listener.calls_count == 0)
        # On a busy machine it was over before it began.
        assert behaviors.cancelled == behaviors.started

    with_client(scene)


def test_the_server_itself_keeps_the_deadline():
    async def scene(listener, behaviors):
        async with raw(listener.port) as (reader, writer):
            client = greeted(writer, ("grpc-timeout", "10m"), path=f"/{SERVICE}/Wait")
            trailers = await answer_of(client, reader, writer)
            assert trailers[b"grpc-status"] == b"4"
        await until(lambda: listener.calls_count == 0)
        assert behaviors.cancelled == behaviors.started

    run(scene)


def test_a_message_that_is_too_long_ends_its_call_alone():
    async def scene(channel, listener, behaviors):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Echo")(bytes((1 << 20) + 1))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(await unary(channel, "Echo")(bytes(1 << 20))) == 1 << 20

    with_client(scene)


def test_a_thousand_cancelled_calls_leave_nothing():
    async def scene(channel, listener, behaviors):
        for _ in range(5):
            calls = [unary(channel, "Wait")(b"x") for _ in range(200)]
            await until(lambda: behaviors.started == behaviors.cancelled + 200)
            for call in calls:
                call.cancel()
            await until(lambda: listener.calls_count == 0)
        assert behaviors.cancelled == behaviors.started == 1000
        (connection,) = listener._connections
        assert connection._calls == connection.core.streams == {}
        assert not [role for role, _ in living() if role is CALL]

    with_client(scene)


def client_that_asks_for(calls: int) -> H2Connection:
    """It has their frames to send."""
    client = H2Connection(H2Configuration())
    client.initiate_connection()
    headers = [*{**dict(REQUEST), ":path": f"/{SERVICE}/Wait"}.items()]
    for stream_id in range(1, 2 * calls, 2):
        client.send_headers(stream_id, headers)
        client.send_data(stream_id, bytes(5), end_stream=True)
    return client


def test_others_have_their_turn_while_very_many_calls_are_begun():
    async def scene(listener, behaviors):
        client = client_that_asks_for(400)
        async with raw(listener.port) as (_, writer):
            writer.write(client.data_to_send())
            begun = [0]
            while begun[-1] < 400:
                await asyncio.sleep(0)
                begun.append(listener.calls_count)
            assert max(later - earlier for earlier, later in itertools.pairwise(begun)) <= 64
            # It is read on from the socket, too.
            client.reset_stream(1)
            writer.write(client.data_to_send())
            await until(lambda: behaviors.cancelled == 1)

    run(scene)


def test_what_is_unread_when_the_connection_ends_begins_no_call():
    async def scene(listener, behaviors):
        client = client_that_asks_for(1_000)
        async with raw(listener.port) as (_, writer):
            writer.write(client.data_to_send())
            seen = [0]
            while not seen[-1]:
                await asyncio.sleep(0)
                seen.append(listener.calls_count)
            (connection,) = listener._connections
            connection.abort()
            await until(lambda: listener.connections_count == 0)
            begun = behaviors.started
            for _ in range(20):
                await asyncio.sleep(0)
            assert behaviors.started == begun
            assert listener.calls_count == 0

    run(scene)


def test_what_is_posted_says_whether_it_waits_and_when_it_is_taken():
    async def scene(channel, listener, behaviors):
        call = channel.unary_stream(f"/{SERVICE}/TryMany")(b"")
        answers = [answer async for answer in call]
        (sent,) = behaviors.tried
        assert sent >= 60  # A window of 65,535 bytes.
        assert answers == [bytes(1000)] * sent + [b"%d" % sent]

    with_client(scene)


def test_health_and_reflection_answer_their_clients():
    async def main():
        listener = listener_on()
        health_servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, listener)
        offer_reflection(("grpc.health.v1.Health",), listener)
        listener.bind()
        await listener.start()
        await health_servicer.set("a", health_pb2.HealthCheckResponse.SERVING)

        def ask():
            with grpc.insecure_channel(listener.address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                assert stub.Check(health_pb2.HealthCheckRequest(service="a")).status == 1
                watching = stub.Watch(health_pb2.HealthCheckRequest(service="a"))
                assert next(watching).status == 1
                watching.cancel()
                reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
                question = reflection_pb2.ServerReflectionRequest(list_services="")
                (answer,) = reflection.ServerReflectionInfo(iter([question]))
                names = [each.name for each in answer.list_services_response.service]
                assert "grpc.health.v1.Health" in names

        await asyncio.to_thread(ask)
        await listener.stop(0)

    asyncio.run(main())


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "peer"),
    [
        ("127.0.0.1", "ipv4:127.0.0.1:"),
        ("localhost", "ipv"),
        ("::1", "ipv6:%5B::1%5D:"),
        ("[::1]", "ipv6:%5B::1%5D:"),
        ("0.0.0.0", "ipv4:127.0.0.1:"),
        ("::", "ipv"),
    ],
)
def test_a_peer_is_named_as_grpc_does(host, peer):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6")

    async def scene(channel, listener, behaviors):
        await unary(channel, "Echo")(b"x")
        assert behaviors.seen["peer"].startswith(peer)
        assert listener.port > 0

    try:
        with_client(scene, host)
    except ConfigError:
        if ":" not in host:
            raise
        pytest.skip("no IPv6")


def test_the_unspecified_address_of_ipv6_is_all_of_them():
    async def scene(listener, behaviors):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
            await unary(channel, "Echo")(b"x")
        assert behaviors.seen["peer"].startswith("ipv4:127.0.0.1:")

    try:
        run(scene, "::")
    except ConfigError:
        pytest.skip("no IPv6")


def test_a_port_is_served_once_and_free_again():
    first, second = listener_on(), None
    first.bind()
    second = listener_on(port=first.port)
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*in use"):
        second.bind()
    asyncio.run(first.stop(0))
    second.bind()
    asyncio.run(second.stop(0))


@pytest.mark.parametrize("host", ["", "no such host", "203.0.113.7"])
def test_a_host_that_is_not_here_is_a_wrong_setting(host):
    with pytest.raises(ConfigError, match="cannot listen on"):
        listener_on(host).bind()


def test_a_socket_of_the_file_system_is_served_once_and_taken_away(tmp_path):
    path = str(tmp_path / "s")

    async def scene(channel, listener, behaviors):
        assert await unary(channel, "Echo")(b"x") == b"x"
        assert behaviors.seen["peer"] == "unix:"
        with pytest.raises(ConfigError, match="another server does"):
            listener_on(f"unix://{path}").bind()

    with_client(scene, f"unix://{path}")
    assert not os.path.exists(path)
    # What a killed server leaves is taken over; what is no socket is not.
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()
    with_client(scene, f"unix://{path}")
    with open(path, "w") as file:
        file.write("mine")
    with pytest.raises(ConfigError, match="cannot listen on unix:"):
        listener_on(f"unix://{path}").bind()
    assert os.path.exists(path)
    with pytest.raises(ConfigError, match="cannot listen on unix:"):
        listener_on(f"unix://{tmp_path}/{'x' * 200}").bind()


# --- life -----------------------------------------------------------------------------------------


def test_a_listener_that_stops_waits_for_its_calls():
    async def scene(channel, listener, behaviors):
        call = channel.stream_stream(f"/{SERVICE}/Reversed")()
        await call.write(b"ab")
        assert await call.read() == b"ba"
        stopping = asyncio.ensure_future(listener.stop(TOLD_SECONDS))
        await asyncio.sleep(0)
        await call.write(b"cd")
        assert await call.read() == b"dc"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        await stopping

    with_client(scene)


def test_a_listener_that_stops_cuts_what_is_left():
    async def scene(channel, listener, behaviors):
        call = unary(channel, "Wait")(b"x")
        await until(lambda: behaviors.started == 1)
        await listener.stop(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert behaviors.cancelled == 1

    with_client(scene)


def test_the_end_of_a_connection_is_the_end_of_its_calls():
    async def scene(listener, behaviors):
        async with raw(listener.port) as (_, writer):
            greeted(writer, path=f"/{SERVICE}/Wait")
            await until(lambda: behaviors.started == 1)
        await until(lambda: listener.calls_count == listener.connections_count == 0)
        assert behaviors.cancelled == 1

    run(scene)


def test_connections_past_the_limit_are_closed_as_they_come():
    async def scene(listener, behaviors):
        async with raw(listener.port) as (reader, _):
            assert await reader.read(1)
            async with raw(listener.port) as (other, _):
                await gone(other)
        await until(lambda: listener.connections_count == 0)
        async with raw(listener.port) as (reader, _):
            assert await reader.read(1)

    run(scene, http2_connections_max=1)


def test_who_says_nothing_is_cut():
    async def scene(listener, behaviors):
        async with raw(listener.port) as (reader, writer):
            writer.write(PREFACE[:10])
            await gone(reader)

    run(scene, http2_preface_ns_max=20_000_000)


def test_a_silent_peer_is_asked_and_then_cut():
    async def scene(listener, behaviors):
        async with raw(listener.port) as (reader, writer):
            client = greeted(writer)
            writer.write(client.data_to_send())
            heard = await gone(reader)
            assert b"barrage?" in heard

    run(scene, keepalive_ms=40)


def test_a_flood_ends_its_own_connection_alone():
    async def scene(channel, listener, behaviors):
        await unary(channel, "Echo")(b"x")
        async with raw(listener.port) as (reader, writer):
            client = greeted(writer)
            for _ in range(40):
                client.ping(bytes(8))
            writer.write(client.data_to_send())
            assert b"more than 20 PINGs" in await gone(reader)
        assert await unary(channel, "Echo")(b"x") == b"x"

    with_client(scene, http2_pings_per_s_max=20)


def test_a_socket_that_takes_bytes_again_gets_them_in_a_turn_of_its_own():
    """asyncio tells so in the middle of a write: a write from there, to a peer that has gone, makes
    it lose the connection twice."""

    async def scene(listener, behaviors):
        async with raw(listener.port) as (_, writer):
            writer.write(PREFACE + SettingsFrame(0).serialize())
            await until(lambda: listener.connections_count == 1)
            (protocol,) = listener._connections
            await until(lambda: protocol.core.is_open)
            written = []
            protocol._transport = Mock(protocol._transport, write=written.append)
            # The second time a turn is due already, for more than is written ahead of one.
            for pings in (1, 10_000):
                protocol.pause_writing()
                for _ in range(pings):
                    protocol.core.ping(bytes(8))
                if pings > 1:
                    protocol.flush_soon()
                protocol.resume_writing()
                assert not written
                await until(lambda: written)
                written.clear()

    run(scene)


def test_a_client_that_does_not_read_keeps_no_more_than_a_window():
    async def scene(channel, listener, behaviors):
        call = channel.unary_stream(f"/{SERVICE}/Flood")(b"")
        await call.read()
        (connection,) = listener._connections
        await until(lambda: connection.core.streams[1].pending)
        assert len(connection.core.streams[1].pending) == 1
        assert connection.core.out_bytes < 1 << 20
        call.cancel()
        await until(lambda: listener.calls_count == 0)

    with_client(scene)


# --- requests that are none -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"content-type": "text/html"}, {b":status": b"415"}),
        ({"content-type": "application/grpcs"}, {b":status": b"415"}),
        ({":method": "GET"}, {b":status": b"405"}),
        ({":path": "echo"}, {b":status": b"400"}),
        ({"connection": "close"}, {b":status": b"400"}),
        ({"X-Upper": "x"}, {b":status": b"400"}),
        ({"x": "a\nb"}, {b":status": b"400"}),
        ({"te": "gzip"}, {b"grpc-status": b"13"}),
        ({"grpc-timeout": "soon"}, {b"grpc-status": b"13"}),
        ({"x-bin": "?"}, {b"grpc-status": b"13"}),
        ({"grpc-encoding": "gzip"}, {b"grpc-status": b"12", b"grpc-accept-encoding": b"identity"}),
    ],
)
def test_what_is_no_grpc_call_has_an_answer(changed, expected):
    async def scene(listener, behaviors):
        async with raw(listener.port) as (reader, writer):
            client = greeted(writer, *changed.items())
            answer = await answer_of(client, reader, writer)
            assert expected.items() <= answer.items()
        assert listener.calls_count == 0

    run(scene)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_small_writes_do_not_wait_for_each_other(host):
    async def scene(listener, behaviors):
        address = listener.uri.removeprefix("grpc://")
        async with grpc.aio.insecure_channel(address) as channel:
            await unary(channel, "Echo")(b"x")
            [protocol] = listener._connections
            made = protocol._transport.get_extra_info("socket")
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(scene, host)


def test_which_listener_it_is_can_be_said():
    assert isinstance(listener_on(), Http2Listener)


async def read_parts(channel):
    call = channel.unary_stream(f"/{SERVICE}/InParts")(b"")
    return [message async for message in call]


IN_ONE_PIECE = [each for message in PARTED for each in (bytes(message), b"between")]


@pytest.mark.parametrize("host", ["127.0.0.1", "unix"])
def test_messages_in_parts_come_whole(host, tmp_path):
    async def scene(channel, listener, behaviors):
        assert await read_parts(channel) == IN_ONE_PIECE

    with_client(scene, host if host != "unix" else f"unix://{tmp_path}/socket")


def test_a_socket_that_takes_part_of_a_write_gets_the_rest(monkeypatch):
    """However much it takes at a time: within a part, between two, nothing, or an error."""
    taken = itertools.cycle([1, 17, 4096, 70_000, 262_144, None, 0])
    counts = []

    def writev(number, parts):
        count = next(taken)
        if count == 0:
            raise BlockingIOError
        if count is None:
            raise ConnectionResetError  # What follows says what is true.
        counts.append(count)
        return os.write(number, b"".join(parts)[:count])

    monkeypatch.setattr(http2_protocol.os, "writev", writev, raising=True)

    async def scene(channel, listener, behaviors):
        for _ in range(3):
            assert await read_parts(channel) == IN_ONE_PIECE

    with_client(scene)
    assert len(counts) >= 10
