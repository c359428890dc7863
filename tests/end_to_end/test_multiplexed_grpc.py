"""gRPC over one WebSocket: its framing, and peers that get it wrong."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import barrage
from barrage.limits import Limits
from barrage.model.viewport import Viewport
from barrage.proto.client_exchange import ClientExchange
from barrage.server.settings.config import ServerConfig
from barrage.transport.flight_messages import Descriptor, encode_ticket
from tests.helpers.page_client import HANG_S, on_a_loop

PROTOCOLS = ["grpc-websockets-multiplex", "grpc-websockets"]
FLIGHT = "arrow.flight.protocol.FlightService"
FINISHED = 0x8000_0000
LIMITS = Limits(web_upload_bytes_max=10_000, web_head_bytes_max=2_000)


@pytest.fixture(scope="module")
def server():
    config = ServerConfig(host="inproc://", web=True, limits=LIMITS)
    with barrage.Server(config=config) as made:
        made.create_table("t", {"k": "int64"}, key=["k"]).upsert({"k": list(range(20))})
        yield made


def number(stream):
    return stream.to_bytes(4, "big")


def opening(stream, method, **headers):
    named = {
        "grpc-websockets-path": f"{FLIGHT}/{method}",
        "content-type": "application/grpc-web+proto",
        "x-grpc-web": "1",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return number(stream) + lines.encode()


def framed(message, flag=0):
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


def data(stream, payload):
    return number(stream) + b"\0" + payload


def half_close(stream):
    return number(stream | FINISHED) + b"\1"


class Peer:
    """One socket, and what came on each of its calls."""

    def __init__(self, socket):
        self.socket = socket
        self.frames = {}
        self.ended = set()

    async def read(self, condition):
        async with asyncio.timeout(HANG_S):
            while not condition():
                message = await self.socket.recv()
                stream = int.from_bytes(message[:4], "big")
                self.ended |= {stream & ~FINISHED} if stream & FINISHED else set()
                self.frames.setdefault(stream & ~FINISHED, []).append(message[4:])

    def headers(self, stream):
        """The lines of each block of headers or trailers, in order."""
        blocks = [frame for frame in self.frames.get(stream, ()) if frame[0] == 0x80]
        return [
            dict(line.split(": ", 1) for line in block[5:].decode().split("\r\n") if line)
            for block in blocks
        ]

    def messages(self, stream):
        return [frame[5:] for frame in self.frames.get(stream, ()) if frame[0] == 0]

    async def closed(self):
        async with asyncio.timeout(HANG_S):
            try:
                while True:
                    await self.socket.recv()
            except ConnectionClosed:
                return self.socket.close_code


@asynccontextmanager
async def peer_at(server):
    own = server.web_uri.rstrip("/").replace("http", "ws", 1)
    uri = f"{own}/{FLIGHT}/DoExchange"
    async with connect(uri, subprotocols=PROTOCOLS, max_size=None, proxy=None) as socket:
        assert socket.subprotocol == PROTOCOLS[0]
        yield Peer(socket)


@on_a_loop
async def test_messages_may_come_in_any_pieces(server):
    async with peer_at(server) as peer:
        message = framed(Descriptor(path=("t",)).encode())
        for stream, size in enumerate((1, 5, 7, len(message))):
            await peer.socket.send(opening(stream, "GetSchema"))
            for start in range(0, len(message), size):
                await peer.socket.send(data(stream, message[start : start + size]))
            await peer.socket.send(half_close(stream))
        await peer.read(lambda: len(peer.ended) == 4)
        for stream in range(4):
            first, last = peer.headers(stream)
            assert first["content-type"] == "application/grpc-web+proto"
            assert last["grpc-status"] == "0"
            assert len(peer.messages(stream)) == 1


@on_a_loop
async def test_a_call_that_fails_at_once_has_one_block(server):
    async with peer_at(server) as peer:
        await peer.socket.send(opening(0, "GetSchema"))
        await peer.socket.send(data(0, framed(Descriptor(path=("none",)).encode())))
        await peer.socket.send(opening(1, "NoSuchMethod"))
        await peer.socket.send(data(1, framed(b"")))
        await peer.read(lambda: peer.ended == {0, 1})
        assert [block["grpc-status"] for block in peer.headers(0)] == ["5"]
        assert [block["grpc-status"] for block in peer.headers(1)] == ["12"]
        assert "%" not in peer.headers(0)[0]["grpc-message"]


@on_a_loop
async def test_calls_share_the_socket_and_end_alone(server):
    request = ClientExchange().subscribe(b"s/t", viewport=Viewport.of(0, 5))
    async with peer_at(server) as peer:
        for stream in (0, 1):
            await peer.socket.send(opening(stream, "DoExchange"))
            await peer.socket.send(data(stream, framed(request)))
        await peer.read(lambda: all(len(peer.messages(stream)) == 2 for stream in (0, 1)))
        assert peer.messages(0) == peer.messages(1)
        await peer.socket.send(half_close(0))
        await peer.read(lambda: 0 in peer.ended)
        assert peer.headers(0)[-1]["grpc-status"] == "0"
        # Late words for it are no offence.
        await peer.socket.send(data(0, framed(request)))
        await peer.socket.send(half_close(0))
        await peer.socket.send(opening(2, "DoGet"))
        await peer.socket.send(data(2, framed(encode_ticket(b"s/t"))))
        await peer.read(lambda: 2 in peer.ended)
        assert peer.headers(2)[-1]["grpc-status"] == "0"
        assert 1 not in peer.ended


OFFENCES = {
    "too short": [b"\0\0"],
    "empty": [b""],
    "text": ["hello"],
    "finished before it began": [number(7 | FINISHED) + b"\1"],
    "headers that are none": [number(0) + b"no colon here\r\n"],
    "headers that are not ASCII": [number(0) + b"x: \xff\r\n"],
    "headers without end": [number(0) + b"x: y\r\n" * 400],
    "no kind": [opening(0, "DoPut"), number(0)],
    "an unknown kind": [opening(0, "DoPut"), number(0) + b"\x05abc"],
    "compressed": [opening(0, "DoPut"), data(0, framed(b"abc", flag=1))],
    "a length past the limit": [opening(0, "DoPut"), data(0, b"\0\xff\xff\xff\xff")],
    "one byte past the limit": [
        opening(0, "DoPut"),
        data(0, b"\0" + (LIMITS.web_upload_bytes_max + 1).to_bytes(4, "big")),
    ],
    "parts of many": [
        part
        for stream in range(3)
        for part in (
            opening(stream, "DoPut"),
            data(stream, b"\0" + (9_000).to_bytes(4, "big") + bytes(4_000)),
        )
    ],
}


@pytest.mark.parametrize("what", OFFENCES)
@on_a_loop
async def test_offences_close_the_socket(server, what):
    async with peer_at(server) as peer:
        for message in OFFENCES[what]:
            await peer.socket.send(message)
        assert await peer.closed() == 1002


@on_a_loop
async def test_the_longest_message_is_taken(server):
    async with peer_at(server) as peer:
        await peer.socket.send(opening(0, "DoPut"))
        await peer.socket.send(data(0, framed(bytes(LIMITS.web_upload_bytes_max))))
        await peer.read(lambda: 0 in peer.ended)
        assert peer.headers(0)[-1]["grpc-status"] == "3"


@on_a_loop
async def test_a_server_that_stops_takes_no_new_calls():
    server = barrage.Server(config=ServerConfig(host="inproc://", web=True)).start()
    server.create_table("t", {"k": "int64"}, key=["k"])
    async with peer_at(server) as peer:
        await peer.socket.send(opening(0, "DoExchange"))
        await peer.socket.send(data(0, framed(ClientExchange().subscribe(b"s/t"))))
        await peer.read(lambda: len(peer.messages(0)) == 2)
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        await peer.read(lambda: 0 in peer.ended and 0x7FFFFFFF in peer.frames)
        assert peer.headers(0)[-1]["grpc-status"] == "14"
        assert await peer.closed() == 1001
        await stopping
