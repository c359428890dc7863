"""Who may call: one secret of the server, and the tokens of its sessions.

A server on the loopback address needs no secret; on any other address it always has one, made at
random when the configuration names none. Health checks pass without credentials, so that an
orchestrator needs no secret. Secrets are compared in constant time.

Forms of the ``authorization`` header (deephaven-clients.md section 2.2): ``Bearer <token>``, where
the token is the server's secret or a session's; ``Basic <base64 of user:password>``, where the
password is the secret; ``Anonymous``; and ``<name of a handler> <secret>``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    Metadata = Iterable[tuple[str, str | bytes]]

AUTHORIZATION = "authorization"
AUTH_TOKEN = "auth-token-bin"
"""Header in which Flight clients repeat the token a handshake gave them."""

REFUSED = "Authentication details invalid"
"""Text of the reference server."""

_BEARER_PREFIX = "Bearer "
_BEARER = "bearer"
_BASIC = "basic"
_ANONYMOUS = "anonymous"


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


def bearer(token: str) -> str:
    """The header value for a token."""
    return _BEARER_PREFIX + token


class CredentialKind(Enum):
    """What the secret of some credentials is."""

    TOKEN = auto()
    """The server's secret or a session's token."""
    SECRET = auto()
    """The server's secret: a password or a key."""
    ANONYMOUS = auto()
    """There is none."""
    UNREADABLE = auto()
    """It could not be read, so it matches nothing."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller shows."""

    kind: CredentialKind
    secret: str = field(default="", repr=False)

    @classmethod
    def of_metadata(cls, metadata: Metadata) -> Credentials | None:
        """The credentials in a call's headers; None when there are none."""
        header = header_value(metadata, AUTHORIZATION)
        if header is not None and header.strip():
            return cls.of_header(header)
        token = header_value(metadata, AUTH_TOKEN)
        if not token:
            return None
        return cls(CredentialKind.TOKEN, token.removeprefix(_BEARER_PREFIX).strip())

    @classmethod
    def of_header(cls, header: str) -> Credentials:
        """The credentials in the value of an ``authorization`` header."""
        scheme, _, payload = header.strip().partition(" ")
        payload = payload.strip()
        lowered = scheme.lower()
        if lowered == _BEARER:
            return cls(CredentialKind.TOKEN, payload)
        if lowered == _ANONYMOUS:
            return cls(CredentialKind.ANONYMOUS)
        if lowered != _BASIC:
            return cls(CredentialKind.SECRET, payload)
        try:
            pair = base64.b64decode(payload, validate=True).decode()
        except (binascii.Error, ValueError):
            return cls(CredentialKind.UNREADABLE)
        return cls(CredentialKind.SECRET, pair.partition(":")[2])


class Authenticator:
    """Checks credentials against the server's secret; without one it lets everybody pass, but for
    tokens: nobody has ever been given one that is not a session's."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    @property
    def token(self) -> str | None:
        """The server's secret; None when it needs none."""
        return self._token

    def check(self, credentials: Credentials | None) -> None:
        """AuthenticationError unless these credentials, which are no session's, are good."""
        if credentials is None:
            if self._token is not None:
                raise no_credentials()
            return
        if self._token is None:
            self._check_open(credentials)
        elif not self._matches(credentials):
            raise AuthenticationError(REFUSED)

    def _check_open(self, credentials: Credentials) -> None:
        if credentials.kind is CredentialKind.UNREADABLE:
            raise AuthenticationError(REFUSED)
        if credentials.kind is CredentialKind.TOKEN:
            raise AuthenticationError(
                f"{REFUSED}; this server needs no token and has no session with the one given"
            )

    def _matches(self, credentials: Credentials) -> bool:
        assert self._token is not None
        return credentials.kind in (
            CredentialKind.TOKEN,
            CredentialKind.SECRET,
        ) and hmac.compare_digest(credentials.secret.encode(), self._token.encode())


def no_credentials() -> AuthenticationError:
    """What a call without credentials is told."""
    return AuthenticationError("no credentials; send the header 'authorization: Bearer <token>'")


def header_value(metadata: Metadata, name: str) -> str | None:
    """Value of the first header called ``name`` (lower case), or None."""
    for key, value in metadata:
        if key == name:
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return None
