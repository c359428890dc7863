"""From signed deltas to the bytes of a row set: the canonical command stream, vectorised.

The reference algorithm (barrage-wire.md section 4.2) walks the deltas one by one and flushes a
pending list. What it produces can be said without the walk. Every delta belongs to one of three
kinds:

* OFFSET: magnitude 32767 or more; a command of its own, and the pending list ends there;
* BYTE: part of an unbroken run of int8 deltas that has four or more, or ends a pending list;
* SHORT: everything else.

A command is a maximal run of one kind (OFFSETs never join); a run of one is written as an OFFSET.
Example with the deltas 1 2 3 4 500 1 2 40000: kinds B B B B S B B O, so BYTE_ARRAY(4), OFFSET short
500, BYTE_ARRAY(2), OFFSET int 40000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from barrage.rowset.arrays import BoolArray, Int64Array

    DeltaArray: TypeAlias = npt.NDArray[np.int16] | Int64Array

# Command bits and value types, barrage-wire.md section 4.
OFFSET: Final = 0x08
SHORT_ARRAY: Final = 0x10
BYTE_ARRAY: Final = 0x18
END: Final = 0x20
TYPE_OF_WIDTH: Final = {1: 4, 2: 1, 4: 2, 8: 3}

SHORT_DELTA_MAX: Final = 32766
_BYTE_RUN_MIN: Final = 4

_KIND_SHORT: Final = 0
_KIND_BYTE: Final = 1
_KIND_OFFSET: Final = 2

_COMMANDS_LOOPED_MAX: Final = 64
_DELTAS_PER_COMMAND_LOOPED: Final = 64
"""Few or long commands are sliced out one by one; many short ones are scattered all at once."""
_BLOCK_DELTAS: Final = 1 << 15


def write_after(first: int, deltas: DeltaArray) -> bytes:
    """The command stream for a first key and the ``deltas`` behind it, END included."""
    if first > SHORT_DELTA_MAX:
        return command_value(OFFSET, first) + write_deltas(deltas)
    return write_deltas(np.concatenate((np.array((first,), dtype=deltas.dtype), deltas)))


def write_deltas(deltas: DeltaArray) -> bytes:
    """The command stream for ``deltas``, END included; narrow ones take fewer passes."""
    if len(deltas) == 0:
        return bytes((END,))
    smallest, largest = int(deltas.min()), int(deltas.max())
    if len(deltas) > 1 and smallest >= -128 and largest <= 127:
        head = command_value(BYTE_ARRAY, len(deltas))
        return b"".join((head, deltas.astype(np.int8).data, bytes((END,))))
    has_offsets = largest > SHORT_DELTA_MAX or smallest < -SHORT_DELTA_MAX
    narrow = deltas.astype("<i2", copy=False)  # only looked at where the delta fits
    kinds = _kinds(deltas, narrow, has_offsets=has_offsets)
    is_start = np.empty(len(deltas), dtype=np.bool_)
    is_start[0] = True
    np.not_equal(kinds[1:], kinds[:-1], out=is_start[1:])
    if has_offsets:
        is_start |= kinds == _KIND_OFFSET
    starts = np.flatnonzero(is_start)
    if len(starts) <= max(_COMMANDS_LOOPED_MAX, len(deltas) // _DELTAS_PER_COMMAND_LOOPED):
        return _joined(deltas, narrow, kinds, starts=starts)
    return _scattered(deltas.astype(np.int64, copy=False), kinds, starts)


def _kinds(
    deltas: DeltaArray, narrow: npt.NDArray[np.int16], *, has_offsets: bool
) -> npt.NDArray[np.uint8]:
    """Which kind of command each delta belongs to."""
    is_byte: BoolArray = (narrow + np.int16(128)).view(np.uint16) < 256
    if not has_offsets:
        return _byte_runs(is_byte, np.array((len(deltas),))).view(np.uint8)
    is_offset = (deltas > SHORT_DELTA_MAX) | (deltas < -SHORT_DELTA_MAX)
    is_byte &= ~is_offset
    # Pending lists end at OFFSETs; only those with a byte before them matter.
    stops = np.append(np.flatnonzero(is_byte[:-1] & is_offset[1:]) + 1, len(deltas))
    kinds = _byte_runs(is_byte, stops).view(np.uint8)
    kinds[is_offset] = _KIND_OFFSET
    return kinds


def _byte_runs(is_byte: BoolArray, stops: Int64Array) -> BoolArray:
    """The int8 deltas that go into byte commands: runs of four, and runs that end at one of
    ``stops``.
    """
    in_run = np.zeros(len(is_byte), dtype=np.bool_)
    if len(is_byte) >= _BYTE_RUN_MIN:
        pairs = is_byte[1:] & is_byte[:-1]
        fours = pairs[2:] & pairs[:-2]
        if bool(fours.any()):
            for offset in range(_BYTE_RUN_MIN):
                in_run[offset : offset + len(fours)] |= fours
    # A shorter run that ends a pending list has at most three members, with no OFFSET among them.
    is_tail = np.ones(len(stops), dtype=np.bool_)
    for back in range(1, _BYTE_RUN_MIN):
        index = stops - back
        is_tail &= (index >= 0) & is_byte[np.maximum(index, 0)]
        in_run[index[is_tail]] = True
    return in_run


def _joined(
    deltas: DeltaArray,
    narrow: npt.NDArray[np.int16],
    kinds: npt.NDArray[np.uint8],
    *,
    starts: Int64Array,
) -> bytes:
    """Few commands: cut the two narrow forms of the array into slices."""
    shorts = memoryview(narrow.tobytes())
    octets = memoryview(narrow.astype(np.int8).tobytes())
    begins = starts.tolist()
    parts: list[bytes | memoryview] = []
    for begin, stop, kind in zip(
        begins, [*begins[1:], len(deltas)], kinds[starts].tolist(), strict=True
    ):
        if stop - begin == 1:
            parts.append(command_value(OFFSET, int(deltas[begin])))
        elif kind == _KIND_BYTE:
            parts += (command_value(BYTE_ARRAY, stop - begin), octets[begin:stop])
        else:
            parts += (command_value(SHORT_ARRAY, stop - begin), shorts[2 * begin : 2 * stop])
    parts.append(bytes((END,)))
    return b"".join(parts)


def command_value(command: int, value: int) -> bytes:
    """A command byte and its value in the smallest signed type that holds it."""
    if -(2**7) <= value < 2**7:
        width = 1
    elif -(2**15) <= value < 2**15:
        width = 2
    else:
        width = 4 if -(2**31) <= value < 2**31 else 8
    return bytes((command | TYPE_OF_WIDTH[width],)) + value.to_bytes(width, "little", signed=True)


_TYPE_OF_WIDTH: Final = np.zeros(9, dtype=np.int64)
_TYPE_OF_WIDTH[list(TYPE_OF_WIDTH)] = list(TYPE_OF_WIDTH.values())


def _widths(values: Int64Array) -> Int64Array:
    """Bytes of the smallest signed type that holds each value."""
    widths = np.full(len(values), 8, dtype=np.int64)
    for bits, width in ((31, 4), (15, 2), (7, 1)):
        widths[(values >= -(1 << bits)) & (values < 1 << bits)] = width
    return widths


def _scattered(deltas: Int64Array, kinds: npt.NDArray[np.uint8], starts: Int64Array) -> bytes:
    """Many commands: block by block, so that the intermediate arrays stay in the cache."""
    block_begins = np.arange(0, len(deltas), _BLOCK_DELTAS)
    cuts = np.unique(np.append(np.searchsorted(starts, block_begins), len(starts))).tolist()
    bounds = [*starts[cuts[:-1]].tolist(), len(deltas)]
    parts = [
        _tokens(deltas[begin:stop], kinds[begin:stop], starts[low:high] - begin)
        for begin, stop, low, high in zip(bounds[:-1], bounds[1:], cuts[:-1], cuts[1:], strict=True)
    ]
    parts.append(bytes((END,)))
    return b"".join(parts)


def _tokens(deltas: Int64Array, kinds: npt.NDArray[np.uint8], starts: Int64Array) -> bytes:
    """Whole commands: every delta becomes one token, its own bytes and, if it starts a command, the
    header.

    A token is at most 7 bytes, or 9 when it is an 8-byte OFFSET, whose value is written in a second
    pass. Tokens are written as whole 64-bit words in ascending order; what a word leaves behind its
    token is overwritten by the next.
    """
    counts = np.append(starts[1:], len(deltas)) - starts
    is_value = counts == 1  # written as an OFFSET: no count, the delta is the value
    is_byte = kinds == _KIND_BYTE
    heads = deltas[starts]
    headers = np.where(is_value, heads, counts)
    header_widths = _widths(headers)
    array_commands = np.where(is_byte[starts], BYTE_ARRAY, SHORT_ARRAY)
    commands = np.where(is_value, OFFSET, array_commands) | _TYPE_OF_WIDTH[header_widths]
    header_sizes = 1 + header_widths

    sizes = 2 - is_byte.view(np.int8).astype(np.int64)
    payload_sizes = np.where(is_value, 0, sizes[starts])
    payloads = np.where(is_value, 0, heads & 0xFFFF) << (8 * np.minimum(header_sizes, 7))
    sizes[starts] = header_sizes + payload_sizes
    words = deltas.copy()
    words[starts] = commands | headers << 8 | payloads
    stops = np.cumsum(sizes)
    positions = stops - sizes
    total = int(stops[-1])
    output = np.empty(total + 8, dtype=np.uint8)
    # All 64-bit words of the output that start at any byte.
    sliding = np.ndarray(total + 1, dtype="<i8", buffer=output.data, strides=(1,))
    sliding[positions] = words
    is_long = header_widths == 8
    sliding[positions[starts[is_long]] + 1] = headers[is_long]
    return output[:total].tobytes()
