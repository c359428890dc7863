"""What a table is, as its journal keeps it: enough to make the table again after a restart."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from barrage.errors import JournalCorruptError
from barrage.journal.disk.framing import crc_of
from barrage.journal.records.record import entry_schema

if TYPE_CHECKING:
    from barrage.journal.records.options import JournalClass

FORMAT_VERSION: Final = 1
_NAME_CHARS_MAX: Final = 180
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

Facts: TypeAlias = "dict[str, str | int | bool | list[str] | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """A source table as it was created."""

    name: str
    kind: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    capacity: int | None = None
    journal_class: JournalClass = "durable"
    is_read_only: bool = False

    @property
    def is_blink(self) -> bool:
        """Whether rows live for one cycle only, and have no removals in the history."""
        return self.kind == "blink"

    @property
    def entry_schema(self) -> pa.Schema:
        """Schema of the rows of its entries."""
        return entry_schema(self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """The content of ``table.json``: a table and the history it began with."""

    identity: TableIdentity
    epoch: str
    created_step: int
    """The graph's step when the history began: the version of the empty table."""
    created_wall_ns: int

    def encode(self) -> bytes:
        """JSON with a CRC of itself."""
        identity = self.identity
        facts: Facts = {
            "format": FORMAT_VERSION,
            "name": identity.name,
            "kind": identity.kind,
            "key": list(identity.key),
            "capacity": identity.capacity,
            "schema": base64.b64encode(identity.schema.serialize().to_pybytes()).decode(),
            "is_read_only": identity.is_read_only,
            "epoch": self.epoch,
            "created_step": self.created_step,
            "created_wall_ns": self.created_wall_ns,
        }
        return encode_facts(facts)

    @classmethod
    def decode(cls, content: bytes, *, path: str) -> TableRecord:
        """JournalCorruptError when the content is not what was written."""
        facts = decode_facts(content, path=path)
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(facts["schema"]))))
            identity = TableIdentity(
                name=facts["name"],
                kind=facts["kind"],
                schema=schema,
                key=tuple(facts["key"]),
                capacity=facts["capacity"],
                is_read_only=facts["is_read_only"],
            )
            return cls(
                identity=identity,
                epoch=facts["epoch"],
                created_step=facts["created_step"],
                created_wall_ns=facts["created_wall_ns"],
            )
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise JournalCorruptError(path, offset=0, reason=str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBegin:
    """The content of ``begin.json``: where the history that is kept begins, once retention has
    removed something. It is on the disk before anything is removed, so that files which retention
    removed and files which got lost are told apart."""

    version: int
    """Oldest version whose state can be had; a checkpoint has it, unless it is the empty table."""
    segment: int
    """Number of the first segment that must be there."""

    def encode(self) -> bytes:
        """JSON with a CRC of itself."""
        return encode_facts({"version": self.version, "segment": self.segment})

    @classmethod
    def decode(cls, content: bytes, *, path: str) -> HistoryBegin:
        """JournalCorruptError when the content is not what was written."""
        facts = decode_facts(content, path=path)
        try:
            return cls(version=facts["version"], segment=facts["segment"])
        except KeyError as error:
            raise JournalCorruptError(path, offset=0, reason=str(error)) from error


def encode_facts(facts: Facts) -> bytes:
    """Facts as indented JSON, with their CRC as the last of them."""
    text = json.dumps(facts, indent=1, sort_keys=True)
    crc = crc_of([text.encode()])
    return json.dumps({**facts, "~crc32c": f"{crc:08x}"}, indent=1, sort_keys=True).encode()


def decode_facts(content: bytes, *, path: str) -> dict[str, Any]:
    """The facts in a small file; JournalCorruptError when they are not what was written."""
    try:
        facts: dict[str, Any] = json.loads(content)
        said = facts.pop("~crc32c")
        text = json.dumps(facts, indent=1, sort_keys=True)
        is_whole = encode_facts(facts) == content and said == f"{crc_of([text.encode()]):08x}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalCorruptError(path, offset=0, reason=f"no JSON of ours: {error}") from error
    if not is_whole:
        raise JournalCorruptError(path, offset=0, reason="the CRC does not fit the content")
    return facts


def directory_of(name: str) -> str:
    """The directory of a table: its name with everything unusual as ``%XX``; names too long for a
    file system end in a digest instead."""
    encoded = "".join(
        chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in name.encode()
    )
    if len(encoded) <= _NAME_CHARS_MAX:
        return encoded
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{encoded[: _NAME_CHARS_MAX - 33]}~{digest}"
