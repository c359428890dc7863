"""A bounds-checked reader for FlatBuffers from peers.

The Python flatbuffers runtime has no verifier, and its accessors follow any offset. This reader
checks every offset before it follows it and every count before it loops or allocates; whatever is
wrong raises RemoteProtocolError. Layout rules: barrage-wire.md section 2 (little endian, slots are
byte offsets into the vtable). Cost: one unpack per field; the worst legal input is a vector as long
as the buffer.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from barrage.errors import RemoteProtocolError

_U8 = struct.Struct("<B")
_I8 = struct.Struct("<b")
_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_VTABLE_HEAD = struct.Struct("<HH")

_OFFSET_BYTES = 4

_ENTRIES_MAX = 32
"""Vtable entries looked at; no table read here has as many fields."""

_ENTRIES = tuple(struct.Struct(f"<{count}H") for count in range(_ENTRIES_MAX + 1))


class VectorSpan(NamedTuple):
    """Where a vector's elements lie: ``length`` elements from byte ``start``; bounds are checked
    already."""

    start: int
    length: int


def root_table(buffer: bytes | memoryview) -> FlatTable:
    """The root table of a finished flatbuffer."""
    if len(buffer) < _OFFSET_BYTES:
        raise RemoteProtocolError(f"flatbuffer has {len(buffer)} bytes, too few for a root offset")
    return FlatTable(buffer, _U32.unpack_from(buffer, 0)[0])


class FlatTable:
    """One table in a buffer. Every accessor takes the slot and, for scalars, the default for an
    absent field."""

    __slots__ = ("_buffer", "_offsets", "_position", "_size")

    def __init__(self, buffer: bytes | memoryview, position: int) -> None:
        end = len(buffer)
        if position < 0 or position + 4 > end:
            raise RemoteProtocolError(f"flatbuffer table at {position} of {end} bytes")
        vtable = position - _I32.unpack_from(buffer, position)[0]
        if vtable < 0 or vtable + 4 > end:
            raise RemoteProtocolError(f"flatbuffer vtable at {vtable} of {end} bytes")
        vtable_size, table_size = _VTABLE_HEAD.unpack_from(buffer, vtable)
        if vtable_size < 4 or vtable_size & 1 or vtable + vtable_size > end:
            raise RemoteProtocolError(f"flatbuffer vtable of {vtable_size} bytes at {vtable}")
        if table_size < 4 or position + table_size > end:
            raise RemoteProtocolError(f"flatbuffer table of {table_size} bytes at {position}")
        self._buffer = buffer
        self._position = position
        self._size = table_size
        count = min(vtable_size >> 1, _ENTRIES_MAX)
        self._offsets: tuple[int, ...] = _ENTRIES[count].unpack_from(buffer, vtable)

    def _field(self, slot: int, width: int) -> int:
        """Absolute position of a field of ``width`` bytes, 0 when absent (0 is never a field's
        position)."""
        index = slot >> 1
        if index >= len(self._offsets):
            return 0
        offset = self._offsets[index]
        if offset == 0:
            return 0
        if offset < 4 or offset + width > self._size:
            raise RemoteProtocolError(f"flatbuffer slot {slot} points outside its table")
        return self._position + offset

    def has(self, slot: int) -> bool:
        return self._field(slot, 1) != 0

    def _scalar(self, slot: int, layout: struct.Struct, default: int) -> int:
        position = self._field(slot, layout.size)
        if not position:
            return default
        value: int = layout.unpack_from(self._buffer, position)[0]
        return value

    def boolean(self, slot: int) -> bool:
        return self._scalar(slot, _U8, 0) != 0

    def uint8(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, _U8, default)

    def int8(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, _I8, default)

    def uint16(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, _U16, default)

    def int16(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, _I16, default)

    def int32(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, _I32, default)

    def uint32(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, _U32, default)

    def int64(self, slot: int, default: int = 0) -> int:
        return self._scalar(slot, _I64, default)

    def _follow(self, slot: int) -> int:
        """Position an offset field points to, 0 when absent."""
        position = self._field(slot, _OFFSET_BYTES)
        if not position:
            return 0
        target: int = position + _U32.unpack_from(self._buffer, position)[0]
        if target + 4 > len(self._buffer):
            raise RemoteProtocolError(f"flatbuffer slot {slot} points past the end")
        return target

    def table(self, slot: int) -> FlatTable | None:
        target = self._follow(slot)
        return FlatTable(self._buffer, target) if target else None

    def vector(self, slot: int, element_bytes: int) -> VectorSpan | None:
        """Span of a vector of ``element_bytes`` wide elements; None when absent."""
        target = self._follow(slot)
        if not target:
            return None
        count: int = _U32.unpack_from(self._buffer, target)[0]
        if count * element_bytes > len(self._buffer) - target - 4:
            raise RemoteProtocolError(f"flatbuffer slot {slot} names {count} elements past the end")
        return VectorSpan(target + 4, count)

    def byte_vector(self, slot: int) -> bytes | None:
        """Content of a byte vector; ``b""`` when it is there with no bytes, None when absent."""
        target = self._follow(slot)
        if not target:
            return None
        start = target + 4
        stop: int = start + _U32.unpack_from(self._buffer, target)[0]
        if stop > len(self._buffer):
            raise RemoteProtocolError(f"flatbuffer slot {slot} names bytes past the end")
        return bytes(self._buffer[start:stop])

    def string(self, slot: int) -> str | None:
        content = self.byte_vector(slot)
        if content is None:
            return None
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"flatbuffer slot {slot} is not UTF-8") from error

    def tables(self, slot: int, *, count_max: int) -> list[FlatTable] | None:
        """The tables of a vector of tables; None when absent."""
        span = self.vector(slot, _OFFSET_BYTES)
        if span is None:
            return None
        if span.length > count_max:
            raise RemoteProtocolError(
                f"flatbuffer slot {slot} has {span.length} tables, the limit is {count_max}"
            )
        offsets = struct.unpack_from(f"<{span.length}I", self._buffer, span.start)
        tables: list[FlatTable] = []
        made: dict[int, FlatTable] = {}  # writers may refer to one table many times
        for position, offset in zip(
            range(span.start, span.start + span.length * 4, 4), offsets, strict=True
        ):
            target = position + offset
            table = made.get(target)
            if table is None:
                table = made[target] = FlatTable(self._buffer, target)
            tables.append(table)
        return tables

    def longs(self, slot: int, *, element_longs: int = 1) -> tuple[int, ...] | None:
        """A vector of int64, or of structs made of ``element_longs`` int64 each, as one flat
        tuple."""
        span = self.vector(slot, 8 * element_longs)
        if span is None:
            return None
        return struct.unpack_from(f"<{span.length * element_longs}q", self._buffer, span.start)

    def int32s(self, span: VectorSpan) -> list[int]:
        """The elements of a checked vector of int32."""
        return list(struct.unpack_from(f"<{span.length}i", self._buffer, span.start))
