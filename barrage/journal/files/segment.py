"""Segment files: an Arrow IPC stream that begins with who it belongs to and what came before it.

The schema message at the beginning names table, epoch, number, the run of the server that wrote it
(its first step), and how the segment before ended (number, size, last step, CRC of its last
record). A segment is only begun once the one before is synced, so whatever of that is missing later
was lost by the disk, not by a crash.

Reading back distinguishes three things. A record that is not whole at the end of the last segment,
with nothing behind it that was written later, is a torn tail: it was never acknowledged and is cut
off. A damaged record before that is damage. And a record behind a hole proves damage only when it
was written after the place of the hole had been synced: pages of one unfinished round of writing
may reach the disk in any order.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from barrage.errors import JournalCorruptError, JournalFailedError
from barrage.journal.disk.framing import (
    BUDGET_BYTES_MIN,
    CRC_BLANK,
    CRC_KEY,
    HEADER_RECORD,
    HEADER_SCHEMA,
    PREFIX_BYTES,
    BudgetExhaustedError,
    FramingError,
    Message,
    ReadingBudget,
    crc_place,
    metadata_of,
    next_message,
    read_message,
    seal,
)
from barrage.journal.records.index import IndexRow
from barrage.journal.records.record import Entry, EntryEncoder, RecordHead, Surroundings, read_head
from barrage.wire.flatbuf import root_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from barrage.journal.disk.storage import AppendFile

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
METADATA_KEY: Final = "barrage.segment"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnd:
    """How a segment ends: what the next one names, so that a missing tail is noticed."""

    number: int
    byte_count: int
    step: int
    """Last version in it, or what it inherited when it has none."""
    crc: int
    """CRC of its last record, or of its header."""
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """What a segment says of itself."""

    table: str
    epoch: str
    number: int
    first_step: int
    """First step of the run of the server that wrote it."""
    previous: SegmentEnd | None

    def beginning(self, *, byte_count: int, crc: int) -> SegmentEnd:
        """How the segment ends while it has no records."""
        previous = self.previous
        return SegmentEnd(
            number=self.number,
            byte_count=byte_count,
            step=self.first_step - 1 if previous is None else previous.step,
            crc=crc,
            next_offset=0 if previous is None else previous.next_offset,
        )

    def encode(self, schema: pa.Schema) -> tuple[bytes, int]:
        """The schema message, and its CRC."""
        texts = json.dumps({"format": FORMAT_VERSION, **asdict(self)})
        message = schema.with_metadata({METADATA_KEY: texts, CRC_KEY: CRC_BLANK}).serialize()
        content = message.to_pybytes()
        place = crc_place(root_table(content[PREFIX_BYTES:]))
        pieces, crc = seal(content, [], place=place)
        return bytes(pieces[0]), crc


def read_header(data: pa.Buffer) -> tuple[SegmentHeader, Message]:
    """The header of a segment; FramingError."""
    message = read_message(data, 0)
    schema = message.header.table(8)
    if message.kind != HEADER_SCHEMA or schema is None:
        raise FramingError("the file does not begin with a schema")
    try:
        fields = json.loads(metadata_of(schema, 8)[METADATA_KEY])
        if fields.pop("format") != FORMAT_VERSION:
            raise FramingError("the file is of another version of the format")
        previous = fields.pop("previous")
        ended = None if previous is None else SegmentEnd(**previous)
        return SegmentHeader(**fields, previous=ended), message
    except (KeyError, TypeError, ValueError) as error:
        raise FramingError(f"the header of the segment is incomplete: {error}") from error


class SegmentWriter:
    """The segment that is being written. One thread."""

    def __init__(
        self, file: AppendFile, encoder: EntryEncoder, end: SegmentEnd, *, synced: int
    ) -> None:
        self.file = file
        self.end = end
        self._encoder = encoder
        self._synced = synced

    @classmethod
    def begin(cls, file: AppendFile, header: SegmentHeader, encoder: EntryEncoder) -> SegmentWriter:
        """A new segment in an empty file. The header is synced: whoever finds a record in the file
        can be sure that the header was once whole."""
        content, crc = header.encode(encoder.schema)
        file.write([content])
        _sync(file)
        end = header.beginning(byte_count=len(content), crc=crc)
        return cls(file, encoder, end, synced=end.byte_count)

    def write(self, entry: Entry, frontier: int, *, is_joint: bool = False) -> IndexRow:
        """Append an entry; it is sure to be there after :meth:`sync`."""
        surroundings = Surroundings(
            frontier=frontier,
            synced=self._synced,
            previous_crc=self.end.crc,
            is_joint=is_joint,
        )
        pieces, crc = self._encoder.encode(entry, surroundings)
        place = self.end.byte_count
        self.file.write(pieces)
        byte_count = sum(len(piece) for piece in pieces)
        self.end = SegmentEnd(
            number=self.end.number,
            byte_count=place + byte_count,
            step=entry.step,
            crc=crc,
            next_offset=entry.next_offset,
        )
        return IndexRow(
            step=entry.step,
            wall_ns=entry.wall_ns,
            first_offset=entry.first_offset,
            row_count=entry.rows.num_rows,
            byte_count=byte_count,
            segment=self.end.number,
            place=place,
            before_count=entry.before_count,
        )

    def sync(self) -> None:
        """Return when everything written is on the disk. JournalFailedError."""
        _sync(self.file)
        self._synced = self.end.byte_count

    def rewind(self, end: SegmentEnd) -> None:
        """Take back what was written after ``end``."""
        self.file.truncate(end.byte_count)
        self.end = end


def _sync(file: AppendFile) -> None:
    """A sync that fails is final, whatever the reason: the system may count what it could not write
    as written, so nothing can be made good in this file, not even when there was only no room."""
    try:
        file.sync()
    except OSError as error:
        raise JournalFailedError(f"a file could not be synced: {error}") from error


@dataclass(frozen=True, slots=True)
class ScannedRecord:
    """One record found in a segment."""

    row: IndexRow
    message: Message
    head: RecordHead


def scan(
    data: pa.Buffer, header: SegmentHeader, header_message: Message, *, name: str, is_last: bool
) -> Iterator[ScannedRecord]:
    """Every record of a segment, checked, oldest first; ends where a torn tail begins.

    JournalCorruptError for damage before that; ``is_last`` says whether a torn tail may be there.
    """
    place, crc = header_message.stop, header_message.crc
    step = -1 if header.previous is None else header.previous.step
    offset = None if header.previous is None else header.previous.next_offset
    while place < data.size:
        try:
            message = read_message(data, place)
            if message.kind != HEADER_RECORD:
                raise FramingError("a message that is no record")
            head = read_head(message)
        except FramingError as error:
            if is_last and not _is_hole(data, place):
                return
            raise JournalCorruptError(name, offset=place, reason=str(error)) from error
        if head.surroundings.previous_crc != crc or head.step <= step:
            raise JournalCorruptError(
                name, offset=place, reason="the record does not follow on the one before it"
            )
        if offset is not None and head.first_offset != offset:
            raise JournalCorruptError(
                name, offset=place, reason="rows are missing between two records"
            )
        row = IndexRow(
            step=head.step,
            wall_ns=head.wall_ns,
            first_offset=head.first_offset,
            row_count=head.row_count,
            byte_count=message.size,
            segment=header.number,
            place=place,
            before_count=head.before_count(),
        )
        yield ScannedRecord(row, message, head)
        place, crc, step = message.stop, message.crc, head.step
        offset = head.first_offset + head.row_count


def _is_hole(data: pa.Buffer, place: int) -> bool:
    """Whether something that was written after ``place`` had been synced is behind it. The work is
    linear in what is behind; where that is not enough to tell, it is taken for damage, as nothing
    that may have been acknowledged is cut off."""
    budget = ReadingBudget(2 * (data.size - place) + BUDGET_BYTES_MIN)
    try:
        found = next_message(data, place, budget)
        while found is not None:
            if _was_written_later(found, place):
                return True
            found = next_message(data, found.stop, budget)
    except BudgetExhaustedError:
        logger.warning("too much behind byte %d looks like records that are none", place)
        return True
    return False


def _was_written_later(message: Message, place: int) -> bool:
    try:
        return read_head(message).surroundings.synced > place
    except FramingError:
        # Cells may look like a message, but not like one of ours.
        logger.debug("a message that is no record at byte %d", message.start)
        return False
