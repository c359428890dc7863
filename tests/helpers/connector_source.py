"""A source that sends numbered messages over a socket, as simply as one can be."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING

from barrage.limits import Limits
from barrage.proto.connector.source_session import (
    Acknowledged,
    SourceEvent,
    SourceSession,
    StreamOpened,
    Welcomed,
    WorkerFailed,
)
from barrage.wire.connector.frame_values import Dialect, SentMessage
from tests.helpers.restless_server import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = Limits()


def text_of(stream: int, number: int) -> bytes:
    """The payload of a message."""
    return f"{stream}-{number}".encode()


class SocketSource:
    """One connection."""

    def __init__(
        self,
        port: int,
        program: str,
        *,
        dialect: Dialect = Dialect.PUBLISHED,
        cookie: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS)
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            except BaseException:
                self.socket.close()
                raise
        self.session = SourceSession(limits=LIMITS, dialect=dialect)
        self.key = b"k" if dialect is Dialect.PUBLISHED else None
        self.safe: dict[int, int] = {}
        self.opened: dict[int, int | None] = {}
        self.known: dict[int, int] = {}
        self.session.greet(program, instance="test", cookie=cookie)
        try:
            self.until(Welcomed)
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.session.data_to_send())

    def receive(self) -> list[SourceEvent]:
        """What the worker says next; EOFError when it has ended the connection."""
        data = self.socket.recv(65_536)
        if not data:
            raise EOFError
        events = self.session.receive_data(data)
        for event in events:
            if isinstance(event, Acknowledged):
                self.safe.update(event.positions)
            elif isinstance(event, StreamOpened):
                self.opened[event.stream] = event.last
            elif isinstance(event, Welcomed):
                self.known = dict(event.positions)
        return events

    def until(self, wanted: type) -> SourceEvent:
        """The first event of that kind; EOFError once the worker ends the connection."""
        self.flush()
        while True:
            for event in self.receive():
                if isinstance(event, wanted):
                    return event
                if isinstance(event, WorkerFailed):
                    # Over TLS the end of the connection comes seconds later.
                    raise EOFError(event)

    def announce(self, *streams: int) -> None:
        """Until all of them are open."""
        for stream in streams:
            last = self.known.get(stream)
            for event in self.session.announce(stream, str(stream).encode(), last=last):
                assert isinstance(event, StreamOpened)
                self.opened[stream] = event.last
        self.flush()
        while not set(streams) <= set(self.opened):
            self.receive()

    def send(self, stream: int, *numbers: int, flags: int = 0) -> None:
        """Messages, as there are credits."""
        for number in numbers:
            while self.session.credits < 1:
                self.flush()
                self.receive()
            self.session.send(
                SentMessage(stream, number, None, self.key, text_of(stream, number), flags)
            )
        self.flush()

    def wait_safe(self, stream: int, number: int) -> None:
        """Until that message is acknowledged."""
        self.flush()
        while self.safe.get(stream, -1) < number:
            self.receive()


@contextlib.contextmanager
def source(port: int | None, program: str = "feed", **options: object) -> Iterator[SocketSource]:
    assert port is not None
    made = SocketSource(port, program, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()
