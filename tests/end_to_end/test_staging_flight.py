"""The sink's protocol spoken by a plain pyarrow Flight client: staging, commits, refusals."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage.limits import Limits
from barrage.server.ingest import portions as portions_module
from barrage.server.settings.config import ServerConfig
from barrage.transport.flight_messages import Descriptor
from barrage.wire.flight_data import TAG_DESCRIPTOR
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import FLIGHT, raw_channel, wait_until

SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
SCHEMA_TEXT = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["k"], "create": True}


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server(journal="memory") as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[JournalClient]:
    with JournalClient(server.uri) as opened:
        yield opened


def rows(*values: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip("kv", value, strict=True)) for value in values], SCHEMA)


def feed(*values: tuple[Any, ...]) -> pa.Table:
    """Rows of (change type, version, row id, key, value)."""
    names = ("_change_type", "_commit_version", "_row_id", "k", "v")
    types = (pa.string(), pa.int64(), pa.int64(), pa.string(), pa.int64())
    columns = [
        pa.array(list(column), kind)
        for column, kind in zip(zip(*values, strict=True), types, strict=True)
    ]
    return pa.table(columns, names=names)


def content(server: barrage.Server, name: str = "t") -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in server.table(name).to_arrow().to_pylist())


def staging(server: barrage.Server) -> Any:
    return server._running.journals.staging


def refused(call: Any, match: str) -> None:
    with pytest.raises((pa.ArrowException, KeyError, NotImplementedError), match=match):
        call()


def test_a_batch_becomes_visible_as_a_whole_in_one_cycle(server, client):
    server.create_table("t", SCHEMA)
    staged = client.stage("t", "w", 0, rows(("a", 1)), rows(("b", 2), ("c", 3)))
    assert content(server) == []
    done = client.commit("t", "w", 0, staged, mode="append")
    assert (done["rows"], done["duplicate"]) == (3, False)
    assert content(server) == [("a", 1), ("b", 2), ("c", 3)]
    changes = client.changes("t", client.info("t")["earliest"])
    assert set(changes.column("_commit_version").to_pylist()) == {done["version"]}
    assert staging(server).part_count == 0


def test_a_large_batch_of_a_keyed_table_comes_in_portions_and_its_number_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(portions_module, "PORTION_ROWS_MAX", 3)
    limits = Limits(whole_batch_rows_max=5, ingest_rows_pending_max=3)
    many = rows(*((f"k{number:02}", number) for number in range(20)))
    with (
        barrage.Server(config=ServerConfig(limits=limits), journal="memory") as server,
        JournalClient(server.uri) as client,
    ):
        staged = client.stage("t", "w", 0, many.slice(0, 9), many.slice(9))
        done = client.commit("t", "w", 0, staged, **UPSERT)
        assert (done["rows"], done["duplicate"]) == (20, False)
        changes = client.changes("t", client.info("t")["earliest"])
        versions = changes.column("_commit_version").to_pylist()
        assert len(set(versions)) == 7
        assert max(versions) == done["version"] == client.info("t")["version"]
        staged = client.stage("t", "w", 1, many.slice(15))
        assert client.commit("t", "w", 1, staged, mode="replace")["rows"] == 5
        staged = client.stage("t", "w", 2, many.slice(8, 9))
        client.commit("t", "w", 2, staged, mode="replace")
        assert content(server) == [(f"k{number:02}", number) for number in range(8, 17)]
        assert client.commit("t", "w", 2, staged)["duplicate"]


def test_a_commit_that_is_asked_for_again_does_nothing(server, client):
    staged = client.stage("t", "w", 0, rows(("a", 1)))
    first = client.commit("t", "w", 0, staged, create=True, schema=SCHEMA_TEXT)
    again = client.commit("t", "w", 0, staged, create=True, schema=SCHEMA_TEXT)
    assert (again["duplicate"], again["version"] >= first["version"]) == (True, True)
    # The same batch staged once more, by a driver that did not hear the answer.
    staged = client.stage("t", "w", 0, rows(("a", 1)))
    assert client.commit("t", "w", 0, staged)["duplicate"]
    assert content(server) == [("a", 1)]
    assert staging(server).part_count == 0


def test_attempts_that_lost_are_dropped(server, client):
    client.stage("t", "w", 0, rows(("lost", 0)))
    winner = client.stage("t", "w", 0, rows(("won", 1)))
    assert staging(server).part_count == 2
    client.commit("t", "w", 0, winner, create=True)
    assert content(server) == [("won", 1)]
    assert staging(server).part_count == 0


def test_batches_may_have_gaps_but_an_unknown_writer_begins_at_nought(server, client):
    server.create_table("t", SCHEMA)
    staged = client.stage("t", "w", 3, rows(("a", 1)))
    refused(lambda: client.commit("t", "w", 3, staged), "unknown-writer: table 't' does not know")
    assert content(server) == []
    assert not client.commit("t", "w", 3, staged, fail_on_data_loss=False)["duplicate"]
    staged = client.stage("t", "w", 7, rows(("b", 2)))
    assert not client.commit("t", "w", 7, staged)["duplicate"]
    assert client.commit("t", "w", 5, [])["duplicate"]


def test_an_empty_batch_leaves_its_number(server, client):
    server.create_table("t", SCHEMA)
    assert client.commit("t", "w", 0, [])["rows"] == 0
    staged = client.stage("t", "w", 1, rows(("a", 1)))
    assert not client.commit("t", "w", 1, staged)["duplicate"]
    assert client.commit("t", "w", 1, staged)["duplicate"]


def test_writers_do_not_know_of_each_other(server, client):
    for writer in ("v", "w"):
        staged = client.stage("t", writer, 0, rows((writer, 0)))
        assert not client.commit("t", writer, 0, staged, create=True)["duplicate"]
    assert content(server) == [("v", 0), ("w", 0)]


def test_upserts_make_a_keyed_table_and_the_last_row_of_a_key_counts(server, client):
    staged = client.stage("t", "w", 0, rows(("a", 1), ("b", 1), ("a", 2)))
    client.commit("t", "w", 0, staged, **UPSERT)
    staged = client.stage("t", "w", 1, rows(("b", 3)))
    client.commit("t", "w", 1, staged, **UPSERT)
    assert content(server) == [("a", 2), ("b", 3)]
    assert client.info("t")["key"] == ["k"]


def test_replacing_ticks_only_what_is_different(server, client):
    options = {"mode": "replace", "key": ["k"], "create": True}
    for batch, values in enumerate(
        (
            [("a", 1), ("b", 2), ("c", 3)],
            [("a", 1), ("b", 9), ("d", 4)],
        )
    ):
        staged = client.stage("t", "w", batch, rows(*values))
        done = client.commit("t", "w", batch, staged, **options)
    assert content(server) == [("a", 1), ("b", 9), ("d", 4)]
    changes = client.changes("t", done["version"] - 1)
    told = [(row["_change_type"], row["k"]) for row in changes.to_pylist()]
    assert sorted(told) == [("delete", "c"), ("insert", "d"), ("update_postimage", "b")]


def test_content_without_key_is_replaced_as_a_list(server, client):
    for batch, values in enumerate(([("a", 1), ("a", 1)], [("b", 2)])):
        staged = client.stage("t", "w", batch, rows(*values))
        client.commit("t", "w", batch, staged, mode="replace", create=True)
    assert content(server) == [("b", 2)]


def test_a_change_feed_without_key_goes_by_its_row_ids(server, client):
    changes = feed(
        ("insert", 1, 0, "a", 1),
        ("insert", 1, 1, "a", 1),
        ("update_postimage", 2, 0, "b", 2),
        ("delete", 3, 1, "a", 1),
        ("insert", 3, 5, "c", 3),
    )
    staged = client.stage("t", "w", 0, changes.slice(2), changes.slice(0, 2))
    client.commit("t", "w", 0, staged, mode="changes", create=True, schema=SCHEMA_TEXT)
    assert content(server) == [(0, "b", 2), (5, "c", 3)]
    staged = client.stage(
        "t", "w", 1, feed(("truncate", 9, None, None, None)), feed(("insert", 9, 7, "z", 0))
    )
    client.commit("t", "w", 1, staged, mode="changes")
    assert content(server) == [(7, "z", 0)]


def test_one_table_mirrors_another_through_its_feed(server, client):
    source = server.create_table("source", SCHEMA, key="k")
    source.upsert([{"k": k, "v": 0} for k in "abcdef"])
    at = client.info("source")["earliest"]
    for batch, write in enumerate(
        (
            lambda: source.upsert([{"k": "a", "v": 1}, {"k": "g", "v": 1}]),
            lambda: source.remove(["b", "c"]),
            lambda: source.replace([{"k": "b", "v": 5}, {"k": "a", "v": 1}]),
        )
    ):
        write()
        upto = client.info("source")["version"]
        parts = client.plan("source", **{"from": at, "to": upto, "splits": 3})
        tables = [client.client.do_get(end.ticket).read_all() for end in parts.endpoints]
        staged = client.stage("t", "w", batch, *tables)
        client.commit("t", "w", batch, staged, mode="changes", key=["k"], create=True)
        assert content(server) == content(server, "source")
        at = upto


def test_a_table_is_only_made_when_asked_for(server, client):
    staged = client.stage("t", "w", 0, rows(("a", 1)))
    refused(lambda: client.commit("t", "w", 0, staged), "'t' not found")
    refused(
        lambda: client.commit("t", "w", 0, staged, mode="upsert", create=True),
        "creating it takes 'key'",
    )
    refused(lambda: client.commit("t", "w", 0, [], create=True), "takes its schema")
    assert client.commit("t", "w", 0, [], create=True, schema=SCHEMA_TEXT)["rows"] == 0
    assert server.table("t").to_arrow().schema == SCHEMA


def test_keys_and_types_of_a_new_table_are_checked(server, client):
    listed = pa.table({"k": [[1], [2]], "v": [1, 2]})
    staged = client.stage("t", "w", 0, listed)
    refused(lambda: client.commit("t", "w", 0, staged, **UPSERT), "cannot be a key")
    refused(lambda: client.commit("t", "w", 0, staged, create=True, key=["x"]), "not in the schema")
    struct = client.stage("t", "w", 0, pa.table({"k": [{"a": 1}]}))
    refused(lambda: client.commit("t", "w", 0, struct, **UPSERT), "cannot be a key")
    assert "t" not in server.table_names()
    views = pa.table({"k": pa.array(["a", "b"], pa.string_view()), "v": [1, 2]})
    client.commit("t", "w", 0, client.stage("t", "w", 0, views), **UPSERT)
    assert content(server) == [("a", 1), ("b", 2)]


def test_a_batch_that_does_not_fit_leaves_neither_rows_nor_table(server, client):
    staged = client.stage("t", "w", 0, rows(("a", 1), (None, 2)))
    refused(lambda: client.commit("t", "w", 0, staged, **UPSERT), "a key must not be null")
    assert "t" not in server.table_names()
    server.create_table("t", pa.schema({"k": pa.string(), "v": pa.int8()}), key="k")
    staged = client.stage("t", "w", 0, rows(("a", 1)), rows(("b", 1000)))
    refused(lambda: client.commit("t", "w", 0, staged, **UPSERT), "column 'v', row 0")
    assert content(server) == []
    # What is staged stays, and the batch can be committed otherwise.
    assert client.commit("t", "w", 0, staged[:1], **UPSERT)["rows"] == 1


def test_a_table_keeps_its_key_and_its_columns(server, client):
    server.create_table("t", SCHEMA, key="k")
    staged = client.stage("t", "w", 0, rows(("a", 1)))
    refused(lambda: client.commit("t", "w", 0, staged, mode="upsert", key=["v"]), "has the key k")
    more = rows(("a", 1)).append_column("w", pa.array([1]))
    staged = client.stage("t", "w", 0, more)
    refused(lambda: client.commit("t", "w", 0, staged, mode="upsert"), "unknown column 'w'")
    refused(
        lambda: client.commit("t", "w", 0, staged, mode="upsert", merge_schema=True),
        "column 'w' is not in table 't'",
    )
    staged = client.stage("t", "w", 0, rows(("a", 1)).select(["k"]))
    client.commit("t", "w", 0, staged, mode="upsert", merge_schema=True)
    assert server.table("t").to_arrow().to_pylist() == [{"k": "a", "v": None}]


def test_what_cannot_be_written_is_not(server, client):
    server.create_table("fixed", SCHEMA, is_read_only=True)
    server.create_table("log", SCHEMA)
    server.publish("view", server.table("log").where("v > 1"))
    for name, options, text in (
        ("fixed", {}, "reading only"),
        ("view", {}, "derived"),
        ("log", {"mode": "replace"}, "not possible in an append-only table"),
    ):
        staged = client.stage(name, "w", 0, rows(("a", 1)))
        refused(lambda n=name, s=staged, o=options: client.commit(n, "w", 0, s, **o), text)


def test_what_is_not_staged_any_more_is_told_so(server, client):
    server.create_table("t", SCHEMA)
    staged = client.stage("t", "w", 0, rows(("a", 1)))
    refused(lambda: client.commit("t", "w", 0, [*staged, [1, 5]]), "staged-lost: partition 1")
    assert client.act("stage.abort", table="t", writer="w", batch=0) == {"rows": 1}
    refused(lambda: client.commit("t", "w", 0, staged), "staged-lost: partition 0")
    assert client.act("stage.abort", table="t", writer="w", batch=0) == {"rows": 0}
    assert content(server) == []


def test_a_part_is_staged_when_its_stream_has_ended_well(server, client):
    server.create_table("t", SCHEMA)
    told = client.put("t", "w", 0, 0, 7, rows(("a", 1), ("b", 2)))
    assert told["rows"] == 2
    name = {"table": "t", "writer": "w", "batch": 0, "partition": 1, "attempt": 7}
    wanted = Descriptor(command=json.dumps({"stage": name}).encode())
    encoder = UpdateEncoder(SCHEMA, EncodeOptions())
    with raw_channel(server.address) as channel:
        stream = channel.stream_stream(f"{FLIGHT}DoPut")
        is_over = threading.Event()

        def frames() -> Iterator[bytes]:
            yield (
                TAG_DESCRIPTOR
                + bytes([len(wanted.encode())])
                + wanted.encode()
                + (encoder.schema_frame())
            )
            yield from encoder.encode_rows(rows(("c", 3)).columns, 1, {})
            is_over.wait()

        call = stream(frames())
        wait_until(lambda: staging(server).part_count == 2)
        assert staging(server).byte_count > 0
        call.cancel()
        is_over.set()
        wait_until(lambda: staging(server).part_count == 1)
    refused(lambda: client.commit("t", "w", 0, [[0, 7], [1, 7]]), "staged-lost: partition 1")


def test_staged_bytes_are_bounded_and_come_free():
    config = ServerConfig(limits=Limits(staging_bytes_max=1_000_000))
    big = pa.table({"k": ["x" * 100] * 8000, "v": range(8000)})
    with (
        barrage.Server(config=config, journal="memory") as server,
        JournalClient(server.uri) as client,
    ):
        staged = client.stage("t", "w", 0, big)
        refused(lambda: client.stage("t", "w", 1, big), "staged rows .* the limit is 1000000")
        wait_until(lambda: staging(server).part_count == 1)
        client.commit("t", "w", 0, staged, create=True)
        assert staging(server).byte_count == 0
        assert client.stage("t", "w", 1, big)


@pytest.mark.parametrize(
    "command",
    [
        {"stage": {}},
        {"stage": []},
        {"stage": {"table": "t", "writer": "w", "batch": 0, "partition": 0}},
        {"stage": {"table": "t", "writer": "w", "batch": -1, "partition": 0, "attempt": 0}},
        {"stage": {"table": "t", "writer": "w", "batch": 0, "partition": 0.5, "attempt": 0}},
        {"stage": {"table": "t", "writer": "w", "batch": 0, "partition": 0, "attempt": 2**63}},
        {"stage": {"table": "", "writer": "w", "batch": 0, "partition": 0, "attempt": 0}},
        {"stage": {"table": "t", "writer": "", "batch": 0, "partition": 0, "attempt": 0}},
        {"stage": {"table": "t", "writer": "w", "batch": 0, "partition": 0, "attempt": 0, "x": 1}},
        {
            "stage": {"table": "t", "writer": "w", "batch": 0, "partition": 0, "attempt": 0},
            "table": "t",
        },
    ],
)
def test_wrong_puts_stage_nothing(server, client, command):
    wanted = flight.FlightDescriptor.for_command(json.dumps(command))

    def call() -> None:
        put, _ = client.client.do_put(wanted, SCHEMA)
        with put:
            put.write_table(rows(("a", 1)))
            put.done_writing()
            put.close()

    with pytest.raises((pa.ArrowException, OSError)):
        call()
    assert staging(server).part_count == 0


@pytest.mark.parametrize(
    "changed",
    [
        {"table": None},
        {"writer": 3},
        {"batch": True},
        {"batch": 2**63},
        {"staged": None},
        {"staged": {}},
        {"staged": [[0]]},
        {"staged": [[0, 1], [0, 2]]},
        {"staged": [[0, "1"]]},
        {"staged": [[-1, 1]]},
        {"mode": "delete"},
        {"key": [1]},
        {"key": ["k", "k"]},
        {"create": "yes"},
        {"schema": "?"},
        {"schema": base64.b64encode(b"junk").decode()},
        {"merge_schema": 1},
        {"merge": True},
    ],
)
def test_wrong_commits_are_refused_by_their_field(server, client, changed):
    server.create_table("t", SCHEMA)
    body = {"table": "t", "writer": "w", "batch": 0, "staged": [], **changed}
    refused(lambda: client.act("stage.commit", **body), next(iter(changed)))
    assert client.commit("t", "w", 0, [])["duplicate"] is False


def test_a_table_whose_name_is_stage_takes_plain_uploads(server, client):
    made = server.create_table("stage", SCHEMA)
    wanted = flight.FlightDescriptor.for_command(json.dumps({"table": "stage"}))
    put, _ = client.client.do_put(wanted, SCHEMA)
    with put:
        put.write_table(rows(("a", 1)))
        put.done_writing()
        put.close()
    assert made.to_arrow().num_rows == 1


def test_commits_that_race_apply_a_batch_once(server, client):
    for batch in range(10):
        staged = client.stage("t", "w", batch, rows((str(batch), batch)))
        barrier = threading.Barrier(4)

        def commit(batch: int = batch, staged: Any = staged, barrier: Any = barrier) -> bool:
            with JournalClient(server.uri) as own:
                barrier.wait()
                return bool(own.commit("t", "w", batch, staged, create=True)["duplicate"])

        with ThreadPoolExecutor(4) as pool:
            duplicates = list(pool.map(lambda _: commit(), range(4)))
        assert sorted(duplicates) == [False, True, True, True]
    assert content(server) == sorted((str(n), n) for n in range(10))


def test_a_durable_table_knows_its_writers_after_a_restart(tmp_path: Path):
    settings: dict[str, Any] = {"data": str(tmp_path), "journal": "durable"}
    with barrage.Server(**settings) as server, JournalClient(server.uri) as client:
        staged = client.stage("t", "w", 0, rows(("a", 1)))
        client.commit("t", "w", 0, staged, **UPSERT)
        epoch = client.info("t")["epoch"]
        staged = client.stage("t", "w", 1, rows(("b", 2)))
    with barrage.Server(**settings) as server, JournalClient(server.uri) as client:
        assert client.info("t")["epoch"] == epoch
        assert client.commit("t", "w", 0, staged, **UPSERT)["duplicate"]
        refused(lambda: client.commit("t", "w", 1, staged, **UPSERT), "staged-lost")
        staged = client.stage("t", "w", 1, rows(("b", 2)))
        assert not client.commit("t", "w", 1, staged, **UPSERT)["duplicate"]
        assert content(server) == [("a", 1), ("b", 2)]


def test_a_session_of_a_deephaven_client_may_call_all_of_it(server):
    with JournalClient(server.uri) as client:
        header, token = client.client.authenticate_basic_token("user", "x")
        options = flight.FlightCallOptions(headers=[(header, token)])
        staged = client.stage("t", "w", 0, rows(("a", 1)))
        body = {"table": "t", "writer": "w", "batch": 0, "staged": staged, **UPSERT}
        action = flight.Action("stage.commit", json.dumps(body).encode())
        (result,) = client.client.do_action(action, options)
        assert json.loads(result.body.to_pybytes())["rows"] == 1
        ticket = flight.Ticket(b'j/{"mode":"snapshot","table":"t"}')
        assert client.client.do_get(ticket, options).read_all().num_rows == 1
        old = b'j/{"mode":"snapshot","table":"t","epoch":"ffffffffffffffff","version":1}'
        with pytest.raises(pa.ArrowException, match="history-lost: epoch"):
            client.client.do_get(flight.Ticket(old), options).read_all()
