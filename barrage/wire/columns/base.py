"""What every column codec has in common: the sink it writes to, the source it reads from, the
dictionaries of a stream, bitmaps.

Source: barrage-wire.md sections 3.4 and 8.5. Nodes and buffers come depth-first in schema order;
every buffer starts at a multiple of eight and its length includes the padding; a column without
rows has zero-length buffers throughout, offsets included.

Cost: encoding collects slices of the column's own buffers and copies nothing unless nulls have to
be filled; decoding makes views of the received body.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from barrage.wire.columns.sliced_columns import SlicedColumn, Slices

BufferLike: TypeAlias = "bytes | memoryview | pa.Buffer"
"""Anything with contiguous bytes; numpy arrays too, which the type checker takes for pa.Buffer."""

ROWS_MAX = 2**31 - 1
"""Most rows of one batch: readers in Java and JS count them in 32 bits."""

_PADDING = tuple(b"\0" * count for count in range(8))


class BatchSink:
    """Collects the nodes, buffers and body parts of one record batch.

    ``nodes`` is flat (length, null count, ...), ``buffers`` flat (offset, length, ...), both in the
    order they go into the header; ``parts`` joined is the body.
    """

    __slots__ = ("buffers", "nodes", "parts", "position")

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.buffers: list[int] = []
        self.parts: list[BufferLike] = []
        self.position = 0

    def node(self, length: int, null_count: int) -> None:
        self.nodes += (length, null_count)

    def buffer(self, content: BufferLike, length: int) -> None:
        """Add ``length`` bytes and the padding behind them."""
        padding = -length & 7
        self.parts.append(content)
        if padding:
            self.parts.append(_PADDING[padding])
        self.buffers += (self.position, length + padding)
        self.position += length + padding

    def plain(self, rows: int, content: BufferLike, length: int) -> None:
        """Add the node of a column without nulls, its absent validity, and one buffer."""
        padding = -length & 7
        position = self.position
        self.nodes += (rows, 0)
        self.buffers += (position, 0, position, length + padding)
        self.parts.append(content)
        if padding:
            self.parts.append(_PADDING[padding])
        self.position = position + length + padding

    def no_buffer(self) -> None:
        """Add a buffer of no bytes: absent validity, or anything of a column without rows."""
        self.buffers += (self.position, 0)

    def no_rows(self, codec: ColumnCodec) -> None:
        """Add a column without rows: all its nodes and buffers, with zero lengths."""
        self.nodes += (0, 0) * codec.node_count
        self.buffers += (self.position, 0) * codec.buffer_count


class DictionaryStore:
    """The dictionaries of one stream by id. An id must be defined before a batch refers to it."""

    def __init__(self) -> None:
        self._values: dict[int, pa.Array] = {}

    def put(self, dictionary_id: int, values: pa.Array, *, is_delta: bool) -> None:
        """Replace a dictionary, or append to it."""
        known = self._values.get(dictionary_id)
        if is_delta:
            if known is None:
                raise RemoteProtocolError(f"delta for dictionary {dictionary_id}, never defined")
            values = pa.concat_arrays([known, values])
        self._values[dictionary_id] = values

    def get(self, dictionary_id: int) -> pa.Array:
        values = self._values.get(dictionary_id)
        if values is None:
            raise RemoteProtocolError(f"dictionary {dictionary_id} used before it was defined")
        return values


class BatchSource:
    """Hands out the nodes and buffers of one received batch in order, checked against the body."""

    __slots__ = (
        "_body",
        "_body_bytes",
        "_buffer_at",
        "_buffers",
        "_node_at",
        "_nodes",
        "column",
        "dictionaries",
        "repeated_rows_max",
    )

    def __init__(
        self,
        nodes: tuple[int, ...],
        buffers: tuple[int, ...],
        body: pa.Buffer,
        *,
        dictionaries: DictionaryStore,
        repeated_rows_max: int,
    ) -> None:
        self._nodes = nodes
        self._buffers = buffers
        self._body = body
        self._body_bytes = body.size
        self._node_at = 0
        self._buffer_at = 0
        self.dictionaries = dictionaries
        self.repeated_rows_max = repeated_rows_max
        """Most rows of a column whose rows cost the peer no bytes (null, run-end encoded)."""
        self.column = ""
        """Name of the column being read, for error messages."""

    def fail(self, reason: str) -> RemoteProtocolError:
        """The error for what is wrong in the current column."""
        return RemoteProtocolError(f"column {self.column!r}: {reason}")

    def peek_rows(self) -> int:
        """Length in the next node, without taking it. Node counts were checked with the header."""
        return self._nodes[self._node_at]

    def node(self) -> tuple[int, int]:
        """Take the next node: rows and nulls."""
        at = self._node_at
        self._node_at = at + 2
        rows, nulls = self._nodes[at : at + 2]
        if not 0 <= rows <= ROWS_MAX:
            raise self.fail(f"{rows} rows in one batch")
        if not 0 <= nulls <= rows:
            raise self.fail(f"{nulls} nulls in {rows} rows")
        return rows, nulls

    def buffer(self, bytes_min: int) -> pa.Buffer:
        """Take the next buffer as a view of the body; refuse it if it has under ``bytes_min``."""
        at = self._buffer_at
        self._buffer_at = at + 2
        offset, length = self._buffers[at : at + 2]
        if offset < 0 or length < 0 or offset + length > self._body_bytes:
            raise self.fail(f"buffer {offset}+{length} lies outside {self._body_bytes} bytes")
        if length < bytes_min:
            raise self.fail(f"buffer has {length} bytes, {bytes_min} are needed")
        return self._body.slice(offset, length)

    def validity(self, rows: int, nulls: int) -> pa.Buffer | None:
        """Take a validity buffer; None when nothing is null."""
        if nulls == 0:
            self._buffer_at += 2
            return None
        return self.buffer((rows + 7) >> 3)

    def skip(self, codec: ColumnCodec) -> None:
        """Pass over all nodes and buffers of a column without rows."""
        self._node_at += 2 * codec.node_count
        self._buffer_at += 2 * codec.buffer_count


class ColumnCodec(ABC):
    """Encodes and decodes one Arrow type, children included.

    ``node_count`` and ``buffer_count`` cover the whole subtree. ``arrow_type`` is the type of the
    arrays handed out and taken. Instances are immutable and may be shared.
    """

    arrow_type: pa.DataType
    node_count: int
    buffer_count: int
    row_bytes: int | None = None
    """What every row takes in the body, nulls aside; None when rows differ."""

    @abstractmethod
    def encode(self, array: pa.Array, sink: BatchSink) -> None:
        """Add ``array``, which has at least one row and exactly ``arrow_type``."""

    @abstractmethod
    def decode_rows(self, source: BatchSource) -> pa.Array:
        """Read a column whose node says at least one row."""

    def slices(self, array: pa.Array, slices: Slices) -> SlicedColumn | None:
        """The columns of many batches, which :meth:`encode` would give for one slice of ``array``
        each. None where that is not known how."""
        return None

    def children(self) -> tuple[ColumnCodec, ...]:
        """Codecs of the values inside."""
        return ()

    def encode_child(self, array: pa.Array, sink: BatchSink) -> None:
        """Add ``array``, which may be empty."""
        if len(array):
            self.encode(array, sink)
        else:
            sink.no_rows(self)

    def decode(self, source: BatchSource) -> pa.Array:
        """Read a column of any length; raises RemoteProtocolError for anything malformed."""
        if source.peek_rows() == 0:
            source.skip(self)
            return self.empty()
        return self.decode_rows(source)

    def empty(self) -> pa.Array:
        """The array without rows."""
        cached = self.__dict__.get("_empty")
        if cached is None:
            cached = self.__dict__["_empty"] = pa.nulls(0, self.arrow_type)
        return cached


def check_values(array: pa.Array, source: BatchSource) -> None:
    """Refuse values their type does not have: text that is not UTF-8, decimals past their
    precision, times past midnight, dates that are no whole days. One pass over the values."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise source.fail(f"holds a value that is no {array.type}") from error


def valid_mask(array: pa.Array) -> NDArray[np.bool_]:
    """True where ``array`` (with a validity bitmap) is not null; one byte per row."""
    return bits_to_mask(array.buffers()[0], array.offset, len(array))


def bits_to_mask(bits: pa.Buffer, offset: int, count: int) -> NDArray[np.bool_]:
    """``count`` bits from bit ``offset``, least significant first, as booleans."""
    first = offset >> 3
    content = np.frombuffer(bits, np.uint8)[first : (offset + count + 7) >> 3]
    start = offset & 7
    return np.unpackbits(content, bitorder="little")[start : start + count].view(np.bool_)


def mask_to_bits(mask: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Booleans as whole 64-bit words of bits (section 3.4: validity and Bool data)."""
    bits = np.packbits(mask, bitorder="little")
    words = np.zeros((len(bits) + 7) & ~7, np.uint8)
    words[: len(bits)] = bits
    return words


def slice_bits(bits: pa.Buffer, offset: int, count: int) -> BufferLike:
    """``count`` bits from bit ``offset`` as whole 64-bit words, the bits past the end cleared."""
    if offset & 7:
        return mask_to_bits(bits_to_mask(bits, offset, count))
    first = offset >> 3
    byte_count = (count + 7) >> 3
    words = bytearray((byte_count + 7) & ~7)
    words[:byte_count] = memoryview(bits)[first : first + byte_count]
    if count & 7:
        words[byte_count - 1] &= (1 << (count & 7)) - 1
    return memoryview(words)


def add_validity(array: pa.Array, sink: BatchSink) -> bool:
    """Add the node and validity buffer of ``array``; returns whether it has nulls."""
    rows = len(array)
    nulls = array.null_count
    sink.node(rows, nulls)
    if not nulls:
        sink.no_buffer()
        return False
    words = slice_bits(array.buffers()[0], array.offset, rows)
    sink.buffer(words, len(words))
    return True
