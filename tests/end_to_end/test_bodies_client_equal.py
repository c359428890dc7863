"""Rows are the same whatever way their bodies came: every column type, every kind of subscription,
both revisions, ample and tiny windows."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import barrage
from barrage.client import BodyStatus, BodyWay
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from tests.end_to_end.random_tables import ALL_TYPES, arrow_rows, some_rows
from tests.end_to_end.test_random_workload import run
from tests.helpers.examples import examples
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST
from tests.helpers.strategies_columns import VALUES, arrays, cells

OUTSIDE = replace(DEFAULT_LIMITS, body_inline_bytes_max=0)
TIGHT = replace(OUTSIDE, body_window_bytes=4096, body_window_count=4, body_wait_ns_max=1_000_000)
SHARED = BodyStatus(BodyWay.SHM)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("seed", "revision", "limits"),
    [(11, "1.0.0", OUTSIDE), (12, "2020", OUTSIDE), (13, "1.0.0", TIGHT)],
)
def test_every_subscriber_holds_the_rows_of_the_server(seed, revision, limits):
    stats = run(
        seed, revision=revision, rounds=2, subscribers=10, changes=12,
        config=ServerConfig(bodies="shm", limits=limits),
    )  # fmt: skip
    assert sum(each.shm.count for each in stats) > len(stats)
    assert sum(each.ucx.count for each in stats) == 0


@pytest.fixture(scope="module")
def server():
    config = ServerConfig(bodies="shm", limits=OUTSIDE)
    with barrage.Server(HOST, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def sessions(server):
    with (
        barrage.connect(server.uri) as shared,
        barrage.connect(server.uri, bodies="inline") as inline,
    ):
        yield shared, inline


@examples(5)
@given(data=st.data())
def test_every_column_type(server, sessions, data):
    rows = data.draw(st.integers(1, 20))
    table = pa.table({name: data.draw(arrays(name, rows)) for name in VALUES})
    server.create_table("types", data=table, kind="static")
    try:
        tables = []
        for session in sessions:
            remote = session.table("types")
            with remote.subscribe() as whole, remote.subscribe(viewport=(1, 12)) as view:
                whole.wait_ready(60)
                view.wait_ready(60)
                tables.append((whole.to_arrow(), view.to_arrow(), whole.stats.bodies))
                is_shared = session is sessions[0]
                assert (whole.bodies == SHARED) == (view.bodies == SHARED) == is_shared
            channel = sessions[0]._session._connection.bodies
            assert channel.is_ready
            tables[-1] += (remote.snapshot(),)
    finally:
        server.drop_table("types")
    (full, view, counts, snapshot), (inline_full, inline_view, inline_counts, inline_snapshot) = (
        tables
    )
    assert counts.shm.count > 0
    assert inline_counts.shm.count == 0
    for ours, theirs in ((full, inline_full), (view, inline_view), (snapshot, inline_snapshot)):
        assert ours.schema.equals(theirs.schema)
        ours.validate(full=True)
        for name in ours.column_names:
            assert cells(ours.column(name)) == cells(theirs.column(name)), name


KINDS = {
    "full": {},
    "columns": {"columns": ["text", "n", "word", "nested"]},
    "viewport": {"viewport": (3, 40)},
    "reverse": {"viewport": (0, 40), "reverse": True},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", ["keyed", "log", "list", "ring"])
def test_ticking_tables_of_every_kind(kind, table):
    rng = random.Random(3)
    config = ServerConfig(bodies="shm", limits=OUTSIDE)

    def some(count):
        return arrow_rows(ALL_TYPES, some_rows(rng, ALL_TYPES, count))

    def keyed(count):
        rows = some(count)
        keys = pa.array(rng.sample(range(80), count), pa.int64())
        return rows.set_column(0, "n", keys)

    with barrage.Server(HOST, config=config) as server:
        if table == "keyed":
            source = server.create_table("t", ALL_TYPES, key="n")
        elif table == "ring":
            source = server.create_table("t", ALL_TYPES, capacity=50)
        else:
            kinds = {"log": "append_only", "list": "list"}
            source = server.create_table("t", ALL_TYPES, kind=kinds[table])
        change = {
            "keyed": lambda: (source.upsert(keyed(30)), source.remove([rng.randrange(80)])),
            "log": lambda: source.add(some(20)),
            "ring": lambda: source.add(some(20)),
            "list": lambda: source.insert(rng.randint(0, len(source)), some(10)),
        }[table]
        change()
        with (
            barrage.connect(server.uri) as shared,
            barrage.connect(server.uri, bodies="inline") as inline,
            shared.table("t").subscribe(interval_ms=10, **KINDS[kind]) as ours,
            inline.table("t").subscribe(interval_ms=10, **KINDS[kind]) as theirs,
        ):
            ours.wait_ready(60)
            theirs.wait_ready(60)
            for _ in range(6):
                change()
                size = len(source)
                wait_until(lambda size=size: ours.table_size == theirs.table_size == size)
                wait_until(lambda: ours.to_arrow().equals(theirs.to_arrow()))
            assert ours.bodies == SHARED
            assert ours.stats.bodies.shm.count >= 4
            assert ours.stats.bodies.inline.count == 0
            assert theirs.stats.bodies.shm.count == 0
            assert ours.stats.rows > 0


def test_a_large_snapshot_and_its_progress():
    rows = 300_000
    table = pa.table({f"c{n}": np.arange(rows) + n for n in range(5)})
    with barrage.Server(HOST, bodies="shm") as server:
        server.create_table("t", data=table, kind="static")
        progress = []
        with (
            barrage.connect(server.uri) as shared,
            barrage.connect(server.uri, bodies="inline") as inline,
        ):
            got = shared.table("t").snapshot(on_progress=progress.append)
            assert got.equals(table)
            assert progress == sorted(progress)
            assert progress[-1] >= table.nbytes
            assert inline.table("t").snapshot().equals(table)
            part = shared.table("t").snapshot(columns=["c4", "c1"], rows=(1000, 299_000))
            assert part.equals(table.slice(1000, 298_000).select(["c4", "c1"]))
            reverse = shared.table("t").snapshot(rows=(0, 250_000), reverse=True)
            assert reverse.equals(table.slice(50_000))
        # The session is gone and the server is about to: what was read stays.
    assert got.equals(table)
    assert part["c4"][0].as_py() == 1004
