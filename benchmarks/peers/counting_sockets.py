"""A load of many pages in one process: a WebSocket each, which costs a few microseconds a message.

What arrives is counted and not decoded, but for the heads of frames. Half a window is acknowledged
at a time, as a page does that shows what it gets. Servers without login only.
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.peers.http2_counting import LoadError

CONNECT_SECONDS_MAX = 120.0
ACKNOWLEDGED_AT_ONCE = 4
FIRST_MESSAGES = 2
"""Of a view: its schema, and its first state."""

TURN_SECONDS = 0.05
_BINARY, _TEXT, _PING = 0x82, 0x81, 0x89
_RECEIVE_BYTES = 256 * 1024


def masked(kind: int, data: bytes) -> bytes:
    """A frame of a client, with a mask of zeros."""
    size = len(data)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes((kind,)) + length + b"\0\0\0\0" + data


class CountedPage:
    """One socket with one view."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.messages = 0
        self.socket = socket.create_connection(address, CONNECT_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET /socket HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: barrage-flight.v1\r\n\r\n".encode()
            + masked(_TEXT, b'{"type":"hello"}')
            + masked(_TEXT, b'{"type":"open","stream":1,"method":"DoExchange"}')
            + masked(_BINARY, b"\x01" + request)
        )
        self._acknowledged = 0
        self._left = self._await_upgrade()
        self.socket.setblocking(False)

    def _await_upgrade(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            part = self.socket.recv(4096)
            if not part:
                raise LoadError("the server closed a socket")
            data += part
        head, _, rest = data.partition(b"\r\n\r\n")
        if b" 101 " not in head:
            raise LoadError(f"no WebSocket: {head[:80]!r}")
        return rest

    def receive(self) -> None:
        """Count what has come."""
        try:
            part = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not part:
            raise LoadError("the server closed a socket")
        data = self._left + part if self._left else part
        at, end = 0, len(data)
        while end - at >= 2:
            size, head = data[at + 1], 2
            if size == 126:
                size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
            if end - at < head + size:
                break
            kind = data[at]
            if kind == _BINARY:
                self.messages += 1
            elif kind == _PING:
                self.socket.send(masked(0x8A, data[at + head : at + head + size]))
            elif kind != _TEXT:
                raise LoadError("the server closed a socket")
            at += head + size
        self._left = data[at:]
        if self.messages - self._acknowledged >= ACKNOWLEDGED_AT_ONCE:
            self._acknowledged = self.messages
            told = json.dumps({"type": "ack", "streams": {"1": self.messages}}).encode()
            self.socket.send(masked(_TEXT, told))


class Load:
    """All pages of one load."""

    def __init__(self, address: tuple[str, int], requests: list[bytes]) -> None:
        self.pages = [CountedPage(address, request) for request in requests]
        self._selector = selectors.DefaultSelector()
        for page in self.pages:
            self._selector.register(page.socket, selectors.EVENT_READ, page)
        deadline = time.monotonic() + CONNECT_SECONDS_MAX
        while min(page.messages for page in self.pages) < FIRST_MESSAGES:
            self.turn()
            if time.monotonic() > deadline:
                raise LoadError("not every page got its first rows")

    def turn(self) -> None:
        for key, _ in self._selector.select(TURN_SECONDS):
            key.data.receive()

    def count(self) -> int:
        return sum(page.messages for page in self.pages)

    def close(self) -> None:
        self._selector.close()
        for page in self.pages:
            page.socket.close()


def serve(pipe: Connection) -> None:
    """Words: ``("open", (host, port), requests)``, ``("count",)`` for messages and CPU seconds so
    far, ``("close",)``."""
    pipe.send("ready")
    load: Load | None = None
    while True:
        while load is not None and not pipe.poll(0):
            load.turn()
        word: Any = pipe.recv()
        if word is None:
            return
        if word[0] == "open":
            load = Load(word[1], word[2])
            pipe.send(len(load.pages))
        elif word[0] == "count" and load is not None:
            pipe.send((load.count(), time.process_time()))
        elif load is not None:
            load.close()
            load = None
            pipe.send("closed")
