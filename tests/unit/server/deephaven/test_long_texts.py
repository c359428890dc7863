"""Long texts of Deephaven clients: read beside the engine thread, once, by the same rules."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from barrage.errors import ExpressionError
from barrage.server.deephaven.operations import column_operations, row_operations
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.table_requests import ROWS, Client

LONG = "n" + " + n" * 1_000
MANY = tuple(f"n != {number}" for number in range(10, 900))


@pytest.fixture
def client(bench) -> Client:
    return Client(bench)


@pytest.fixture
def source(bench) -> bytes:
    return bench.static(1, ROWS)


def noted(monkeypatch, module: Any, name: str) -> list[str]:
    """Names of the threads that call a function of a module."""
    threads: list[str] = []
    called = getattr(module, name)

    def noting(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return called(*arguments)

    monkeypatch.setattr(module, name, noting)
    return threads


@pytest.mark.parametrize("texts", [(f"{LONG} > 2002",), (*MANY, "n > 2")])
def test_long_filters_are_read_once_and_beside_the_engine(
    client, source, monkeypatch, texts
) -> None:
    threads = noted(monkeypatch, row_operations, "parse_filters")
    rows = client.of(source, "UnstructuredFilter", "UnstructuredFilterTableRequest", filters=texts)
    assert rows == [(None, 4, None)]
    assert threads == ["barrage-queries"]


@pytest.mark.parametrize(
    ("method", "name", "cells"),
    [
        ("View", "parse_selection", [(1001,), (2002,), (None,), (4004,)]),
        (
            "UpdateView",
            "parse_update",
            [
                ("a", 1, 0.5, 1001),
                ("b", 2, -2.0, 2002),
                ("a", None, 1.5, None),
                (None, 4, None, 4004),
            ],
        ),
    ],
)
def test_long_formulas_are_read_once_and_beside_the_engine(
    client, source, monkeypatch, method, name, cells
) -> None:
    threads = noted(monkeypatch, column_operations, name)
    asked = {"column_specs": [f"total = {LONG}"]}
    assert client.of(source, method, "SelectOrUpdateRequest", **asked) == cells
    assert threads == ["barrage-queries"]


def less_than(number: int) -> Any:
    column = MESSAGES.new("Reference", column_name="n")
    literal = MESSAGES.new("Literal", long_value=number)
    comparison = MESSAGES.new(
        "CompareCondition",
        operation=MESSAGES.new("CompareCondition").CompareOperation.LESS_THAN,
        lhs=MESSAGES.new("Value", reference=column),
        rhs=MESSAGES.new("Value", literal=literal),
    )
    return MESSAGES.new("Condition", compare=comparison)


def test_large_conditions_are_read_once_and_beside_the_engine(client, source, monkeypatch) -> None:
    reading = noted(monkeypatch, row_operations, "filter_expression")
    filters = [less_than(number) for number in range(3, 900)]
    rows = client.of(source, "Filter", "FilterTableRequest", filters=filters)
    assert [n for _, n, _ in rows] == [1, 2, None]
    assert reading == ["barrage-queries"]


def test_a_long_filter_that_is_wrong_is_refused_with_its_place(client, source) -> None:
    with pytest.raises(ExpressionError, match="unknown column 'm'"):
        client.of(
            source,
            "UnstructuredFilter",
            "UnstructuredFilterTableRequest",
            filters=[f"m + {LONG} > 0"],
        )


def test_short_texts_are_read_on_the_engine_thread(client, source, monkeypatch) -> None:
    threads = noted(monkeypatch, row_operations, "parse_filters")
    rows = client.of(
        source, "UnstructuredFilter", "UnstructuredFilterTableRequest", filters=["n > 2"]
    )
    assert len(rows) == 1
    assert threads == ["barrage-engine"]
