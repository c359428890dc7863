"""Rows where nothing can be live: nothing in them becomes markup, and every value is exact."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa

from barrage.client.notebook.first_rows import (
    COLUMNS_SHOWN,
    ROWS_SHOWN,
    TEXT_SHOWN,
    FirstRows,
)

EVIL = "<script>alert('x')</script>\"&"


def html(rows, total=None, name="t", note=""):
    return FirstRows(name=name, rows=pa.table(rows), total=total, note=note)._repr_html_()


def test_nothing_is_markup_wherever_it_stands():
    shown = html({EVIL: [EVIL]}, name=EVIL, note=EVIL)
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;") == 4


def test_values_are_exact_and_null_is_none_of_them():
    shown = html(
        {
            "whole": pa.array([2**63 - 1, None]),
            "time": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns")),
            "text": pa.array(["null", None]),
            "empty": pa.array(["", None]),
            "bytes": pa.array([b"\x00\xff", None]),
            "exact": pa.array([Decimal("0.10"), None]),
            "day": pa.array([datetime.date(2026, 11, 25), None]),
            "list": pa.array([[1, None], None]),
            "coded": pa.array(["c", None]).dictionary_encode(),
        }
    )
    for text in (
        "9223372036854775807",
        "2023-11-14 22:13:20.123456789",
        "<td>null</td>",
        "<td></td>",
        "<td>00ff</td>",
        "0.10",
        "2026-11-25",
        "[1, None]",
        "<td>c</td>",
    ):
        assert text in shown
    assert shown.count("<i>null</i>") == 9


def test_how_much_is_shown_is_said():
    rows = {"n": list(range(ROWS_SHOWN))}
    assert f"{ROWS_SHOWN} rows x 1 columns</p>" in html(rows, total=ROWS_SHOWN)
    shown = html({"n": list(range(ROWS_SHOWN + 1))}, total=10_000_000)
    assert shown.count("<tr>") == ROWS_SHOWN + 1
    assert f"10,000,000 rows x 1 columns, the first {ROWS_SHOWN} are shown" in shown
    assert "an unknown number of rows" in html(rows)
    assert html({"n": []}, total=0).count("<tr>") == 1


def test_columns_and_texts_have_an_end():
    shown = html({f"c{number}": ["x" * 1000] for number in range(COLUMNS_SHOWN + 1)}, total=1)
    assert shown.count("<th>") == COLUMNS_SHOWN
    assert f"and the first {COLUMNS_SHOWN} columns" in shown
    assert "x" * (TEXT_SHOWN - 1) + "…" in shown
    assert "x" * TEXT_SHOWN not in shown


def test_columns_of_one_name_are_both_shown():
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    shown = FirstRows(name="t", rows=rows, total=1)._repr_html_()
    assert ">1</td>" in shown
    assert ">2</td>" in shown


def test_as_text():
    rows = pa.table({"name": ["a", None], "n": [1, 22]})
    assert repr(FirstRows(name="t", rows=rows, total=5, note="why")).splitlines() == [
        "t",
        "name  n",
        "a     1",
        "null  22",
        "5 rows x 2 columns, the first 2 are shown, why",
    ]
