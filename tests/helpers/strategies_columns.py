"""Hypothesis strategies for column types and values that can travel.

One entry per type family; the conformance test and the round-trip properties run over all of them.
Values avoid Deephaven's null values, which a subscriber with such nulls reads as null by design.
"""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

_UTC = datetime.UTC


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1)


def _unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 2)


_FLOATS32 = st.floats(width=32).filter(lambda x: x > -3.4e38 or math.isinf(x) or math.isnan(x))
_FLOATS64 = st.floats().filter(lambda x: x > -1.79e308 or math.isinf(x) or math.isnan(x))
_TEXT = st.text(max_size=12)
_BYTES = st.binary(max_size=12)
_TICKS = st.integers(-(2**62), 2**62)

VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), _signed(8)),
    "int16": (pa.int16(), _signed(16)),
    "int32": (pa.int32(), _signed(32)),
    "int64": (pa.int64(), _signed(64)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "uint16": (pa.uint16(), _unsigned(16)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float16": (pa.float16(), st.floats(width=16)),
    "float32": (pa.float32(), _FLOATS32),
    "float64": (pa.float64(), _FLOATS64),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), _TEXT),
    "large_string": (pa.large_string(), _TEXT),
    "string_view": (pa.string_view(), _TEXT),
    "binary": (pa.binary(), _BYTES),
    "large_binary": (pa.large_binary(), _BYTES),
    "fixed_binary": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "timestamp_utc": (pa.timestamp("ns", "UTC"), _TICKS),
    "timestamp_us": (pa.timestamp("us"), _TICKS),
    "date32": (pa.date32(), st.integers(-100_000, 100_000)),
    "date64": (pa.date64(), st.integers(-100_000, 100_000).map(lambda day: day * 86_400_000)),
    "time32": (pa.time32("ms"), st.integers(0, 86_399_999)),
    "time64": (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    "duration": (pa.duration("ns"), _TICKS),
    "interval": (
        pa.month_day_nano_interval(),
        st.tuples(_signed(32), _signed(32), _signed(64)),
    ),
    "decimal128": (
        pa.decimal128(20, 3),
        st.integers(-(10**16), 10**16).map(lambda n: decimal.Decimal(n).scaleb(-3)),
    ),
    "decimal64": (
        pa.decimal64(10, 2),
        st.integers(-(10**7), 10**7).map(lambda n: decimal.Decimal(n).scaleb(-2)),
    ),
    "null": (pa.null(), st.none()),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), _TEXT),
    "dictionary_numbers": (pa.dictionary(pa.int8(), pa.int64()), st.integers(0, 5)),
    "list": (
        pa.list_(pa.int32()),
        st.lists(st.none() | _signed(32), max_size=4),
    ),
    "list_of_text_lists": (
        pa.list_(pa.list_(pa.string())),
        st.lists(st.none() | st.lists(st.none() | _TEXT, max_size=3), max_size=3),
    ),
    "large_list": (pa.large_list(pa.float64()), st.lists(st.none() | _FLOATS64, max_size=4)),
    "list_view": (pa.list_view(pa.int64()), st.lists(st.none() | _signed(64), max_size=4)),
    "large_list_view": (pa.large_list_view(pa.string()), st.lists(st.none() | _TEXT, max_size=4)),
    "fixed_list": (
        pa.list_(pa.int16(), 2),
        st.lists(st.none() | _signed(16), min_size=2, max_size=2),
    ),
    "struct": (
        pa.struct([("n", pa.int32()), ("t", pa.string()), ("s", pa.struct([("f", pa.bool_())]))]),
        st.fixed_dictionaries(
            {
                "n": st.none() | _signed(32),
                "t": st.none() | _TEXT,
                "s": st.none() | st.fixed_dictionaries({"f": st.none() | st.booleans()}),
            }
        ),
    ),
    "list_of_structs": (
        pa.list_(pa.struct([("n", pa.int64())])),
        st.lists(st.none() | st.fixed_dictionaries({"n": st.none() | _signed(64)}), max_size=3),
    ),
    "struct_of_lists": (
        pa.struct([("l", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int32()))]),
        st.fixed_dictionaries(
            {
                "l": st.none() | st.lists(st.none() | _TEXT, max_size=3),
                "m": st.none() | st.lists(st.tuples(_TEXT, st.none() | _signed(32)), max_size=2),
            }
        ),
    ),
    "map": (
        pa.map_(pa.string(), pa.int32()),
        st.lists(st.tuples(_TEXT, st.none() | _signed(32)), max_size=3),
    ),
}
"""Name, type and values of every type that is built from Python values."""


@st.composite
def arrays(
    draw: st.DrawFn, name: str, rows: int | None = None, *, with_nulls: bool = True
) -> pa.Array:
    """An array of type ``name``, now and then a slice of a longer one, so that offsets matter."""
    kind, values = VALUES[name]
    before = draw(st.integers(0, 9)) if draw(st.booleans()) else 0
    count = draw(st.integers(0, 20)) if rows is None else rows
    cell = st.none() | values if with_nulls else values
    cells = draw(st.lists(cell, min_size=before + count, max_size=before + count))
    return pa.array(cells, kind).slice(before)


@st.composite
def columns(draw: st.DrawFn, name: str, rows: int) -> pa.Array | pa.ChunkedArray:
    """A column of ``rows`` rows: one array or several chunks."""
    if rows < 2 or draw(st.booleans()):
        return draw(arrays(name, rows))
    cut = draw(st.integers(1, rows - 1))
    return pa.chunked_array([draw(arrays(name, cut)), draw(arrays(name, rows - cut))])


type_names = st.sampled_from(sorted(VALUES))


def cells(column: pa.Array | pa.ChunkedArray) -> list[str]:
    """Values in a form that compares NaN equal to itself, and is the same for every type that
    carries the same values. Numbers of time types are compared as numbers."""
    return [_cell(value) for value in _comparable(column)]


def _comparable(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return column.cast(pa.int64()).to_pylist()
    return column.to_pylist()


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ",".join(_cell(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(float(value))
    return repr(value)
