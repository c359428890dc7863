"""The Python API of a server: kinds of tables, forms of rows, transactions, views, errors."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import barrage
from barrage.errors import (
    ExpressionError,
    LocalProtocolError,
    RowError,
    SchemaError,
    TableExistsError,
    TableFailedError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.limits import Limits
from barrage.server import ServerConfig
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST

SCHEMA = {"k": "int64", "s": "string"}
ROWS = [{"k": 1, "s": "a"}, {"k": 2, "s": None}]


class OnlyCapsule:
    """Something that is neither Arrow nor a data frame, but exports an Arrow stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


FORMS = {
    "Arrow table": pa.table({"k": [1, 2], "s": ["a", None]}),
    "Arrow batch": pa.record_batch({"k": [1, 2], "s": ["a", None]}),
    "other order": pa.table({"s": ["a", None], "k": [1, 2]}),
    "narrower type": pa.table({"k": pa.array([1, 2], pa.int8()), "s": ["a", None]}),
    "dictionary": pa.table({"k": [1, 2], "s": pa.array(["a", None]).dictionary_encode()}),
    "pandas": pd.DataFrame({"k": [1, 2], "s": ["a", None]}),
    "pandas with an index": pd.DataFrame({"k": [1, 2], "s": ["a", None]}, index=[7, 8]),
    "polars": pl.DataFrame({"k": [1, 2], "s": ["a", None]}),
    "list of dicts": ROWS,
    "tuple of dicts": tuple(ROWS),
    "dict of lists": {"k": [1, 2], "s": ["a", None]},
    "dict of arrays": {"k": np.array([1, 2]), "s": pa.array(["a", None])},
    "dict of series": {"k": pl.Series([1, 2]), "s": pl.Series(["a", None])},
    "arrow stream": OnlyCapsule(pa.table({"k": [1, 2], "s": ["a", None]})),
}


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_rows(server, rows):
    table = server.create_table("t", SCHEMA)
    step = table.add(rows)
    assert step >= 1
    assert table.to_arrow().to_pylist() == ROWS
    assert table.schema == pa.schema({"k": pa.int64(), "s": pa.string()})


def test_one_row_as_a_dict(server):
    table = server.create_table("t", SCHEMA, key="k")
    table.upsert({"k": 5, "s": "x"})
    assert table.to_arrow().to_pylist() == [{"k": 5, "s": "x"}]


BAD_ROWS = {
    "unknown column": ({"k": [1], "s": ["a"], "z": [1]}, SchemaError, "'z'"),
    "missing column": ({"k": [1]}, SchemaError, "'s'"),
    "lengths": ({"k": [1, 2], "s": ["a"]}, SchemaError, "lengths"),
    "wrong value": ({"k": [1, "x"], "s": ["a", "b"]}, RowError, "column 'k', row 1"),
    "overflow": ({"k": [2**63], "s": ["a"]}, RowError, "column 'k', row 0"),
    "fraction": (pa.table({"k": [1.0, 1.5], "s": ["a", "b"]}), RowError, "column 'k', row 1"),
    "dict unknown": ([{"k": 1, "s": "a", "z": 0}], RowError, "column 'z', row 0"),
    "dict missing": ([{"k": 1, "s": "a"}, {"k": 1}], RowError, "column 's', row 1"),
    "not a dict": ([{"k": 1, "s": "a"}, 3], RowError, "row 1"),
    "not rows": (42, SchemaError, "int"),
    "text": ("rows", SchemaError, "str"),
    "type": (pa.table({"k": [[1]], "s": ["a"]}), SchemaError, "'k'"),
}


@pytest.mark.parametrize(("rows", "error", "text"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_bad_rows_name_what_is_wrong_and_change_nothing(server, rows, error, text):
    table = server.create_table("t", SCHEMA)
    with pytest.raises(error, match=text):
        table.add(rows)
    assert len(table) == 0


def test_kinds_and_their_writes(server):
    appended = server.create_table("append_only", SCHEMA)
    appended.add(ROWS)
    with pytest.raises(UnsupportedError):
        appended.upsert(ROWS)
    with pytest.raises(UnsupportedError, match="no key"):
        appended.remove([1])

    keyed = server.create_table("keyed", SCHEMA, key="k")
    keyed.upsert(ROWS)
    keyed.upsert({"k": 2, "s": "changed"})
    keyed.remove([1])
    assert keyed.to_arrow().to_pylist() == [{"k": 2, "s": "changed"}]
    keyed.replace(ROWS)
    assert len(keyed) == 2

    listed = server.create_table("list", SCHEMA, kind="list", data=ROWS)
    listed.insert(1, {"k": 9, "s": "middle"})
    listed.delete(0, 1)
    assert listed.to_arrow()["k"].to_pylist() == [9, 2]

    ring = server.create_table("ring", SCHEMA, capacity=1)
    ring.add(ROWS)
    assert ring.to_arrow()["k"].to_pylist() == [2]

    static = server.create_table("static", kind="static", data=ROWS)
    assert static.to_arrow().to_pylist() == ROWS
    with pytest.raises(UnsupportedError):
        static.add(ROWS)

    blink = server.create_table("blink", SCHEMA, kind="blink")
    assert blink.add(ROWS) >= 1


@pytest.mark.parametrize(
    "keys", [1, [1], (1,), {1}, [(1,)], {"k": [1]}, {"k": 1}, [{"k": 1}], pa.array([1]),
             pa.table({"k": [1], "other": [0]}), pd.DataFrame({"k": [1]})],
)  # fmt: skip
def test_forms_of_keys(server, keys):
    table = server.create_table("t", key="k", data=ROWS)
    table.remove(keys)
    assert table.to_arrow()["k"].to_pylist() == [2]


def test_keys_of_two_columns(server):
    table = server.create_table("t", key=["k", "s"], data={"k": [1, 1], "s": ["a", "b"]})
    table.remove([(1, "a")])
    assert table.to_arrow()["s"].to_pylist() == ["b"]
    with pytest.raises(RowError, match="tuple of k, s"):
        table.remove([1])


RECIPES = {
    "no schema": ({}, "schema or data"),
    "bad alias": ({"schema": {"x": "int65"}}, "int65"),
    "not a schema": ({"schema": 3}, "int"),
    "unknown kind": ({"schema": SCHEMA, "kind": "heap"}, "heap"),
    "keyed without key": ({"schema": SCHEMA, "kind": "keyed"}, "needs key columns"),
    "key on a ring": ({"schema": SCHEMA, "kind": "ring", "key": "k", "capacity": 1}, "no key"),
    "key unknown": ({"schema": SCHEMA, "key": "z"}, "'z'"),
    "ring without capacity": ({"schema": SCHEMA, "kind": "ring"}, "capacity"),
    "capacity on a list": ({"schema": SCHEMA, "kind": "list", "capacity": 3}, "no capacity"),
    "capacity 0": ({"schema": SCHEMA, "capacity": 0}, "1 or more"),
}


@pytest.mark.parametrize(("wishes", "text"), RECIPES.values(), ids=RECIPES.keys())
def test_wrong_recipes(server, wishes, text):
    with pytest.raises(SchemaError, match=text):
        server.create_table("t", **wishes)
    assert server.table_names() == []


@pytest.mark.parametrize("name", ["", "line\nbreak", "x" * 2000, 3])
def test_wrong_names(server, name):
    with pytest.raises(SchemaError):
        server.create_table(name, SCHEMA)


def test_names_are_unique_and_found_again(server):
    server.create_table("trades", SCHEMA)
    with pytest.raises(TableExistsError):
        server.create_table("trades", SCHEMA)
    with pytest.raises(TableNotFoundError, match="did you mean 'trades'"):
        server.table("trade")
    server.drop_table("trades")
    with pytest.raises(TableNotFoundError):
        server.drop_table("trades")
    server.create_table("trades", SCHEMA)


def test_first_rows_that_do_not_fit_publish_nothing(server):
    with pytest.raises(RowError):
        server.create_table("t", key="k", data={"k": [1, None], "s": ["a", "b"]})
    assert server.table_names() == []


def test_not_waiting_gives_a_future(server):
    table = server.create_table("t", SCHEMA, key="k")
    futures = [table.upsert({"k": i, "s": "x"}, wait=False) for i in range(100)]
    assert all(isinstance(future, Future) for future in futures)
    steps = [future.result(60) for future in futures]
    assert steps == sorted(steps)
    assert len(table) == 100
    refused = table.upsert({"k": [1, None], "s": ["a", "b"]}, wait=False)
    assert isinstance(refused.exception(10), RowError)


def test_not_waiting_is_bounded_by_the_ingest_limit():
    limits = Limits(ingest_bytes_pending_max=1000)
    with barrage.Server(HOST, config=ServerConfig(limits=limits)) as server:
        table = server.create_table("t", {"x": "int64"})
        gate = threading.Event()
        server._parts.runtime.submit(gate.wait)
        part = pa.table({"x": range(50)})
        futures = [table.add(part, wait=False) for _ in range(2)]
        third = threading.Thread(target=lambda: futures.append(table.add(part, wait=False)))
        third.start()
        budget = server._parts.tables._budget
        wait_until(lambda: budget._has_room._waiters)
        assert budget.bytes_pending == 800
        gate.set()
        third.join()
        for future in futures:
            future.result(60)
        assert len(table) == 150
        wait_until(lambda: budget.bytes_pending == 0)
        table.add(pa.table({"x": range(10_000)}), wait=False).result(60)


# --- transactions ---


def test_a_transaction_is_one_step_for_several_tables(server):
    left = server.create_table("left", SCHEMA, key="k")
    right = server.create_table("right", SCHEMA)
    with server.transaction() as changes:
        changes.upsert(left, ROWS)
        changes.add(right, ROWS)
        changes.remove(left, 1)
        assert len(left) == len(right) == 0
    assert changes.step is not None
    assert left.to_arrow()["k"].to_pylist() == [2]
    assert len(right) == 2


def test_a_transaction_that_fails_changes_nothing(server):
    left = server.create_table("left", SCHEMA)
    right = server.create_table("right", SCHEMA, key="k")
    with pytest.raises(RowError), server.transaction() as changes:  # noqa: PT012
        changes.add(left, ROWS)
        changes.upsert(right, {"k": [1, None], "s": ["a", "b"]})
    assert len(left) == len(right) == 0
    assert changes.step is None
    left.add(ROWS)
    assert len(left) == 2


def test_a_transaction_left_by_an_exception_commits_nothing(server):
    table = server.create_table("t", SCHEMA)
    with pytest.raises(ZeroDivisionError), server.transaction() as changes:  # noqa: PT012
        changes.add(table, ROWS)
        _ = 1 / 0
    assert len(table) == 0
    with pytest.raises(LocalProtocolError, match="has ended"):
        changes.add(table, ROWS)


def test_all_changes_of_a_transaction(server):
    table = server.create_table("t", SCHEMA, kind="list")
    keyed = server.create_table("k", SCHEMA, key="k")
    with server.transaction() as changes:
        changes.insert(table, 0, ROWS)
        changes.delete(table, 0, 1)
        changes.replace(keyed, ROWS)
    assert len(table) == 1
    assert len(keyed) == 2


# --- views ---


def test_views_tick_and_can_be_published(server):
    table = server.create_table("t", key="k", data=ROWS)
    view = table.where("k > 1").select("k", double="k * 2").sort("-k").head(5)
    published = server.publish("large", view)
    table.upsert({"k": 7, "s": "z"})
    expected = [{"k": 7, "double": 14}, {"k": 2, "double": 4}]
    assert view.to_arrow().to_pylist() == published.to_arrow().to_pylist() == expected
    assert server.table_names() == ["large", "t"]
    assert not hasattr(published, "add")
    assert repr(published).startswith("<View 'large'")


def test_all_operators(server):
    table = server.create_table("t", SCHEMA)
    table.add([{"k": 1, "s": "a"}, {"k": 2, "s": "a"}, {"k": 3, "s": "b"}])
    assert table.tail(1).to_arrow()["k"].to_pylist() == [3]
    assert table.last_by("s").to_arrow()["k"].to_pylist() == [2, 3]
    assert table.drop("s").schema.names == ["k"]


@pytest.mark.parametrize("condition", ["k >", "nope = 1", "__import__('os')", "k = 'a'"])
def test_bad_expressions(server, condition):
    table = server.create_table("t", SCHEMA)
    with pytest.raises((ExpressionError, SchemaError)):
        table.where(condition)


def test_a_failed_table_says_so(server, monkeypatch):
    table = server.create_table("t", SCHEMA)
    monkeypatch.setattr(type(table._table), "commit", lambda *_: 1 / 0)
    with pytest.raises(TableFailedError):
        table.add(ROWS)
    monkeypatch.undo()
    with pytest.raises(TableFailedError):
        server.table("t")


def test_writing_from_many_threads(server):
    table = server.create_table("t", SCHEMA)

    def write() -> None:
        for _ in range(50):
            table.add(ROWS)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table) == 400


UNTRAVELLED = pa.schema({"a": pa.list_(pa.list_view(pa.int64()))})


@pytest.mark.parametrize("kind", ["append_only", "static", "list"])
def test_a_table_that_could_not_travel_is_refused_when_it_is_made(server, kind):
    """Not when its first subscriber comes."""
    with pytest.raises(
        SchemaError, match=r"column 'a' .* list views inside other types cannot travel"
    ):
        server.create_table("t", UNTRAVELLED, kind=kind)
    assert server.table_names() == []
