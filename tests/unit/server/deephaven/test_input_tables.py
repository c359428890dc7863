"""Rows of one table added to another one, or deleted from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from barrage.engine.operators import derive
from barrage.errors import (
    BarrageError,
    LimitExceededError,
    RowError,
    SchemaError,
    StatusCode,
    TicketError,
)
from barrage.server.deephaven import input_table_calls
from barrage.server.deephaven.input_table_calls import (
    InputTableCalls,
    NotAnInputTableError,
    last_per_key,
    rows_to_add,
)
from barrage.server.ingest import portions
from barrage.server.presentation.deephaven_schema import deephaven_view
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.arrow_samples import sample_columns
from tests.unit.server.deephaven.conftest import Bench, run

ROWS = pa.table({"k": pa.array([1, 2], pa.int32()), "s": ["a", "b"]})


def ticket(raw: bytes) -> Any:
    return MESSAGES.new("Ticket", ticket=raw)


def add(bench: Bench, target: bytes, rows: bytes) -> None:
    request = MESSAGES.encode(
        "AddTableRequest", input_table=ticket(target), table_to_add=ticket(rows)
    )
    calls = InputTableCalls(bench.resolver, bench.tables, bench.limits)
    assert run(calls.add(request, None, bench.session)) == b""


def delete(bench: Bench, target: bytes, rows: bytes) -> None:
    request = MESSAGES.encode(
        "DeleteTableRequest", input_table=ticket(target), table_to_remove=ticket(rows)
    )
    calls = InputTableCalls(bench.resolver, bench.tables, bench.limits)
    assert run(calls.delete(request, None, bench.session)) == b""


@pytest.fixture
def keyed(bench: Bench) -> Any:
    return bench.create("keyed", ROWS, key="k")


@pytest.fixture
def appended(bench: Bench) -> Any:
    return bench.create("appended", ROWS)


def test_rows_are_added_at_the_end(bench, appended):
    add(bench, b"s/appended", bench.static(1, ROWS.slice(1)))
    assert bench.rows(appended)[2:] == [{"k": 2, "s": "b"}]


def test_rows_replace_those_with_their_key(bench, keyed):
    rows = pa.table({"k": pa.array([2, 3], pa.int32()), "s": ["z", "c"]})
    add(bench, b"s/keyed", bench.static(1, rows))
    assert [row["s"] for row in bench.rows(keyed)] == ["a", "z", "c"]


def test_of_rows_with_one_key_the_last_counts(bench, keyed):
    rows = pa.table({"k": pa.array([5, 5, 1, 5], pa.int32()), "s": ["x", "y", "w", "z"]})
    add(bench, b"s/keyed", bench.static(1, rows))
    assert sorted((row["k"], row["s"]) for row in bench.rows(keyed)) == [
        (1, "w"),
        (2, "b"),
        (5, "z"),
    ]


def test_an_input_table_without_a_name_is_written_through_its_export(bench):
    table = bench.tables.create_input("append_only", ROWS.schema).result()
    target = bench.export(1, table, is_input=True)
    add(bench, target, bench.static(2, ROWS))
    assert bench.rows(table) == ROWS.to_pylist()


def test_a_table_can_be_added_to_itself(bench, appended):
    add(bench, b"s/appended", b"s/appended")
    assert bench.rows(appended) == ROWS.to_pylist() * 2


def test_columns_are_matched_by_name_and_cast(bench):
    own = pa.schema([("d", pa.date32()), ("n", pa.uint8()), ("t", pa.timestamp("us"))])
    table = bench.create("own", own.empty_table())
    shown = pa.table(
        {
            "t": pa.array([1_000], pa.timestamp("ns", "UTC")),
            "n": pa.array([200], pa.int16()),
            "d": pa.array([86_400_000], pa.date64()),
        }
    )
    add(bench, b"s/own", bench.static(1, shown))
    stored = bench.tables.read(table)
    assert stored.schema == own
    assert [
        column.cast("int64" if n == 2 else "int32").to_pylist()
        for n, column in enumerate(stored.columns)
    ] == [[1], [200], [1]]


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        (pa.table({"k": [1]}), SchemaError, "'s' is missing"),
        (pa.table({"k": [1], "s": ["a"], "z": [1]}), SchemaError, "unknown column 'z'"),
        (pa.table({"k": [2**40], "s": ["a"]}), RowError, "does not fit int32"),
        (pa.table({"k": [b"x"], "s": ["a"]}), BarrageError, "'k'"),
    ],
)
def test_rows_that_do_not_fit_change_nothing(bench, appended, rows, error, says):
    with pytest.raises(error, match=says) as raised:
        add(bench, b"s/appended", bench.static(1, rows))
    assert raised.value.status_code is StatusCode.INVALID_ARGUMENT
    assert bench.rows(appended) == ROWS.to_pylist()


def test_a_null_key_is_refused(bench, keyed):
    rows = pa.table({"k": pa.array([None], pa.int32()), "s": ["a"]})
    with pytest.raises(RowError, match="null"):
        add(bench, b"s/keyed", bench.static(1, rows))


def test_rows_are_deleted_by_their_key(bench, keyed):
    keys = pa.table({"k": [2, 9, 2], "more": ["ignored"] * 3})
    delete(bench, b"s/keyed", bench.static(1, keys))
    assert bench.rows(keyed) == [{"k": 1, "s": "a"}]


def test_rows_to_delete_need_the_whole_key(bench):
    table = bench.create("two", ROWS, key=("k", "s"))
    with pytest.raises(SchemaError, match="key column 's'"):
        delete(bench, b"s/two", bench.static(1, ROWS.select(["k"])))
    delete(bench, b"s/two", bench.static(2, ROWS.slice(1).select(["s", "k"])))
    assert bench.rows(table) == [{"k": 1, "s": "a"}]


def test_nothing_is_deleted_from_a_table_without_a_key(bench, appended):
    with pytest.raises(NotAnInputTableError, match="no key columns") as raised:
        delete(bench, b"s/appended", bench.static(1, ROWS))
    assert raised.value.status_code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("limit", "unit"), [("ingest_batch_rows_max", "rows"), ("upload_bytes_max", "bytes")]
)
def test_a_table_that_doubles_itself_stops_at_the_limit(bench, appended, limit, unit):
    size = {"rows": 2, "bytes": bench.tables.read(appended).nbytes}[unit]
    bench.limits = dataclasses.replace(bench.limits, **{limit: size})
    add(bench, b"s/appended", b"s/appended")
    with pytest.raises(LimitExceededError, match=f"{unit}, the limit is"):
        add(bench, b"s/appended", b"s/appended")
    assert len(bench.rows(appended)) == 4


@pytest.mark.parametrize("change", [add, delete])
def test_tables_that_are_no_input_tables(bench, keyed, change):
    rows = bench.static(1, ROWS)
    bench.create("read_only", ROWS, key="k", is_read_only=True)
    bench.tables.publish(
        "view", bench.tables.derive(lambda: derive.head(keyed, 1)).result()
    ).result()
    for target in (rows, b"s/read_only", b"s/view"):
        with pytest.raises(NotAnInputTableError, match="can't be used as an input table"):
            change(bench, target, rows)


@pytest.mark.parametrize("change", [add, delete])
def test_tickets_that_name_nothing(bench, keyed, change):
    for target, rows in ((b"s/none", b"s/keyed"), (b"s/keyed", b"s/none"), (b"", b"s/keyed")):
        with pytest.raises(TicketError):
            change(bench, target, rows)


def test_many_rows_are_prepared_off_the_loop(bench, keyed, monkeypatch):
    monkeypatch.setattr(input_table_calls, "ROWS_ON_LOOP_MAX", 1)
    rows = pa.table({"k": [7, 7], "s": ["x", "y"]})
    add(bench, b"s/keyed", bench.static(1, rows))
    assert bench.rows(keyed)[2:] == [{"k": 7, "s": "y"}]


@pytest.mark.parametrize(
    "keys",
    [
        pa.array(["a", "b", "a", "c", "b"]),
        pa.array(["a", "b", "a", "c", "b"]).dictionary_encode(),
        pa.chunked_array([[1, 2], [1, 3, 2]]),
        pa.array([b"12", b"34", b"12", b"56", b"34"], pa.binary(2)),
        pa.array([1.5, 2.5, 1.5, 3.5, 2.5]),
    ],
)
def test_the_last_row_of_each_key_stays_in_order(keys):
    rows = pa.table({"k": keys, "n": range(5)})
    assert last_per_key(rows, ("k",)).column("n").to_pylist() == [2, 3, 4]


def test_keys_of_several_columns_that_agree_in_one(bench):
    rows = pa.table({"a": [1, 1, 1], "b": ["x", "y", "x"], "n": [0, 1, 2]})
    assert last_per_key(rows, ("a", "b")).column("n").to_pylist() == [1, 2]


def test_rows_with_different_keys_are_not_copied(bench, keyed):
    assert rows_to_add(keyed, ROWS).column("s").chunk(0).buffers()[2].address == (
        ROWS.column("s").chunk(0).buffers()[2].address
    )


def test_an_empty_table_can_be_added_and_deleted(bench, keyed):
    empty = bench.static(1, ROWS.schema.empty_table())
    add(bench, b"s/keyed", empty)
    delete(bench, b"s/keyed", empty)
    assert bench.rows(keyed) == ROWS.to_pylist()


NO_WAY_BACK = ("null", "interval", "list_view", "map", "dense_union", "sparse_union")
"""Types that are shown as something that does not turn into them again."""


@pytest.mark.parametrize("name", sample_columns())
def test_what_a_client_was_shown_can_be_written_back(bench, name):
    rows = pa.table({"c": sample_columns()[name]})
    source = bench.create("source", rows)
    shown = bench.tables.run(lambda: deephaven_view(source, "deephaven").to_arrow()).result()
    if name in NO_WAY_BACK:
        with pytest.raises(SchemaError, match="'c'"):
            rows_to_add(source, shown)
    else:
        assert rows_to_add(source, shown).to_pylist() == rows.to_pylist()


def test_rows_are_deleted_by_a_key_shown_as_big_integer(bench):
    rows = pa.table({"k": pa.array([49, 2**63], pa.uint64())})
    table = bench.create("big", rows, key="k")
    delete(bench, b"s/big", bench.static(1, pa.table({"k": [b"1"]})))
    assert bench.rows(table) == [{"k": 2**63}]


@pytest.mark.parametrize("change", [add, delete])
def test_a_null_key_is_found_before_anything_is_applied(bench, keyed, change, monkeypatch):
    monkeypatch.setattr(portions, "PORTION_ROWS_MAX", 2)
    before = bench.rows(keyed)
    rows = pa.table({"k": [1, 2, 3, 4, None], "s": ["x"] * 5})
    with pytest.raises(RowError, match="key must not be null"):
        change(bench, b"s/keyed", bench.static(1, rows))
    assert bench.rows(keyed) == before


def test_many_rows_come_in_portions(bench, keyed, monkeypatch):
    monkeypatch.setattr(portions, "PORTION_ROWS_MAX", 2)
    add(bench, b"s/keyed", bench.static(1, pa.table({"k": range(10, 17), "s": ["x"] * 7})))
    assert [row["k"] for row in bench.rows(keyed)][-7:] == list(range(10, 17))
    delete(bench, b"s/keyed", bench.static(2, pa.table({"k": range(10, 16)})))
    assert [row["k"] for row in bench.rows(keyed)][-1] == 16
