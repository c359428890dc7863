"""A load of many subscriptions in one process that costs a few microseconds a message.

    python -m benchmarks.peers.counting_client HOST:PORT TABLE --views 1000 --seconds 10

Every view is a DoExchange call. Some hundreds of them share an HTTP/2 connection: its handshake,
settings and pings are left to `h2`, headers to `hpack`, and what arrives is counted by
:mod:`benchmarks.peers.http2_counting`. Servers without login only. Real clients tell of the credit
they give back more often than this one does, which costs a server about as much as reading two
frames a message.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, WindowUpdated
from h2.settings import SettingCodes, Settings

import barrage
from barrage import wire
from benchmarks.peers.http2_counting import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PREFIX_BYTES,
    RST_STREAM,
    STREAM_WINDOW_BYTES,
    Arrivals,
    FrameCounter,
    LoadError,
    frame,
)

EXCHANGE = "/arrow.flight.protocol.FlightService/DoExchange"
VIEWS_PER_CONNECTION = 500
CONNECTION_WINDOW_BYTES = 64 * 1024 * 1024
WINDOW_BYTES_DEFAULT = 65_535
"""What HTTP/2 lets us send on a connection before the server says more."""

FIRST_MESSAGES = 2
"""Of a view: its schema, and its first state."""

WAIT_SECONDS_MAX = 120.0
TURN_SECONDS = 0.05

GATHER_SECONDS = 0.001
"""While one counts: how long messages gather in the sockets, so that several are taken together.
Gaps and delays are right to this."""


class CountedConnection:
    """One HTTP/2 connection. Not for more than one thread."""

    def __init__(self, address: tuple[str, int], arrivals: Arrivals) -> None:
        self.socket = socket.create_connection(address, WAIT_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.counter = FrameCounter(arrivals)
        self.failures: list[str] = []
        """How calls ended that should not have."""
        self._room = memoryview(self.counter.buffer)
        self._authority = f"{address[0]}:{address[1]}"
        self._outgoing = bytearray()
        self._window = WINDOW_BYTES_DEFAULT
        self._waiting: deque[bytes] = deque()
        """Frames with data that the window has no room for."""
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES)
        self.socket.sendall(self._h2.data_to_send())
        self.socket.setblocking(False)

    def open(self, view: int, request: bytes) -> int:
        """Begin a call with its first message; the number of its stream."""
        stream = self.counter.add_stream(view)
        block = self._h2.encoder.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", EXCHANGE),
                (":authority", self._authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "barrage-benchmark"),
                ("x-barrage-extensions", "source-time"),
            ]
        )
        self._outgoing += frame(HEADERS, END_HEADERS, stream, block)
        self.write(stream, request)
        return stream

    def write(self, stream: int, message: bytes) -> None:
        """Send one message on a call."""
        prefix = b"\0" + len(message).to_bytes(PREFIX_BYTES - 1, "big")
        self._waiting.append(frame(DATA, 0, stream, prefix + message))
        self.flush()

    def flush(self) -> bool:
        """Send what can be sent; whether something is left for when the socket takes more."""
        while self._waiting and len(self._waiting[0]) <= self._window:
            self._window -= len(self._waiting[0])
            self._outgoing += self._waiting.popleft()
        self._outgoing += self.counter.credit
        self.counter.credit.clear()
        if self._outgoing:
            try:
                del self._outgoing[: self.socket.send(self._outgoing)]
            except BlockingIOError:
                return True
        return bool(self._outgoing)

    def receive(self) -> None:
        """Take what has come and count it; LoadError when the server went away."""
        counter = self.counter
        try:
            count = self.socket.recv_into(self._room[counter.end :])
        except BlockingIOError:
            return
        if count == 0:
            raise LoadError("the server closed a connection")
        counter.end += count
        counter.take(time.perf_counter_ns(), time.time_ns())
        if counter.control:
            for each in counter.control:
                self._control(*each)
            counter.control.clear()

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            if flags & (PADDED | HAS_PRIORITY) or not flags & END_HEADERS:
                raise LoadError("headers of a form that gRPC servers do not send")
            # All of them are decoded: later ones refer to earlier ones.
            headers = dict(self._h2.decoder.decode(payload))
            if flags & END_STREAM:
                status, text = headers.get("grpc-status"), headers.get("grpc-message")
                self.failures.append(f"status {status}: {text}")
        elif kind == RST_STREAM:
            self.failures.append(f"reset with {int.from_bytes(payload, 'big')}")
        elif stream == 0:
            self._settle(frame(kind, flags, stream, payload))

    def _settle(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, ConnectionTerminated):
                raise LoadError(f"the server ends a connection: {event.error_code}")
            if isinstance(event, WindowUpdated):
                self._window += event.delta
        self._outgoing += self._h2.data_to_send()

    def close(self) -> None:
        """Hang up. The server ends the calls; cancelling each would look like an attack to it."""
        self._room.release()
        self.socket.close()


class CountingClient:
    """Views over some connections, and what came for them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        self._address = (host.strip("[]"), int(port))
        self.arrivals = Arrivals()
        self._connections: list[CountedConnection] = []
        self._selector = selectors.DefaultSelector()
        self._places: list[tuple[CountedConnection, int]] = []

    def __enter__(self) -> CountingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, requests: Sequence[bytes], *, seconds: float = 0.0) -> dict[str, Any]:
        """Open a view for each request, spread over ``seconds``, and wait until all have their
        first state. What came meanwhile stays in the arrivals."""
        first_view = len(self._places)
        counts = np.zeros(first_view + len(requests), np.int64)
        counted = len(self.arrivals.views)
        began = time.perf_counter()
        opened, are_ready = 0, False
        while not are_ready:
            elapsed = time.perf_counter() - began
            due = len(requests)
            if elapsed < seconds:
                due = min(int(due * elapsed / seconds) + 1, due)
            for request in requests[opened:due]:
                self._open_one(request)
            opened = due
            self.turn(0.001 if elapsed < seconds else TURN_SECONDS)
            new = self.arrivals.views[counted:]
            counted += len(new)
            np.add.at(counts, new, 1)
            are_ready = opened == len(requests) and counts[first_view:].min() >= FIRST_MESSAGES
            if elapsed > WAIT_SECONDS_MAX:
                raise LoadError(f"some views had no state within {elapsed:.0f} s")
        return {"views": len(requests), "seconds": time.perf_counter() - began}

    def _open_one(self, request: bytes) -> None:
        view = len(self._places)
        if view % VIEWS_PER_CONNECTION == 0:
            self._connections.append(CountedConnection(self._address, self.arrivals))
            connection = self._connections[-1]
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection = self._connections[-1]
        self._places.append((connection, connection.open(view, request)))

    def turn(self, seconds: float) -> None:
        """Wait for at most so long and take what comes. LoadError when a call has ended."""
        for key, _ in self._selector.select(seconds):
            if key.data is not None:
                key.data.receive()
        for connection in self._connections:
            is_full = connection.flush()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_full else 0)
            if self._selector.get_key(connection.socket).events != wanted:
                self._selector.modify(connection.socket, wanted, connection)
            if connection.failures:
                raise LoadError(f"a call ended: {connection.failures[0]}")

    def watch(self, is_over: Callable[[], bool], pipe: Connection | None = None) -> dict[str, Any]:
        """Count until ``is_over``, which is asked in every turn; a word in ``pipe`` ends one."""
        if pipe is not None:
            self._selector.register(pipe, selectors.EVENT_READ, None)
        self.arrivals.clear()
        cpu, began = time.process_time(), time.perf_counter()
        while not is_over():
            before = len(self.arrivals.marks)
            self.turn(TURN_SECONDS)
            if len(self.arrivals.marks) > before:
                time.sleep(GATHER_SECONDS)
        cpu, elapsed = time.process_time() - cpu, time.perf_counter() - began
        if pipe is not None:
            self._selector.unregister(pipe)
        messages = len(self.arrivals.views)
        return {
            "messages": messages,
            "bytes": self.arrivals.bytes,
            "seconds": elapsed,
            "messages_per_second": messages / elapsed,
            "client_cores": cpu / elapsed,
            "client_us_per_message": cpu / max(messages, 1) * 1e6,
            **_spread("gap_ms", self.arrivals.gaps_ms()),
            **_spread("delay_ms", delays_ms(self.arrivals.samples)),
        }

    def gaps_ms_max(self, views: Iterable[int]) -> float:
        """The longest gap of some views since the arrivals were cleared."""
        chosen = set(views)
        some = Arrivals()
        start = 0
        for end, when in self.arrivals.marks:
            some.views += [view for view in self.arrivals.views[start:end] if view in chosen]
            some.marks.append((len(some.views), when))
            start = end
        return float(some.gaps_ms().max(initial=0.0))

    def scroll(
        self, requests: Sequence[Sequence[bytes]], *, every_seconds: float
    ) -> dict[str, Any]:
        """Send each view its requests, one after the other is answered and ``every_seconds`` apart;
        how long until the answers. The table must be at rest: any message is an answer."""
        self.arrivals.clear()
        views = len(requests)
        waits: list[float] = []
        sent = [0.0] * views
        due = deque(
            sorted((turn * every_seconds + every_seconds * view / views, view, request)
                   for view, several in enumerate(requests)
                   for turn, request in enumerate(several))
        )  # fmt: skip
        began = time.perf_counter()
        pending: set[int] = set()
        while due or pending:
            now = time.perf_counter()
            while due and now - began >= due[0][0] and due[0][1] not in pending:
                _, view, request = due.popleft()
                connection, stream = self._places[view]
                sent[view] = time.perf_counter()
                connection.write(stream, request)
                pending.add(view)
            start = len(self.arrivals.views)
            self.turn(TURN_SECONDS if pending and not every_seconds else 0.0005)
            arrived = time.perf_counter()
            for view in self.arrivals.views[start:]:
                if view in pending:
                    pending.discard(view)
                    waits.append((arrived - sent[view]) * 1e3)
            if now - began > WAIT_SECONDS_MAX:
                raise LoadError(f"{len(pending)} views were not answered")
        return {"requests": len(waits), **_spread("scroll_ms", np.array(waits))}

    def close(self) -> None:
        """Hang up on all. Idempotent."""
        for connection in self._connections:
            self._selector.unregister(connection.socket)
            connection.close()
        self._connections.clear()
        self._places.clear()
        self.arrivals.clear()


def request_bytes(
    table: str, first: int, rows: int, *, interval_ms: int, is_deephaven: bool = True
) -> bytes:
    """A subscription to ``rows`` rows from position ``first`` on, as a FlightData message."""
    request = wire.SubscriptionRequest(
        ticket=b"s/" + table.encode(),
        columns=None,
        viewport=barrage.RowSet.of_span(first, first + rows),
        is_reverse=False,
        options=wire.SubscriptionOptions(
            min_update_interval_ms=interval_ms, use_deephaven_nulls=is_deephaven
        ),
        subscription_token=None,
    )
    metadata = wire.encode_wrapper(request, wire.WireRevision.R1_0_0)
    return wire.encode_flight_data(
        wire.FlightFrame(descriptor=None, header=None, metadata=metadata, body=None)
    )


def delays_ms(samples: Iterable[tuple[int, bytes]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From the commit on the server to the arrival here, of the messages that say when it was."""
    delays = []
    for wall_ns, message in samples:
        metadata = wire.decode_flight_data(message).metadata
        if metadata:
            update = wire.decode_wrapper(metadata, wire.WireRevision.R1_0_0)
            source_time_ns = getattr(update, "source_time_ns", None)
            if source_time_ns is not None:
                delays.append((wall_ns - source_time_ns) / 1e6)
    return np.array(delays, np.float64)


def _spread(name: str, values: np.ndarray[Any, Any]) -> dict[str, float | None]:
    points = {"p50": 50, "p99": 99, "max": 100}
    return {
        f"{name}_{point}": float(np.percentile(values, part)) if len(values) else None
        for point, part in points.items()
    }


def serve(pipe: Connection) -> None:
    """The process of a benchmark: words are the method to call and its arguments.

    ``("open", address, requests)``, ``("watch",)`` from the next word until the one after that and
    a second more,
    ``("join", readers, requests, seconds)``, ``("scroll", requests, every_seconds)``,
    ``("close",)``. Each is answered.
    """
    pipe.send("ready")
    client: CountingClient | None = None
    while (word := pipe.recv()) is not None:
        verb, *arguments = word
        if verb == "open":
            address, requests = arguments
            client = CountingClient(address)
            pipe.send(client.open(requests))
            continue
        assert client is not None
        if verb == "watch":
            client.watch(_over_after(pipe, 0.0), pipe)
            pipe.send(client.watch(_over_after(pipe, 1.0), pipe))
        elif verb == "join":
            readers, requests, seconds = arguments
            client.arrivals.clear()
            answer = client.open(requests, seconds=seconds)
            pipe.send({**answer, "readers_gap_ms_max": client.gaps_ms_max(range(readers))})
        elif verb == "scroll":
            requests, every_seconds = arguments
            pipe.send(client.scroll(requests, every_seconds=every_seconds))
        elif verb == "close":
            client.close()
            pipe.send("closed")


def _over_after(pipe: Connection, seconds: float) -> Callable[[], bool]:
    """Over when a word has come, and what was under way has had some time to arrive."""
    ends: list[float] = []

    def is_over() -> bool:
        if not ends and pipe.poll():
            pipe.recv()
            ends.append(time.perf_counter() + seconds)
        return bool(ends) and time.perf_counter() >= ends[0]

    return is_over


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("table", metavar="TABLE")
    parser.add_argument("--views", type=int, default=100)
    parser.add_argument("--rows", type=int, default=50, help="rows of each view")
    parser.add_argument("--stride", type=int, default=50, help="from view to view; 0: equal ones")
    parser.add_argument("--interval", type=int, default=100, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    requests = [
        request_bytes(chosen.table, view * chosen.stride, chosen.rows, interval_ms=chosen.interval)
        for view in range(chosen.views)
    ]
    with CountingClient(chosen.address) as client:
        opened = client.open(requests)
        end = time.perf_counter() + chosen.seconds
        counted = client.watch(lambda: time.perf_counter() >= end)
    print(json.dumps({"open_seconds": opened["seconds"], **counted}))


if __name__ == "__main__":
    main()
