"""The client against a real server on loopback sockets, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import barrage
from barrage.client import Backoff, State
from barrage.errors import (
    ConfigError,
    ConnectionLostError,
    RowError,
    SchemaError,
    SubscriptionClosedError,
    TableExistsError,
    TableNotFoundError,
)
from barrage.rowset import RowSet

WAIT = 60
SCHEMA = {"k": "int64", "s": "string"}


def client_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("barrage client")]


@pytest.fixture
def server():
    with barrage.Server() as server:
        yield server


@pytest.fixture
def session(server):
    before = client_threads()
    with barrage.connect(server.uri, auth=server.token) as session:
        yield session
    assert client_threads() == before


def until(updates, condition):
    """Follow updates until ``condition`` holds."""
    while not condition():
        next(updates)


def test_tables_and_schemas(server, session):
    server.create_table("b", SCHEMA, key="k", data={"k": [1], "s": ["x"]})
    server.create_table("a", {"x": "float64"}, kind="static", data={"x": [1.0, 2.0]})
    infos = {info.name: info for info in session.tables(timeout=WAIT)}
    assert sorted(infos) == ["a", "b"]
    assert infos["a"].total_records == 2
    assert not infos["a"].is_ticking
    assert infos["b"].kind == "keyed"
    assert infos["b"].key == ("k",)
    assert session.table("b").schema == pa.schema([("k", pa.int64()), ("s", pa.string())])
    assert session.table("b").name == "b"
    assert "RemoteTable 'b'" in repr(session.table("b"))


def test_snapshots_of_rows_and_columns(server, session):
    server.create_table("t", SCHEMA, data={"k": range(10), "s": [f"s{i}" for i in range(10)]})
    table = session.table("t")
    assert table.snapshot()["k"].to_pylist() == list(range(10))
    part = table.snapshot(columns=["s", "k"], rows=(2, 4), timeout=WAIT)
    assert part.to_pylist() == [{"s": "s2", "k": 2}, {"s": "s3", "k": 3}]
    assert table.snapshot(rows=range(3), reverse=True)["k"].to_pylist() == [7, 8, 9]
    assert table.snapshot(rows=(-2, None))["k"].to_pylist() == [8, 9]
    assert table.snapshot(rows=slice(4))["k"].to_pylist() == [0, 1, 2, 3]
    assert table.snapshot(rows=RowSet([0, 5, 99]))["k"].to_pylist() == [0, 5]
    assert table.snapshot(rows=(50, 60)).num_rows == 0
    with pytest.raises(SchemaError, match="'nope'"):
        table.snapshot(columns=["nope"])


@pytest.mark.parametrize("rows", [None, (10, 290_000)])
def test_large_snapshots(server, session, rows):
    count = 300_000
    data = {
        "a": pa.array(range(count)),
        "b": pa.array([None if i % 3 == 0 else f"b{i % 100}" for i in range(count)]),
        "c": pa.array([i * 0.5 for i in range(count)]),
        "d": pa.array(range(count)),
    }
    server.create_table("big", data=pa.table(data), kind="static")
    sizes = []
    table = session.table("big").snapshot(rows=rows, on_progress=sizes.append, timeout=WAIT)
    start, stop = rows or (0, count)
    assert table.equals(pa.table(data).slice(start, stop - start))
    assert sizes == sorted(sizes)
    assert sizes


def test_a_large_snapshot_can_run_out_of_time(server, session):
    data = pa.table({f"c{i}": pa.array(range(400_000)) for i in range(4)})
    server.create_table("big", data=data, kind="static")
    with pytest.raises(TimeoutError):
        session.table("big").snapshot(timeout=0.001)
    assert session.table("big").snapshot(timeout=WAIT).num_rows == 400_000


def test_a_live_table_follows_every_write(server, session):
    table = server.create_table("t", SCHEMA, key="k")
    with session.table("t").subscribe(interval_ms=10) as live:
        live.wait_ready(WAIT)
        updates = live.updates(timeout=WAIT)
        table.upsert({"k": [1, 2], "s": ["a", "b"]})
        table.upsert({"k": [2], "s": ["B"]})
        table.remove([1])
        # All of them: what is in the table may be still to be had from the updates.
        next(each for each in updates if each.table_size == 1)
        assert live.to_arrow().to_pylist() == [{"k": 2, "s": "B"}]
        assert live.lag is not None
        assert live.lag < WAIT
        assert live.stats.updates >= 1
        assert isinstance(live.to_pandas(), pd.DataFrame)
        assert live.to_pandas().to_dict("list") == {"k": [2], "s": ["B"]}
        assert pl.DataFrame(live).equals(live.to_polars())
        assert pa.table(live).equals(live.to_arrow())
        assert (len(live), live.table_size, live.name) == (1, 1, "t")
        assert live.nbytes > 0
        assert live.error is None
        assert "TickingTable 't' live" in repr(live)
    assert live.state is State.CLOSED
    assert list(updates) == []
    with pytest.raises(SubscriptionClosedError):
        live.wait_ready(1)


def test_viewports_move_and_follow_the_end(server, session):
    table = server.create_table("t", SCHEMA, data={"k": range(100), "s": ["x"] * 100})
    with session.table("t").subscribe(viewport=(0, 3), columns=["k"], interval_ms=10) as live:
        assert live.wait_ready(WAIT).to_arrow()["k"].to_pylist() == [0, 1, 2]
        live.set_viewport((50, 52))
        live.wait_ready(WAIT)
        assert live.to_arrow().to_pylist() == [{"k": 50}, {"k": 51}]
        live.set_viewport((0, 2), reverse=True)
        live.set_columns(["s", "k"])
        live.wait_ready(WAIT)
        updates = live.updates(timeout=WAIT)
        table.add({"k": [100], "s": ["y"]})
        until(updates, lambda: live.table_size == 101)
        assert live.to_arrow().to_pylist() == [{"s": "x", "k": 99}, {"s": "y", "k": 100}]


def test_callbacks_run_and_errors_are_told(server, session):
    table = server.create_table("t", SCHEMA)
    seen, states, errors = [], [], []
    arrived = threading.Event()

    def on_update(update):
        seen.append(update)
        if update.table_size:
            arrived.set()
            raise ValueError("mine")

    with session.table("t").subscribe(
        interval_ms=10, on_update=on_update, on_state=states.append, on_error=errors.append
    ) as live:
        live.wait_ready(WAIT)
        table.add({"k": [1], "s": ["a"]})
        assert arrived.wait(WAIT)
    assert seen[0].is_replacement
    assert seen[-1].added.to_pylist() == [{"k": 1, "s": "a"}]
    assert [str(error) for error in errors] == ["mine"]
    assert live.stats.callback_errors == 1
    assert states[:2] == [State.SNAPSHOT, State.LIVE]


def in_time(updates):
    """The next update, however often the iterator times out before."""
    while True:
        with contextlib.suppress(TimeoutError):
            return next(updates)


def test_an_iterator_times_out_and_goes_on(server, session):
    table = server.create_table("t", SCHEMA)
    with session.table("t").subscribe(interval_ms=10) as live:
        live.wait_ready(WAIT)
        with live.updates(timeout=0.01) as updates:
            assert in_time(updates).is_replacement
            with pytest.raises(TimeoutError):
                next(updates)
            table.add({"k": [1], "s": ["a"]})
            assert in_time(updates).added_rows == RowSet([0])


def test_unknown_tables_are_named_with_the_nearest(server, session):
    server.create_table("orders", SCHEMA)
    with pytest.raises(TableNotFoundError, match=r"'oders' not found; did you mean 'orders'\?"):
        session.table("oders").snapshot()
    with session.table("oders").subscribe() as live:
        with pytest.raises(TableNotFoundError, match="did you mean"):
            live.wait_ready(WAIT)
        assert live.state is State.FAILED


def test_put_creates_appends_and_upserts(server, session):
    seen = []
    done = session.put("t", {"k": [1, 2]}, on_progress=seen.append, timeout=WAIT)
    assert (done.rows, done.total) == (2, 2)
    assert seen[-1] == done
    assert session.put("t", pd.DataFrame({"k": [3]})).rows == 1
    assert session.put("t", pl.DataFrame({"k": [4]})).rows == 1
    assert session.put("t", [{"k": 5}]).rows == 1
    assert session.table("t").snapshot()["k"].to_pylist() == [1, 2, 3, 4, 5]
    session.put("q", {"k": [1, 2], "v": ["a", "b"]}, key="k")
    session.put("q", {"k": [2, 3], "v": ["B", "c"]}, key=["k"])
    assert session.table("q").snapshot()["v"].to_pylist() == ["a", "B", "c"]


def test_put_pipelines_batches(server, session):
    count = 1_000_000
    rows = pa.table({"a": pa.array(range(count)), "b": pa.array([0.5] * count)})
    progress = []
    session.put("t", rows, on_progress=progress.append, timeout=WAIT)
    assert [p.rows for p in progress] == sorted(p.rows for p in progress)
    assert len(progress) > 3
    assert progress[-1].rows == count
    assert session.table("t").snapshot().equals(rows)


def test_refused_rows_are_named(server, session):
    session.put("q", {"k": [1], "v": ["a"]}, key="k")
    with pytest.raises(RowError, match="null") as caught:
        session.put("q", {"k": [None], "v": ["x"]}, key="k")
    assert (caught.value.column, caught.value.row) == ("k", 0)
    with pytest.raises(ConfigError, match="mode"):
        session.put("q", {"k": [1]}, mode="sideways")
    with pytest.raises(SchemaError, match="cannot make a table"):
        session.put("q", 17)


def test_create_and_drop(session):
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    assert session.create_table("t", schema, key="k").schema == schema
    with pytest.raises(TableExistsError):
        session.create_table("t", schema)
    assert session.table("t").info().kind == "keyed"
    session.create_table("r", schema, kind="ring", capacity=2)
    session.put("r", {"k": [1, 2, 3], "v": ["a", "b", "c"]}, mode="append")
    assert session.table("r").snapshot()["k"].to_pylist() == [2, 3]
    session.drop_table("t")
    with pytest.raises(TableNotFoundError):
        session.drop_table("t")


def test_nobody_there():
    with pytest.raises(ConnectionLostError):
        barrage.connect("grpc://127.0.0.1:1", timeout=WAIT)
    with pytest.raises(ConfigError):
        barrage.connect("http://127.0.0.1:1")
    assert client_threads() == []


def test_closed_sessions_refuse_quietly(server):
    session = barrage.connect(server.uri, auth=server.token)
    live = session.table("t").subscribe()
    session.close()
    session.close()
    live.close()
    live.close()
    assert session.is_closed
    assert "closed" in repr(session)
    with pytest.raises(SubscriptionClosedError):
        session.tables()


def test_a_restarted_server_is_found_again():
    first = barrage.Server()
    first.start()
    first.create_table("t", SCHEMA, data={"k": [1], "s": ["a"]})
    port, token = first.port, first.token
    states = []
    with barrage.connect(first.uri, auth=token) as session:
        backoff = Backoff(first_seconds=0.05, seconds_max=0.1)
        with session.table("t").subscribe(reconnect=backoff, on_state=states.append) as live:
            live.wait_ready(WAIT)
            updates = live.updates(timeout=WAIT)
            next(updates)
            first.stop()
            assert len(live) == 1
            with barrage.Server(port=port) as second:
                second.create_table("t", SCHEMA, data={"k": [7, 8], "s": ["x", "y"]})
                assert next(updates).is_replacement
                assert live.to_arrow()["k"].to_pylist() == [7, 8]
    assert State.RESNAPSHOTTED in states


def test_the_asynchronous_client_has_the_same_shape(server):
    table = server.create_table("t", SCHEMA, data={"k": [1], "s": ["a"]})

    async def follow():
        async with barrage.aconnect(server.uri, auth=server.token) as session:
            assert [info.name for info in await session.tables()] == ["t"]
            remote = session.table("t")
            assert (await remote.snapshot()).num_rows == 1
            assert (await remote.schema()).names == ["k", "s"]
            assert (await remote.info()).total_records == 1
            async with remote.subscribe(interval_ms=10) as live:
                await live.wait_ready(WAIT)
                table.add({"k": [2], "s": ["b"]}, wait=False)
                async for update in live:
                    if update.table_size == 2:
                        break
                assert live.to_arrow()["k"].to_pylist() == [1, 2]
            await session.put("u", {"z": [1]})
            await session.create_table("v", pa.schema([("z", pa.int32())]))
            await session.drop_table("v")
        assert session.is_closed

    async def limited():
        async with asyncio.timeout(WAIT):
            await follow()

    asyncio.run(limited())


def test_the_2020_draft_is_spoken_on_request(server):
    keys = list(range(20))
    table = server.create_table("t", SCHEMA, key="k", data={"k": keys, "s": ["x"] * 20})
    with (
        barrage.connect(server.uri, auth=server.token, revision="2020") as session,
        session.table("t").subscribe(interval_ms=10) as whole,
        session.table("t").subscribe(viewport=(2, 5), interval_ms=10) as view,
    ):
        assert session.table("t").snapshot(rows=(2, 5))["k"].to_pylist() == [2, 3, 4]
        whole.wait_ready(WAIT)
        view.wait_ready(WAIT)
        updates = view.updates(timeout=WAIT)
        table.remove([0, 3])
        until(updates, lambda: view.to_arrow()["k"].to_pylist() == [4, 5, 6])
        until(whole.updates(timeout=WAIT), lambda: len(whole) == 18)
        table.upsert({"k": [5], "s": ["five"]})
        for update in updates:
            # Rows leave a window of the draft without being named: every update is all of it.
            assert update.is_replacement
            if update.added["s"].to_pylist() == ["x", "five", "x"]:
                break
        view.set_viewport((10, 12))
        view.wait_ready(WAIT)
        assert view.to_arrow()["k"].to_pylist() == [12, 13]


def test_a_client_names_columns_as_the_server_does(server):
    with barrage.connect(server.uri) as session:
        made = session.create_table("t", {"k": "int64", "at": pa.timestamp("us")}, key="k")
        assert made.schema == pa.schema({"k": pa.int64(), "at": pa.timestamp("us")})
        for wrong in ({"k": "whole"}, ["k"]):
            with pytest.raises(SchemaError):
                session.create_table("u", wrong)


INTERRUPTED = """
import signal, sys, barrage
# Whoever starts the tests in the background of a shell has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with barrage.connect(sys.argv[1]) as session:
    live = session.table("t").subscribe()
    updates = live.updates()
    next(updates)
    try:
        print("waiting", flush=True)
        next(updates)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_waiting_client(server):
    server.create_table("t", SCHEMA)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, server.uri],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (output, errors, process.returncode) == ("interrupted\n", "", 0)
