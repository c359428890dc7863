"""What a service offers: its methods with their shape, their behavior and their use of sessions.

A behavior is ``async behavior(request, context, session)``. ``request`` is the bytes of the message
(an iterator nobody uses for ``bidi``); a ``unary`` behavior returns the bytes of its answer, the
others write to ``context``. ``session`` is the caller's, or None where the method can do without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import grpc

from barrage.server.access.call_guard import CallGuard, SessionUse
from barrage.server.access.grpc_calls import reading_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    SessionBehavior: TypeAlias = Callable[[Any, Any, Any], Awaitable[Any]]

MethodKind: TypeAlias = Literal["unary", "server_stream", "bidi"]


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """One method."""

    kind: MethodKind
    behavior: SessionBehavior
    session: SessionUse = SessionUse.REQUIRED


class Action(NamedTuple):
    """One action of Flight: what ListActions tells about it, and what DoAction runs. It gets the
    body of the request and returns that of the result."""

    description: str
    run: Callable[[bytes], Awaitable[bytes]]


class CallAction(NamedTuple):
    """One that needs the call it comes by: its headers, its session. ``run`` gets the body, the
    call and the session, and may send headers; it returns the body of the result."""

    description: str
    run: Callable[[bytes, Any, Any], Awaitable[bytes]]


_HANDLERS: dict[str, Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
    "unary": grpc.unary_unary_rpc_method_handler,
    "server_stream": grpc.unary_stream_rpc_method_handler,
    "bidi": lambda behavior: grpc.stream_stream_rpc_method_handler(reading_whole(behavior)),
}


def service_handler(
    service: str, methods: Mapping[str, MethodEntry], guard: CallGuard
) -> grpc.GenericRpcHandler[Any, Any]:
    """The gRPC handler of one service; every method stands behind the guard, and a name that is
    not listed is UNIMPLEMENTED."""
    handlers = {
        name: _HANDLERS[entry.kind](
            guard.wrap(f"/{service}/{name}", entry.behavior, session=entry.session)
        )
        for name, entry in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, handlers)
