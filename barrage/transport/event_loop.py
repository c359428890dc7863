"""Event loops of our own threads, which may end while gRPC still has something for them.

gRPC has one poller for all loops of a process; one of the loops takes what it brings and passes it
on to the others. When one of those has been closed meanwhile, asyncio raises there, and what had
come for the loops that go on would wait for the next event.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context


Ts = TypeVarTuple("Ts")


class EventLoop(asyncio.SelectorEventLoop):
    """A loop that ignores what gRPC passes on to it after its end: nobody is there to hear it."""

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *arguments: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        try:
            return super().call_soon_threadsafe(callback, *arguments, context=context)
        except RuntimeError:
            if not self.is_closed() or not _is_of_grpc(callback):
                raise
        late = asyncio.Handle(callback, arguments, self, context)
        late.cancel()
        return late


def _is_of_grpc(callback: Callable[..., Any]) -> bool:
    return str(getattr(callback, "__module__", "")).startswith("grpc.")
