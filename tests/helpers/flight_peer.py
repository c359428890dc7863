"""A Flight client that sends what pyarrow cannot: raw calls with messages of our own making."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from barrage.server.exchange.exchange_driver import ExchangeHub
from barrage.supervision import in_thread
from barrage.transport import flight_messages
from barrage.transport.flight_messages import (
    FLIGHT,
    Descriptor,
    Endpoint,
    FlightInfo,
    PollInfo,
)
from tests.helpers.server_process import raw_channel

HANG_SECONDS = 180.0


class FlightPeer:
    """One connection; headers go with every call."""

    def __init__(self, address: str, *headers: tuple[str, str]) -> None:
        self._stack = ExitStack()
        self.channel = self._stack.enter_context(raw_channel(address))
        self.headers = list(headers)
        self.answered: dict[str, str] = {}
        """Headers of the last answer."""
        self.arrow = flight.connect(f"grpc://{address}")

    def __enter__(self) -> FlightPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.close()
        self.arrow.close()

    # --- calls ---

    def unary(self, method: str, request: bytes, timeout: float = HANG_SECONDS) -> bytes:
        call = self.channel.unary_unary(FLIGHT + method, None, None)
        answer, done = call.with_call(request, timeout=timeout, metadata=self.headers)
        self.answered = {key: str(value) for key, value in done.initial_metadata()}
        return bytes(answer)

    def stream(self, method: str, request: bytes, timeout: float = HANG_SECONDS) -> Any:
        call = self.channel.unary_stream(FLIGHT + method, None, None)
        return call(request, timeout=timeout, metadata=self.headers)

    def poll(self, descriptor: Descriptor | bytes, timeout: float = HANG_SECONDS) -> PollInfo:
        if isinstance(descriptor, bytes):
            descriptor = Descriptor(command=descriptor)
        return PollInfo.decode(self.unary("PollFlightInfo", descriptor.encode(), timeout))

    def finished(self, descriptor: Descriptor | bytes) -> PollInfo:
        """Poll to the end."""
        told = self.poll(descriptor)
        while told.descriptor is not None:
            told = self.poll(told.descriptor)
        return told

    def info(self, descriptor: Descriptor | bytes) -> FlightInfo:
        if isinstance(descriptor, bytes):
            descriptor = Descriptor(command=descriptor)
        return FlightInfo.decode(self.unary("GetFlightInfo", descriptor.encode()))

    def act(self, kind: str, body: bytes = b"") -> bytes:
        call = self.stream("DoAction", flight_messages.encode_action(kind, body))
        [answer] = list(call)
        self.answered = {key: str(value) for key, value in call.initial_metadata()}
        return flight_messages.decode_result(answer)

    def cancel(self, info: FlightInfo) -> flight_messages.CancelStatus:
        request = flight_messages.encode_cancel_request(info)
        return flight_messages.decode_cancel_result(self.act(flight_messages.CANCEL, request))

    def renew(self, endpoint: Endpoint) -> Endpoint:
        request = flight_messages.encode_renew_request(endpoint)
        return Endpoint.decode(self.act(flight_messages.RENEW, request))

    # --- rows, by Arrow's own client ---

    def get(self, ticket: bytes) -> pa.Table:
        options = flight.FlightCallOptions(
            timeout=HANG_SECONDS,
            headers=[(name.encode(), value.encode()) for name, value in self.headers],
        )
        return self.arrow.do_get(flight.Ticket(ticket), options).read_all()

    def rows(self, info: FlightInfo) -> pa.Table:
        return pa.concat_tables([self.get(endpoint.ticket) for endpoint in info.endpoints])


@contextmanager
def status(code: grpc.StatusCode, text: str = "") -> Iterator[None]:
    """The block's call ends with this status, and a text with this in it."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value.details()
    assert text in caught.value.details()


class HeldReads:
    """Reads of kept results wait until they are let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._let_through = threading.Semaphore(0)
        read_beside = ExchangeHub.read_beside

        async def held(hub: ExchangeHub, read: Any) -> Any:
            while not await in_thread(self._let_through.acquire, True, 0.05):
                pass
            return await read_beside(hub, read)

        monkeypatch.setattr(ExchangeHub, "read_beside", held)

    def hold_again(self) -> None:
        """Reads that were let through and have not come wait, too."""
        while self._let_through.acquire(blocking=False):
            pass

    def let_through(self, count: int = 1_000_000) -> None:
        """So many more reads; all there will be when nothing is said."""
        self._let_through.release(count)
