"""Filters, formulas and conditions of any content: an answer or a typed refusal, nothing else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barrage.engine.expressions.expression import bind, bind_condition
from barrage.errors import (
    BarrageError,
    ExpressionError,
    LimitExceededError,
    RemoteProtocolError,
    UnsupportedError,
)
from barrage.limits import Limits
from barrage.server.deephaven.text.conditions import filter_expression
from barrage.server.deephaven.text.filter_text import parse_filters
from barrage.server.deephaven.text.selection_text import parse_selection, parse_update
from barrage.transport.deephaven_messages import MESSAGES
from tests.interop.expression_cases import CONDITIONS, DATA, FILTERS, FORMULAS

_SIGNS = "+ - * / % = == != < >= && || ! ? : ( ) , (int) (double) isNaN( X \\ é"
_CONSTANTS = "true null NaN in not icase isNull abs min 1 0 2.5f 3L 1e9 .5 `A` 'A' '2024-01-01'"
_LONGER = ('"a b"', "'2024-01-01T00:00:00Z'", ".length()", ".startsWith(`A`)", "X = ")
WORDS = st.sampled_from([*DATA.column_names, *_SIGNS.split(), *_CONSTANTS.split(), *_LONGER])
TEXTS = st.one_of(
    st.lists(WORDS, max_size=9).map(" ".join),
    st.lists(WORDS, max_size=9).map("".join),
    st.sampled_from([text for texts in FILTERS for text in texts] + FORMULAS).flatmap(
        lambda text: st.integers(0, len(text)).map(lambda cut: text[:cut] + text[cut + 1 :])
    ),
    st.text(max_size=30),
)


def evaluated(bound):
    cells = [DATA.column(index).combine_chunks() for index in bound.columns]
    values = bound.evaluate(cells, len(DATA))
    values.validate(full=True)
    assert values.type == bound.type
    assert len(values) == len(DATA)
    return values


@given(st.lists(TEXTS, max_size=2))
@example(["(" * 5000])
@example(["!" * 5000 + "Flag"])
@example(["-" * 5000 + "Int > 1"])
@example(["- " * 5000 + "Int > 1"])
@example(["Text" + ".trim()" * 2000 + " = `A`"])
@example(["Flag ? " * 2000])
@example(["(int)" * 3000 + "Int = 1"])
@example(["1" * 10_000 + ".5 > Int"])
@example(["Int in " + "1," * 8000 + "1"])
def test_any_filter_is_answered_or_refused(texts):
    try:
        evaluated(bind_condition(parse_filters(texts, DATA.schema), DATA.schema))
    except (ExpressionError, LimitExceededError):
        return


@given(st.lists(TEXTS | TEXTS.map("X = {}".format) | TEXTS.map("Int = {}".format), max_size=3))
def test_any_selection_is_answered_or_refused(texts):
    try:
        for _, expression in parse_selection(texts, DATA.schema):
            evaluated(bind(expression, DATA.schema))
        names = [name for name, _ in parse_update(texts, DATA.schema)]
    except ExpressionError:
        return
    assert names[: len(DATA.schema)] == DATA.column_names


def test_names_that_double_their_formula_are_computed_once_each():
    texts = ["A0 = Int"] + [f"A{n} = A{n - 1} + A{n - 1}" for n in range(1, 60)]
    for doublings, (_, expression) in enumerate(parse_selection(texts, DATA.schema)):
        values = evaluated(bind(expression, DATA.schema)).to_pylist()
        for value, number in zip(values, DATA["Int"].to_pylist(), strict=True):
            if number is not None and abs(number << doublings) < 2**31:
                assert value == number << doublings


def test_operations_of_all_formulas_of_a_request_are_bounded():
    texts = ["A0 = Int"] + [f"A{n} = A{n - 1} + Int" for n in range(1, 110)]
    with pytest.raises(LimitExceededError, match="5000 operations"):
        parse_selection(texts, DATA.schema)


def test_text_joined_with_itself_is_bounded():
    texts = ["A0 = Text + Text"] + [f"A{n} = A{n - 1} + A{n - 1}" for n in range(1, 40)]
    last = parse_selection(texts, DATA.schema)[-1][1]
    with pytest.raises(ExpressionError, match="joining text"):
        evaluated(bind(last, DATA.schema))


def test_long_chains_need_no_stack():
    evaluated(
        bind_condition(parse_filters(["Int" + " + 1" * 3000 + " > 0"], DATA.schema), DATA.schema)
    )


def test_size_of_all_texts_is_limited():
    limits = Limits(expression_bytes_max=20, operations_max=2)
    parse_filters(["Int > 1000", "Int < 2000"], DATA.schema, limits)
    with pytest.raises(LimitExceededError, match="21 characters"):
        parse_filters(["Int > 1000", "Int < 20000"], DATA.schema, limits)
    with pytest.raises(LimitExceededError, match="3 expressions"):
        parse_filters(["Flag"] * 3, DATA.schema, limits)


REFUSALS = (ExpressionError, UnsupportedError, LimitExceededError, RemoteProtocolError)


def message_of(condition):
    from google.protobuf import json_format

    return json_format.ParseDict(condition, MESSAGES.new("Condition"))


@given(st.sampled_from(CONDITIONS), st.data())
def test_any_condition_message_is_answered_or_refused(condition, data):
    raw = bytearray(message_of(condition).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = MESSAGES.decode("Condition", bytes(raw))
        bound = bind_condition(filter_expression([message], DATA.schema), DATA.schema)
        evaluated(bound)
    except REFUSALS:
        return


def test_the_depth_of_a_condition_is_limited():
    condition = {"is_null": {"reference": {"column_name": "Int"}}}
    for _ in range(4):
        condition = {"not": {"filter": condition}}
    message = message_of(condition)
    filter_expression([message], DATA.schema, Limits(expression_depth_max=4))
    with pytest.raises(LimitExceededError, match="levels"):
        filter_expression([message], DATA.schema, Limits(expression_depth_max=3))


def test_errors_name_the_text_and_the_place():
    with pytest.raises(ExpressionError, match=r"unknown column 'Itn'; did you mean 'Int'\? at pos"):
        parse_filters(["Flag", "Itn > 3"], DATA.schema)
    with pytest.raises(BarrageError, match=r"function 'now' is not supported at position 8: Time"):
        parse_filters(["Time > now()"], DATA.schema)
    with pytest.raises(ExpressionError, match="a method called on null"):
        evaluated(bind_condition(parse_filters(["Text.isEmpty()"], DATA.schema), DATA.schema))
