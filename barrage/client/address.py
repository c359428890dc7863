"""Where to connect to and as whom: URIs and credentials."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from urllib.parse import urlsplit

from barrage.errors import ConfigError

PORT_DEFAULT = 10000

_PSK_HANDLER = "io.deephaven.authentication.psk.PskAuthenticationHandler"

INPROC = "inproc"

_SCHEMES = {
    "grpc": (False, False),
    "grpc+tcp": (False, False),
    "grpcs": (True, False),
    "grpc+tls": (True, False),
    "dh": (False, True),
    "dh+plain": (False, True),
    "dhs": (True, True),
}
"""Scheme: (TLS, a Deephaven server that needs a session)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed URI."""

    host: str
    port: int
    is_tls: bool
    is_deephaven: bool
    is_inproc: bool = False
    """A server of this process; ``host`` is the name it serves under."""

    @property
    def target(self) -> str:
        if self.is_inproc:
            return f"{INPROC}://{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(uri: str) -> Address:
    """``grpc://host:port`` (ours), ``dh://host:port`` (Deephaven), ``grpcs``/``dhs`` with TLS; a
    bare ``host:port`` is ``grpc``. ``inproc://name`` is one of ours in this very process.
    ConfigError for anything else."""
    if uri.startswith(f"{INPROC}://"):
        return _inproc_address(uri)
    parts = urlsplit(uri if "://" in uri else f"grpc://{uri}")
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in (*_SCHEMES, INPROC))
        raise ConfigError(f"cannot connect to {uri!r}: the scheme must be one of {known}")
    try:
        port = parts.port or PORT_DEFAULT
    except ValueError as error:
        raise ConfigError(f"cannot connect to {uri!r}: {error}") from error
    if not parts.hostname:
        raise ConfigError(f"cannot connect to {uri!r}: no host; write grpc://host:port")
    is_tls, is_deephaven = _SCHEMES[parts.scheme]
    return Address(host=parts.hostname, port=port, is_tls=is_tls, is_deephaven=is_deephaven)


def _inproc_address(uri: str) -> Address:
    name = uri.removeprefix(f"{INPROC}://")
    if not name:
        raise ConfigError(f"cannot connect to {uri!r}: no name; write {INPROC}://name")
    return Address(host=name, port=0, is_tls=False, is_deephaven=False, is_inproc=True)


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token the server knows."""

    secret: str

    @property
    def header(self) -> str:
        return f"Bearer {self.secret}"

    def __repr__(self) -> str:
        return "Token(...)"


@dataclass(frozen=True, slots=True)
class PreSharedKey:
    """A Deephaven server's pre-shared key."""

    secret: str

    @property
    def header(self) -> str:
        return f"{_PSK_HANDLER} {self.secret}"

    def __repr__(self) -> str:
        return "PreSharedKey(...)"


@dataclass(frozen=True, slots=True)
class Basic:
    """User name and password."""

    user: str
    password: str

    @property
    def header(self) -> str:
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return f"Basic {pair}"

    def __repr__(self) -> str:
        return f"Basic({self.user!r}, ...)"


@dataclass(frozen=True, slots=True)
class Handler:
    """Any other way to log in to a Deephaven server: the name of its authentication handler, and
    what that wants to hear."""

    name: str
    secret: str = ""

    @property
    def header(self) -> str:
        if not self.name or " " in self.name:
            raise ConfigError(f"{self.name!r} is no name of an authentication handler")
        return f"{self.name} {self.secret}" if self.secret else self.name

    def __repr__(self) -> str:
        return f"Handler({self.name!r}, ...)"


Auth = str | tuple[str, str] | Token | PreSharedKey | Basic | Handler | None


def authorization_header(auth: Auth, *, is_deephaven: bool) -> str | None:
    """The ``authorization`` header for ``auth``.

    A plain string is a token for our servers and a pre-shared key for Deephaven; "Anonymous" is
    itself; a string with a space is a complete header; a pair is user and password.
    """
    if auth is None:
        return "Anonymous" if is_deephaven else None
    if isinstance(auth, tuple):
        return Basic(*auth).header
    if isinstance(auth, str):
        if auth == "Anonymous" or " " in auth:
            return auth
        return PreSharedKey(auth).header if is_deephaven else Token(auth).header
    return auth.header
