"""From the bytes of a row set to its signed deltas (barrage-wire.md sections 4, 4.1 and 4.4).

Commands follow each other without an index, so finding them is sequential by nature. Three ways, by
shape:

* long arrays: one step each, their elements are a view of the buffer;
* a run of OFFSETs of one width: a strided view;
* many short commands: a window of bytes at a time. Every byte of the window that could be a command
  gets the position of the command that would follow it; where candidates follow each other without
  a break (nearly everywhere) whole stretches are accepted at once, and the breaks are walked 32 at
  a time.

Worst legal input: a window in which every command contains a false candidate; less than 0.1 us a
command. Sets of a few bytes are read by :mod:`barrage.wire.row_sets.row_set_few` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import numpy.typing as npt

from barrage.errors import RemoteProtocolError
from barrage.rowset.arrays import NO_KEYS, expand

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array

AnyIntArray = npt.NDArray[np.signedinteger]

# Command bits and value types, barrage-wire.md section 4. Bits 6 and 7 must be 0.
_COMMAND_BITS: Final = 0xF8
_TYPE_BITS: Final = 0x07
_OFFSET: Final = 0x08
_SHORT_ARRAY: Final = 0x10
_BYTE_ARRAY: Final = 0x18
_END: Final = 0x20
_VALUE_WIDTHS: Final = (0, 2, 4, 8, 1, 0, 0, 0)
"""Bytes of each value type; 0: there is no such type."""
_ELEMENT_BYTES: Final = {_OFFSET: 0, _SHORT_ARRAY: 2, _BYTE_ARRAY: 1}

_SMALL_COMMAND_BYTES: Final = 64
_SMALL_COMMANDS_BEFORE_WINDOW: Final = 64
_WINDOW_BYTES: Final = 1 << 18
_WINDOW_GAIN_BYTES_MIN: Final = 1024
_WALK_STRIDE_BITS: Final = 5
_UNIFORM_RUN_MIN: Final = 256
_UNIFORM_PROBE: Final = 4096


def read_deltas(data: memoryview, start: int, *, deltas_max: int) -> tuple[AnyIntArray, int]:
    """All deltas of the row set at ``start`` (int8, int16 or int64) and the index behind its END.

    The result may be a view of ``data``. Nothing larger than the input is allocated, times eight.
    """
    parts = _DeltaParts(deltas_max)
    octets = np.frombuffer(data, dtype=np.uint8)
    position = start
    small_commands = 0
    while True:
        if small_commands >= _SMALL_COMMANDS_BEFORE_WINDOW:
            found, consumed = _read_window(octets[position : position + _WINDOW_BYTES])
            parts.add_array(found)
            position += consumed
            if consumed < _WINDOW_GAIN_BYTES_MIN:
                small_commands = 0
        command, value, stop = _read_command(data, position)
        if command == _END:
            return parts.joined(), stop
        if command == _OFFSET:
            run = _uniform_offsets(octets, data, position, stride=stop - position)
            if run is not None:
                parts.add_array(run)
                stop = position + len(run) * (stop - position)
            else:
                parts.add_value(value)
        elif value > 0:
            width = _ELEMENT_BYTES[command]
            if value * width > len(data) - stop:
                raise RemoteProtocolError(
                    f"row set: an array of {value} x {width} bytes at {position} is cut off"
                )
            element = np.dtype("<i2") if width == 2 else np.dtype(np.int8)
            parts.add_array(octets[stop : stop + value * width].view(element))
            stop += value * width
        small_commands = small_commands + 1 if stop - position < _SMALL_COMMAND_BYTES else 0
        position = stop


class _DeltaParts:
    """Deltas found so far, in order; counted against a limit before they are joined."""

    __slots__ = ("_arrays", "_count", "_max", "_values")

    def __init__(self, deltas_max: int) -> None:
        self._arrays: list[AnyIntArray] = []
        self._values: list[int] = []
        self._count = 0
        self._max = deltas_max

    def add_value(self, value: int) -> None:
        self._values.append(value)
        self._admit(1)

    def add_array(self, array: AnyIntArray) -> None:
        self._flush_values()
        if len(array):
            self._arrays.append(array)
            self._admit(len(array))

    def _admit(self, count: int) -> None:
        self._count += count
        if self._count > self._max:
            raise RemoteProtocolError(f"row set: more than {self._max} range ends")

    def _flush_values(self) -> None:
        if self._values:
            values = np.array(self._values, dtype=np.int64)
            narrow = values.astype(np.int16)
            self._arrays.append(narrow if np.array_equal(values, narrow) else values)
            self._values = []

    def joined(self) -> AnyIntArray:
        """Everything as one array, as narrow as it came: what follows reads it several times."""
        self._flush_values()
        if len(self._arrays) < 2:
            return self._arrays[0] if self._arrays else NO_KEYS
        is_narrow = all(array.itemsize <= 2 for array in self._arrays)
        return np.concatenate(self._arrays, dtype=np.int16 if is_narrow else np.int64)


def _read_command(data: memoryview, position: int) -> tuple[int, int, int]:
    """Command, its value (0 for END) and the index behind them."""
    if position >= len(data):
        raise RemoteProtocolError(f"row set: no END within {len(data)} bytes")
    head = data[position]
    command = head & _COMMAND_BITS
    if command == _END:
        return command, 0, position + 1
    width = _VALUE_WIDTHS[head & _TYPE_BITS]
    if command not in _ELEMENT_BYTES or width == 0:
        _refuse_head(head, position)
    stop = position + 1 + width
    if stop > len(data):
        raise RemoteProtocolError(f"row set: the value at {position + 1} is cut off")
    return command, int.from_bytes(data[position + 1 : stop], "little", signed=True), stop


def _refuse_head(head: int, position: int) -> NoReturn:
    what = "value type" if (head & _COMMAND_BITS) in _ELEMENT_BYTES else "command"
    raise RemoteProtocolError(f"row set: unknown {what} in byte {head:#04x} at {position}")


def _uniform_offsets(
    octets: npt.NDArray[np.uint8], data: memoryview, position: int, *, stride: int
) -> Int64Array | None:
    """Values of the OFFSETs from ``position`` on that have this width; None if there are few."""
    probe = position + (_UNIFORM_RUN_MIN - 1) * stride
    head = data[position]
    if probe + stride > len(data) or data[position + stride] != head or data[probe] != head:
        return None
    whole = (len(octets) - position) // stride
    table = octets[position : position + whole * stride].reshape(whole, stride)
    count = 0
    probe_rows = _UNIFORM_PROBE
    while count < whole:
        differs = table[count : count + probe_rows, 0] != head
        if differs.any():
            count += int(differs.argmax())
            break
        count += len(differs)
        probe_rows *= 2
    if count < _UNIFORM_RUN_MIN:
        return None
    record = np.dtype([("head", "u1"), ("value", f"<i{stride - 1}")])
    return table[:count].reshape(-1).view(record)["value"].astype(np.int64)


def _head_table() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each byte: width of the value behind it (0: no command) and bytes per element."""
    widths = np.zeros(256, dtype=np.int64)
    elements = np.zeros(256, dtype=np.int64)
    for command, element_bytes in _ELEMENT_BYTES.items():
        for value_type, width in enumerate(_VALUE_WIDTHS):
            widths[command | value_type] = width
            elements[command | value_type] = element_bytes
    return widths, elements


_HEAD_WIDTHS, _HEAD_ELEMENTS = _head_table()
_HEAD_MIN: Final = np.uint8(0x09)
_HEADS_SPAN: Final = np.uint8(20)


def _read_window(window: npt.NDArray[np.uint8]) -> tuple[Int64Array, int]:
    """Deltas of the commands that lie completely in the window, up to the first END or illegal
    byte, and the number of bytes they take. The caller deals with what follows.
    """
    size = len(window)
    # Heads are 09-0c, 11-14 and 19-1c: less 9, below 20 and with bit 2 clear. Cheaper than a table.
    shifted = window - _HEAD_MIN
    heads = np.flatnonzero((shifted < _HEADS_SPAN) & (shifted & 4 == 0))
    if size == 0 or len(heads) == 0 or heads[0] != 0:
        return NO_KEYS, 0
    padded = np.concatenate((window, np.zeros(8, dtype=np.uint8)))
    # All 64-bit words of the window that start at any byte.
    words = np.ndarray(size + 1, dtype="<i8", buffer=padded.data, strides=(1,))
    head_bytes = window[heads]
    widths = _HEAD_WIDTHS[head_bytes]
    elements = _HEAD_ELEMENTS[head_bytes]
    unused_bits = 64 - 8 * widths
    values = words[heads + 1] << unused_bits >> unused_bits
    # A count past the window only has to stay past it; this keeps the product from overflowing.
    payloads = np.clip(values, 0, size) * elements
    stops = heads + 1 + widths + payloads
    chain = _follow(heads, stops, size)
    if len(chain) and stops[chain[-1]] > size:
        chain = chain[:-1]
    if len(chain) == 0:
        return NO_KEYS, 0
    counts = np.where(elements > 0, np.maximum(values, 0), 1)[chain]
    deltas = _gather(
        padded, (stops - payloads)[chain], counts, elements=elements[chain], values=values[chain]
    )
    return deltas, int(stops[chain[-1]])


def _follow(heads: Int64Array, stops: Int64Array, size: int) -> Int64Array:
    """Indices into ``heads`` of the commands reached from the first one."""
    index_of = np.full(size + 1, -1, dtype=np.int64)
    index_of[heads] = np.arange(len(heads))
    successor = index_of[np.minimum(stops, size)]
    is_break = successor != np.arange(1, len(heads) + 1)
    breaks = np.flatnonzero(is_break)  # the last candidate is always one: nothing follows it
    targets = successor[breaks]
    breaks_before = np.cumsum(is_break) - is_break
    end = len(breaks)
    next_break = np.append(np.where(targets >= 0, breaks_before[targets], end), end)
    walked = _walk(next_break, end)
    firsts = np.concatenate(([0], targets[walked[:-1]]))
    return expand(firsts, breaks[walked] - firsts + 1)


def _walk(follower: Int64Array, end: int) -> Int64Array:
    """The chain 0, ``follower[0]``, ``follower[follower[0]]``, … before ``end``, its own follower.

    Followers grow, so the chain is finite. Only every 32nd member is walked to one by one.
    """
    stride = follower
    for _ in range(_WALK_STRIDE_BITS):
        stride = stride[stride]
    anchors = []
    here = 0
    strides = memoryview(stride.tobytes()).cast("q")
    while here != end:
        anchors.append(here)
        here = strides[here]
    members = [np.array(anchors, dtype=np.int64)]
    for _ in range((1 << _WALK_STRIDE_BITS) - 1):
        members.append(follower[members[-1]])
    chain = np.stack(members, axis=1).reshape(-1)
    members_only: Int64Array = chain[chain != end]
    return members_only


def _gather(
    padded: npt.NDArray[np.uint8],
    starts: Int64Array,
    counts: Int64Array,
    *,
    elements: Int64Array,
    values: Int64Array,
) -> Int64Array:
    """Concatenated deltas of commands whose elements begin at ``starts``; OFFSETs bring theirs in
    ``values``.
    """
    stops = np.cumsum(counts)
    begins = stops - counts
    within = np.arange(int(stops[-1])) - np.repeat(begins, counts)
    sizes = np.repeat(elements, counts)
    # Each element is read as 16 bits; an 8-bit one keeps its low half, sign extended.
    shorts = np.ndarray(len(padded) - 1, dtype="<i2", buffer=padded.data, strides=(1,))
    found = shorts[np.repeat(starts, counts) + within * sizes]
    deltas = np.where(sizes == 1, found.astype(np.int8), found).astype(np.int64)
    is_offset = elements == 0
    deltas[begins[is_offset]] = values[is_offset]
    return deltas
