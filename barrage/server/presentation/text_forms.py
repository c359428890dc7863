"""Text and big-number forms of columns that have no type of their own at a Deephaven client.

Everything is built by Arrow and numpy on whole columns; the cost is a few passes over the bytes.
Bytes of BigInteger and BigDecimal: deephaven-clients.md section 3.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.wire.wire_schema import plain_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Bytes2D = npt.NDArray[np.uint8]

_T = pa.types
_HEX = np.frombuffer(b"".join(b"%02x" % value for value in range(256)), dtype=np.uint8).reshape(
    256, 2
)
_DECIMAL_BYTES = {
    _T.is_decimal32: 4,
    _T.is_decimal64: 8,
    _T.is_decimal128: 16,
    _T.is_decimal256: 32,
}


def text_of(array: pa.Array) -> pa.Array:
    """Every value of any type as text; null stays null. Types nest at most as deep as a schema
    may."""
    array = plain_array(array)
    kind = array.type
    if _T.is_dictionary(kind):
        return text_of(array.dictionary_decode())
    if _T.is_fixed_size_binary(kind) or _T.is_binary(kind) or _T.is_large_binary(kind):
        return hex_of(array)
    if kind == pa.month_day_nano_interval():
        return _interval_text(array)
    if kind == pa.binary_view():
        return hex_of(array.cast(pa.binary()))
    if _T.is_nested(kind):
        return _nested_text(array)
    return array.cast(pa.string())


def _nested_text(array: pa.Array) -> pa.Array:
    kind = array.type
    if _T.is_struct(kind):
        return _struct_text(array)
    if _T.is_union(kind):
        return _union_text(array)
    if _T.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        inside = _inside(entries)
        parts = [pc.fill_null(text_of(inside.field(index)), "null") for index in range(2)]
        return _joined(entries, _concatenated([parts[0], "=", parts[1]]), before="{", after="}")
    if _T.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_field))
    return _joined(array, text_of(_inside(array)), before="[", after="]")


def _inside(lists: pa.Array) -> pa.Array:
    """The child values a list array points to, from its first offset on."""
    return lists.values


def _joined(lists: pa.Array, texts: pa.Array, *, before: str, after: str) -> pa.Array:
    """Each list's texts between brackets; a null inside shows as ``null``."""
    make = pa.LargeListArray if _T.is_large_list(lists.type) else pa.ListArray
    shown = pc.fill_null(texts, "null")
    if lists.offset:
        lists = lists.take(pa.array(np.arange(len(lists))))  # Arrow wants unsliced offsets here.
        shown = pc.fill_null(text_of(lists.values), "null")
    mask = lists.is_null() if lists.null_count else None
    rebuilt = make.from_arrays(lists.offsets, shown, mask=mask)
    return _concatenated([before, pc.binary_join(rebuilt, ", ").cast(pa.string()), after])


def _concatenated(parts: Sequence[pa.Array | str]) -> pa.Array:
    """The parts of each row one after another; null where a part is null."""
    return pc.binary_join_element_wise(*parts, "", null_handling="emit_null")


def _struct_text(array: pa.Array) -> pa.Array:
    if array.type.num_fields == 0:
        return pc.if_else(array.is_valid(), "{}", pa.scalar(None, pa.string()))
    parts: list[pa.Array | str] = []
    for index in range(array.type.num_fields):
        separator = "{" if index == 0 else ", "
        parts += [f"{separator}{array.type.field(index).name}="]
        parts += [pc.fill_null(text_of(array.field(index)), "null")]
    texts = _concatenated([*parts, "}"])
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _union_text(array: pa.Array) -> pa.Array:
    """Texts of all children side by side, then each row's own picked."""
    texts = [text_of(array.field(index)) for index in range(array.type.num_fields)]
    codes = {code: index for index, code in enumerate(array.type.type_codes)}
    child = np.array([codes.get(code, 0) for code in range(128)], np.int64)[
        array.type_codes.to_numpy(zero_copy_only=False)
    ]
    starts = np.cumsum([0, *(len(text) for text in texts[:-1])])
    rows = np.arange(len(array)) if array.type.mode == "sparse" else array.offsets.to_numpy()
    return pa.concat_arrays(texts).take(pa.array(starts[child] + rows))


def hex_of(array: pa.Array) -> pa.Array:
    """Bytes as lower-case hexadecimal digits."""
    plain = array.cast(pa.large_binary())
    offsets = np.frombuffer(plain.buffers()[1], np.int64)[
        plain.offset : plain.offset + len(plain) + 1
    ] if len(plain) else np.zeros(1, np.int64)  # fmt: skip
    data = plain.buffers()[2]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    digits = _HEX[raw[offsets[0] : offsets[-1]]].tobytes()
    places = (offsets - offsets[0]) * 2
    text = pa.LargeStringArray.from_buffers(
        len(plain), pa.py_buffer(places.tobytes()), pa.py_buffer(digits)
    )
    return _with_nulls_of(plain, text.cast(pa.string()))


def _with_nulls_of(source: pa.Array, values: pa.Array) -> pa.Array:
    if not source.null_count:
        return values
    return pc.if_else(source.is_valid(), values, pa.scalar(None, values.type))


def _interval_text(array: pa.Array) -> pa.Array:
    raw = np.frombuffer(
        array.buffers()[1], np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])
    )[array.offset : array.offset + len(array)]
    names = ("months", "days", "nanos")
    months, days, nanos = (pa.array(raw[name]).cast(pa.string()) for name in names)
    texts = _concatenated([months, " months ", days, " days ", nanos, " ns"])
    return _with_nulls_of(array, texts)


def big_integer_of(array: pa.Array) -> pa.Array:
    """uint64 as BigInteger bytes: two's complement, big endian, as short as possible."""
    values = pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(">u8")
    wide = np.zeros((len(array), 9), np.uint8)  # The ninth byte keeps large values positive.
    wide[:, 1:] = values.view(np.uint8).reshape(-1, 8)
    return _variable_bytes(wide, _shortest(wide), array)


def big_decimal_of(array: pa.Array) -> pa.Array:
    """Decimals as BigDecimal bytes: int32 scale (little endian), then the unscaled BigInteger.

    The scale is the column's; values keep their trailing zeros.
    """
    width = next(size for matches, size in _DECIMAL_BYTES.items() if matches(array.type))
    raw = np.frombuffer(array.buffers()[1], np.uint8).reshape(-1, width)
    unscaled = raw[array.offset : array.offset + len(array), ::-1]
    scale = np.frombuffer(np.int32(array.type.scale).tobytes(), np.uint8)
    wide = np.concatenate([np.broadcast_to(scale, (len(array), 4)), unscaled], axis=1)
    kept = np.concatenate([np.ones((len(array), 4), np.bool_), _shortest(unscaled)], axis=1)
    return _variable_bytes(wide, kept, array)


def _shortest(wide: Bytes2D) -> npt.NDArray[np.bool_]:
    """Which bytes of big-endian two's complement numbers are needed: a leading byte is not when it
    only repeats the sign bit of the next one."""
    sign = np.where(wide[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    repeats = (wide[:, :-1] == sign) & ((wide[:, 1:] >= 0x80) == (sign == 0xFF))
    needed = np.ones(wide.shape, np.bool_)
    needed[:, :-1] = ~np.logical_and.accumulate(repeats, axis=1)
    return needed


def _variable_bytes(wide: Bytes2D, kept: npt.NDArray[np.bool_], source: pa.Array) -> pa.Array:
    """One binary value per row from the kept bytes of ``wide``; null where ``source`` is."""
    offsets = np.zeros(len(wide) + 1, np.int32)
    np.cumsum(kept.sum(axis=1), out=offsets[1:])
    packed = pa.py_buffer(wide[kept].tobytes())
    values = pa.BinaryArray.from_buffers(
        pa.binary(), len(wide), [None, pa.py_buffer(offsets.tobytes()), packed]
    )
    return _with_nulls_of(source, values)
