"""Counting the bytes of the messages of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from barrage.server.access.frame_writing import write_parts
from barrage.server.access.grpc_calls import END_OF_STREAM

if TYPE_CHECKING:
    from barrage.server.access.call_guard import SessionCall
    from barrage.server.runtime.measures import TransferMeasures
    from barrage.transport.base import CallContext
    from barrage.wire.message_parts import MessageParts


def counted(
    call: CallContext | SessionCall, method: str, transfers: TransferMeasures
) -> CallContext:
    """The part of a call that reads and writes, counted under the name of its method."""
    return cast("CallContext", _CountedCall(call, method, transfers))


class _CountedCall:
    def __init__(
        self, call: CallContext | SessionCall, method: str, transfers: TransferMeasures
    ) -> None:
        self._call = call
        self._method = method
        self._transfers = transfers

    async def read(self) -> Any:
        message = await self._call.read()
        if message is not END_OF_STREAM:
            self._transfers.received[self._method] += len(message)
        return message

    async def write(self, message: bytes) -> None:
        await self._call.write(message)
        self._transfers.sent[self._method] += len(message)

    async def write_parts(self, message: MessageParts) -> None:
        await write_parts(self._call, message)
        self._transfers.sent[self._method] += len(message)

    def invocation_metadata(self) -> Any:
        return self._call.invocation_metadata()
