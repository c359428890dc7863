"""Arrow IPC messages with a CRC-32C inside: how every record of a journal lies in its file.

A message is, as in any Arrow IPC stream: the continuation word, the length of the header, the
header (a flatbuffer), the body. Its header carries our texts in ``custom_metadata`` (of the record
batch, or of the schema), one of which is ``crc32c:`` and eight hexadecimal digits. They are the CRC
of the whole message with these digits zero, so any Arrow reader can read the file and none has to
know of it.

Cost: reading looks at the header only and computes one CRC; the body stays where it is (mapped).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from barrage.errors import RemoteProtocolError
from barrage.wire.flatbuf import FlatTable, root_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from barrage.journal.disk.storage import Piece

CONTINUATION: Final = b"\xff\xff\xff\xff"
PREFIX_BYTES: Final = 8
"""The continuation word and the length of the header."""

HEADER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Longest header believed: a row set with very many ranges stands in it."""

METADATA_ENTRIES_MAX: Final = 64

_SCAN_BYTES: Final = 1 << 20
"""Bytes that are searched for the beginning of a message at a time."""

BUDGET_BYTES_MIN: Final = 1 << 16
CRC_TAG: Final = b"crc32c:"
CRC_BLANK: Final = "crc32c:00000000"
_BLANK: Final = CRC_BLANK.encode()
CRC_KEY: Final = b"crc"

_CHUNK_BYTES: Final = 1 << 18
"""Bytes per CRC call, which keeps other threads waiting."""

_PREFIX = struct.Struct("<4si")
HEADER_RECORD: Final = 3
HEADER_SCHEMA: Final = 1


class FramingError(Exception):
    """The bytes at a place are not a whole, undamaged message; says why. Never leaves the
    journal."""


class BudgetExhaustedError(Exception):
    """More would have to be read than is allowed. Never leaves the journal."""


def crc_of(pieces: Iterable[Piece | npt.NDArray[np.uint8]], crc: int = 0) -> int:
    """CRC-32C of the pieces one after the other, behind bytes whose CRC is ``crc``."""
    for piece in pieces:
        if len(piece) <= _CHUNK_BYTES and isinstance(piece, bytes):
            crc = google_crc32c.extend(crc, piece)
            continue
        data = np.frombuffer(piece, dtype=np.uint8)
        for start in range(0, len(data), _CHUNK_BYTES):
            crc = google_crc32c.extend(crc, data[start : start + _CHUNK_BYTES])
    return crc


def seal(
    header: bytes, body: Sequence[Piece], *, place: int | None = None
) -> tuple[list[Piece], int]:
    """The message with its CRC put in, and that CRC. ``header`` is everything before the body, or
    the whole message. ``place`` is where the digits stand, when the header also has texts that
    somebody else chose."""
    if place is None:
        stop = PREFIX_BYTES + int.from_bytes(header[4:PREFIX_BYTES], "little")
        place = header.rindex(_BLANK, 0, stop) + len(CRC_TAG)
    crc = crc_of([header, *body])
    sealed = b"".join((header[:place], b"%08x" % crc, header[place + 8 :]))
    return [sealed, *body], crc


def crc_place(message: FlatTable) -> int:
    """Where in a message the digits of its CRC stand; FramingError when it has none."""
    kind, content = message.uint8(6), message.table(8)
    holder, slot = (content, 8) if kind == HEADER_SCHEMA else (message, 12)
    entries = None if holder is None else holder.tables(slot, count_max=METADATA_ENTRIES_MAX)
    for entry in entries or ():
        key = entry.vector(4, 1)
        # The length first: what is no key of ours may be of any length, and would be copied.
        if key is not None and key.length == len(CRC_KEY) and entry.byte_vector(4) == CRC_KEY:
            span = entry.vector(6, 1)
            if span is not None and span.length == len(CRC_BLANK):
                return PREFIX_BYTES + span.start + len(CRC_TAG)
    raise FramingError("no CRC in the header")


@dataclass(frozen=True, slots=True)
class Message:
    """A whole, undamaged message in a buffer."""

    start: int
    stop: int
    kind: int
    header: FlatTable
    crc: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def length(self) -> int:
        """Rows of a record batch."""
        batch = self.header.table(8)
        if batch is None:
            raise FramingError("a record batch without header")
        return batch.int64(4)


@dataclass(slots=True)
class ReadingBudget:
    """Bytes whose CRC may still be computed while places are tried that may be no messages."""

    bytes_left: int

    def spend(self, size: int) -> None:
        """BudgetExhaustedError when that is too much."""
        if size > self.bytes_left:
            raise BudgetExhaustedError
        self.bytes_left -= size


def read_message(
    data: pa.Buffer,
    start: int,
    *,
    is_checked: bool = True,
    budget: ReadingBudget | None = None,
) -> Message:
    """The message at ``start``; FramingError when there is none, whole and as it was written.

    ``is_checked``: compute the CRC; left out only for messages that are checked when they are
    used. Until the header is known to be one of ours only its fields are looked at, where they
    are; ``budget`` bounds what is read after that.
    """
    total = data.size
    if start + PREFIX_BYTES > total:
        raise FramingError(f"{total - start} bytes, too few for a message")
    word, header_bytes = _PREFIX.unpack(data.slice(start, PREFIX_BYTES).to_pybytes())
    if word != CONTINUATION:
        raise FramingError("no message begins here")
    if not 0 < header_bytes <= min(HEADER_BYTES_MAX, total - start - PREFIX_BYTES):
        raise FramingError(f"a header of {header_bytes} bytes does not fit")
    body_start = start + PREFIX_BYTES + header_bytes
    view = memoryview(data.slice(start, PREFIX_BYTES + header_bytes)).cast("B")
    try:
        table = root_table(view[PREFIX_BYTES:])
        body_bytes = table.int64(10)
        kind = table.uint8(6)
        place = crc_place(table)
    except RemoteProtocolError as error:
        raise FramingError(str(error)) from error
    if not 0 <= body_bytes <= total - body_start:
        raise FramingError(f"a body of {body_bytes} bytes does not fit")
    said = _said_crc(view, place)
    if budget is not None:
        budget.spend(len(view) + body_bytes)
    header = view.tobytes()
    if is_checked:
        _check(header, place, data.slice(body_start, body_bytes))
    # The texts in it outlive the buffer, which is a mapped file.
    table = root_table(header[PREFIX_BYTES:])
    return Message(start, body_start + body_bytes, kind, table, said)


def _said_crc(header: memoryview, place: int) -> int:
    """The CRC that stands in a header."""
    if header[place - len(CRC_TAG) : place].tobytes() != CRC_TAG:
        raise FramingError("no CRC in the header")
    try:
        return int(header[place : place + 8].tobytes(), 16)
    except ValueError as error:
        raise FramingError("the CRC in the header is no number") from error


def _check(header: bytes, place: int, body: pa.Buffer) -> None:
    blank = b"".join((header[:place], b"00000000", header[place + 8 :]))
    # Compared as text, as a number may be written in several ways.
    if b"%08x" % crc_of([blank, body]) != header[place : place + 8]:
        raise FramingError("the CRC does not fit the content")


def metadata_of(table: FlatTable, slot: int) -> dict[str, str]:
    """The texts in a flatbuffer's ``custom_metadata``."""
    try:
        entries = table.tables(slot, count_max=METADATA_ENTRIES_MAX) or []
        return {entry.string(4) or "": entry.string(6) or "" for entry in entries}
    except RemoteProtocolError as error:
        raise FramingError(str(error)) from error


def next_message(
    data: pa.Buffer, start: int, budget: ReadingBudget | None = None
) -> Message | None:
    """The first undamaged message at or after ``start``: how the end of what was written is told
    from a hole in it. Only places where a message could begin are looked at.

    Cost: one pass over the data, some fields at each place that looks like the beginning of a
    message, and ``budget`` for places that look like a whole one; by default twice what there is to
    read. BudgetExhaustedError past that: then cells hold many forged messages that overlap.
    """
    if budget is None:
        budget = ReadingBudget(2 * max(0, data.size - start) + BUDGET_BYTES_MIN)
    for position in _candidates(data, start):
        try:
            return read_message(data, position, budget=budget)
        except FramingError:
            continue
    return None


def _candidates(data: pa.Buffer, start: int) -> Iterator[int]:
    """Places at or after ``start`` with a continuation word and a length that fits, block by
    block. Messages are padded to eight bytes, so both are, too."""
    view = memoryview(data).cast("B")
    first = start + (-start % 8)
    stop = first + max(0, len(view) - first) // 8 * 8
    for place in range(first, stop, _SCAN_BYTES):
        words = np.frombuffer(view[place : min(place + _SCAN_BYTES, stop)], dtype="<u4")
        lengths = words[1::2].astype(np.int64)
        places = place + 8 * np.arange(len(lengths), dtype=np.int64)
        fits = (words[::2] == 0xFFFFFFFF) & (lengths % 8 == 0) & (lengths > 0)
        fits &= lengths <= np.minimum(HEADER_BYTES_MAX, len(view) - PREFIX_BYTES - places)
        yield from places[fits].tolist()


def may_hold_message(data: pa.Buffer) -> bool:
    """Whether a whole message is anywhere in the data, or that cannot be told."""
    try:
        return next_message(data, 0) is not None
    except BudgetExhaustedError:
        return True
