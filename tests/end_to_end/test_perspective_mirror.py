"""Tables of the real Perspective that follow live ones."""

from __future__ import annotations

import asyncio
import random
from decimal import Decimal

import pyarrow as pa
import pytest

import barrage
from barrage.errors import ConfigError
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import wait_until

WAIT = 60


@pytest.fixture(scope="module")
def server():
    with barrage.Server(config=ServerConfig(host="inproc://")) as made:
        yield made


@pytest.fixture
def session(server):
    with barrage.connect(server.uri) as made:
        yield made


def shown(mirrored):
    """The rows of a table of Perspective's, without what they are called."""
    view = mirrored.view()
    try:
        rows = view.to_records()
    finally:
        view.delete()
    return [{name: row[name] for name in row if name != "_row"} for row in rows]


def by_key(rows):
    return sorted(rows, key=lambda row: row["k"])


def test_rows_are_added_changed_and_removed(server, session):
    table = server.create_table("keyed", {"k": "int64", "v": "float64", "s": "string"}, key="k")
    table.upsert({"k": [1, 2, 3], "v": [1.0, None, 3.0], "s": ["a", None, "<b>"]})
    with session.table("keyed").subscribe() as live:
        mirrored = live.wait_ready(WAIT).to_perspective()
        assert by_key(shown(mirrored)) == live.to_arrow().to_pylist()
        table.upsert({"k": [2, 4], "v": [2.5, None], "s": ["b", ""]})
        table.remove({"k": [1]})
        expected = [
            {"k": 2, "v": 2.5, "s": "b"},
            {"k": 3, "v": 3.0, "s": "<b>"},
            {"k": 4, "v": None, "s": ""},
        ]
        wait_until(lambda: by_key(shown(mirrored)) == expected)
        # What was something becomes null.
        table.upsert({"k": [3], "v": [None], "s": [None]})
        expected[1] = {"k": 3, "v": None, "s": None}
        wait_until(lambda: by_key(shown(mirrored)) == expected)
    # It stays as it was when the live table has ended.
    table.upsert({"k": [9], "v": [9.0], "s": ["late"]})
    assert by_key(shown(mirrored)) == expected
    mirrored.delete()


@pytest.mark.parametrize("seed", [1, 2])
def test_random_changes_with_rows_that_move(server, session, seed):
    draw = random.Random(seed)
    name = f"random{seed}"
    table = server.create_table(name, {"k": "int64", "v": "int64"}, key="k")
    table.upsert({"k": list(range(50)), "v": [draw.randrange(100) for _ in range(50)]})
    with session.table(name).sort("v", "k").subscribe(interval_ms=1) as live:
        mirrored = live.wait_ready(WAIT).to_perspective(name=f"mirror{seed}")
        assert mirrored.get_name() == f"mirror{seed}"
        for _ in range(60):
            keys = draw.sample(range(80), 8)
            if draw.random() < 0.3:
                table.remove({"k": keys})
            else:
                table.upsert({"k": keys, "v": [draw.randrange(100) for _ in keys]})
        with barrage.connect(server.uri) as other:
            expected = by_key(other.table(name).snapshot(timeout=WAIT).to_pylist())
        wait_until(lambda: by_key(live.to_arrow().to_pylist()) == expected)
        wait_until(lambda: by_key(shown(mirrored)) == expected)


def test_types_that_perspective_has_not_become_text(server, session):
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("large", pa.uint64()),
            ("list", pa.list_(pa.int64())),
            ("bytes", pa.binary()),
            ("exact", pa.decimal128(20, 2)),
            ("time", pa.timestamp("ns", tz="UTC")),
        ]
    )
    rows = pa.table(
        {
            "k": [2**60 + 1, 2],
            "large": [2**64 - 1, None],
            "list": [[1], None],
            "bytes": [b"\x01", None],
            "exact": pa.array([Decimal("12345678901234567.00"), None], pa.decimal128(20, 2)),
            "time": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", tz="UTC")),
        },
        schema=schema,
    )
    server.create_table("types", data=rows, kind="static")
    with session.table("types").subscribe() as live:
        mirrored = live.wait_ready(WAIT).to_perspective()
        assert shown(mirrored) == [
            {
                "k": 2**60 + 1,
                "large": str(2**64 - 1),
                "list": "[1]",
                "bytes": "01",
                "exact": "12345678901234567.00",
                "time": 1_700_000_000_123,
            },
            {"k": 2, "large": None, "list": None, "bytes": None, "exact": None, "time": None},
        ]


def test_what_cannot_be_mirrored_is_refused(server, session):
    server.create_table("refused", {"_row": "int64"}).add({"_row": [1]})
    with (
        session.table("refused").subscribe() as live,
        pytest.raises(ConfigError, match="'_row'"),
    ):
        live.wait_ready(WAIT).to_perspective()
    with (
        session.table("refused").select(n="_row").subscribe(viewport=(0, 1)) as live,
        pytest.raises(ConfigError, match="viewport"),
    ):
        live.wait_ready(WAIT).to_perspective()


def test_a_mirror_that_is_deleted_is_followed_no_more(server, session):
    table = server.create_table("deleted", {"n": "int64"})
    with session.table("deleted").subscribe() as live:
        mirrored = live.wait_ready(WAIT).to_perspective()
        mirrored.delete()
        table.add({"n": [1]})
        wait_until(lambda: len(live) == 1)
        again = live.to_perspective()
        assert shown(again) == [{"n": 1}]


def test_on_an_event_loop(server):
    table = server.create_table("looped", {"n": "int64"})

    async def followed():
        async with (
            barrage.aconnect(server.uri) as session,
            session.table("looped").subscribe() as live,
        ):
            await live.wait_ready(WAIT)
            mirrored = await live.to_perspective()
            table.add({"n": [1, 2]})
            expected = [{"n": 1}, {"n": 2}]
            await asyncio.to_thread(wait_until, lambda: shown(mirrored) == expected)

    asyncio.run(followed())
