"""BigInteger and BigDecimal bytes as numbers."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import RowError
from barrage.server.deephaven.big_numbers import big_numbers, holds_big_numbers


def integer(value: int) -> bytes:
    """As Java's BigInteger.toByteArray does it."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def decimal(unscaled: int, scale: int) -> bytes:
    return scale.to_bytes(4, "little", signed=True) + integer(unscaled)


def read(values: list[bytes | None], kind: pa.DataType) -> list[object]:
    """Decoded behind another value, so that offsets do not start at 0."""
    chunk = pa.array([b"in front", *values], pa.binary())[1:]
    return big_numbers(pa.chunked_array([chunk]), pa.field("c", kind)).to_pylist()


def test_worked_examples_of_the_reference():
    assert read([bytes.fromhex("02000000" + "04d2")], pa.decimal128(10, 2)) == [Decimal("12.34")]
    assert read([bytes.fromhex("00000000" + "00")], pa.decimal128(10, 2)) == [Decimal(0)]


@given(st.lists(st.none() | st.integers(0, 2**64 - 1), max_size=50))
def test_integers(values):
    assert read([v if v is None else integer(v) for v in values], pa.uint64()) == values


@given(
    st.lists(st.none() | st.tuples(st.integers(-(10**9), 10**9), st.integers(0, 6)), max_size=50)
)
def test_decimals_of_different_scales(values):
    read_back = read([v if v is None else decimal(*v) for v in values], pa.decimal128(20, 6))
    assert read_back == [v if v is None else Decimal(v[0]).scaleb(-v[1]) for v in values]


def test_bytes_that_look_like_digits_are_not_read_as_digits():
    assert read([b"1", b"42"], pa.uint64()) == [0x31, 0x3432]


def test_trailing_zeros_may_go():
    assert read([decimal(12300, 4)], pa.decimal128(5, 2)) == [Decimal("1.23")]


@pytest.mark.parametrize("value", [-(10**75), 10**76 - 1, 2**127, -1, 0])
def test_wide_decimals(value):
    assert read([decimal(value, 0)], pa.decimal256(76, 0)) == [Decimal(value)]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (b"", pa.uint64()),
        (integer(-1), pa.uint64()),
        (integer(2**64), pa.uint64()),
        (integer(2**300), pa.uint64()),
        (b"", pa.decimal128(5, 2)),
        (b"\x00\x00\x00\x00", pa.decimal128(5, 2)),
        (decimal(1, 3), pa.decimal128(5, 2)),
        (decimal(1000, 0), pa.decimal128(5, 2)),
        (decimal(10**76, 0), pa.decimal256(76, 0)),
        (decimal(1, 77), pa.decimal256(76, 0)),
        (decimal(1, -77), pa.decimal256(76, 0)),
        (decimal(1, 2**31 - 1), pa.decimal256(76, 0)),
        (decimal(1, -(2**31)), pa.decimal256(76, 0)),
        (decimal(1, -76), pa.decimal256(76, 0)),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 5])
def test_the_first_value_that_does_not_fit_is_named(bad, kind, before):
    good = integer(1) if kind == pa.uint64() else decimal(1, 0)
    with pytest.raises(RowError) as raised:
        read([good] * before + [bad, good, bad], kind)
    assert (raised.value.row, raised.value.column) == (before, "c")


@pytest.mark.parametrize(
    "values", [pa.array([], pa.binary()), pa.nulls(3, pa.binary()), pa.nulls(2, pa.large_binary())]
)
@pytest.mark.parametrize("kind", [pa.uint64(), pa.decimal128(5, 2)])
def test_nothing_to_decode(values, kind):
    found = big_numbers(pa.chunked_array([values]), pa.field("c", kind))
    assert (found.type, found.to_pylist()) == (kind, [None] * len(values))


def test_which_columns_are_decoded():
    assert holds_big_numbers(pa.uint64(), pa.binary())
    assert holds_big_numbers(pa.decimal256(50, 2), pa.large_binary())
    assert holds_big_numbers(pa.decimal32(5, 2), pa.binary(3))
    assert not holds_big_numbers(pa.int64(), pa.binary())
    assert not holds_big_numbers(pa.binary(), pa.binary())
    assert not holds_big_numbers(pa.uint64(), pa.string())
