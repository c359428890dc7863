"""Writes of many rows by a plain Flight client: checked as a whole, applied in portions, and all
others' come in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.errors import TableFailedError
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.ingest import portions as portions_module
from barrage.server.tables.table_service import Change, TableService
from tests.helpers.journal_client import JournalClient

PORTION = 10
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    limits = Limits(ingest_rows_pending_max=20, whole_batch_rows_max=15)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions_module, "PORTION_ROWS_MAX", PORTION)
        with barrage.Server("127.0.0.1", config=ServerConfig(limits=limits)) as running:
            yield running


@pytest.fixture
def client(server: barrage.Server) -> Iterator[JournalClient]:
    with JournalClient(server.uri) as opened:
        yield opened


@pytest.fixture(params=[("k",), ()], ids=["keyed", "append only"])
def table(server: barrage.Server, request: pytest.FixtureRequest) -> Iterator[Any]:
    yield server.create_table("t", SCHEMA, key=request.param or None)
    server.drop_table("t")


@pytest.fixture
def keyed(server: barrage.Server) -> Iterator[Any]:
    yield server.create_table("t", SCHEMA, key="k")
    server.drop_table("t")


def batch(keys: range | list[int], v: int = 0) -> pa.RecordBatch:
    return pa.record_batch([pa.array(list(keys)), pa.array([v] * len(keys))], schema=SCHEMA)


def put(client: JournalClient, *batches: pa.RecordBatch, **command: Any) -> list[dict[str, Any]]:
    told = json.dumps({"table": "t", **command}).encode()
    writer, answers = client.client.do_put(
        flight.FlightDescriptor.for_command(told), batches[0].schema
    )
    found = []
    with writer:
        for each in batches:
            writer.write_batch(each)
        writer.done_writing()
        while (answer := answers.read()) is not None:
            found.append(json.loads(answer.to_pybytes()))
    return found[1:]


def rows_of(table: Any) -> dict[int, int]:
    found = table.to_arrow()
    return dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))


def pending(server: barrage.Server) -> int:
    return int(server._parts.tables.write_room.rows_pending)


def test_a_large_batch_is_several_steps_and_one_answer(server, client, table) -> None:
    before = server.stats.cycles
    answers = put(client, batch(range(35)), batch(range(35, 40)))
    assert [answer["rows"] for answer in answers] == [35, 40]
    assert rows_of(table) == dict.fromkeys(range(40), 0)
    assert server.stats.cycles >= before + 2  # Two portions may share one.


@pytest.mark.parametrize("count", [PORTION - 1, PORTION, PORTION + 1, 2 * PORTION, 0])
def test_around_one_portion(client, table, count) -> None:
    (answer,) = put(client, batch(range(count)))
    assert answer["rows"] == count
    assert len(rows_of(table)) == count


def test_a_key_that_occurs_twice_is_found_before_anything_is_applied(client, keyed) -> None:
    with pytest.raises(pa.ArrowException, match=r"batch 2: .*key 3 occurs twice"):
        put(client, batch([100]), batch([*range(25), 3], v=1))
    assert rows_of(keyed) == {100: 0}


@pytest.mark.parametrize("mode", ["append", "upsert", "delete", None])
def test_a_null_key_is_found_before_anything_is_applied(client, keyed, mode) -> None:
    put(client, batch(range(40)))
    keys = pa.array([*range(10, 35), None], pa.int64())
    command = {} if mode is None else {"mode": mode}
    with pytest.raises(pa.ArrowException, match=r"key must not be null \(column 'k', row 25"):
        put(client, pa.record_batch([keys, pa.array([7] * 26)], schema=SCHEMA), **command)
    assert rows_of(keyed) == dict.fromkeys(range(40), 0)


def test_a_key_that_occurs_twice_is_found_in_appends_as_well(client, keyed) -> None:
    with pytest.raises(pa.ArrowException, match=r"key 3 occurs twice"):
        put(client, batch([*range(25), 3]), mode="append")
    assert rows_of(keyed) == {}


def test_a_bad_value_in_the_last_portion_is_found_before_anything_is_applied(client, table) -> None:
    texts = pa.record_batch(
        {"k": pa.array([str(k) for k in range(30)] + ["x"]), "v": pa.array(["1"] * 31)}
    )
    with pytest.raises(pa.ArrowException, match=r"batch 1: .*does not fit"):
        put(client, texts)
    assert rows_of(table) == {}


def test_a_replacement_is_one_step_or_refused(server, client, keyed) -> None:
    put(client, batch(range(50)))
    with pytest.raises(pa.ArrowException, match=r"batch 1, which is one step .* the limit is 15"):
        put(client, batch(range(40, 56), v=2), mode="replace")
    assert rows_of(keyed) == dict.fromkeys(range(50), 0)
    before = server.stats.cycles
    put(client, batch(range(40, 55), v=2), mode="replace")
    assert server.stats.cycles == before + 1
    put(client, batch([1]), batch(range(2, 40), v=2), mode="replace")
    assert rows_of(keyed) == {1: 0} | dict.fromkeys(range(2, 40), 2)


WIDE = pa.schema([("k", pa.int64()), *((f"v{i}", pa.int64()) for i in range(15))])


def wide(keys: range, v: int = 0) -> pa.RecordBatch:
    """Rows of 16 columns, each of which counts for four where there is a key."""
    return pa.record_batch([list(keys), *([[v] * len(keys)] * 15)], schema=WIDE)


@pytest.mark.parametrize(("key", "most"), [("k", PORTION // 4), (None, PORTION)])
def test_rows_of_many_columns_count_for_several(server, client, monkeypatch, key, most) -> None:
    sizes: list[int] = []
    original = TableService.change

    def noted(self: TableService, changes: list[Change], *more: Any, **options: Any) -> Any:
        sizes.extend(len(change.arguments[0]) for change in changes)
        return original(self, changes, *more, **options)

    table = server.create_table("t", WIDE, key=key)
    monkeypatch.setattr(TableService, "change", noted)
    try:
        (answer,) = put(client, wide(range(23)))
        assert answer["rows"] == 23
        assert sum(sizes) == 23
        assert max(sizes) == most
        assert table.to_arrow()["k"].to_pylist() == list(range(23))
        with pytest.raises(pa.ArrowException, match=f"the limit is {3 if key else 15}"):
            put(client, wide(range(16)), producer="p", sequence=0)
        put(client, wide(range(3)), producer="p", sequence=0)
        assert sizes[-1] == 3
    finally:
        server.drop_table("t")
    assert pending(server) == 0


def test_rows_count_for_more_where_much_hangs_below(server, client, table, monkeypatch) -> None:
    sizes: list[int] = []
    original = TableService.change

    def noted(self: TableService, changes: list[Change], *more: Any, **options: Any) -> Any:
        sizes.extend(len(change.arguments[0]) for change in changes)
        return original(self, changes, *more, **options)

    put(client, batch(range(10)))
    monkeypatch.setattr(TableService, "change", noted)
    put(client, batch(range(100, 123)))
    assert max(sizes) == PORTION
    sizes.clear()
    kept = [table.sort("v", "k"), table.agg_by("v", n="count()")]
    put(client, batch(range(200, 223)))
    assert 1 < max(sizes) < PORTION // 2
    assert sum(sizes) == 23
    assert [each.to_arrow().num_rows for each in kept] == [56, 1]
    assert pending(server) == 0


def test_many_keys_are_deleted(client, keyed) -> None:
    put(client, batch(range(60)))
    put(client, batch([*range(5, 40), 5, 99]), mode="delete")
    assert sorted(rows_of(keyed)) == [*range(5), *range(40, 60)]


def test_a_numbered_batch_is_one_step_or_refused(server, client, table) -> None:
    put(client, batch(range(15)), producer="p", sequence=0)
    assert len(rows_of(table)) == 15
    with pytest.raises(pa.ArrowException, match=r"batch 1, which is one step.* 16 rows"):
        put(client, batch(range(100, 116)), producer="p", sequence=1)
    assert len(rows_of(table)) == 15
    (answer,) = put(client, batch(range(100, 110)), producer="p", sequence=1)
    assert answer["sequence"] == 1
    assert len(rows_of(table)) == 25
    assert pending(server) == 0


def test_what_others_write_comes_in_between(server, client, table, monkeypatch) -> None:
    tables = server._parts.tables
    server.create_table("other", SCHEMA)
    other = tables.look_up("other").result().table
    original, staged, committed = type(tables).stage_now, [], []

    def noting(self, changes, producer=None):
        staged.append(len(changes[0].arguments[0]))
        if len(staged) == 2:
            row = pa.table(batch([1]).columns, schema=SCHEMA)
            committed.append(tables.change([Change(other, "stage_add", (row,))]))
        return original(self, changes, producer)

    monkeypatch.setattr(type(tables), "stage_now", noting)
    (answer,) = put(client, batch(range(100)))
    assert sum(staged) == 101
    assert committed[0].result() < answer["step"]
    server.drop_table("other")


def test_a_table_that_goes_in_the_middle_ends_the_call_and_gives_the_room_back(
    server, client, monkeypatch
) -> None:
    table = server.create_table("gone", SCHEMA)
    original = type(server._parts.tables).stage_now
    staged = []

    def dropping(self, changes, producer=None):
        staged.append(len(changes[0].arguments[0]))
        if len(staged) == 3:
            raise TableFailedError("no more")
        return original(self, changes, producer)

    monkeypatch.setattr(type(server._parts.tables), "stage_now", dropping)
    with pytest.raises(pa.ArrowException, match="no more"):
        put(client, batch(range(95)), table="gone")
    assert rows_of(table) == dict.fromkeys(range(20), 0)
    assert pending(server) == 0
    monkeypatch.undo()
    server.drop_table("gone")


def test_a_dictionary_comes_with_the_values_that_are_used(server, client) -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    table = server.create_table("words", pa.schema([("w", kind)]))
    words = pa.array([f"w{number}" for number in range(200)])
    words = pa.concat_arrays([words, pa.array([None], pa.string())])
    codes = pa.array([*range(0, 60, 2), None, 200], pa.int32())
    rows = pa.record_batch({"w": pa.DictionaryArray.from_arrays(codes, words)})
    put(client, rows, table="words")
    found = table.to_arrow()["w"]
    assert found.to_pylist() == [f"w{number}" for number in range(0, 60, 2)] + [None, None]
    assert len(found.chunk(0).dictionary) == 30
    server.drop_table("words")


@pytest.mark.parametrize("values", [pa.string(), pa.null()], ids=str)
def test_dictionaries_with_nulls_share_a_cycle(server, values) -> None:
    kind = pa.dictionary(pa.int32(), values)
    table = server.create_table("nulls", pa.schema([("w", kind)]))
    with server.transaction() as change:
        for count in (1, 2):
            words = ["a", None, "b"][:count] if values == pa.string() else [None] * count
            cells = pa.DictionaryArray.from_arrays([0, count - 1], pa.array(words, values))
            change.add(table, pa.table({"w": cells}))
    first = "a" if values == pa.string() else None
    assert table.to_arrow()["w"].to_pylist() == [first, first, first, None]
    server.drop_table("nulls")
