"""Who may call: one bearer token, compared in constant time on every call.

A server on the loopback address needs no token; on any other address it always has one, made at
random when the configuration names none. Health checks pass without it, so that an orchestrator
needs no secret.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import secrets
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Iterable

HEALTH_PREFIX = "/grpc.health.v1.Health/"
"""Methods answered without credentials."""

HANDSHAKE = "/arrow.flight.protocol.FlightService/Handshake"
"""May come without a header: the older form carries the credentials in a message."""

AUTHORIZATION = "authorization"
_BEARER = "bearer "
_BASIC = "basic "


def is_loopback(host: str) -> bool:
    """Whether ``host`` can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


class Authenticator:
    """Checks the ``authorization`` header; without a token everything passes."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    def check(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """AuthenticationError unless the call may proceed."""
        if self._token is None or method.startswith(HEALTH_PREFIX):
            return
        header = header_value(metadata, AUTHORIZATION)
        if header is None and method == HANDSHAKE:
            return
        if header is None:
            raise AuthenticationError(
                "no credentials: send the header 'authorization: Bearer <token>'"
            )
        if not self._matches(_offered_secret(header)):
            raise AuthenticationError("Authentication details invalid")

    def check_password(self, password: str) -> None:
        """AuthenticationError unless ``password`` is the token: the older Flight handshake sends it
        in a message."""
        if self._token is not None and not self._matches(password.encode()):
            raise AuthenticationError("Authentication details invalid")

    @property
    def bearer_header(self) -> str | None:
        """The header value a handshake hands out; None when no token is needed."""
        return None if self._token is None else f"Bearer {self._token.decode()}"

    def _matches(self, offered: bytes) -> bool:
        expected = self._token
        return expected is not None and hmac.compare_digest(offered, expected)


def header_value(metadata: Iterable[tuple[str, str | bytes]], name: str) -> str | None:
    """Value of the first header called ``name`` (lower case), or None."""
    for key, value in metadata:
        if key == name:
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return None


def _offered_secret(header: str) -> bytes:
    """The secret in a bearer or basic header; empty, which matches nothing, when there is none."""
    lowered = header[:16].lower()
    if lowered.startswith(_BEARER):
        return header[len(_BEARER) :].strip().encode()
    if lowered.startswith(_BASIC):
        try:
            pair = base64.b64decode(header[len(_BASIC) :].strip(), validate=True)
        except (binascii.Error, ValueError):
            return b""
        return pair.partition(b":")[2]
    return b""
