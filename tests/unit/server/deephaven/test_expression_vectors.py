"""Our filters, formulas and conditions against the recorded answers of a real Deephaven server.

Whatever we accept must give the server's rows, values and type; whatever the server refuses we
refuse. How much we accept of what it accepts is counted, so that it does not shrink unseen.
"""

from __future__ import annotations

import base64
import json
import pathlib

import pyarrow as pa
import pytest

from barrage.engine.expression import bind, bind_condition
from barrage.engine.java_values import KIND_TYPES
from barrage.errors import ExpressionError
from barrage.server.deephaven.filter_text import parse_filters
from barrage.server.deephaven.selection_text import parse_selection

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
    except ExpressionError:
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


@pytest.mark.parametrize("case", _VECTORS["filters"], ids=lambda case: " ;; ".join(case["texts"]))
def test_filters_select_the_rows_that_deephaven_selects(case):
    found = answer_to(lambda: filter_rows(case["texts"]))
    assert found is None or found == case.get("rows")


@pytest.mark.parametrize("case", _VECTORS["formulas"], ids=lambda case: case["text"])
def test_formulas_give_the_values_that_deephaven_gives(case):
    found = answer_to(lambda: formula_values(case["text"]))
    if found is None:
        return
    assert "refused" not in case
    data_type, values = found
    assert values == case["values"]
    assert data_type == KIND_TYPES[_JAVA.get(case["type"], case["type"])]


def test_most_of_what_deephaven_accepts_is_accepted():
    filters = [case["texts"] for case in _VECTORS["filters"] if "rows" in case]
    accepted = [texts for texts in filters if answer_to(lambda: filter_rows(texts)) is not None]
    assert len(accepted) > 0.9 * len(filters)
    formulas = [case["text"] for case in _VECTORS["formulas"] if "values" in case]
    computed = [text for text in formulas if answer_to(lambda: formula_values(text)) is not None]
    assert len(computed) > 0.85 * len(formulas)
