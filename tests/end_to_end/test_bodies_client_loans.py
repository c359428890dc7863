"""What a client was lent it gives back: a ticking table keeps nothing, and who keeps something does
not hold up the stream."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa

import barrage
from barrage.client import BodyStatus, BodyWay
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from barrage.server.statistics.body_statistics import body_rows
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST

WAIT = 60
ROWS = 20_000
SHARED = BodyStatus(BodyWay.SHM)


def rows(value, count=ROWS):
    return pa.table({"k": np.arange(count), "v": np.full(count, value), "s": [f"s{value}"] * count})


SCHEMA = {"k": "int64", "v": "int64", "s": "string"}


@contextmanager
def serving(**limits):
    config = ServerConfig(bodies="shm", limits=replace(DEFAULT_LIMITS, **limits))
    with barrage.Server(HOST, config=config) as server:
        yield server


def told(server):
    """What the server says of its shared memory."""
    app = server._app
    (row,) = body_rows(app.bodies.facts(), app.bodies.arena).to_pylist()
    return row


def gives_everything_back(server):
    gc.collect()
    row = told(server)
    return row["pending"] == 0 and row["arena_bytes"] == 0


def test_a_table_that_ticks_keeps_nothing():
    with serving() as server:
        tables = {
            "keyed": server.create_table("keyed", SCHEMA, key="k", data=rows(0)),
            "log": server.create_table("log", SCHEMA, data=rows(0)),
            "ring": server.create_table("ring", SCHEMA, capacity=2 * ROWS),
            "list": server.create_table("list", SCHEMA, kind="list", data=rows(0)),
        }
        with barrage.connect(server.uri) as session:
            lives = {name: session.table(name).subscribe(interval_ms=10) for name in tables}
            for live in lives.values():
                live.wait_ready(WAIT)
            for value in (1, 2, 3):
                tables["keyed"].upsert(rows(value))
                tables["log"].add(rows(value))
                tables["ring"].add(rows(value))
                tables["list"].insert(7, rows(value))
            for name, live in lives.items():
                wait_until(
                    lambda live=live, name=name: live.to_arrow().equals(tables[name].to_arrow())
                )
                assert live.bodies == SHARED
                assert live.stats.bodies.shm.count >= 2
            # Nobody follows them, so all that was lent has come back while they are still open.
            wait_until(lambda: gives_everything_back(server))
            assert told(server)["streams"] == len(lives)


def test_what_somebody_keeps_is_his_for_as_long_as_he_likes():
    with serving(body_lease_ns_max=300_000_000) as server:
        table = server.create_table("t", SCHEMA, key="k", data=rows(0))
        with barrage.connect(server.uri) as session:
            live = session.table("t").subscribe(interval_ms=10)
            live.wait_ready(WAIT)
            updates = live.updates(timeout=WAIT)
            next(updates)
            table.upsert(rows(1))
            kept = next(updates)
            assert told(server)["pending"] >= 1
            # The server is tired of waiting: this stream goes on inline.
            wait_until(lambda: told(server)["fallbacks"] == 1)
            before = live.stats.bodies
            for value in range(2, 10):
                table.upsert(rows(value))
            wait_until(lambda: next(updates) and set(live.to_arrow()["v"].to_pylist()) == {9})
            after = live.stats.bodies
            assert after.shm == before.shm
            assert after.inline.count > before.inline.count
            assert kept.modified["v"].to_pylist() == [1] * ROWS
            assert live.stats.reconnects == 0
            # Another stream of the same connection is not concerned, and cannot spoil what is kept.
            with session.table("t").subscribe(interval_ms=10) as other:
                other.wait_ready(WAIT)
                assert other.bodies == SHARED
                for value in range(10, 30):
                    table.upsert(rows(value))
                wait_until(lambda: set(other.to_arrow()["v"].to_pylist()) == {29})
                assert other.stats.bodies.shm.count > 1
            assert kept.modified["v"].to_pylist() == [1] * ROWS
            live.close()
            updates.close()
        assert kept.modified["v"].to_pylist() == [1] * ROWS
        del kept
        wait_until(lambda: gives_everything_back(server))


def test_who_keeps_everything_is_not_held_up():
    """Half of the window is lent, the rest is copied: nothing waits for the reader to let go."""
    with serving(body_window_bytes=2 * 1024 * 1024) as server:
        table = server.create_table("t", SCHEMA, key="k", data=rows(0))
        with barrage.connect(server.uri) as session:
            live = session.table("t").subscribe(interval_ms=10)
            live.wait_ready(WAIT)
            updates = live.updates(timeout=WAIT)
            next(updates)
            kept = []
            for value in range(1, 40):
                table.upsert(rows(value))
                kept.append(next(updates))
            assert live.stats.bodies.inline.count == 0
            wait_until(lambda: 0 < told(server)["pending_bytes"] <= 1024 * 1024)
            for value, update in enumerate(kept, 1):
                assert update.modified["v"].to_pylist() == [value] * ROWS
                assert update.modified["s"][0].as_py() == f"s{value}"
            live.close()


def test_a_snapshot_is_lent_for_as_long_as_it_is_kept():
    big = pa.table({"n": np.arange(1 << 20)})
    with serving() as server:
        server.create_table("big", data=big, kind="static")
        with barrage.connect(server.uri) as session:
            snapshot = session.table("big").snapshot()
            # Its stream is over; the memory is still in use, by whoever has the rows.
            wait_until(lambda: told(server)["streams"] == 0)
            assert told(server)["arena_bytes"] >= big.nbytes
            others = [session.table("big").snapshot() for _ in range(3)]
            assert all(other.equals(big) for other in others)
            del others
        assert snapshot.equals(big)
        del snapshot
        wait_until(lambda: gives_everything_back(server))


def test_an_arena_that_is_full_is_no_obstacle():
    with serving(body_arena_bytes=1024 * 1024, body_segment_bytes=1024 * 1024) as server:
        big = pa.table({"n": np.arange(1 << 20)})
        server.create_table("big", data=big, kind="static")
        with barrage.connect(server.uri) as session:
            kept = [session.table("big").snapshot() for _ in range(3)]
            live = session.table("big").subscribe()
            live.wait_ready(WAIT)
            assert live.to_arrow().equals(big)
            assert live.bodies == SHARED
            live.close()
            assert all(snapshot.equals(big) for snapshot in kept)


def test_dictionaries_last_as_long_as_their_stream_and_are_never_lent():
    words = pa.array([f"a word of some length, number {n}" for n in range(ROWS)])
    nested = pa.ListArray.from_arrays(
        pa.array(range(ROWS + 1), pa.int32()), words.dictionary_encode()
    )
    table = pa.table({"k": np.arange(ROWS), "word": words.dictionary_encode(), "nested": nested})
    with serving() as server:
        server.create_table("t", data=table, kind="static")
        with barrage.connect(server.uri) as session:
            live = session.table("t").subscribe()
            live.wait_ready(WAIT)
            assert live.stats.bodies.shm.count >= 2
            assert live.to_arrow()["word"].equals(pa.chunked_array([words]))
            assert live.to_arrow()["nested"].to_pylist()[7] == [words[7].as_py()]
            wait_until(lambda: gives_everything_back(server))
            assert told(server)["streams"] == 1
            live.close()
