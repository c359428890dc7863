"""Values as text, JSON and table lines."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.cli.cells import column_texts, float_text, json_line, json_rows, printable
from barrage.cli.text_table import fit, format_rows, format_table

NOON = dt.datetime(2026, 1, 2, 12, 0, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([1, None, -3], pa.int32(), ["1", None, "-3"]),
        ([True, False, None], pa.bool_(), ["true", "false", None]),
        ([1.5, None, float("nan"), float("-inf")], pa.float64(), ["1.5", None, "NaN", "-inf"]),
        ([1.5], pa.float32(), ["1.5"]),
        (["a", "", None], pa.string(), ["a", "", None]),
        (["a\x1b[31m\n"], pa.string(), ["a\\x1b[31m\\n"]),
        ([NOON, None], pa.timestamp("ns", "UTC"), ["2026-01-02 12:00:00Z", None]),
        ([NOON.replace(microsecond=120000)], pa.timestamp("us"), ["2026-01-02 12:00:00.120"]),
        ([1767355200000000001], pa.timestamp("ns"), ["2026-01-02 12:00:00.000000001"]),
        ([dt.date(2026, 1, 2), None], pa.date32(), ["2026-01-02", None]),
        ([dt.date(2026, 1, 2)], pa.date64(), ["2026-01-02"]),
        ([dt.time(9, 30)], pa.time64("us"), ["09:30:00"]),
        ([Decimal("1.20")], pa.decimal128(10, 2), ["1.20"]),
        ([b"\x00\xff"], pa.binary(), ["0x00ff"]),
        ([b"x" * 20], pa.binary(20), [f"0x{'78' * 16}… 20 bytes"]),
        ([[1, None], [], None], pa.list_(pa.int64()), ["[1, null]", "[]", None]),
        ([list(range(10))], pa.large_list(pa.int8()), ["[0, 1, 2, 3, 4, 5, 6, 7, … 10 values]"]),
        ([[NOON]], pa.list_(pa.timestamp("ns")), ["[2026-01-02 12:00:00]"]),
        ([None], pa.null(), [None]),
    ],
)
def test_values_read_as_a_person_expects(values: list, kind: pa.DataType, texts: list) -> None:
    assert column_texts(pa.array(values, kind)) == texts


def test_dictionaries_show_their_values() -> None:
    assert column_texts(pa.array(["a", None, "a"]).dictionary_encode()) == ["a", None, "a"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (1e15, "1e+15"), (0.00001, "1e-05"), (12.34567, "12.3457"), (-2.0, "-2.0")],
)
def test_floats_are_short(value: float, text: str) -> None:
    assert float_text(value) == text


@given(st.text())
def test_nothing_printed_controls_the_terminal(text: str) -> None:
    assert printable(text).isprintable()


def test_json_rows_keep_types_scripts_can_use() -> None:
    table = pa.table(
        {
            "n": pa.array([1, None]),
            "f": pa.array([float("nan"), 2.5]),
            "t": pa.array([NOON, None], pa.timestamp("ns", "UTC")),
            "l": pa.array([[1, 2], None]),
            "b": pa.array([b"\x01", None]),
            "s": pa.array([{"x": 1}, None]),
            "d": pa.array([Decimal("1.5"), None]),
        }
    )
    first, second = (json.loads(json_line(row)) for row in json_rows(table))
    assert first == {
        "n": 1,
        "f": None,
        "t": "2026-01-02T12:00:00.000000000Z",
        "l": [1, 2],
        "b": "01",
        "s": {"x": 1},
        "d": "1.5",
    }
    assert second == {"n": None, "f": 2.5, "t": None, "l": None, "b": None, "s": None, "d": None}


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [
        ("abc", 5, "abc  "),
        ("abcdef", 4, "abc…"),
        ("漢字", 5, "漢字 "),
        ("漢字漢字", 4, "漢 …"),
        ("a", 0, ""),
    ],
)
def test_fit_counts_terminal_cells(text: str, width: int, fitted: str) -> None:
    assert fit(text, width) == fitted


def test_numbers_stand_on_the_right_and_nulls_are_visible() -> None:
    table = pa.table({"name": ["a", None], "n": [5, 1000]})
    assert format_table(table, width=None) == ["name     n", "a        5", "null  1000"]


def test_columns_that_do_not_fit_are_counted() -> None:
    table = pa.table({f"column{i}": ["x" * 8] for i in range(10)})
    lines = format_table(table, width=40)
    assert lines[0].endswith("more")
    assert all(len(line) <= 40 for line in lines)


def test_a_table_without_rows_shows_its_columns() -> None:
    assert format_rows(["a", "b"], [[], []], right=[False, True], width=None) == ["a  b"]
