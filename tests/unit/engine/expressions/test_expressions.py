"""Expressions: results, three-valued logic, and errors that say where."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine.expressions.expression import Expression, bind, bind_condition
from barrage.engine.expressions.expression_text import TEXT_LENGTH_MAX
from barrage.errors import ExpressionError

DATA = pa.table(
    {
        "Price": [1.0, 5.0, None],
        "Sym": ["A", "B", None],
        "n": [1, 2, 2**62],
        "t": pa.array([0, 10**18, None], pa.timestamp("ns", "UTC")),
        "d": pa.array(["x", "y", None]).dictionary_encode(),
        "b": [True, None, False],
        "two words": [1, 2, 3],
    }
)


def evaluate(text: str) -> list[Any]:
    bound = bind(text, DATA.schema)
    cells = [DATA.column(index).combine_chunks() for index in bound.columns]
    values = bound.evaluate(cells, len(DATA))
    assert values.type == bound.type
    return values.to_pylist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Price > 3 and Sym in ('A','B')", [False, True, None]),
        ("Sym not in ('A')", [False, True, None]),
        ("not b", [False, None, True]),
        ("not n > 1 or b", [True, None, False]),
        ("b or n > 1", [True, True, True]),
        ("b and n > 99", [False, False, False]),
        ("isnull(Sym) or Price<3", [True, False, True]),
        ("b is not null", [True, False, True]),
        ("b is null", [False, True, False]),
        ("Price == null", [None, None, None]),
        ("n + 1 * 2 - -3", [6, 7, 2**62 + 5]),
        ("n - 1 - 1", [-1, 0, 2**62 - 2]),
        ("(n + 1) / 4", [0.5, 0.75, 2.0**60]),
        ("- - Price", [1.0, 5.0, None]),
        ("Price / 0", [float("inf"), float("inf"), None]),
        ("startswith(Sym, 'A')", [True, False, None]),
        ("t > '1990-01-01T00:00:00Z'", [False, True, None]),
        ("year(t)", [1970, 2001, None]),
        ("d = 'x'", [True, False, None]),
        ("d in (\"x\", 'it''s')", [True, False, None]),
        ("`two words` <> 2", [True, False, True]),
        ("if(b, n, 0)", [1, None, 0]),
        ("coalesce(Price, 0.5)", [1.0, 5.0, 0.5]),
        ("greatest(n, 2)", [2, 2, 2**62]),
        ("LOWER(Sym)", ["a", "b", None]),
        ("1 < 2", [True, True, True]),
        ("1.5e1", [15.0, 15.0, 15.0]),
        ("n >= 2 and n <= 2", [False, True, False]),
    ],
)
def test_values(text: str, expected: list[Any]) -> None:
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Prce > 3", "unknown column 'Prce'; did you mean 'Price'? at position 1: Prce > 3"),
        ("Price >", "found the end at position 8"),
        ("Price > 'a'", "'>' cannot be applied: .* at position 7"),
        ("1 < 2 < 3", "comparisons cannot be chained; join them with 'and' at position 7"),
        ("foo(n)", "unknown function 'foo'"),
        ("lowr(Sym)", "did you mean 'lower'"),
        ("lower(Sym, Sym)", "'lower' takes 1 operands, not 2"),
        ("if(b)", "takes 3 operands"),
        ("Sym in (n)", "holds only constants at position 9"),
        ("Sym in (null)", "holds only constants"),
        ("Sym in ()", "expected a column"),
        ("Sym not 'A'", "expected 'in'"),
        ("b is 3", "expected 'null'"),
        ("'abc", "unfinished text at position 1"),
        ("Price $ 3", r"unexpected '\$' at position 7"),
        ("n 3", "expected an operator, found '3' at position 3"),
        ("", "expected a column"),
        ("(n", r"expected '\)'"),
        ("lower(Sym", r"expected '\)'"),
        ("99999999999999999999 > n", "does not fit 64 bits at position 1"),
        ("9223372036854775808 > n", "does not fit 64 bits"),
        ("startswith(Sym, Sym)", "must be a text constant"),
        ("(" * 40 + "n" + ")" * 40, "nested deeper than 32 levels at position 33"),
        ("not " * 40 + "b", "nested deeper"),
        ("-" * 40 + "n", "nested deeper"),
        ("n" * (TEXT_LENGTH_MAX + 1), "the limit is 16384"),
    ],
)
def test_errors_name_the_place(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message.replace("?", r"\?")):
        evaluate(text)


def test_overflow_is_an_error_and_not_a_wrong_value() -> None:
    with pytest.raises(ExpressionError, match=r"'\*' cannot be applied: overflow at position 3"):
        evaluate("n * 4")


def test_a_filter_must_be_a_condition() -> None:
    with pytest.raises(ExpressionError, match="true or false, not int64: n \\+ 1"):
        bind_condition("n + 1", DATA.schema)
    parsed = Expression.parse(" n > 1 ")
    assert parsed.text == "n > 1"
    bound = bind_condition(parsed, DATA.schema)
    assert bound.columns == (2,)


def test_long_chains_need_no_stack() -> None:
    assert evaluate(" + ".join(["1"] * 4000)) == [4000] * 3
    assert evaluate(" and ".join(["b"] * 2000)) == [True, None, False]


@given(st.text("nSymPrice()'\"`<>=!+-*/,. 019andortis", max_size=40))
def test_any_text_gives_a_value_or_an_expression_error(text: str) -> None:
    try:
        values = evaluate(text)
    except ExpressionError:
        return
    assert len(values) == 3
