"""Views of several sources, and columns of every kind, through cut connections and restarts."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest

import barrage
from barrage.client import Backoff, State
from tests.end_to_end.resume_scene import Follower, KeyedWriter, Past, rows_of
from tests.helpers.cutter import Cutter
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST

SCHEMA = {"k": "int64", "v": "int64", "s": "string"}
SOON = Backoff(first_seconds=0.01, seconds_max=0.1)


class TwoPasts:
    """What a view of two tables was, computed from what they were."""

    def __init__(self, left: Past, right: Past, combine) -> None:
        self._left, self._right, self._combine = left, right, combine

    def at(self, version):
        return self._combine(self._left.at(version), self._right.at(version))


def joined(left, right):
    """A natural join on k adding the right side's s as t."""
    by_key = {row[0]: row[2] for row in right}
    return [(*row, by_key.get(row[0])) for row in left]


def merged(left, right):
    return left + right


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["coalesced", "steps"])
def test_views_of_two_tables(mode):
    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        one = server.create_table("one", SCHEMA, key="k")
        two = server.create_table("two", SCHEMA, key="k")
        pasts = Past(one), Past(two)
        random = Random(mode)
        writers = [KeyedWriter(t, p, random) for t, p in zip((one, two), pasts, strict=True)]
        server.publish("both", one.merge(two))
        for _ in range(10):
            for writer in writers:
                writer.write()
        with barrage.connect(cutter.uri) as session:
            options = {"interval_ms": 10, "reconnect": SOON, "resume": mode}
            join = session.table("one").natural_join(session.table("two"), "k", "t=s")
            cases = [
                (join, joined, {}),
                (join, lambda a, b: joined(a, b)[1:5], {"viewport": (1, 5)}),
                (session.table("both"), merged, {}),
                (session.table("both"), lambda a, b: merged(a, b)[-4:],
                 {"viewport": (0, 4), "reverse": True}),
                (session.table("one").merge(session.table("two")).where("v > 50"),
                 lambda a, b: [row for row in merged(a, b) if row[1] > 50], {}),
            ]  # fmt: skip
            followers = [
                (Follower(remote.subscribe(**options, **more).wait_ready(60)), combine)
                for remote, combine, more in cases
            ]
            for cuts in range(1, 5):
                for _ in range(random.randrange(1, 5)):
                    random.choice(writers).write()
                cutter.close()
                for _ in range(random.randrange(4)):
                    random.choice(writers).write()
                cutter.open()
                for follower, _ in followers:
                    wait_until(lambda f=follower, cuts=cuts: f.live.stats.reconnects >= cuts)
                    wait_until(lambda f=follower: f.live.state is State.LIVE)
                    assert follower.live.resumption.startswith(("live", "replayed"))
            last = max(past.note() for past in pasts)
            followers[2][0].wait_for(last)
            epochs = set()
            for follower, combine in followers:
                epochs.add(follower.live.cursor.epoch)
                follower.live.close()
                assert follower.replacements == 1
                follower.check(TwoPasts(*pasts, combine))
            assert len(epochs) == 3
            assert not epochs & {one.cursor.epoch, two.cursor.epoch}


TYPES = pa.schema(
    {
        "k": pa.int32(),
        "when": pa.timestamp("us", "UTC"),
        "name": pa.dictionary(pa.int32(), pa.string()),
        "price": pa.decimal128(12, 3),
        "tags": pa.list_(pa.string()),
        "flag": pa.bool_(),
        "raw": pa.binary(),
        "small": pa.uint8(),
    }
)


def typed(*numbers: int) -> pa.Table:
    rows = {
        "k": list(numbers),
        "when": [datetime.fromtimestamp(n) for n in numbers],
        "name": [None if n % 5 == 0 else f"name {n % 3}" for n in numbers],
        "price": [Decimal(n) / 8 for n in numbers],
        "tags": [None if n % 4 == 0 else [f"{n}", None] * (n % 3) for n in numbers],
        "flag": [None if n % 7 == 0 else bool(n % 2) for n in numbers],
        "raw": [bytes([n % 256]) * (n % 3) for n in numbers],
        "small": [n % 256 for n in numbers],
    }
    return pa.table(rows, schema=TYPES)


@pytest.mark.parametrize("journal", ["memory", "durable"])
@pytest.mark.parametrize("mode", ["coalesced", "steps"])
def test_columns_of_every_kind(journal, mode, tmp_path):
    data = tmp_path if journal == "durable" else None
    with (
        barrage.Server(port=0, journal=journal, data=data) as server,
        Cutter(server.address) as cutter,
        barrage.connect(cutter.uri) as session,
    ):
        table = server.create_table("t", TYPES, key="k")
        table.upsert(typed(*range(20)))
        options = {"interval_ms": 10, "reconnect": SOON, "resume": mode}
        t = session.table("t")
        remotes = [t, t.where("flag").sort("-price"), t.select("k", "tags", "name")]
        lives = [remote.subscribe(**options).wait_ready(60) for remote in remotes]
        followers = [Follower(live) for live in lives]
        cutter.close()
        table.upsert(typed(3, 50).set_column(3, "price", pa.array([9, None], TYPES[3].type)))
        table.remove({"k": [7, 8]})
        table.upsert(typed(60, 61, 7))
        cutter.open()
        for live, remote, follower in zip(lives, remotes, followers, strict=True):
            follower.wait_for(table.cursor.version)
            assert live.resumption == "replayed 3 steps"
            wanted = remote.snapshot()
            assert rows_of(live.to_arrow()) == rows_of(wanted)
            assert follower.seen[-1][1] == rows_of(wanted)
            assert follower.replacements == 1


def test_a_view_keeps_its_epoch_through_a_restart(tmp_path):
    epochs = []
    for order in (("one", "two"), ("two", "one")):
        with barrage.Server(HOST, data=tmp_path) as server:
            for name in order:
                if name not in server.table_names():
                    server.create_table(name, SCHEMA, key="k")
            one, two = server.table("one"), server.table("two")
            if order[0] == "two":
                two.sort("-v")
            server.publish("mix", one.merge(two).where("v > 1").sort("s"))
            server.publish("join", one.natural_join(two, ["k"], ["t=s"]))
            with barrage.connect(server.uri) as session:
                lives = [
                    session.table(name).subscribe(interval_ms=10).wait_ready(60)
                    for name in ("one", "two", "mix", "join")
                ]
                epochs.append([live.cursor.epoch for live in lives])
    assert epochs[0] == epochs[1]
    assert len(set(epochs[0])) == 4


def test_views_that_differ_in_anything_have_epochs_of_their_own():
    with barrage.Server(HOST, journal="memory") as server:
        table = server.create_table("t", SCHEMA, key="k")
        other = server.create_table("u", SCHEMA, key="k")
        views = [
            table.where("v > 1"), table.where("v > 2"), table.sort("v"), table.sort("-v"),
            table.head(3), table.head(4), table.tail(3), table.slice(0, 3), table.flatten(),
            table.select("k", "v"), table.select("k", w="v"), table.select("k", v="v + 1"),
            table.drop("s"), other.where("v > 1"), table.merge(other), other.merge(table),
            table.where("v > 1").sort("v"), table.sort("v").where("v > 1"),
        ]  # fmt: skip
        for number, view in enumerate(views):
            server.publish(f"v{number}", view)
        with barrage.connect(server.uri) as session:
            lives = [
                session.table(f"v{number}").subscribe(interval_ms=10).wait_ready(60)
                for number in range(len(views))
            ]
            epochs = [live.cursor.epoch for live in lives]
        # To drop the one is to select the others.
        assert epochs[12] == epochs[9]
        assert len(set(epochs)) == len(views) - 1
