"""What is asked of a real Deephaven server to learn what its filters and formulas mean.

Filters and formulas stand one per line in ``expression_filters.txt`` and
``expression_formulas.txt``; ``;;`` separates the texts of one call. The answers are in
``tests/vectors/deephaven_expressions.json``, written by :mod:`tests.interop.record_expressions`.
"""

from __future__ import annotations

import datetime
import math
import pathlib

import pyarrow as pa

NAN, INF = math.nan, math.inf


def _instants() -> pa.Array:
    day = 86_400_000_000_000
    nanos = [0, 1, -1, 20_000 * day, 20_000 * day + 123_456_789, None, 20_454 * day, 2**62]
    more = [1_700_000_000_000_000_000, None, 5, 0, -(2**62), 999_999_999, None]
    return pa.array(nanos + more, pa.timestamp("ns", "UTC"))


def _dates() -> pa.Array:
    numbers = [
        0,
        1,
        -1,
        20_000,
        20_454,
        None,
        19_000,
        10_957,
        20_454,
        None,
        1,
        0,
        -700_000,
        2_900_000,
        None,
    ]
    first = datetime.date(1970, 1, 1)
    days = [None if n is None else first + datetime.timedelta(n) for n in numbers]
    return pa.array(days, pa.date32()).cast(pa.date64())


def _clocks() -> pa.Array:
    last, hour = 86_399_999_999_999, 3_600_000_000_000
    nanos = [0, 1, last, hour, 12 * hour, None, 5, 7, 1, None, 2, 3, None, 4, 0]
    return pa.array(nanos, pa.time64("ns"))


DATA = pa.table(
    {
        "Row": pa.array(range(15), pa.int64()),
        "Byte": pa.array([0, 1, -1, 127, -127, None, 2, 3, 10, None, 5, 7, None, 1, 0], pa.int8()),
        "Short": pa.array(
            [0, 1, -1, 32767, -32767, None, 2, 3, 10, None, 5, 7, 4, None, 0], pa.int16()
        ),
        "Int": pa.array(
            [0, 1, -1, 2**31 - 1, -(2**31) + 1, None, 2, 3, 10, None, 5, 7, 2**24 + 1, 6, 0],
            pa.int32(),
        ),
        "Long": pa.array(
            [
                0,
                1,
                -1,
                2**63 - 1,
                -(2**63) + 1,
                None,
                2,
                3,
                2**53 + 1,
                None,
                5,
                7,
                2**24 + 1,
                -6,
                0,
            ],
            pa.int64(),
        ),
        "Other": pa.array(
            [3, 1, None, 2, -7, None, 0, 3, -10, 4, 2**31 - 1, 2, 2, None, 5], pa.int32()
        ),
        "Char": pa.array(
            [65, 66, 97, 0, 65534, None, 98, 48, 233, None, 65, 32, 66, 8364, 50], pa.uint16()
        ),
        "Float": pa.array(
            [0.0, -0.0, 1.5, NAN, INF, None, -INF, 0.1, -2.5, None, 3.0, 1e30, 2.0**24, -0.1, 0.0],
            pa.float32(),
        ),
        "Double": pa.array(
            [0.0, -0.0, 1.5, NAN, INF, None, -INF, 0.1, -2.5, None, 3.0, 1e300, None, NAN, -0.0],
            pa.float64(),
        ),
        "Value": pa.array(
            [1.5, 0.0, NAN, NAN, 2.0, None, -INF, 0.1, 3.5, 1.0, None, -1e300, NAN, None, -0.0],
            pa.float64(),
        ),
        "Bool": pa.array(
            [
                True,
                False,
                True,
                False,
                True,
                None,
                False,
                True,
                True,
                None,
                False,
                True,
                None,
                True,
                False,
            ],
            pa.bool_(),
        ),
        "Flag": pa.array([i % 3 == 0 for i in range(15)], pa.bool_()),
        "Text": pa.array(
            [
                "A",
                "B",
                "",
                "a",
                "abc",
                None,
                "Abc",
                "ß",
                "éA",
                None,
                "\U0001f600",
                "\ufb01x",
                "İ",
                "ΑΣ",
                "x y ",
            ],
            pa.string(),
        ),
        "Word": pa.array(
            [
                "A",
                "b",
                "",
                "A",
                "ABC",
                None,
                "b",
                "SS",
                "\uff21",
                "x",
                None,
                "a b",
                None,
                "ας",
                "X Y ",
            ],
            pa.string(),
        ),
        "Time": _instants(),
        "Date": _dates(),
        "Clock": _clocks(),
    }
)
"""One column of every type, with nulls, extremes and values that are special in Java."""


def texts(name: str) -> list[list[str]]:
    """The calls in one of the text files, each a list of texts."""
    path = pathlib.Path(__file__).with_name(name)
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split(" ;; ") for line in lines if line.strip()]


FILTERS = texts("expression_filters.txt")
FORMULAS = [f"X = {text}" for (text,) in texts("expression_formulas.txt")]


def _column(name: str) -> dict:
    return {"reference": {"column_name": name}}


def _literals() -> dict[str, dict]:
    values = {
        "2": {"long_value": "2"},
        "3000000000": {"long_value": "3000000000"},
        "-1": {"long_value": "-1"},
        "65": {"long_value": "65"},
        "2.0": {"double_value": 2.0},
        "0.1": {"double_value": 0.1},
        "-0.0": {"double_value": -0.0},
        "0.0": {"double_value": 0.0},
        "NaN": {"double_value": "NaN"},
        "1e300": {"double_value": 1e300},
        "true": {"bool_value": True},
        "A": {"string_value": "A"},
        "a b": {"string_value": "a b"},
        "empty": {"string_value": ""},
        "2024-01-01": {"nano_time_value": "1704067200000000000"},
        "1970": {"nano_time_value": "0"},
    }
    return {name: {"literal": value} for name, value in values.items()}


LITERALS = _literals()
_OPERATIONS = (
    "EQUALS",
    "NOT_EQUALS",
    "LESS_THAN",
    "LESS_THAN_OR_EQUAL",
    "GREATER_THAN",
    "GREATER_THAN_OR_EQUAL",
)
_COLUMNS = (
    "Byte",
    "Short",
    "Int",
    "Long",
    "Char",
    "Float",
    "Double",
    "Bool",
    "Flag",
    "Text",
    "Time",
    "Date",
    "Clock",
)


def _compare(operation: str, left: dict, right: dict, **more: str) -> dict:
    return {"compare": {"operation": operation, "lhs": left, "rhs": right, **more}}


def _comparisons() -> list[dict]:
    found = [
        _compare(operation, _column(column), literal)
        for column in _COLUMNS
        for name, literal in LITERALS.items()
        for operation in _OPERATIONS[:1] + _OPERATIONS[2:3] + _OPERATIONS[5:]
    ]
    found += [_compare(o, _column("Double"), LITERALS["0.1"]) for o in _OPERATIONS]
    found += [_compare(o, LITERALS["2"], _column("Int")) for o in _OPERATIONS]
    found += [_compare(o, LITERALS["A"], _column("Text")) for o in _OPERATIONS]
    pairs = [("Int", "Other"), ("Double", "Value"), ("Text", "Word"), ("Float", "Double")]
    pairs += [("Bool", "Flag"), ("Long", "Double"), ("Int", "Long"), ("Time", "Time")]
    pairs += [("Int", "Text"), ("Char", "Int"), ("Int", "Nope")]
    found += [_compare(o, _column(a), _column(b)) for a, b in pairs for o in _OPERATIONS]
    for operation in _OPERATIONS[:3]:
        for column, literal in (("Text", "A"), ("Text", "a b"), ("Int", "2")):
            found.append(
                _compare(
                    operation,
                    _column(column),
                    LITERALS[literal],
                    case_sensitivity="IGNORE_CASE",
                )
            )
    found.append(
        _compare("EQUALS", _column("Text"), _column("Word"), case_sensitivity="IGNORE_CASE")
    )
    found.append(_compare("EQUALS", LITERALS["2"], LITERALS["2"]))
    return found


def _memberships() -> list[dict]:
    lists = {
        "Int": (["2"], ["2", "-1"], ["2.0"], ["3000000000"], ["A"]),
        "Byte": (["2", "-1"],),
        "Long": (["2", "3000000000"],),
        "Short": (["2"],),
        "Char": (["65"], ["A"], ["A", "a b"]),
        "Float": (["0.1", "2.0"], ["2"], ["NaN"], ["0.0"]),
        "Double": (["0.1", "2.0"], ["2"], ["NaN"], ["NaN", "2.0"], ["0.0"], ["-0.0", "2.0"]),
        "Text": (["A"], ["A", "a b"], ["2"], ["empty"]),
        "Bool": (["true"], ["A"]),
        "Time": (["1970"], ["1970", "2024-01-01"], ["2"]),
        "Date": (["1970"],),
    }
    variants: list[dict] = [
        {},
        {"match_type": "INVERTED"},
        {"case_sensitivity": "IGNORE_CASE"},
        {"case_sensitivity": "IGNORE_CASE", "match_type": "INVERTED"},
        {"nan_comparison": "NAN_EQUALS_NAN"},
        {"nan_comparison": "NAN_NOT_EQUALS_NAN"},
    ]
    return [
        {"in": {"target": _column(name), "candidates": [LITERALS[c] for c in candidates], **more}}
        for name, every in lists.items()
        for candidates in every
        for more in variants
    ]


def _searches() -> list[dict]:
    found: list[dict] = []
    variants: list[dict] = [
        {},
        {"match_type": "INVERTED"},
        {"case_sensitivity": "IGNORE_CASE"},
        {"case_sensitivity": "IGNORE_CASE", "match_type": "INVERTED"},
    ]
    for column, searched in (
        ("Text", "b"),
        ("Text", "A"),
        ("Text", ""),
        ("Text", "ß"),
        ("Text", "éa"),
        ("Text", "."),
        ("Int", "1"),
        ("Word", "ss"),
        ("Text", "É"),
        ("Text", "i"),
        ("Text", "\u03b1\u03c3"),
        ("Word", "\u0391\u03a3"),
        ("Text", "SS"),
    ):
        for more in variants:
            reference = {"column_name": column}
            found.append({"contains": {"reference": reference, "search_string": searched, **more}})
    for column, regex in (
        ("Text", "A"),
        ("Text", "[A-Z]"),
        ("Text", "[ab].*"),
        ("Text", ".*"),
        ("Text", "^A$"),
        ("Text", "a|A"),
        ("Text", "("),
        ("Text", "a b"),
        ("Word", "\\w+"),
        ("Int", "1"),
        ("Word", "[a-z]{1,2}"),
        ("Text", "É."),
        ("Text", "(?:A|b)+c?"),
        ("Text", "[^a].*"),
        ("Text", "."),
        ("Word", "\\S\\s\\w"),
    ):
        for more in variants:
            reference = {"column_name": column}
            found.append({"matches": {"reference": reference, "regex": regex, **more}})
    for searched, columns in (
        ("A", ["Text"]),
        ("a", ["Text", "Word"]),
        ("a", []),
        ("2", []),
        ("2", ["Int"]),
        ("", ["Text"]),
        ("true", ["Bool"]),
        ("ss", ["Text", "Word"]),
        ("x", ["Word", "Int"]),
        ("0.1", ["Double"]),
    ):
        references = [{"column_name": column} for column in columns]
        found.append({"search": {"search_string": searched, "optional_references": references}})
    return found


def _calls() -> list[dict]:
    found = []
    for method, target, arguments in (
        ("startsWith", "Text", ["A"]),
        ("endsWith", "Text", ["A"]),
        ("contains", "Text", ["A"]),
        ("equals", "Text", ["A"]),
        ("equalsIgnoreCase", "Text", ["A"]),
        ("isEmpty", "Text", []),
        ("matches", "Text", ["A"]),
        ("eq", "Text", ["A"]),
        ("eqIgnoreCase", "Text", ["A"]),
        ("in", "Text", ["A", "a b"]),
        ("inIgnoreCase", "Text", ["A", "a b"]),
        ("containsIgnoreCase", "Text", ["A"]),
        ("startsWith", "Int", ["A"]),
        ("foo", "Text", ["A"]),
    ):
        given = [LITERALS[argument] for argument in arguments]
        call = {"invoke": {"method": method, "target": _column(target), "arguments": given}}
        filled = {"not": {"filter": {"is_null": {"reference": {"column_name": target}}}}}
        found += [call, {"and": {"filters": [filled, call]}}]
    first = {"invoke": {"method": "isNaN", "arguments": [_column("Double")]}}
    return [*found, first, {"invoke": {"method": "isNull", "arguments": [_column("Int")]}}]


def _combinations() -> list[dict]:
    above = _compare("GREATER_THAN", _column("Int"), LITERALS["2"])
    flag = _compare("EQUALS", _column("Flag"), LITERALS["true"])
    tests = [
        {kind: {"reference": {"column_name": column}}}
        for kind in ("is_null", "is_nan")
        for column in (*_COLUMNS, "Nope")
    ]
    filled = {"not": {"filter": {"is_null": {"reference": {"column_name": "Text"}}}}}
    text = {"column_name": "Text"}
    inner = [
        {"contains": {"reference": text, "search_string": "A"}},
        {"contains": {"reference": text, "search_string": "A", "match_type": "INVERTED"}},
        {"matches": {"reference": text, "regex": "A"}},
        {"search": {"search_string": "A", "optional_references": [text]}},
        {"in": {"target": _column("Text"), "candidates": [LITERALS["A"]]}},
        {
            "invoke": {
                "method": "startsWith",
                "target": _column("Text"),
                "arguments": [LITERALS["A"]],
            }
        },
        {"invoke": {"method": "isNaN", "arguments": [_column("Double")]}},
        _compare("EQUALS", _column("Text"), LITERALS["A"], case_sensitivity="IGNORE_CASE"),
        *(_compare(operation, _column("Double"), _column("Value")) for operation in _OPERATIONS),
    ]
    return [
        *({"not": {"filter": one}} for one in inner),
        *({"and": {"filters": [filled, {"not": {"filter": one}}]}} for one in inner),
        *({"or": {"filters": [above, {"not": {"filter": one}}]}} for one in inner),
        {"not": {"filter": {"not": {"filter": inner[0]}}}},
        *tests,
        *({"not": {"filter": test}} for test in tests),
        {"and": {"filters": [above, flag]}},
        {"or": {"filters": [above, flag]}},
        {"and": {"filters": [above]}},
        {"or": {"filters": []}},
        {"and": {"filters": []}},
        {"not": {"filter": above}},
        {"not": {"filter": {"and": {"filters": [above, flag]}}}},
        {"not": {"filter": {"or": {"filters": [above, {"not": {"filter": flag}}]}}}},
        {"not": {"filter": _compare("GREATER_THAN", _column("Double"), LITERALS["0.1"])}},
        {"not": {"filter": _compare("LESS_THAN_OR_EQUAL", _column("Double"), LITERALS["0.1"])}},
        {"not": {"filter": _compare("EQUALS", _column("Double"), LITERALS["NaN"])}},
        {"not": {"filter": _compare("LESS_THAN", _column("Text"), LITERALS["A"])}},
        {},
        {"not": {}},
        {"compare": {"operation": "EQUALS"}},
    ]


CONDITIONS = [*_comparisons(), *_memberships(), *_searches(), *_calls(), *_combinations()]
"""Structured conditions in the JSON form of their messages."""
