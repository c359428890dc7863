"""Logging in to a Deephaven server and staying logged in.

The first call asks for the configuration constants with the credentials in its ``authorization``
header; the answer's header holds the session token, which the channel takes over. The same call,
repeated within half the session's lifetime, keeps it alive and renews the token.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError, BarrageError
from barrage.transport.deephaven_messages import MESSAGES as _MESSAGES

if TYPE_CHECKING:
    from barrage.transport.grpc_channel import GrpcChannel

logger = logging.getLogger(__name__)

METHOD = "/io.deephaven.proto.backplane.grpc.ConfigService/GetConfigurationConstants"

LIFETIME_MS_DEFAULT = 10_000
"""Assumed when the server does not say how long a session lives; short, so that it never ends by
surprise."""

_LIFETIME_KEY = "http.session.durationMs"


class DeephavenLogin:
    """The session of one channel."""

    def __init__(self, channel: GrpcChannel) -> None:
        self._channel = channel
        self._credentials = channel.authorization
        self.constants: dict[str, str] = {}

    @property
    def lifetime_seconds(self) -> float:
        """How long a session lives without a sign of life."""
        text = self.constants.get(_LIFETIME_KEY, "")
        return (int(text) if text.isdigit() else LIFETIME_MS_DEFAULT) / 1000

    async def open(self, timeout: float | None) -> None:
        """Get a token for the credentials; AuthenticationError when they are refused."""
        self._channel.authorization = self._credentials
        await self._ask(timeout)
        if not (self._channel.authorization or "").startswith("Bearer "):
            raise AuthenticationError("the server accepted the credentials but sent no token")

    async def keep_alive(self) -> None:
        """Until cancelled. A failure is logged and tried again; subscriptions find out for
        themselves."""
        while True:
            await asyncio.sleep(max(self.lifetime_seconds / 2, 1.0))
            try:
                await self._ask(self.lifetime_seconds / 2)
            except BarrageError as error:
                logger.info("keep-alive failed: %s", error)

    async def _ask(self, timeout: float | None) -> None:
        self.constants = _configuration(await self._channel.unary(METHOD, b"", timeout=timeout))


def _configuration(message: bytes) -> dict[str, str]:
    """The constants of a ConfigurationConstantsResponse, by name."""
    values = _MESSAGES.decode("ConfigurationConstantsResponse", message).config_values
    return {str(name): str(value.string_value) for name, value in values.items()}
