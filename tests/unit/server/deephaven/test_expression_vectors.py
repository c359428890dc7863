"""Our filters, formulas and conditions against the recorded answers of a real Deephaven server.

Whatever we accept must give the server's rows, values and type; whatever the server refuses we
refuse. How much we accept of what it accepts is counted, so that it does not shrink unseen.
"""

from __future__ import annotations

import base64
import json
import pathlib
from functools import partial

import pyarrow as pa
from google.protobuf import json_format

from barrage.engine.expressions.expression import bind, bind_condition
from barrage.engine.expressions.java_values import KIND_TYPES
from barrage.errors import ExpressionError, UnsupportedError
from barrage.server.deephaven.text.conditions import filter_expression
from barrage.server.deephaven.text.filter_text import parse_filters
from barrage.server.deephaven.text.selection_text import parse_selection
from barrage.transport.deephaven_messages import MESSAGES

_PATH = pathlib.Path(__file__).parents[3] / "vectors" / "deephaven_expressions.json"
_VECTORS = json.loads(_PATH.read_text(encoding="utf-8"))
DATA = pa.ipc.open_stream(base64.b64decode(_VECTORS["data"])).read_all()
_JAVA = {
    "java.lang.Boolean": "boolean",
    "java.lang.String": "text",
    "java.time.Instant": "instant",
    "java.time.LocalDate": "date",
    "java.time.LocalTime": "clock",
}


def evaluate(bound):
    cells = [DATA.column(index).combine_chunks() for index in bound.columns]
    values = bound.evaluate(cells, len(DATA))
    values.validate(full=True)
    assert values.type == bound.type
    return values


def selected_rows(condition):
    answers = evaluate(bind_condition(condition, DATA.schema)).to_pylist()
    return [row for row, answer in enumerate(answers) if answer]


def answer_to(parse):
    """What we say; None when we refuse."""
    try:
        return parse()
    except (ExpressionError, UnsupportedError):
        return None


def filter_rows(texts):
    return selected_rows(parse_filters(texts, DATA.schema))


def formula_values(text):
    ((_, expression),) = parse_selection([text], DATA.schema)
    values = evaluate(bind(expression, DATA.schema))
    shown = values.cast(pa.int64()) if pa.types.is_temporal(values.type) else values
    if pa.types.is_floating(values.type):
        return values.type, [None if v is None else repr(v) for v in shown.to_pylist()]
    return values.type, shown.to_pylist()


def answers(kind):
    """Every case of one kind with what we say, asked once for all tests."""
    if kind not in _ANSWERS:
        ask = _ASK[kind]
        _ANSWERS[kind] = [(case, answer_to(partial(ask, case))) for case in _VECTORS[kind]]
    return _ANSWERS[kind]


def test_filters_select_the_rows_that_deephaven_selects():
    for case, found in answers("filters"):
        assert found is None or found == case.get("rows"), case["texts"]


def test_formulas_give_the_values_that_deephaven_gives():
    for case, found in answers("formulas"):
        if found is None:
            continue
        assert "refused" not in case, case["text"]
        data_type, values = found
        assert values == case["values"], case["text"]
        assert data_type == KIND_TYPES[_JAVA.get(case["type"], case["type"])], case["text"]


def condition_rows(condition):
    message = json_format.ParseDict(condition, MESSAGES.new("Condition"))
    return selected_rows(filter_expression([message], DATA.schema))


_ANSWERS = {}
_ASK = {
    "filters": lambda case: filter_rows(case["texts"]),
    "formulas": lambda case: formula_values(case["text"]),
    "conditions": lambda case: condition_rows(case["condition"]),
}


def test_conditions_select_the_rows_that_deephaven_selects():
    for case, found in answers("conditions"):
        if "is_nan" not in str(case["condition"]):
            assert found is None or found == case.get("rows"), case["condition"]


def test_nan_can_be_asked_for_though_the_recorded_server_could_not():
    condition = {"is_nan": {"reference": {"column_name": "Double"}}}
    assert condition_rows(condition) == filter_rows(["isNaN(Double)"])


def test_most_of_what_deephaven_accepts_is_accepted():
    for kind, least in (("filters", 0.9), ("formulas", 0.85), ("conditions", 0.85)):
        accepted = [
            found for case, found in answers(kind) if case.get("rows") or case.get("values")
        ]
        assert sum(found is not None for found in accepted) > least * len(accepted), kind
