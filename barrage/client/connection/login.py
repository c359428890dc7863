"""Logging in to a Deephaven server, staying logged in, and logging out.

The first call asks for the configuration constants with the credentials in its ``authorization``
header; the answer's header holds the session token, which the channel takes over. The same call,
repeated within half the session's lifetime, keeps it alive and renews the token. A server that
restarted, or that heard nothing for too long, does not know the token any more: then a new session
is opened, and everything that was exported in the old one is gone (deephaven-clients.md section
2.2).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from barrage.client.connection.reconnect import Backoff
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ConnectionLostError,
    SubscriptionClosedError,
    UnsupportedError,
)
from barrage.supervision import start_awaited
from barrage.transport.deephaven_messages import CONFIG_SERVICE, MESSAGES, SESSION_SERVICE
from barrage.transport.status import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from barrage.transport.base import FlightConnector

logger = logging.getLogger(__name__)

T = TypeVar("T")

METHOD = f"/{CONFIG_SERVICE}/GetConfigurationConstants"

CLOSE_METHOD = f"/{SESSION_SERVICE}/CloseSession"

LIFETIME_MS_DEFAULT = 10_000
"""Assumed when the server does not say how long a session lives; short, so that it never ends by
surprise."""

RENEW_SECONDS_MAX = 10.0
"""How long the server may take to confirm a session or to open one."""

END_METHOD = f"/{SESSION_SERVICE}/TerminationNotification"

CLOSE_SECONDS_MAX = 2.0
"""How long logging out may take; a session that is not closed ends by itself."""

_LIFETIME_KEY = "http.session.durationMs"


class DeephavenLogin:
    """The session of one channel."""

    def __init__(self, channel: FlightConnector, credentials: str | None = None) -> None:
        """``credentials`` is the header that opens a session; by default the channel's."""
        self._channel = channel
        self._credentials = credentials or channel.authorization
        self._renewal: asyncio.Future[None] | None = None
        self.constants: dict[str, str] = {}
        self.generation = 0
        """How many sessions were opened; what was exported belongs to one of them."""
        self._opened = asyncio.Event()
        self._is_closed = False
        self._on_end: list[Callable[[int], None]] = []

    @property
    def lifetime_seconds(self) -> float:
        """How long a session lives without a sign of life."""
        text = self.constants.get(_LIFETIME_KEY, "")
        return (int(text) if text.isdigit() else LIFETIME_MS_DEFAULT) / 1000

    async def open(self, timeout: float | None) -> None:
        """Get a token for the credentials; AuthenticationError when they are refused,
        ConnectionLostError when nobody answers."""
        self._channel.authorization = self._credentials
        try:
            await self._ask(timeout)
        except DeadlineError as error:
            raise ConnectionLostError(f"no answer within {timeout} seconds") from error
        if not (self._channel.authorization or "").startswith("Bearer "):
            raise AuthenticationError("the server accepted the credentials but sent no token")
        self.generation += 1
        self._opened.set()

    def on_end(self, callback: Callable[[int], None]) -> None:
        """Call ``callback(generation)`` when the server has ended a session."""
        self._on_end.append(callback)

    def _note_end(self, generation: int) -> None:
        if generation == self.generation:
            self._opened.clear()
        for callback in self._on_end:
            callback(generation)

    @property
    def is_closed(self) -> bool:
        """Whether it was ended from here."""
        return self._is_closed

    def check_open(self) -> None:
        """SubscriptionClosedError when the session has been closed from here."""
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")

    async def renew(self) -> None:
        """Make sure of the session before something is opened again; log in anew when the server
        does not know it. Callers at the same time share one attempt. SubscriptionClosedError when
        the session has been closed from here."""
        self.check_open()
        if self._renewal is None or self._renewal.done():
            self._renewal = start_awaited(self._renew())
        await asyncio.shield(self._renewal)

    async def _renew(self) -> None:
        try:
            await self._ask(RENEW_SECONDS_MAX)
        except DeadlineError as error:
            raise ConnectionLostError(str(error)) from error
        except AuthenticationError:
            logger.info("the server has forgotten the session; logging in again")
            self._note_end(self.generation)
            await self.open(RENEW_SECONDS_MAX)

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do ``work``; once more when the server refused it because the session had ended."""
        generation = self.generation
        try:
            return await work()
        except AuthenticationError:
            if self.generation == generation:
                await self.renew()
            if self.generation == generation:
                # The session is fine: this user may not do it.
                raise
        return await work()

    async def keep_alive(self) -> None:
        """Until cancelled. A failure is logged and tried again, soon at first; who uses the session
        finds out for himself."""
        backoff = Backoff(seconds_max=max(self.lifetime_seconds / 10, 0.1))
        delay = self._quiet_seconds
        while True:
            await asyncio.sleep(delay)
            generation = self.generation
            try:
                await self._ask(self._quiet_seconds)
            except AuthenticationError as error:
                # Nothing is left to keep alive. The next call that is refused logs in again.
                logger.info("the session has ended: %s", error)
                self._note_end(generation)
                delay = self._quiet_seconds
            except BarrageError as error:
                logger.info("keep-alive failed: %s", error)
                delay = backoff.next_delay()
            else:
                backoff.reset()
                delay = self._quiet_seconds

    async def watch(self) -> None:
        """Until cancelled, notice that the server ends the session.

        A real server then leaves subscriptions open that bring nothing any more (tried with 42.7);
        this call is the only one to tell.
        """
        backoff = Backoff()
        while True:
            await self._opened.wait()
            generation = self.generation
            try:
                await self._channel.unary(END_METHOD, b"", timeout=None)
            except AuthenticationError as error:
                logger.info("the session has ended: %s", error)
                self._note_end(generation)
            except UnsupportedError:
                return
            except BarrageError as error:
                logger.debug("the session is not watched for a moment: %s", error)
            # A lost connection is noticed by whoever uses it.
            await asyncio.sleep(backoff.next_delay())

    async def close(self) -> None:
        """Tell the server that the session is over. Quiet: a server that cannot be told forgets it
        by itself."""
        self._is_closed = True
        token = self._channel.authorization or ""
        if not self.generation or not token.startswith("Bearer "):
            return
        request = MESSAGES.encode("HandshakeRequest", payload=token.encode())
        try:
            await self._channel.unary(CLOSE_METHOD, request, timeout=CLOSE_SECONDS_MAX)
        except BarrageError as error:
            logger.debug("logging out failed: %s", error)

    @property
    def _quiet_seconds(self) -> float:
        return max(self.lifetime_seconds / 2, 0.1)

    async def _ask(self, timeout: float | None) -> None:
        self.constants = _configuration(await self._channel.unary(METHOD, b"", timeout=timeout))


def _configuration(message: bytes) -> dict[str, str]:
    """The constants of a ConfigurationConstantsResponse, by name."""
    values = MESSAGES.decode("ConfigurationConstantsResponse", message).config_values
    return {str(name): str(value.string_value) for name, value in values.items()}
