"""The messages of PostgreSQL's ``pgoutput`` plug-in, version 1: bytes to values.

Source: PostgreSQL documentation, "Logical Replication Message Formats". RemoteProtocolError for
whatever is too short or not known.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from barrage.errors import RemoteProtocolError

COLUMNS_MAX = 1600
"""That a table of PostgreSQL can have."""


class Unchanged:
    """Stands for a large value that an update left as it was, and which is not sent."""


UNCHANGED = Unchanged()
Cells: TypeAlias = "list[str | Unchanged | None]"


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as a relation message has it."""

    name: str
    type_oid: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table whose rows come next."""

    oid: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class TransactionBegin:
    """A transaction begins; ``lsn`` is that of its commit."""

    lsn: int


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """It ends; ``end_lsn`` is what may be confirmed once it is safe."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row was inserted, updated or deleted."""

    oid: int
    kind: str
    """``I``, ``U`` or ``D``."""
    old: Cells | None
    """The key of before, or the whole row where the replica identity is full."""
    new: Cells | None


@dataclass(frozen=True, slots=True)
class Truncated:
    """Tables were emptied."""

    oids: tuple[int, ...]


PgMessage: TypeAlias = Relation | TransactionBegin | TransactionEnd | RowChange | Truncated


class _PgReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 1

    def number(self, kind: str) -> int:
        layout = struct.Struct(">" + kind)
        return int(layout.unpack(self.raw(layout.size))[0])

    def raw(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise RemoteProtocolError("a message of pgoutput is too short")
        taken, self._at = self._data[self._at : end], end
        return taken

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise RemoteProtocolError("a name of pgoutput has no end")
        raw, self._at = self._data[self._at : end], end + 1
        return _decoded(raw)

    def cells(self) -> Cells:
        count = self.number("h")
        if not 0 <= count <= COLUMNS_MAX:
            raise RemoteProtocolError(f"a row of pgoutput has {count} columns")
        found: Cells = []
        for _ in range(count):
            kind = self.raw(1)
            if kind == b"n":
                found.append(None)
            elif kind == b"u":
                found.append(UNCHANGED)
            elif kind == b"t":
                found.append(_decoded(self.raw(self.number("i"))))
            else:
                raise RemoteProtocolError(f"a value of pgoutput has the unknown form {kind!r}")
        return found


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise RemoteProtocolError("a text of pgoutput is not UTF-8") from None


def decode_pgoutput(data: bytes) -> PgMessage | None:
    """The message; None for one that does not matter (types, origins)."""
    if not data:
        raise RemoteProtocolError("a message of pgoutput is empty")
    reader, kind = _PgReader(data), data[:1]
    if kind == b"B":
        return TransactionBegin(reader.number("Q"))
    if kind == b"C":
        reader.raw(9)
        return TransactionEnd(reader.number("Q"))
    if kind == b"R":
        return _relation(reader)
    if kind in (b"I", b"U", b"D"):
        return _change(reader, kind.decode())
    if kind == b"T":
        count = reader.number("i")
        reader.raw(1)
        if not 0 <= count <= len(data):
            raise RemoteProtocolError(f"{count} tables of pgoutput are truncated")
        return Truncated(tuple(reader.number("I") for _ in range(count)))
    if kind in (b"Y", b"O", b"M"):
        return None
    raise RemoteProtocolError(f"a message of pgoutput has the unknown kind {kind!r}")


def _relation(reader: _PgReader) -> Relation:
    oid, schema, name = reader.number("I"), reader.text(), reader.text()
    reader.raw(1)
    count = reader.number("h")
    if not 0 <= count <= COLUMNS_MAX:
        raise RemoteProtocolError(f"a table of pgoutput has {count} columns")
    columns = []
    for _ in range(count):
        flags, column, type_oid = reader.number("B"), reader.text(), reader.number("I")
        reader.raw(4)
        columns.append(RelationColumn(column, type_oid, bool(flags & 1)))
    return Relation(oid, schema, name, tuple(columns))


def _change(reader: _PgReader, kind: str) -> RowChange:
    oid = reader.number("I")
    old = new = None
    form = reader.raw(1)
    if form in (b"K", b"O"):
        old = reader.cells()
        form = b"" if kind == "D" else reader.raw(1)
    if form == b"N":
        new = reader.cells()
    if (new is None) != (kind == "D") or (kind == "D" and old is None):
        raise RemoteProtocolError("a row of pgoutput is not complete")
    return RowChange(oid, kind, old, new)
