"""What stands before and behind every call: credentials, draining, and errors as statuses.

An error of ours becomes its own status with its own text. Anything unexpected is logged under an
id, and the caller gets the id and nothing else. Texts are plain ASCII without ``%``: some clients
cannot decode more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from barrage.errors import BarrageError, ConnectionLostError, StatusCode, TransportError
from barrage.server.failure import unexpected_failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barrage.server.auth import Authenticator

    Behavior = Callable[[Any, Any], Awaitable[Any]]

log = logging.getLogger(__name__)

DETAILS_LENGTH_MAX = 1000
"""Longest status text in characters; it travels in a header."""

DRAINING = "the server is shutting down; connect again"

_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}


def grpc_status(code: StatusCode) -> grpc.StatusCode:
    """gRPC's own name for one of our status codes."""
    return _GRPC_CODES[code.value]


def status_details(error: BaseException) -> str:
    """The text of an error as it may travel in a status."""
    text = str(error).replace("%", "\\x25").encode("ascii", "backslashreplace").decode()
    text = " ".join(text.split())
    return text if len(text) <= DETAILS_LENGTH_MAX else text[: DETAILS_LENGTH_MAX - 3] + "..."


class CallGuard:
    """Wraps the methods of one server."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.is_draining = False

    def wrap(self, method: str, behavior: Behavior) -> Behavior:
        """``behavior`` behind the guard; ``method`` is the full name, with a leading slash."""

        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                self._authenticator.check(method, context.invocation_metadata() or ())
                if self.is_draining:
                    raise TransportError(DRAINING)
                return await behavior(request, context)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except grpc.aio.InternalError:
                log.debug("%s: the client has gone", method)
                failure: BarrageError = ConnectionLostError("the connection was lost")
            except BarrageError as error:
                failure = error
            except Exception:
                failure = unexpected_failure(log, f"{method} failed")
            await context.abort(grpc_status(failure.status_code), status_details(failure))

        return guarded
