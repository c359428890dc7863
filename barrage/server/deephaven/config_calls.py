"""ConfigService: constants of the server. Also how a Deephaven client logs in and stays logged in.

Source: deephaven-clients.md sections 2.2 and 2.3. The first call of every client asks for the
configuration with its credentials in the header; the guard opens the session and answers with its
token. The same call again, with the token, keeps the session alive.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.limits import NANOS_PER_MS
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.method_table import MethodEntry
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.server.access.session_store import ClientSession, SessionStore
    from barrage.server.identity.authenticator import Authenticator

DEEPHAVEN_VERSION = "42.7"
"""The release whose clients this server was tried with. Some of them show it, none acts on it."""

ANONYMOUS_HANDLER = "io.deephaven.auth.AnonymousAuthenticationHandler"
"""The name that makes the web UI ask for nothing."""


class ConfigCalls:
    """The behaviors."""

    def __init__(self, authenticator: Authenticator, sessions: SessionStore) -> None:
        self._authenticator = authenticator
        self._sessions = sessions

    def methods(self) -> dict[str, MethodEntry]:
        return {
            "GetAuthenticationConstants": MethodEntry(
                "unary", self.get_authentication_constants, SessionUse.NONE
            ),
            "GetConfigurationConstants": MethodEntry(
                "unary", self.get_configuration_constants, SessionUse.REQUIRED
            ),
        }

    async def get_authentication_constants(
        self, request: bytes, _context: object, _session: None
    ) -> bytes:
        """How to log in; needs no credentials."""
        MESSAGES.decode("AuthenticationConstantsRequest", request)
        first = (ANONYMOUS_HANDLER,) if self._authenticator.is_open else ()
        handlers = ",".join((*first, *self._authenticator.handlers))
        return _encoded("AuthenticationConstantsResponse", {"AuthHandlers": handlers})

    async def get_configuration_constants(
        self, request: bytes, _context: object, _session: ClientSession
    ) -> bytes:
        """What clients want to know; the lifetime is what they cannot do without."""
        MESSAGES.decode("ConfigurationConstantsRequest", request)
        return _encoded(
            "ConfigurationConstantsResponse",
            {
                "http.session.durationMs": str(self._sessions.lifetime_ns // NANOS_PER_MS),
                "file.separator": "/",
                "web.storage.layout.directory": "/layouts",
                "web.storage.notebook.directory": "/notebooks",
                "web.webgl": "true",
                "web.webgl.editable": "true",
                "deephaven.version": DEEPHAVEN_VERSION,
                "barrage.version": "1.0.0",
                "python.version": platform.python_version(),
                "arrow.version": pa.__version__,
            },
        )


def _encoded(name: str, values: Mapping[str, str]) -> bytes:
    message: Any = MESSAGES.new(name)
    for key, value in values.items():
        message.config_values[key].string_value = value
    return bytes(message.SerializeToString())
