"""What a caller shows: the forms of the ``authorization`` header.

``Bearer <token>``, where the token is the server's key, a session's, one that a handshake gave, or
a JWT; ``Basic <base64 of user:password>``; ``Anonymous``; and ``<name of a handler> <secret>``
(deephaven-clients.md section 2.2).
"""

from __future__ import annotations

import base64
import binascii
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
    """The server's key, a token it gave out, or one of somebody it trusts."""
    PASSWORD = auto()
    """A user's password; or the server's key, with any name."""
    SECRET = auto()
    """The server's key."""
    ANONYMOUS = auto()
    """There is none."""
    UNREADABLE = auto()
    """It could not be read, so it matches nothing."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a caller shows."""

    kind: CredentialKind
    secret: str = field(default="", repr=False)
    user: str = ""
    """Who it is said to be the password of."""

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
        user, _, password = pair.partition(":")
        return cls(CredentialKind.PASSWORD, password, user)


def no_credentials() -> AuthenticationError:
    """What a call without credentials is told."""
    return AuthenticationError(
        "not authenticated: no credentials; send the header 'authorization: Bearer <token>'"
    )


def header_value(metadata: Metadata, name: str) -> str | None:
    """Value of the first header called ``name`` (lower case), or None."""
    for key, value in metadata:
        if key == name:
            return value.decode("latin-1") if isinstance(value, bytes) else value
    return None
