"""A client asks what a table was and what happened to it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random

import pyarrow as pa
import pytest

import barrage
from barrage.client import Cursor
from barrage.errors import (
    ConfigError,
    CursorError,
    ExpressionError,
    HistoryLostError,
    NoJournalError,
    SchemaError,
    TableNotFoundError,
    UnsupportedError,
)
from tests.end_to_end.resume_scene import AppendWriter, KeyedWriter, ListWriter, Past, rows_of
from tests.helpers.serving import HOST

SCHEMA = {"k": "int64", "v": "int64", "s": "string"}
WRITERS = {"keyed": KeyedWriter, "append_only": AppendWriter, "list": ListWriter}


@pytest.fixture(scope="module")
def server():
    with barrage.Server(HOST, journal="memory") as server:
        server.create_table("bare", SCHEMA, journal="none")
        yield server


@pytest.fixture(scope="module")
def session(server):
    with barrage.connect(server.uri) as session:
        yield session


@pytest.fixture(scope="module")
def pasts(server):
    made = {}
    for kind, writer in WRITERS.items():
        key = "k" if kind == "keyed" else None
        table = server.create_table(kind, SCHEMA, key=key, kind=None if key else kind)
        made[kind] = Past(table)
        changes = writer(table, made[kind], Random(3))
        for _ in range(20):
            changes.write()
    server.publish("view", server.table("keyed").where("v > 3"))
    return made


@pytest.mark.parametrize("kind", list(WRITERS))
def test_the_rows_at_every_version(session, pasts, kind):
    past = pasts[kind]
    for version in past._versions:
        assert rows_of(session.table(kind).as_of(version)) == past.at(version)


def test_the_rows_at_a_cursor_a_time_and_of_some_columns(server, session, pasts):
    remote, table = session.table("keyed"), server.table("keyed")
    cursor = table.cursor
    now = rows_of(remote.as_of(cursor))
    assert now == rows_of(remote.as_of(str(cursor))) == rows_of(remote.as_of(datetime.now(UTC)))
    assert now == rows_of(remote.as_of(datetime.now()))
    assert remote.as_of(cursor).schema == remote.schema
    some = remote.as_of(cursor, columns=["s", "k"])
    assert sorted(some.column_names) == ["k", "s"]
    assert rows_of(remote.where("v > 50").as_of(cursor)) == [row for row in now if row[1] > 50]
    both = remote.where("v > 20").where("v < 60").as_of(cursor)
    assert rows_of(both) == [row for row in now if 20 < row[1] < 60]


def test_changes_lead_from_one_version_to_another(session, pasts):
    versions = pasts["append_only"]._versions
    first, last = versions[2], versions[9]
    batches = list(session.table("append_only").changes(first, last))
    rows = pa.Table.from_batches(batches)
    assert set(rows.column("_change_type").to_pylist()) == {"insert"}
    assert set(rows.column("_commit_version").to_pylist()) == set(versions[3:10])
    before, after = (pasts["append_only"].at(version) for version in (first, last))
    assert before + rows_of(rows.select(["k", "v", "s"])) == after


def test_changes_in_other_forms(server, session, pasts):
    remote = session.table("keyed")
    first, newest = pasts["keyed"]._versions[0], server.table("keyed").cursor
    plain = pa.Table.from_batches(remote.changes(first))
    assert plain.column_names[:4] == [
        "_change_type", "_commit_version", "_commit_timestamp", "_row_id",
    ]  # fmt: skip
    assert plain.equals(pa.Table.from_batches(remote.changes(first, newest)))
    every = pa.Table.from_batches(
        remote.changes(first, preimage=True, row_key=True, modified_columns=True, columns=["v"])
    )
    assert {"_row_key", "_modified_columns", "v"} <= set(every.column_names)
    assert "update_preimage" in every.column("_change_type").to_pylist()
    net = pa.Table.from_batches(remote.changes(first, net=True))
    assert set(net.column("_change_type").to_pylist()) == {"insert"}
    assert sorted(rows_of(net.select(["k", "v", "s"]))) == sorted(pasts["keyed"].at(10**9))
    filtered = pa.Table.from_batches(remote.where("v > 50").changes(first))
    assert min(filtered.column("v").to_pylist()) > 50 or "delete" in filtered["_change_type"]
    assert list(remote.changes(newest)) == []


def test_the_asynchronous_form_is_the_same(server, pasts):
    async def test():
        async with barrage.aconnect(server.uri) as session:
            remote = session.table("list")
            facts = await remote.history().facts()
            assert facts.kind == "list"
            assert facts.version == pasts["list"]._versions[-1]
            rows = await remote.as_of(facts.version, timeout=60)
            assert rows_of(rows) == pasts["list"].at(facts.version)
            count = 0
            async for batch in remote.changes(facts.earliest):
                count += batch.num_rows
            assert count
            # Half a read leaves nothing behind.
            async for _ in remote.changes(facts.earliest):
                break

    asyncio.run(test())


def test_half_a_read_leaves_nothing_behind(session, pasts):
    changes = session.table("keyed").changes(0)
    next(changes)
    changes.close()
    assert list(changes) == []


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda s: s.table("bare").as_of(1), NoJournalError),
        (lambda s: s.table("view").as_of(1), NoJournalError),
        (lambda s: s.table("nowhere").as_of(1), TableNotFoundError),
        (lambda s: s.table("keyed").sort("v").as_of(1), UnsupportedError),
        (lambda s: s.table("keyed").as_of("x"), CursorError),
        (lambda s: s.table("keyed").as_of(-2), ConfigError),
        (lambda s: s.table("keyed").as_of(True), ConfigError),
        (lambda s: s.table("keyed").as_of(10**9), HistoryLostError),
        (lambda s: s.table("keyed").as_of(Cursor("0" * 16, 1)), HistoryLostError),
        (lambda s: s.table("keyed").as_of(datetime(2001, 1, 1, tzinfo=UTC)), HistoryLostError),
        (lambda s: s.table("keyed").as_of(datetime(1901, 1, 1, tzinfo=UTC)), ConfigError),
        (lambda s: s.table("keyed").as_of(1, columns=["zz"]), SchemaError),
        (lambda s: s.table("keyed").where("zz > 1").as_of(1), ExpressionError),
        (lambda s: list(s.table("keyed").changes(5, 2)), ConfigError),
        (lambda s: list(s.table("keyed").changes(1, Cursor("0" * 16, 9))), HistoryLostError),
        (lambda s: s.table_from_ticket(b"s/keyed").as_of(1), UnsupportedError),
    ],
)
def test_what_cannot_be_had_is_said(session, pasts, ask, error):
    from barrage.errors import BarrageError, RequestRefusedError

    with pytest.raises(BarrageError) as caught:
        ask(session)
    # The server's refusals of names and expressions travel as a status and their text.
    wanted = (error, RequestRefusedError) if error in (SchemaError, ExpressionError) else error
    assert isinstance(caught.value, wanted), caught.value
