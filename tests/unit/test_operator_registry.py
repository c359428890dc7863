"""The list of operators, and that everything which follows from it is there."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path

import pytest

from barrage.engine.operators.derive import BUILDERS
from barrage.model.operators import OPERATORS, Form
from barrage.server import AsyncPublishedTable, PublishedTable


def test_every_operator_is_in_a_file_of_its_name():
    assert list(BUILDERS) == list(OPERATORS)
    for name, builder in BUILDERS.items():
        assert builder.__module__ == f"barrage.engine.operators.{name}"


@pytest.mark.parametrize("name", OPERATORS)
def test_functions_take_what_methods_give(name):
    method = inspect.signature(getattr(PublishedTable, name))
    builder = inspect.signature(BUILDERS[name])
    kinds = [
        [(part.kind, part.default) for part in itertools.islice(parts.parameters.values(), 1, None)]
        for parts in (method, builder)
    ]
    assert kinds[0] == kinds[1]
    assert inspect.getdoc(getattr(PublishedTable, name))
    assert inspect.signature(getattr(AsyncPublishedTable, name)) == method


@pytest.mark.parametrize("name", OPERATORS)
def test_a_query_says_all_a_method_can(name):
    spec = OPERATORS[name]
    assert spec.required <= len(spec.parameters)
    left_out = spec.parameters[spec.required :]
    assert all(each.form in (Form.TEXTS, Form.PAIRS) for each in left_out), "they become empty"
    names = {parameter.name for parameter in spec.parameters}
    for option in spec.options:
        assert set(option.arguments) <= names


@pytest.mark.parametrize("page", ["python-api.md", "publishing.md"])
def test_pages_tell_of_every_operator(page):
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    rows = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    told = set(re.findall(r"`(\w+)[`(]", rows))
    assert set(OPERATORS) <= told


def test_commands_apply_operators_in_one_order():
    options = [option.name for spec in OPERATORS.values() for option in spec.options]
    assert len(set(options)) == len(options)
    places = [spec.place for spec in OPERATORS.values() if spec.options]
    assert len(set(places)) == len(places)
    assert all(places)
