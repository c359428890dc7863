"""What a command talks to: ``HOST:PORT`` and ``HOST:PORT/TABLE``, or a URI of another transport in
place of ``HOST:PORT``, or several of these with commas between; and the options every client
command has.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

import barrage
from barrage.cli.command_errors import CommandError, short_reason, usage_error
from barrage.cli.tls.tls_options import NO_CHOICE, in_flags
from barrage.errors import TLSFailedError, TransportError
from barrage.transport.registry import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from barrage.cli.tls.tls_options import TlsChoice
    from barrage.client import AsyncSession, Session
    from barrage.client.connection.address import Auth
    from barrage.transport.base import TLS

PORT_DEFAULT = 10000
_SCHEMES = ("grpc", "grpcs", "dh", "dhs")
_TLS_SCHEMES = ("grpcs", "dhs", "grpc+tls")
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_INPROC = "inproc"
"""Reaches nobody: a command is a process of its own."""

TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="BARRAGE_TOKEN",
        show_envvar=True,
        metavar="TOKEN",
        help="Token the server asks for.",
    ),
]
USER_VARIABLE = "BARRAGE_USER"
PASSWORD_VARIABLE = "BARRAGE_PASSWORD"
"""What commands of clients log in with; no settings of a server."""
NEW_PASSWORD_VARIABLE = "BARRAGE_NEW_PASSWORD"
"""What `barrage user` gives to a user; no setting either."""


_user: ContextVar[str | None] = ContextVar("barrage_user", default=None)


def _keep_user(user: str | None) -> str | None:
    """Told before the command runs, with None when there is no user."""
    _user.set(user)
    return user


def credentials(token: str | None) -> Auth:
    """What a client command logs in with: the token, or else the user that was named."""
    return login(token, _user.get())


def login(token: str | None, user: str | None, *, prefix: str = "") -> Auth:
    """The token, or else the user, whose password an environment variable has or somebody is asked
    for. ``prefix``: of the options that said so."""
    if user is None:
        return token
    flags, variable = f"--{prefix}token and --{prefix}user", password_variable(prefix)
    if token is not None:
        raise usage_error(f"{flags} exclude each other (or what the environment has)")
    password = os.environ.get(variable)
    if password is None:
        if not sys.stdin.isatty():
            raise usage_error(f"--{prefix}user {user}: set {variable}, or run it in a terminal")
        password = typer.prompt(f"Password of {user}", hide_input=True, err=True)
    return barrage.Basic(user, password)


def password_variable(prefix: str) -> str:
    """Which variable has the password of the user that ``--PREFIXuser`` names."""
    return f"BARRAGE_{prefix.replace('-', '_').upper()}PASSWORD"


UserOption = Annotated[
    str | None,
    typer.Option(
        "--user",
        envvar=USER_VARIABLE,
        show_envvar=True,
        metavar="NAME",
        callback=_keep_user,
        help=f"Log in with this name, and the password in {PASSWORD_VARIABLE} or asked for.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for scripts.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server listens. Of a transport that is not gRPC's the host is all of the URI."""

    host: str
    port: int
    scheme: str = "grpc"
    tls: TLS | None = None
    """How to check the server, and what to show to it, if it speaks TLS."""
    others: tuple[ServerAddress, ...] = ()
    """Servers of the same tables, for when this one is lost."""

    @property
    def uri(self) -> str:
        return ",".join(each._own_uri for each in (self, *self.others))

    @property
    def is_tls(self) -> bool:
        """Of any of them."""
        return any(each.scheme in _TLS_SCHEMES for each in (self, *self.others))

    @property
    def _own_uri(self) -> str:
        return f"{self.scheme}://{self._own_text}" if self.scheme in _SCHEMES else self.host

    def __str__(self) -> str:
        return ",".join(each._own_text for each in (self, *self.others))

    @property
    def _own_text(self) -> str:
        if self.scheme not in _SCHEMES:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAddress:
    """One table of one server."""

    server: ServerAddress
    table: str

    def __str__(self) -> str:
        return f"{self.server}/{self.table}"


def parse_server(text: str, tls: TlsChoice = NO_CHOICE) -> ServerAddress:
    """``[scheme://]HOST[:PORT]``, or several with commas between; the port defaults to 10000. What
    follows another transport's scheme is that transport's business. A wrong one is a usage
    error."""
    first, *others = (_parse_one(each.strip()) for each in text.split(","))
    found = replace(first, others=tuple(others))
    if found.is_tls:
        return replace(found, tls=tls.tls)
    if tls.is_asked:
        raise usage_error(f"options of TLS, and {found} without it: write grpcs://{found}")
    return found


def _parse_one(text: str) -> ServerAddress:
    scheme, has_scheme, rest = text.partition("://")
    scheme = scheme.lower()
    if not has_scheme:
        scheme, rest = "grpc", text
    if _is_other_transport(scheme):
        return ServerAddress(host=text, port=0, scheme=scheme)
    if scheme not in _SCHEMES:
        raise usage_error(f"{text!r}: unknown scheme {scheme!r}; use {', '.join(_SCHEMES)}")
    rest = rest.rstrip("/")
    if "/" in rest:
        raise usage_error(f"{text!r} names a table; this command wants only HOST:PORT")
    host, port_text = _split_port(rest)
    if not host:
        raise usage_error(f"{text!r} has no host; write HOST:PORT, for example localhost:10000")
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise usage_error(f"{text!r}: {port_text!r} is not a port; write HOST:PORT")
    return ServerAddress(host=host, port=int(port_text), scheme=scheme)


def _is_other_transport(scheme: str) -> bool:
    return scheme not in (*_SCHEMES, _INPROC) and scheme in TRANSPORTS


def _split_port(text: str) -> tuple[str, str]:
    """Host and port digits; an IPv6 address stands in brackets."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":") or str(PORT_DEFAULT)
    host, colon, port = text.rpartition(":")
    return (host, port) if colon else (text, str(PORT_DEFAULT))


def parse_table(text: str, tls: TlsChoice = NO_CHOICE) -> TableAddress:
    """``[scheme://]HOST[:PORT]/TABLE``, or several servers with commas between and the table after
    the last; a wrong one is a usage error."""
    last = _start_of_last(text)
    scheme, has_scheme, _ = text[last:].partition("://")
    start = last + (len(scheme) + 3 if has_scheme else 0)
    # A transport of its own way of writing may have slashes: the table is what follows the last.
    is_other = _is_other_transport(scheme.lower()) if has_scheme else False
    slash = text.rfind("/", start) if is_other else text.find("/", start)
    if slash < 0 or slash + 1 == len(text):
        raise usage_error(
            f"{text!r} names no table; write HOST:PORT/TABLE "
            f"(`barrage ls {text.rstrip('/')}` lists them)"
        )
    return TableAddress(server=parse_server(text[:slash], tls), table=text[slash + 1 :])


def _start_of_last(text: str) -> int:
    """Where the last server of a list begins. The name of a table may have commas too: what stands
    before one is a server when it names no table, or when a URI follows."""
    start = 0
    while (comma := text.find(",", start)) >= 0:
        server = text[start:comma].partition("://")
        follows = _SCHEME.match(text, comma + 1)
        if not follows and "/" in (server[2] if server[1] else server[0]):
            break
        start = comma + 1
    return start


@contextmanager
def open_session(address: ServerAddress, token: str | None) -> Iterator[Session]:
    """A session with the server; a server that cannot be reached is one clear line."""
    try:
        session = barrage.connect(address.uri, auth=credentials(token), tls=address.tls)
    except TransportError as error:
        raise _unreachable(address, error) from error
    with session:
        yield session


@asynccontextmanager
async def open_async_session(
    address: ServerAddress, token: str | None
) -> AsyncIterator[AsyncSession]:
    """The same for code on an event loop."""
    try:
        session = await barrage.aconnect(address.uri, auth=credentials(token), tls=address.tls)
    except TransportError as error:
        raise _unreachable(address, error) from error
    async with session:
        yield session


def _unreachable(address: ServerAddress, error: TransportError) -> CommandError:
    if isinstance(error, TLSFailedError):
        return CommandError(f"cannot connect to {address}: {in_flags(str(error))}")
    if address.others:
        return CommandError(f"cannot connect: {in_flags(str(error))}; are the servers running?")
    is_port = address.scheme in _SCHEMES
    listening = f"--port {address.port}" if is_port else f"--host {address.uri}"
    return CommandError(
        f"cannot connect to {address} ({short_reason(error)}); is the server running? "
        f"start one with `barrage serve {listening}`"
    )
