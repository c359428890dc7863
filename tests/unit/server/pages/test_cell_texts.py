"""Texts made cells: exactly, or not at all."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from barrage.errors import RowError
from barrage.server.pages.cell_texts import cell_of_text, is_text_cell

NS_UTC = pa.timestamp("ns", "UTC")


def read(text, kind, **options):
    cell = cell_of_text(text, pa.field("c", kind, **options))
    assert (len(cell), cell.type) == (1, kind)
    return cell


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("9223372036854775807", pa.int64(), 2**63 - 1),
        (" -9223372036854775808 ", pa.int64(), -(2**63)),
        ("18446744073709551615", pa.uint64(), 2**64 - 1),
        ("-128", pa.int8(), -128),
        ("0.1", pa.float64(), 0.1),
        ("0.10000000149011612", pa.float32(), 0.10000000149011612),
        ("-inf", pa.float64(), float("-inf")),
        ("∞", pa.float32(), float("inf")),
        ("1e300", pa.float64(), 1e300),
        ("1.25", pa.decimal128(10, 2), Decimal("1.25")),
        ("TRUE", pa.bool_(), True),
        ("false", pa.bool_(), False),
        ("", pa.string(), ""),
        (" kept as it is ", pa.large_string(), " kept as it is "),
        ("null", pa.string(), "null"),
        ("0x00fF", pa.binary(), b"\x00\xff"),
        ("A", pa.dictionary(pa.int32(), pa.string()), "A"),
    ],
)
def test_what_people_write(text, kind, value):
    assert read(text, kind)[0].as_py() == value


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("2026-01-31 12:30:00.123456789", NS_UTC, 1769862600123456789),
        ("2026-01-31T12:30:00.123456789Z", NS_UTC, 1769862600123456789),
        ("2026-01-31 14:30:00.123456789+02:00", NS_UTC, 1769862600123456789),
        ("2026-01-31 12:30:00.123456789", pa.timestamp("ns"), 1769862600123456789),
        ("2026-01-31T12:30:00.123456789Z", pa.timestamp("ns"), 1769862600123456789),
        ("2026-01-31", pa.timestamp("ms", "UTC"), 1769817600000),
        ("2026-01-31", pa.date32(), 20484),
        ("12:30", pa.time32("s"), 45000),
        ("12:30:00.000000001", pa.time64("ns"), 45000000000001),
        ("1d 02:00:00.5", pa.duration("ms"), 93600500),
        ("\u221200:00:01", pa.duration("ns"), -1000000000),
    ],
)
def test_times_are_exact(text, kind, count):
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    assert read(text, kind).view(width)[0].as_py() == count


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("9223372036854775808", pa.int64()),
        ("128", pa.int8()),
        ("-1", pa.uint8()),
        ("1.5", pa.int64()),
        ("0x10", pa.int64()),
        ("1_000", pa.int64()),
        ("", pa.int64()),
        ("1e400", pa.float64()),
        ("1_000", pa.float64()),
        ("1e39", pa.float32()),
        ("1,5", pa.float64()),
        ("1.255", pa.decimal128(10, 2)),
        ("123456789.00", pa.decimal128(10, 2)),
        ("1", pa.bool_()),
        ("2026-01-31 12:30:00.1234", pa.timestamp("ms", "UTC")),
        ("2026-02-30", pa.date32()),
        ("24:00", pa.time32("s")),
        ("12:30:00.5", pa.time32("s")),
        ("99999999", pa.duration("ns")),
        ("00ff", pa.binary()),
        ("0xf", pa.binary()),
        ("0xff", pa.binary(2)),
        ("[1]", pa.list_(pa.int64())),
        ("a\ud800", pa.string()),
    ],
)
def test_what_is_no_value(text, kind):
    with pytest.raises(RowError, match="column 'c'"):
        read(text, kind)


def test_null_is_null_alone():
    assert read(None, pa.int64()).null_count == 1
    with pytest.raises(RowError, match="null is not allowed"):
        read(None, pa.int64(), nullable=False)


def test_types_that_cannot_be_written():
    assert is_text_cell(pa.dictionary(pa.int8(), pa.string()))
    assert not is_text_cell(pa.list_(pa.int8()))
    assert not is_text_cell(pa.struct([("a", pa.int8())]))
