"""What an upstream server says about itself and its tables, checked before it is believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from barrage.errors import RemoteProtocolError, UnsupportedError
from barrage.json_text import read_json
from barrage.server.flight.relay_calls import RELAY_FORMAT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.server.tables.identity import ServerIdentity

LISTING_BYTES_MAX: Final = 16 << 20
HOPS_MAX: Final = 8
"""Servers between a relay and the one that owns its tables, itself included, at most."""

_Id = Annotated[str, Meta(pattern="^[0-9a-f]{16}\\Z")]
_Name = Annotated[str, Meta(min_length=1, max_length=1024)]


class RelayLoopError(UnsupportedError):
    """A relay would follow itself, directly or through others, or a chain of relays is too
    long."""


class TableTold(msgspec.Struct, frozen=True, kw_only=True):
    """One table of an upstream server."""

    name: _Name
    kind: _Name
    key: tuple[_Name, ...]
    attributes: frozenset[_Name]
    serial: int
    """Another one once the name stands for another table of the same server."""


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    server: _Id
    via: Annotated[tuple[_Id, ...], Meta(max_length=1000)]
    tables: Annotated[tuple[TableTold, ...], Meta(max_length=100_000)]


class _Format(msgspec.Struct, frozen=True):
    format: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a server said at one moment."""

    server: str
    via: tuple[str, ...]
    tables: Mapping[str, TableTold]

    @classmethod
    def parse(cls, text: bytes) -> Listing:
        """UnsupportedError for a format of another version, RemoteProtocolError for what cannot be
        read."""
        if len(text) > LISTING_BYTES_MAX:
            raise RemoteProtocolError(
                f"the list of tables has {len(text)} bytes, at most {LISTING_BYTES_MAX} are read"
            )
        try:
            said = read_json(text)
            told_format = msgspec.convert(said, _Format).format
            if told_format != RELAY_FORMAT:
                raise UnsupportedError(
                    f"the server tells relays in format {told_format}, this one reads "
                    f"{RELAY_FORMAT}: one of the two is of another version"
                )
            told = msgspec.convert(said, _Told)
        except ValueError as error:
            raise RemoteProtocolError(f"the list of tables cannot be read: {error}") from error
        return cls(
            server=told.server,
            via=told.via,
            tables={table.name: table for table in told.tables},
        )

    @property
    def path(self) -> tuple[str, ...]:
        """The servers that its tables come through, itself included."""
        return tuple(dict.fromkeys((self.server, *self.via)))

    def check_path(self, identity: ServerIdentity) -> None:
        """RelayLoopError when its tables come through the server of ``identity``, or through too
        many others."""
        if identity.id == self.server:
            raise RelayLoopError("the upstream server is this relay itself")
        if identity.id in self.via:
            raise RelayLoopError("the upstream server follows this relay: the relays form a loop")
        if len(self.path) > HOPS_MAX:
            raise RelayLoopError(
                f"the tables come through {len(self.path)} servers, the limit is {HOPS_MAX}"
            )
