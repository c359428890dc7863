"""Journals read by a plain pyarrow Flight client over real sockets."""

from __future__ import annotations

import base64
import gc
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.limits import Limits
from barrage.server.settings.config import ServerConfig
from tests.helpers.journal_client import JournalClient, descriptor, replayed
from tests.helpers.server_process import wait_until

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
OTHER_EPOCH = "f" * 16


@pytest.fixture(params=["memory", "durable"])
def server(request, tmp_path) -> Iterator[barrage.Server]:
    kind = request.param
    settings: dict[str, Any] = {"data": str(tmp_path)} if kind == "durable" else {}
    with barrage.Server(journal=kind, **settings) as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[JournalClient]:
    with JournalClient(server.uri) as opened:
        yield opened


@pytest.fixture
def table(server):
    """Versions: rows a and b come, a changes, b goes."""
    made = server.create_table("t", SCHEMA, key="k")
    made.upsert([{"k": "a", "v": 1}, {"k": "b", "v": 2}])
    made.upsert([{"k": "a", "v": 10}])
    made.remove(["b"])
    return made


def told(feed: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    chosen = columns or ("_change_type", "_row_id", "k", "v")
    return list(zip(*(feed.column(name).to_pylist() for name in chosen), strict=True))


def refused(call: Any, kind: type[Exception] = pa.ArrowException) -> str:
    """What a call is refused with; failed preconditions are ArrowInvalid to a Flight client."""
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


# --- actions ---


def test_info_tells_what_the_journal_has(client, table):
    info = client.info("t")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(info["schema"])))
    assert schema == SCHEMA
    assert (info["table"], info["key"], info["kind"]) == ("t", ["k"], "keyed")
    assert len(info["epoch"]) == 16
    assert info["earliest"] < info["version"]
    assert (info["rows"], info["offset"]) == (1, 5)
    assert abs(info["timestamp_us"] / 1e6 - np.datetime64("now").astype(int)) < 60


def test_a_table_without_journal_and_no_table_are_told_apart(server, client):
    server.create_table("plain", SCHEMA, journal="none")
    view = server.create_table("t", SCHEMA).where("v > 1")
    server.publish("view", view)
    server.publish("deeper", server.table("t").where("v > 1").agg_by("k", n="count()"))
    for name in ("plain", "view", "deeper"):
        text = refused(lambda name=name: client.info(name))
        assert "no-journal: table" in text
        assert ("use the tables it is made of: 't'" in text) is (name != "plain")
    assert "not found" in refused(lambda: client.info("absent"), KeyError)


def test_bound_takes_what_fits_and_at_least_one_version(client, table):
    info = client.info("t")
    start = {"table": "t", "epoch": info["epoch"], "from": info["earliest"]}
    steps = [client.act("journal.bound", **start, max_rows=most) for most in (1, 2, 4, 5, 100)]
    assert [step["rows"] for step in steps] == [2, 2, 4, 4, 4]
    with_before = client.act("journal.bound", **start, max_rows=100, preimage=True)
    assert (with_before["version"], with_before["rows"]) == (steps[-1]["version"], 5)
    assert client.act("journal.bound", **start, max_rows=3, preimage=True)["rows"] == 2
    versions = [step["version"] for step in steps]
    assert versions == sorted(versions)
    assert versions[-1] == info["version"]
    assert client.act("journal.bound", **start, max_bytes=1)["version"] == versions[0]
    capped = client.act("journal.bound", **start, max_rows=100, cap=versions[0])
    assert (capped["version"], capped["rows"]) == (versions[0], 2)
    end = {**start, "from": info["version"]}
    assert client.act("journal.bound", **end, max_rows=1)["version"] == info["version"]


def test_equal_rows_of_a_replaced_list_cost_the_journal_nothing(client, server):
    made = server.create_table("t", SCHEMA, kind="list")
    content = pa.table({"k": [f"key {i}" for i in range(20_000)], "v": list(range(20_000))})
    made.replace(content)
    # What a journal in memory holds is counted by its own thread.
    wait_until(lambda: client.info("t")["bytes"] > 0)
    written = client.info("t")["bytes"]
    changed = content.slice(1).to_pydict()
    for turn in range(20):
        made.replace(pa.table({"k": [*changed["k"], "new"], "v": [*changed["v"], turn]}))
    assert client.info("t")["bytes"] - written < written / 20
    assert client.info("t")["rows"] == 20_000


def test_bound_cuts_snapshots_by_row_ids(client, server):
    made = server.create_table("t", SCHEMA)
    for start in range(0, 100, 10):
        made.add(pa.table({"k": ["x"] * 10, "v": list(range(start, start + 10))}))
    info = client.info("t")
    asked = {"table": "t", "epoch": info["epoch"], "version": info["version"]}
    row, seen = 0, []
    while row >= 0:
        bound = client.act("journal.bound", **asked, row=row, max_rows=30)
        stop = 2**62 if bound["row"] < 0 else bound["row"]
        part = client.reader(mode="snapshot", **asked, ids=[row, stop], columns=["v"]).read_all()
        assert part.num_rows == bound["rows"] <= 30
        seen += part.column("v").to_pylist()
        row = bound["row"]
    assert sorted(seen) == list(range(100))


def test_version_at_a_time(client, table):
    info = client.info("t")
    now = client.act("journal.version", table="t", timestamp_us=info["timestamp_us"] + 10**9)
    assert now == {"epoch": info["epoch"], "version": info["version"]}
    text = refused(lambda: client.act("journal.version", table="t", timestamp_us=1))
    assert "history-lost: truncated" in text


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("journal.info", {"table": "t", "more": 1}),
        ("journal.info", {}),
        ("journal.bound", {"table": "t", "epoch": "x", "from": 0}),
        ("journal.bound", {"table": "t", "from": "0"}),
        ("journal.bound", {"table": "t", "from": 0, "max_rows": -1}),
        ("journal.bound", {"table": "t", "from": 0, "max_rows": 1.5}),
        ("journal.version", {"table": "t", "timestamp_us": 2**62}),
        ("journal.cursor", {"table": "t", "consumer": "c"}),
        ("journal.cursor", {"table": "t", "consumer": "", "version": 1}),
        ("journal.cursor", {"table": "t", "consumer": "c", "version": 1, "lease_ms": 0}),
        ("journal.release", {"table": "t"}),
        ("journal.release", [1]),
    ],
)
def test_wrong_bodies_are_refused_by_their_field(client, table, name, body):
    def call() -> None:
        list(client.client.do_action((name, json.dumps(body).encode())))

    assert refused(call, pa.ArrowInvalid)


# --- feeds ---


def test_changes_tell_what_happened(client, table):
    info = client.info("t")
    feed = client.changes("t", info["earliest"])
    assert told(feed) == [
        ("insert", 0, "a", 1),
        ("insert", 1, "b", 2),
        ("update_postimage", 0, "a", 10),
        ("delete", 1, "b", 2),
    ]
    assert feed.column("_commit_version").to_pylist()[-1] == info["version"]
    assert str(feed.schema.field("_commit_timestamp").type) == "timestamp[us, tz=UTC]"


def test_the_ends_of_a_range_are_open_and_closed(client, table):
    feed = client.changes("t", client.info("t")["earliest"])
    first, second, third = sorted(set(feed.column("_commit_version").to_pylist()))
    assert told(client.changes("t", first, second), "v") == [(10,)]
    assert client.changes("t", second, second).num_rows == 0
    assert told(client.changes("t", second, third), "_change_type") == [("delete",)]


def test_a_feed_takes_options(client, table):
    earliest = client.info("t")["earliest"]
    chosen = client.changes("t", earliest, columns=["v"], filter="v > 5", preimage=True)
    assert chosen.column_names[4:] == ["v"]
    assert told(chosen, "_change_type", "v") == [("insert", 10)]
    net = client.changes("t", earliest, net=True)
    assert told(net) == [("insert", 0, "a", 10)]
    wide = client.changes("t", earliest, row_key=True, modified_columns=True, preimage=True)
    assert told(wide, "_change_type", "_row_key", "_modified_columns")[2:4] == [
        ("update_preimage", 0, ["v"]),
        ("update_postimage", 0, ["v"]),
    ]


@pytest.mark.parametrize("options", [{}, {"net": True}, {"preimage": True}, {"columns": ["v"]}])
def test_a_feed_says_no_more_than_is_wanted(client, table, options):
    info = client.info("t")
    names = info["feed_columns"]
    assert names == ["_change_type", "_commit_version", "_commit_timestamp", "_row_id"]
    whole = client.changes("t", info["earliest"], **options)
    own = whole.column_names[4:]
    for wanted in ([], ["_row_id"], ["_row_id", "_change_type"]):
        found = client.changes("t", info["earliest"], feed_columns=wanted, **options)
        assert found == whole.select([name for name in names if name in wanted] + own)
    asked = {"mode": "snapshot", "epoch": info["epoch"], "feed_columns": []}
    plan = client.plan("t", **asked)
    assert client.client.do_get(plan.endpoints[0].ticket).read_all().schema == plan.schema
    assert plan.schema.names == ["k", "v"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"feed_columns": ["k"]}, "some of _change_type"),
        ({"feed_columns": [], "columns": []}, "no column of table 't' is wanted"),
        ({"columns": ["w"]}, "unknown column 'w'"),
        ({"filter": "w > 1"}, "unknown column 'w'"),
        ({"filter": "v >"}, "position"),
        ({"filter": "v + 1"}, "true or false"),
        ({"colums": ["v"]}, "did you mean 'columns'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(client, table, options, text):
    earliest = client.info("t")["earliest"]
    assert text in refused(lambda: client.changes("t", earliest, **options), pa.ArrowInvalid)


def test_a_plan_says_what_there_is_and_how_to_get_it(client, table):
    info = client.info("t")
    plan = client.plan("t", **{"from": info["earliest"], "splits": 3})
    assert len(plan.endpoints) == 3
    assert (plan.total_records, plan.total_bytes > 0) == (4, True)
    everything = client.plan("t", **{"from": info["earliest"], "preimage": True})
    assert everything.total_records == 5
    metadata = json.loads(plan.app_metadata)
    assert metadata == {
        "epoch": info["epoch"],
        "from": info["earliest"],
        "to": info["version"],
    }
    part = client.client.do_get(plan.endpoints[0].ticket).read_all()
    assert part.schema == plan.schema
    asked = descriptor("t", **{"from": info["earliest"]})
    assert client.client.get_schema(asked).schema == plan.schema


def test_splits_share_the_rows_between_them(client, server):
    made = server.create_table("t", SCHEMA, key="k")
    rng = random.Random(3)
    for _ in range(20):
        keys = rng.sample(range(2000), 300)
        made.upsert(pa.table({"k": [str(k) for k in keys], "v": [rng.random() > 0.5] * 300}))
        made.remove([str(k) for k in rng.sample(range(2000), 50)])
    info = client.info("t")
    whole = client.changes("t", info["earliest"])
    for splits in (2, 7):
        plan = client.plan("t", **{"from": info["earliest"], "splits": splits})
        parts = [client.client.do_get(end.ticket).read_all() for end in plan.endpoints]
        ids = [set(part.column("_row_id").to_pylist()) for part in parts]
        assert sum(map(len, ids)) == len(set().union(*ids))
        assert sum(part.num_rows for part in parts) == whole.num_rows
        assert replayed(pa.concat_tables(parts, promote_options="permissive"), ["k", "v"]) == (
            replayed(whole, ["k", "v"])
        )


def test_a_feed_from_the_beginning_and_a_snapshot_equal_the_table(client, server):
    rng = random.Random(11)
    made = server.create_table("l", SCHEMA, kind="list")
    size = 0
    for step in range(60):
        if size > 40 and rng.random() < 0.4:
            start = rng.randrange(size - 20)
            made.delete(start, start + 20)
            size -= 20
        else:
            at = rng.randint(0, size)
            made.insert(at, pa.table({"k": [str(step)] * 15, "v": list(range(15))}))
            size += 15
    info = client.info("l")
    rows = replayed(client.changes("l", info["earliest"]), ["k", "v"])
    snapshot = client.snapshot("l", splits=4)
    assert {row[0]: row[1:] for row in told(snapshot, "_row_id", "k", "v")} == rows
    expected = [(row["k"], row["v"]) for row in made.to_arrow().to_pylist()]
    assert sorted(rows.values()) == sorted(expected)
    assert set(snapshot.column("_change_type").to_pylist()) == {"insert"}
    assert set(snapshot.column("_commit_version").to_pylist()) == {info["version"]}


def test_a_snapshot_of_an_old_version(client, table):
    info = client.info("t")
    versions = client.changes("t", info["earliest"]).column("_commit_version").to_pylist()
    old = client.snapshot("t", to=versions[0])
    assert told(old) == [("insert", 0, "a", 1), ("insert", 1, "b", 2)]
    assert client.snapshot("t", to=info["earliest"]).num_rows == 0


def test_a_snapshot_needs_no_version(client, table):
    now = client.reader(mode="snapshot", table="t").read_all()
    assert told(now) == [("insert", 0, "a", 10)]


def test_a_read_group_stays_at_its_first_version(client, table):
    plan = client.plan("t", mode="snapshot", read_group="query 1", splits=2)
    assert all(b'"version"' in end.ticket.ticket for end in plan.endpoints)
    first = client.fetched(plan)
    table.upsert([{"k": "c", "v": 3}])
    wait_until(lambda: client.info("t")["rows"] == 2)
    assert client.fetched(plan).equals(first)
    other = client.snapshot("t", read_group="query 2")
    assert sorted(told(other, "k")) == [("a",), ("c",)]


def test_every_type_that_travels_comes_back(client, server):
    rows = pa.table(
        {
            "text": pa.array(["a", None, "b"]).dictionary_encode(),
            "large": pa.array(["x", "y", None], pa.large_string()),
            "small": pa.array([1, None, 255], pa.uint8()),
            "list": pa.array([[1], None, [2, 3]]),
            "time": pa.array([1, 2, None], pa.timestamp("ns", "UTC")),
            "flag": pa.array([True, None, False]),
            "decimal": pa.array([1, 2, 3]).cast(pa.decimal128(19, 0)),
        }
    )
    server.create_table("wide", data=rows)
    feed = client.changes("wide", client.info("wide")["earliest"])
    assert feed.drop_columns(feed.column_names[:4]).to_pylist() == rows.to_pylist()


def test_large_cycles_travel_in_messages_of_bounded_size(client, server):
    count = 1_000_000
    rows = pa.table({"k": pa.array(np.arange(count).astype(str)), "v": np.arange(count)})
    server.create_table("big", data=rows)
    plan = client.plan("big", **{"from": client.info("big")["earliest"]})
    sizes, total = [], 0
    for chunk in client.client.do_get(plan.endpoints[0].ticket):
        sizes.append(chunk.data.nbytes)
        total += chunk.data.num_rows
    assert total == count
    assert max(sizes) < 3 * 1024 * 1024
    assert len(sizes) > 10


# --- what is lost ---


def test_another_epoch_is_said_to_be_gone(client, table):
    info = client.info("t")
    old = {"table": "t", "epoch": OTHER_EPOCH}
    calls = [
        lambda: client.plan("t", epoch=OTHER_EPOCH, **{"from": 1}),
        lambda: client.reader(mode="changes", **old, **{"from": 1, "to": 2}).read_all(),
        lambda: client.reader(mode="snapshot", **old, version=2).read_all(),
        lambda: client.act("journal.bound", **old, **{"from": 1}),
        lambda: client.act("journal.cursor", **old, consumer="c", version=1),
    ]
    for call in calls:
        text = refused(call)
        assert "history-lost: epoch: table 't' at epoch ffffffffffffffff" in text
        assert f"epoch {info['epoch']}, versions {info['earliest']} to {info['version']}" in text


def test_versions_before_the_first_and_after_the_last_are_lost(client, table):
    info = client.info("t")
    at = {"table": "t", "epoch": info["epoch"]}
    for call in (
        lambda: client.plan("t", **{"from": -1}),
        lambda: client.reader(mode="changes", **at, **{"from": -1, "to": 2}).read_all(),
        lambda: client.act("journal.bound", **at, **{"from": -1}),
    ):
        assert "history-lost: truncated" in refused(call)
    ahead = 2**40
    for call in (
        lambda: client.plan("t", **{"from": info["version"], "to": ahead}),
        lambda: client.reader(mode="snapshot", **at, version=ahead).read_all(),
        lambda: client.act("journal.cursor", **at, consumer="c", version=ahead),
    ):
        assert "history-lost: epoch" in refused(call)


def test_a_step_in_which_the_table_did_not_change_names_its_state(client, server, table):
    info = client.info("t")
    other = server.create_table("other", SCHEMA, key="k")
    for value in range(5):
        step = other.upsert([{"k": "x", "v": value}])
    assert step > info["version"]
    assert client.snapshot("t", to=step).column("v").to_pylist() == [10]
    assert client.changes("t", info["version"], step).num_rows == 0
    table.upsert([{"k": "a", "v": 11}])
    assert told(client.changes("t", step), "v") == [(11,)]


def test_a_table_made_anew_has_another_epoch(client, server, table):
    info = client.info("t")
    server.drop_table("t")
    assert "not found" in refused(lambda: client.info("t"), KeyError)
    server.create_table("t", SCHEMA, key="k")
    again = client.info("t")
    assert again["epoch"] != info["epoch"]
    at = {"mode": "changes", "table": "t", "epoch": info["epoch"]}
    text = refused(lambda: client.reader(**at, **{"from": 1, "to": 2}).read_all())
    assert "history-lost: epoch" in text


@pytest.mark.parametrize(
    "ticket",
    [
        b"j/",
        b"j/{}",
        b"j/[]",
        b'j/{"mode":"changes"}',
        b'j/{"mode":"changes","table":"t","epoch":"zz","from":1,"to":2}',
        b'j/{"mode":"snapshot","table":"t","version":1}',
        b'j/{"mode":"watch","table":"t"}',
        b"j/" + b"[" * 5000,
        b"j/\xff\xfe\x00",
    ],
)
def test_hostile_tickets_are_refused_and_the_server_goes_on(client, table, ticket):
    for call in (
        lambda: client.client.do_get(flight.Ticket(ticket)).read_all(),
        lambda: client.client.get_flight_info(flight.FlightDescriptor.for_command(ticket)),
        lambda: client.client.get_schema(flight.FlightDescriptor.for_command(ticket)),
    ):
        assert refused(call, pa.ArrowInvalid)
    assert client.info("t")["rows"] == 1


# --- many readers, slow ones, ones that go away ---


@pytest.mark.sampled(2)
def test_readers_beside_a_writer_see_consistent_versions(client, server):
    made = server.create_table("t", SCHEMA, key="k")
    made.upsert([{"k": "x", "v": 0}])
    info = client.info("t")
    is_done = threading.Event()

    def write() -> None:
        rng = random.Random(5)
        while not is_done.is_set():
            keys = [str(k) for k in rng.sample(range(50), 10)]
            # Every cycle makes the sum of all values a multiple of ten.
            made.upsert(pa.table({"k": keys, "v": [rng.randrange(100) * 10] * 10}))

    with ThreadPoolExecutor(3) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(30):
                now = client.info("t")
                at = {"table": "t", "epoch": now["epoch"]}
                feed = client.reader(
                    mode="changes", **at, **{"from": info["earliest"], "to": now["version"]}
                ).read_all()
                rows = replayed(feed, ["k", "v"])
                again = client.reader(mode="snapshot", **at, version=now["version"]).read_all()
                assert {r[0]: r[1:] for r in told(again, "_row_id", "k", "v")} == rows
                assert sum(v for _, v in rows.values()) % 10 == 0
        finally:
            is_done.set()
            writing.result()


def big_table(server: barrage.Server, count: int = 500_000) -> None:
    server.create_table("big", data=pa.table({"v": np.arange(count), "w": np.random.rand(count)}))


def test_a_slow_reader_keeps_no_thread_and_gets_everything(client, server):
    big_table(server)
    plan = client.plan("big", **{"from": client.info("big")["earliest"]})
    slow = [client.client.do_get(plan.endpoints[0].ticket) for _ in range(8)]
    first = [reader.read_chunk().data.num_rows for reader in slow]
    # More readers stand still than there are threads; another one is served.
    assert client.fetched(plan).num_rows == 500_000
    for reader, count in zip(slow, first, strict=True):
        assert count + reader.read_all().num_rows == 500_000


def test_readers_that_go_away_leave_nothing(client, server, caplog):
    big_table(server)
    plan = client.plan("big", **{"from": client.info("big")["earliest"]})
    for _ in range(10):
        with JournalClient(server.uri) as gone:
            reader = gone.client.do_get(plan.endpoints[0].ticket)
            reader.read_chunk()
            reader.cancel()
    wait_until(lambda: server._running.journals.read_count == 0)
    assert client.fetched(plan).num_rows == 500_000
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_a_filter_that_fails_on_a_value_ends_the_read_with_its_reason(client, server):
    made = server.create_table("t", SCHEMA)
    made.add(pa.table({"k": ["a"] * 100_000, "v": range(100_000)}))
    start = client.info("t")["earliest"]
    text = refused(
        lambda: client.changes("t", start, filter="v * 9223372036854775807 > 1"), pa.ArrowInvalid
    )
    assert "overflow" in text
    assert client.changes("t", start, filter="v < 10").num_rows == 10


def test_reads_under_way_are_bounded():
    limits = Limits(journal_reads_max=2)
    with (
        barrage.Server(config=ServerConfig(limits=limits), journal="memory") as server,
        JournalClient(server.uri) as client,
    ):
        big_table(server)
        plan = client.plan("big", **{"from": client.info("big")["earliest"]})
        ticket = plan.endpoints[0].ticket
        readers = [client.client.do_get(ticket) for _ in range(2)]
        for reader in readers:
            reader.read_chunk()
        assert "reads under way is 3" in refused(lambda: client.client.do_get(ticket).read_all())
        for reader in readers:
            reader.cancel()
        wait_until(lambda: server._running.journals.read_count == 0)
        assert client.client.do_get(ticket).read_all().num_rows == 500_000


def test_credentials_are_asked_for(tmp_path):
    with (
        barrage.Server(token="secret", journal="memory") as server,
        JournalClient(server.uri) as client,
    ):
        server.create_table("t", SCHEMA)
        assert refused(lambda: client.info("t"), flight.FlightUnauthenticatedError)
        ticket = flight.Ticket(b'j/{"mode":"snapshot","table":"t"}')
        assert refused(
            lambda: client.client.do_get(ticket).read_all(), flight.FlightUnauthenticatedError
        )
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret")])
        assert client.client.do_get(ticket, options).read_all().num_rows == 0


def test_a_server_stops_under_a_reader_that_stands_still():
    config = ServerConfig(drain_grace_ms=200)
    with barrage.Server(config=config, journal="memory") as server:
        big_table(server, 3_000_000)  # More than a client takes unread, whatever it has measured.
        client = JournalClient(server.uri)
        reader = client.reader(mode="snapshot", table="big")
        reader.read_chunk()
        server.stop()
    with pytest.raises((pa.ArrowException, OSError)):
        reader.read_all()
    client.client.close()
