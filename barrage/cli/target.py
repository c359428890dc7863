"""What a command talks to: ``HOST:PORT`` and ``HOST:PORT/TABLE``, and the options every client
command has.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

import barrage
from barrage.cli.command_errors import CommandError, short_reason, usage_error
from barrage.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from barrage.client import AsyncSession, Session

PORT_DEFAULT = 10000
_SCHEMES = ("grpc", "grpcs", "dh", "dhs")

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
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON for scripts.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server listens."""

    host: str
    port: int
    scheme: str = "grpc"

    @property
    def uri(self) -> str:
        return f"{self.scheme}://{self}"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAddress:
    """One table of one server."""

    server: ServerAddress
    table: str

    def __str__(self) -> str:
        return f"{self.server}/{self.table}"


def parse_server(text: str) -> ServerAddress:
    """``[scheme://]HOST[:PORT]``; the port defaults to 10000. A wrong one is a usage error."""
    scheme, has_scheme, rest = text.partition("://")
    if not has_scheme:
        scheme, rest = "grpc", text
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


def _split_port(text: str) -> tuple[str, str]:
    """Host and port digits; an IPv6 address stands in brackets."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":") or str(PORT_DEFAULT)
    host, colon, port = text.rpartition(":")
    return (host, port) if colon else (text, str(PORT_DEFAULT))


def parse_table(text: str) -> TableAddress:
    """``[scheme://]HOST[:PORT]/TABLE``; a wrong one is a usage error."""
    start = text.find("://") + 3 if "://" in text else 0
    slash = text.find("/", start)
    if slash < 0 or slash + 1 == len(text):
        raise usage_error(
            f"{text!r} names no table; write HOST:PORT/TABLE "
            f"(`barrage ls {text.rstrip('/')}` lists them)"
        )
    return TableAddress(server=parse_server(text[:slash]), table=text[slash + 1 :])


@contextmanager
def open_session(address: ServerAddress, token: str | None) -> Iterator[Session]:
    """A session with the server; a server that cannot be reached is one clear line."""
    try:
        session = barrage.connect(address.uri, auth=token)
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
        session = await barrage.aconnect(address.uri, auth=token)
    except TransportError as error:
        raise _unreachable(address, error) from error
    async with session:
        yield session


def _unreachable(address: ServerAddress, error: TransportError) -> CommandError:
    return CommandError(
        f"cannot connect to {address} ({short_reason(error)}); is the server running? "
        f"start one with `barrage serve --port {address.port}`"
    )
