"""A server with a data directory: what is back after a restart, and what has a journal."""

from __future__ import annotations

import asyncio
import datetime
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import barrage
from barrage.errors import (
    ConfigError,
    CursorError,
    HistoryLostError,
    JournalCorruptError,
    NoJournalError,
    RowError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from barrage.model.cursor import Cursor
from barrage.server import Server

X = {"x": "int64"}
KV = {"k": "int64", "v": "string"}


def row_keys(server: Server, name: str) -> list[int]:
    """The row keys of a table, read where they may be."""
    service = server._parts.tables
    return service.run(
        lambda: server._parts.catalog.get(name).table.row_keys.to_numpy().tolist()
    ).result()


def names(server: Server) -> list[str]:
    """The published tables but those that tell about the journals."""
    return [name for name in server.table_names() if not name.startswith("_")]


def values(server: Server, name: str, column: str = "x") -> list:
    return server.table(name).to_arrow().column(column).to_pylist()


def fill(server: Server) -> None:
    """Tables of every kind, each with a past."""
    appended = server.create_table("appended", X)
    appended.add({"x": [1, 2]})
    appended.add({"x": [3]}, producer="feed", sequence=7)
    keyed = server.create_table("keyed", KV, key="k", is_read_only=True)
    keyed.upsert({"k": [1, 2, 3], "v": ["a", "b", "c"]})
    keyed.remove([1])
    keyed.upsert({"k": [4, 2], "v": ["d", None]})
    ring = server.create_table("ring", X, capacity=3)
    for start in (0, 2, 4):
        ring.add({"x": [start, start + 1]})
    listed = server.create_table("list", X, kind="list")
    listed.add({"x": [1, 2, 3]})
    listed.insert(1, {"x": [9]})
    listed.delete(0, 1)
    server.create_table("static", data={"x": [5, 6]}, kind="static")
    server.create_table("blink", X, kind="blink").add({"x": [1]})
    server.create_table("empty", X)


NAMES = ("appended", "blink", "empty", "keyed", "list", "ring", "static")


def test_everything_is_back_after_a_restart(tmp_path):
    with Server(data=tmp_path) as server:
        fill(server)
        before = {name: server.table(name).to_arrow() for name in NAMES}
        keys = {name: row_keys(server, name) for name in NAMES}
        cursors = {name: server.table(name).cursor for name in NAMES}
    with Server(data=tmp_path) as server:
        assert names(server) == [*NAMES]
        for name in set(NAMES) - {"blink"}:
            assert server.table(name).to_arrow().equals(before[name]), name
            assert row_keys(server, name) == keys[name], name
            assert server.table(name).cursor == cursors[name], name
        assert values(server, "blink") == []
        assert keys["ring"] == [3, 4, 5]
        assert server.table("appended").position("feed") == 7
        facts = {f.name: f for f in server._parts.tables.all_facts().result()}
        assert {name: facts[name].kind for name in NAMES} == {
            "appended": "append_only",
            "blink": "blink",
            "empty": "append_only",
            "keyed": "keyed",
            "list": "list",
            "ring": "ring",
            "static": "static",
        }
        assert facts["keyed"].key == ("k",)
        publications = {p.name: p for p in server._parts.catalog}
        assert [name for name in NAMES if publications[name].is_read_only] == ["keyed"]


def test_tables_go_on_where_they_were(tmp_path):
    with Server(data=tmp_path) as server:
        fill(server)
        last = server.table("list").cursor.version
    with Server(data=tmp_path) as server:
        assert server.table("appended").add({"x": [3]}, producer="feed", sequence=7) >= last
        assert server.table("appended").add({"x": [4]}, producer="feed", sequence=8) > last
        assert values(server, "appended") == [1, 2, 3, 4]
        server.table("ring").add({"x": [6]})
        assert values(server, "ring") == [4, 5, 6]
        assert row_keys(server, "ring") == [4, 5, 6]
        server.table("keyed").upsert({"k": [2, 9], "v": ["z", "n"]})
        assert values(server, "keyed", "v") == ["z", "c", "d", "n"]
        server.table("list").insert(0, {"x": [0]})
        assert values(server, "list") == [0, 9, 2, 3]
        server.table("blink").add({"x": [5]})
    with Server(data=tmp_path) as server:
        assert values(server, "list") == [0, 9, 2, 3]
        assert values(server, "keyed", "v") == ["z", "c", "d", "n"]


def test_what_the_default_is_and_what_overrides_it(tmp_path):
    with Server(data=tmp_path) as server:
        assert server.create_table("default", X).cursor is not None
        assert server.create_table("memory", X, journal="memory").cursor is not None
        assert server.create_table("none", X, journal="none").cursor is None
    with Server(data=tmp_path) as server:
        assert names(server) == ["default"]
    with Server(journal="memory") as server:
        assert server.create_table("t", X).cursor is not None
        with pytest.raises(ConfigError, match="needs a directory"):
            server.create_table("durable", X, journal="durable")
        with pytest.raises(SchemaError, match="not one of"):
            server.create_table("odd", X, journal="odd")
        assert names(server) == ["t"]
    with Server() as server:
        assert server.create_table("t", X).cursor is None


def test_one_process_at_a_time(tmp_path):
    with Server(data=tmp_path), pytest.raises(ConfigError, match="another process"):
        Server(data=tmp_path)
    Server(data=tmp_path).stop()


def test_progress_is_told(tmp_path):
    with Server(data=tmp_path) as server:
        fill(server)
    told = []
    Server(data=tmp_path, on_progress=told.append).stop()
    assert [each.table for each in told] == [*NAMES]
    assert [each.tables_done for each in told] == list(range(7))
    assert {each.tables for each in told} == {7}


def test_rows_from_before_a_table_had_a_name_are_recorded(tmp_path):
    """Deephaven's clients make tables first and give them names later."""
    with Server(data=tmp_path) as server:
        service = server._parts.tables
        table = service.create_input("append_only", pa.schema({"x": pa.int64()})).result()
        service.run(partial(table.stage_add, pa.table({"x": [1, 2]}))).result()
        service.run(lambda: None).result()
        service.publish("named", table).result()
        handle = server.table("named")
        handle.add({"x": [3]})
        start = service.journals.journal_named("named").earliest_version
        assert handle.changes(start).column("x").to_pylist() == [1, 2, 3]
        del table, handle
    with Server(data=tmp_path) as server:
        assert values(server, "named") == [1, 2, 3]


def test_a_table_without_a_name_has_no_journal(tmp_path):
    with Server(data=tmp_path) as server:
        service = server._parts.tables
        table = service.create_static(pa.table({"x": [1]})).result()
        assert service.journals.journal_of(table) is None
        service.release(table)
        del table
    with Server(data=tmp_path) as server:
        assert names(server) == []


def test_a_table_that_declined_has_no_journal_under_another_name(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("t", X, journal="none")
        assert server.publish("other", table).cursor is None
        with pytest.raises(NoJournalError, match="'t' has no journal"):
            table.as_of(0)


def test_another_name_shares_the_journal_and_inherits_the_table(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("first", X)
        table.add({"x": [1]})
        epoch = table.cursor.epoch
        second = server.publish("second", table)
        assert second.cursor.epoch == epoch
        server.drop_table("first")
        table.add({"x": [2]})
        assert server.table("second").cursor.epoch != epoch
    with Server(data=tmp_path) as server:
        assert names(server) == ["second"]
        assert values(server, "second") == [1, 2]


def test_a_history_that_begins_anew_knows_the_producers_of_an_empty_table(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("first", KV, key="k")
        table.remove([1], producer="p", sequence=3)
        server.publish("second", table)
        server.drop_table("first")
        table.upsert({"k": [1], "v": ["a"]}, producer="p", sequence=4)
        server.drop_table("second")
        table.remove([1], producer="p", sequence=5)
        server.publish("third", table)
        table.remove([7])
    with Server(data=tmp_path) as server:
        assert names(server) == ["third"]
        assert server.table("third").position("p") == 5
        assert len(server.table("third")) == 0


def test_a_name_of_a_source_that_is_not_its_first_is_not_kept(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("first", X)
        server.publish("second", table)
        server.publish("view", table.where("x > 0"))
        server.drop_table("second")
        assert table.cursor is not None
        table.add({"x": [1]})
    with Server(data=tmp_path) as server:
        assert names(server) == ["first"]


def test_a_dropped_table_stays_away_and_its_name_begins_anew(tmp_path):
    with Server(data=tmp_path) as server:
        epoch = server.create_table("t", X).cursor.epoch
        server.table("t").add({"x": [1]}, producer="p", sequence=1)
        server.drop_table("t")
        again = server.create_table("t", X)
        assert again.cursor.epoch != epoch
        assert again.position("p") is None
        server.create_table("gone", X)
        server.drop_table("gone")
    with Server(data=tmp_path) as server:
        assert names(server) == ["t"]
        assert values(server, "t") == []


def test_a_name_that_is_bound_to_another_table_ends_the_journal_of_the_first(tmp_path):
    with Server(data=tmp_path) as server:
        service = server._parts.tables
        server.create_table("t", X).add({"x": [1]})
        other = service.create_static(pa.table({"y": [2]})).result()
        service.bind("t", other).result()
        service.release(other)
        del other
        assert server.table("t").to_arrow().to_pydict() == {"y": [2]}
    with Server(data=tmp_path) as server:
        assert server.table("t").to_arrow().to_pydict() == {"y": [2]}


def test_a_name_in_the_directory_is_taken(tmp_path):
    with Server(data=tmp_path) as server:
        server.create_table("t", X)
    with Server(data=tmp_path) as server, pytest.raises(TableExistsError):
        server.create_table("t", X)


def test_a_creation_that_is_refused_leaves_nothing(tmp_path):
    with Server(data=tmp_path) as server:
        with pytest.raises(RowError):
            server.create_table("t", KV, key="k", data={"k": [1, 1], "v": ["a", "b"]})
        assert names(server) == []
    with Server(data=tmp_path) as server:
        assert names(server) == []


# --- time travel ---


def test_states_of_the_past(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("t", KV, key="k")
        first = table.upsert({"k": [1, 2], "v": ["a", "b"]})
        cursor = table.cursor
        time.sleep(0.005)
        moment = datetime.datetime.now()
        time.sleep(0.005)
        second = table.upsert({"k": [2, 3], "v": ["B", "c"]})
        then = [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
        for at in (first, second - 1, cursor, moment, moment.astimezone(datetime.UTC)):
            assert table.as_of(at).to_arrow().to_pylist() == then
        assert table.as_of(second).to_arrow().equals(table.to_arrow())
        assert table.as_of(first).where("k > 1").to_arrow().to_pylist() == then[1:]


def test_changes_between_two_states(server):
    table = server.create_table("t", KV, key="k", journal="memory")
    first = table.upsert({"k": [1], "v": ["a"]})
    table.upsert({"k": [1, 2], "v": ["A", "b"]})
    table.remove([1])
    told = table.changes(first)
    assert told.column("_change_type").to_pylist() == ["update_postimage", "insert", "delete"]
    assert told.column("v").to_pylist() == ["A", "b", "A"]
    assert table.changes(first, first).num_rows == 0
    assert table.changes(first, first).schema == told.schema
    assert table.changes(0, first).column("k").to_pylist() == [1]
    net = table.changes(first, net=True, columns=("k",))
    assert sorted(net.column("_change_type").to_pylist()) == ["delete", "insert"]
    assert net.column_names[-1] == "k"


@pytest.mark.parametrize("moment", [True, -1, "now", 1.5, None])
def test_what_is_no_moment(server, moment):
    table = server.create_table("t", X, journal="memory")
    with pytest.raises(CursorError, match="a moment is"):
        table.as_of(moment)


def test_history_that_is_not_there(server):
    table = server.create_table("t", X, journal="memory")
    step = table.add({"x": [1]})
    with pytest.raises(HistoryLostError, match="another epoch"):
        table.as_of(Cursor("0" * 16, step))
    with pytest.raises(HistoryLostError, match="the newest version is"):
        table.as_of(step + 1_000)
    with pytest.raises(HistoryLostError):
        table.as_of(datetime.datetime(1999, 1, 1))


def test_views_say_that_they_have_no_journal(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("t", X)
        view = server.publish("view", table.where("x > 1"))
        assert view.cursor is None
        for use in (lambda: view.as_of(1), lambda: view.changes(0)):
            with pytest.raises(NoJournalError, match="'view' is derived from others") as caught:
                use()
            assert caught.value.is_view
        journals = server._parts.journals
        with pytest.raises(NoJournalError, match="derived"):
            journals.journal_named("view")
        with pytest.raises(TableNotFoundError):
            journals.journal_named("vie")
        assert journals.journal_named("t").identity.name == "t"
        assert list(journals.journals) == ["t"]


# --- damage ---


def segment(root: Path, name: str) -> Path:
    (found,) = (root / "tables" / name / "wal").iterdir()
    return found


def written(root: Path) -> None:
    with Server(data=root) as server:
        for name in ("good", "bad"):
            table = server.create_table(name, X)
            for number in range(20):
                table.add({"x": [number] * 50})
            table.add({"x": [-1]})


def test_a_damaged_table_is_not_served_and_says_where_and_what_to_do(tmp_path):
    written(tmp_path)
    file = segment(tmp_path, "bad")
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    file.write_bytes(content)
    with Server(data=tmp_path) as server:
        assert names(server) == ["good"]
        assert len(server.table("good")) == 1001
        (error,) = server.damaged_tables().values()
        assert isinstance(error, JournalCorruptError)
        assert str(file.relative_to(tmp_path)) in error.file
        assert 0 < error.offset <= middle
        for use in (
            lambda: server.table("bad"),
            lambda: server.create_table("bad", X),
            lambda: server.publish("bad", server.table("good")),
        ):
            with pytest.raises(JournalCorruptError, match="Restore the file from a copy"):
                use()
        server.table("good").add({"x": [1]})
    assert file.read_bytes() == content
    with Server(data=tmp_path) as server:
        assert len(server.table("good")) == 1002
        assert list(server.damaged_tables()) == ["bad"]


def test_a_torn_tail_is_cut_off(tmp_path):
    written(tmp_path)
    file = segment(tmp_path, "bad")
    with file.open("ab") as opened:
        opened.write(file.read_bytes()[:100])
    with Server(data=tmp_path) as server:
        assert server.damaged_tables() == {}
        assert len(server.table("bad")) == 1001


# --- asyncio ---


def test_the_asynchronous_server(tmp_path):
    async def run(life: int) -> list:
        async with barrage.AsyncServer(data=tmp_path) as server:
            if life == 0:
                table = await server.create_table("t", X)
                assert table.cursor is not None
                step = await table.add({"x": [1]})
                assert (await (await table.as_of(step)).to_arrow()).num_rows == 1
                assert (await table.changes(0)).num_rows == 1
            return [name for name in await server.table_names() if not name.startswith("_")]

    assert asyncio.run(run(0)) == ["t"]
    assert asyncio.run(run(1)) == ["t"]


def test_the_asynchronous_server_reads_its_directory_when_it_starts(tmp_path):
    async def run() -> None:
        server = barrage.AsyncServer(data=tmp_path)
        with pytest.raises(barrage.errors.LocalProtocolError, match="read by start"):
            await server.create_table("t", X)
        await server.stop()

    asyncio.run(run())


# --- types ---


def test_columns_of_many_types_are_back_as_they_were(tmp_path):
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.UTC)
    columns = {
        "bool": pa.array([True, None]),
        "int8": pa.array([1, None], pa.int8()),
        "uint64": pa.array([2**64 - 1, None], pa.uint64()),
        "half": pa.array([1.5, None], pa.float16()),
        "double": pa.array([float("nan"), None]),
        "text": pa.array(["ä", None]),
        "large": pa.array(["", None], pa.large_string()),
        "view": pa.array(["seen", None], pa.string_view()),
        "bytes": pa.array([b"\x00", None]),
        "fixed": pa.array([b"ab", None], pa.binary(2)),
        "date": pa.array([now.date(), None]),
        "time": pa.array([now.time(), None], pa.time64("us")),
        "zoned": pa.array([now, None], pa.timestamp("ns", "Europe/Berlin")),
        "duration": pa.array([5, None], pa.duration("ms")),
        "decimal": pa.array([None, 1], pa.decimal128(20, 3)),
        "list": pa.array([[1, None], None]),
        "texts": pa.array([["a"], []], pa.list_(pa.string())),
        "category": pa.array(["a", None]).dictionary_encode(),
        "nothing": pa.nulls(2),
    }
    rows = pa.table(columns)
    with Server(data=tmp_path) as server:
        for kind in ("append_only", "static", "list"):
            server.create_table(kind, data=rows, kind=kind)
        before = server.table("list").to_arrow()
    with Server(data=tmp_path) as server:
        for kind in ("append_only", "static", "list"):
            again = server.table(kind).to_arrow()
            assert again.schema == before.schema
            assert str(again.to_pylist()) == str(before.to_pylist())
            assert server.table(kind).schema == before.schema
