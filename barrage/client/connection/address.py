"""Where to connect to and as whom: URIs and credentials."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError, ConfigError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.registry import TRANSPORTS, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.limits import Limits
    from barrage.transport.base import Address

LISTED, RANDOM = "listed", "random"
"""Orders in which addresses are tried."""

_PSK_HANDLER = "io.deephaven.authentication.psk.PskAuthenticationHandler"


def parse_address(uri: str) -> Address:
    """``grpc://host:port`` (ours), ``dh://host:port`` (Deephaven), ``grpcs``/``dhs`` with TLS; a
    bare ``host:port`` is ``grpc``. ``unix:///path`` is a socket of this machine, ``inproc://name``
    one of ours in this very process; plug-ins know further schemes. ConfigError for anything
    else, TransportUnavailableError for a plug-in that cannot be loaded."""
    scheme = scheme_of(uri)
    if scheme not in TRANSPORTS:
        known = ", ".join(f"{scheme}://" for scheme in TRANSPORTS.names())
        raise ConfigError(f"cannot connect to {uri!r}: the scheme must be one of {known}")
    return TRANSPORTS.find(scheme).parse(uri if "://" in uri else f"{scheme}://{uri}")


def parse_addresses(
    uri: str | Sequence[str], *, order: str = LISTED, limits: Limits = DEFAULT_LIMITS
) -> tuple[Address, ...]:
    """One address or several, as text with commas or as a sequence of texts, in the order in which
    they are tried: ``"listed"``, or ``"random"``, from any of them on. An address that is named
    twice counts once. ConfigError for none, for more than the limit, for both kinds of
    servers, and for addresses with TLS beside such that leave this machine without."""
    if order not in (LISTED, RANDOM):
        raise ConfigError(f"order is {order!r}, it must be {LISTED!r} or {RANDOM!r}")
    texts = uri.split(",") if isinstance(uri, str) else list(uri)
    if not 0 < len(texts) <= limits.client_addresses_max:
        raise ConfigError(
            f"{len(texts)} addresses, there must be 1 to {limits.client_addresses_max}"
        )
    if len(texts) > 1 and not all(isinstance(text, str) and text.strip() for text in texts):
        raise ConfigError(f"an address is missing in {uri!r}")
    addresses = tuple(dict.fromkeys(parse_address(text.strip()) for text in texts))
    if len({address.is_deephaven for address in addresses}) > 1:
        raise ConfigError(
            f"{uri!r} names servers of both kinds; those of one session are all of Deephaven's "
            "(dh://, dhs://) or all of ours"
        )
    in_clear = [each.target for each in addresses if not (each.is_tls or each.is_private)]
    if in_clear and any(each.is_tls for each in addresses):
        raise ConfigError(
            f"{', '.join(in_clear)} would be told in the clear what the others are told through "
            "TLS, the token too: use grpcs:// for every address, but for those of this machine"
        )
    start = random.randrange(len(addresses)) if order == RANDOM else 0
    return addresses[start:] + addresses[:start]


@dataclass(frozen=True, slots=True)
class Bearer:
    """A bearer token the server knows; or a function that gives the one to use now, for tokens that
    run out. It is called for every call, on the session's loop: keep what costs time."""

    secret: str | Callable[[], str]

    @property
    def header(self) -> str:
        """AuthenticationError when the function fails."""
        if isinstance(self.secret, str):
            return f"Bearer {self.secret}"
        try:
            token = self.secret()
        except Exception as error:
            # Its text may have anything in it.
            raise AuthenticationError(
                f"not authenticated: the function that gives tokens failed: {type(error).__name__}"
            ) from error
        return f"Bearer {token}"

    @property
    def is_renewed(self) -> bool:
        """Whether there may be another one the next time."""
        return not isinstance(self.secret, str)

    def __repr__(self) -> str:
        return "Bearer(...)"


Token = Bearer
"""Its former name."""


@dataclass(frozen=True, slots=True)
class PreSharedKey:
    """A server's pre-shared key."""

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


Auth = str | tuple[str, str] | Bearer | PreSharedKey | Basic | Handler | None


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
        return PreSharedKey(auth).header if is_deephaven else Bearer(auth).header
    return auth.header
