"""Clients as strangers would write them: raw gRPC streams and pyarrow, and ways to wait without
sleeping.

The raw client speaks bytes: what it sends is built by :mod:`barrage.wire`, what it gets is read by
the assembler, so a test sees exactly what went over the socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from barrage import wire
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet
from barrage.wire.updates.update_assembler import SchemaReceived, UpdateAssembler
from tests.helpers import warm_python

FLIGHT = "/arrow.flight.protocol.FlightService/"
REVISION = wire.WireRevision.R1_0_0
TIMEOUT_SECONDS = 180
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.001, 0.03


def wait_until(condition: Callable[[], bool], timeout: float = TIMEOUT_SECONDS) -> None:
    """Return when ``condition`` holds; AssertionError when it never does. Asks soon
    at first and ever more seldom: what is asked may cost more than what is waited for."""
    pause = threading.Event()
    seconds = PAUSE_SECONDS_MIN
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(seconds)
        seconds = min(1.5 * seconds, PAUSE_SECONDS_MAX)


def subscription_request(
    table: str,
    *,
    viewport: RowSet | None = None,
    columns: tuple[int, ...] | None = None,
    is_reverse: bool = False,
    interval_ms: int = 10,
    revision: wire.WireRevision = REVISION,
    **options: Any,
) -> bytes:
    """A subscription request as one FlightData message."""
    request = wire.SubscriptionRequest(
        ticket=b"s/" + table.encode(),
        columns=columns,
        viewport=viewport,
        is_reverse=is_reverse,
        options=wire.SubscriptionOptions(min_update_interval_ms=interval_ms, **options),
    )
    return metadata_frame(wire.encode_wrapper(request, revision))


def snapshot_request(
    table: str,
    *,
    viewport: RowSet | None = None,
    columns: tuple[int, ...] | None = None,
    is_reverse: bool = False,
) -> bytes:
    """A snapshot request as one FlightData message."""
    request = wire.SnapshotRequest(
        ticket=b"s/" + table.encode(), columns=columns, viewport=viewport, is_reverse=is_reverse
    )
    return metadata_frame(wire.encode_wrapper(request, REVISION))


def metadata_frame(metadata: bytes) -> bytes:
    """A FlightData message that has only metadata."""
    return wire.encode_flight_data(wire.FlightFrame(metadata=metadata))


class RawExchange:
    """One DoExchange call over a raw gRPC channel; every read has a deadline."""

    def __init__(
        self,
        channel: grpc.Channel,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        is_viewport: bool = False,
        revision: wire.WireRevision = REVISION,
    ) -> None:
        self._outgoing: list[bytes | None] = []
        self._has_outgoing = threading.Condition()
        self.assembler = UpdateAssembler(revision=revision, is_viewport=is_viewport)
        method = channel.stream_stream(FLIGHT + "DoExchange")
        self.call = method(self._requests(), metadata=headers, timeout=TIMEOUT_SECONDS)

    def _requests(self) -> Iterator[bytes]:
        while True:
            with self._has_outgoing:
                while not self._outgoing:
                    self._has_outgoing.wait()
                message = self._outgoing.pop(0)
            if message is None:
                return
            yield message

    def send(self, message: bytes) -> None:
        self._put(message)

    def half_close(self) -> None:
        self._put(None)

    def _put(self, message: bytes | None) -> None:
        with self._has_outgoing:
            self._outgoing.append(message)
            self._has_outgoing.notify()

    def read(self) -> bytes:
        """The next frame; grpc.RpcError when the call failed, StopIteration when it ended."""
        return next(self.call)

    def read_update(self) -> FullUpdate | ViewUpdate:
        """The next complete update; the schema before it is skipped."""
        while True:
            received = self.assembler.receive_frame(wire.decode_flight_data(self.read()))
            if received is not None and not isinstance(received, SchemaReceived):
                return received

    def status(self) -> tuple[grpc.StatusCode, str]:
        """How the call ended; reads whatever is left."""
        with contextlib.suppress(grpc.RpcError):
            for _ in self.call:
                pass
        return self.call.code(), self.call.details()

    def close(self) -> None:
        self.call.cancel()
        self.half_close()

    def __enter__(self) -> RawExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def raw_channel(address: str, **options: int) -> Iterator[grpc.Channel]:
    """A channel with a connection of its own."""
    settings = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    settings += [(f"grpc.{name}", value) for name, value in options.items()]
    with grpc.insecure_channel(address, options=settings) as channel:
        yield channel


def unary(channel: grpc.Channel, method: str, request: bytes = b"", **options: Any) -> bytes:
    """One unary Flight call on raw bytes."""
    return channel.unary_unary(FLIGHT + method)(request, timeout=TIMEOUT_SECONDS, **options)


class ServerProcess:
    """A script that runs a server in a process of its own and prints its address first. A cold
    one is for tests of what it has loaded."""

    def __init__(self, script: str, *, is_cold: bool = False) -> None:
        start = warm_python.cold_popen if is_cold else warm_python.popen
        self.process = start(["-c", script], env={**os.environ, "PYTHONUNBUFFERED": "1"})
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        assert self.address, self.process.communicate()[1]

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, timeout: float = TIMEOUT_SECONDS) -> int:
        """Wait for the end of the process."""
        return self.process.wait(timeout)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
