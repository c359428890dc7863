"""Row sets of few ranges to bytes and back, without arrays.

A message to one viewport carries about ten row sets of a handful of rows. At that size the
vectorised writer (:mod:`barrage.wire.row_sets.row_set_writer`) is all fixed cost, some 25 numpy
calls; the loop of the reference algorithm (barrage-wire.md section 4.2) takes about a tenth of it.
Both write the same bytes.
"""

from __future__ import annotations

import struct

from barrage.limits import ROW_KEY_MAX
from barrage.wire.row_sets.row_set_writer import BYTE_ARRAY, END, OFFSET, SHORT_ARRAY, command_value

RANGES_FEW_MAX = 24
"""Most ranges for which the loop is the faster way."""

_END = bytes((END,))
_SHORT_DELTA_MAX = 32766
_BYTE_RUN_MIN = 4
_PACKED_BYTES = tuple(
    struct.Struct(f"<BB{count}bB") for count in range(2 * RANGES_FEW_MAX + 1)
)  # command, count, deltas, END
_BYTE_ARRAY_HEAD = command_value(BYTE_ARRAY, 1)[0]

ENCODED_BYTES_FEW_MAX = 64
"""Longest encoding read by the loop."""

_COMMAND_BITS = 0xF8
_VALUE_WIDTHS = (0, 2, 4, 8, 1, 0, 0, 0)


def encode_few(firsts: list[int], lasts: list[int]) -> bytes:
    """The canonical encoding of at most :data:`RANGES_FEW_MAX` maximal ascending ranges."""
    if not firsts:
        return _END
    deltas = []
    before = 0
    for first, last in zip(firsts, lasts, strict=True):
        deltas.append(first - before)
        if last != first:
            deltas.append(first - last)
        before = last
    count = len(deltas)
    if count > 1 and max(deltas) <= 127 and min(deltas) >= -128:
        return _PACKED_BYTES[count].pack(_BYTE_ARRAY_HEAD, count, *deltas, END)
    return _commands(deltas)


def _commands(deltas: list[int]) -> bytes:
    """Any deltas: large ones are commands of their own, the others wait for one."""
    parts: list[bytes] = []
    waiting: list[int] = []
    for delta in deltas:
        if -_SHORT_DELTA_MAX <= delta <= _SHORT_DELTA_MAX:
            waiting.append(delta)
            continue
        _flush(waiting, parts)
        waiting = []
        parts.append(command_value(OFFSET, delta))
    _flush(waiting, parts)
    parts.append(_END)
    return b"".join(parts)


def _flush(waiting: list[int], parts: list[bytes]) -> None:
    """Shorts, then bytes wherever four or more of them stand together or a list ends with them."""
    written = 0
    tail = 0
    for index, delta in enumerate(waiting):
        if -128 <= delta <= 127:
            tail += 1
            continue
        if tail >= _BYTE_RUN_MIN:
            _array(waiting[written : index - tail], SHORT_ARRAY, "h", parts=parts)
            _array(waiting[index - tail : index], BYTE_ARRAY, "b", parts=parts)
            written = index
        tail = 0
    end = len(waiting)
    _array(waiting[written : end - tail], SHORT_ARRAY, "h", parts=parts)
    _array(waiting[end - tail :], BYTE_ARRAY, "b", parts=parts)


def _array(deltas: list[int], command: int, code: str, *, parts: list[bytes]) -> None:
    if len(deltas) == 1:
        parts.append(command_value(OFFSET, deltas[0]))
    elif deltas:
        parts.append(command_value(command, len(deltas)))
        parts.append(struct.pack(f"<{len(deltas)}{code}", *deltas))


def decode_few(data: bytes) -> tuple[list[int], list[int], int] | None:
    """First keys, last keys and the length of the row set at the start of ``data``.

    None for anything out of the ordinary: the array reader takes another look and says what is
    wrong.
    """
    found = _read_deltas(data)
    if found is None:
        return None
    deltas, length = found
    firsts: list[int] = []
    lasts: list[int] = []
    key = 0
    is_open = False
    for delta in deltas:
        if delta < 0:
            if not is_open:
                return None
            key -= delta
            lasts[-1] = key
            is_open = False
        else:
            key += delta
            if firsts and delta <= 1:  # does not grow, or touches the range before
                return None
            firsts.append(key)
            lasts.append(key)
            is_open = True
    return None if key > ROW_KEY_MAX else (firsts, lasts, length)


def _read_deltas(data: bytes) -> tuple[list[int], int] | None:
    """Deltas and length of the row set at the start of ``data``; None if it is malformed."""
    deltas: list[int] = []
    position = 0
    while position < len(data):
        head = data[position]
        command = head & _COMMAND_BITS
        if command == END:
            return deltas, position + 1
        stop = position + 1 + _VALUE_WIDTHS[head & 7]
        value = int.from_bytes(data[position + 1 : stop], "little", signed=True)
        if stop == position + 1 or stop > len(data) or command not in (OFFSET, *_ELEMENT_CODES):
            return None
        position = stop
        if command == OFFSET:
            deltas.append(value)
        elif value > 0:
            width, code = _ELEMENT_CODES[command]
            position += value * width
            if position > len(data):
                return None
            deltas += struct.unpack_from(f"<{value}{code}", data, stop)
    return None


_ELEMENT_CODES = {SHORT_ARRAY: (2, "h"), BYTE_ARRAY: (1, "b")}
