"""Numbered writes through every door: what was sent before is not applied again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.errors import RowError, SequenceError
from tests.unit.server.test_flight_peer import command

pytestmark = pytest.mark.usefixtures("on_a_port")

X = {"x": "int64"}


def rows(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": list(values)}, pa.schema({"x": pa.int64()}))


class Put:
    """One DoPut call of an unmodified Flight client."""

    def __init__(self, client: flight.FlightClient, **fields: object) -> None:
        self.writer, self.reader = client.do_put(command(**fields), rows().schema)
        self.opening = self.answer()

    def answer(self) -> dict:
        """The next answer; how the call failed when there is none."""
        told = self.reader.read()
        if told is None:
            self.writer.close()
        return json.loads(told.to_pybytes())

    def send(self, *values: int, sequence: int | None = None) -> dict:
        batch = rows(*values)
        if sequence is None:
            self.writer.write_batch(batch)
        else:
            told = json.dumps({"sequence": sequence}).encode()
            self.writer.write_with_metadata(batch, told)
        return self.answer()

    def __enter__(self) -> Put:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self.writer.done_writing()
            assert self.reader.read() is None
            self.writer.close()


def content(server: barrage.Server, name: str = "t") -> list[int]:
    return server.table(name).to_arrow().column("x").to_pylist()


def test_batches_of_a_call_count_up_from_the_number_in_its_command(server, flight_client):
    with Put(flight_client, table="t", producer="feed", sequence=10) as put:
        assert put.opening.keys() == {"rows", "sequence", "epoch"}
        assert put.opening["sequence"] is None
        assert [put.send(1)["sequence"], put.send(2)["sequence"]] == [10, 11]
    assert server.table("t").position("feed") == 11


def test_a_call_is_told_how_far_its_producer_has_got(server, flight_client):
    with Put(flight_client, table="t", producer="feed", sequence=10) as put:
        put.send(1)
    with Put(flight_client, table="t", producer="feed", sequence=0) as put:
        assert put.opening["sequence"] == 10
    with Put(flight_client, table="t", producer="other", sequence=0) as put:
        assert put.opening["sequence"] is None


def test_batches_that_were_sent_before_are_answered_and_not_applied(server, flight_client):
    with Put(flight_client, table="t", producer="feed", sequence=1) as put:
        put.send(1)
        put.send(2)
    with Put(flight_client, table="t", producer="feed", sequence=1) as put:
        assert [put.send(v)["rows"] for v in (1, 2, 3)] == [1, 2, 3]
    assert content(server) == [1, 2, 3]


def test_batches_carry_numbers_of_their_own(server, flight_client):
    with Put(flight_client, table="t", producer="feed") as put:
        put.send(1, sequence=100)
        put.send(2, sequence=200)
        put.send(2, sequence=200)
        assert put.send(3)["sequence"] == 201
    assert content(server) == [1, 2, 3]


def test_two_producers_count_for_themselves(server, flight_client):
    with Put(flight_client, table="t", producer="a", sequence=5) as put:
        put.send(1)
    with Put(flight_client, table="t", producer="b", sequence=5) as put:
        put.send(2)
    assert content(server) == [1, 2]


def test_a_numbered_replacement_replaces_with_every_batch(server, flight_client):
    server.create_table("t", X, kind="list").add({"x": [9]})
    with Put(flight_client, table="t", mode="replace", producer="a", sequence=1) as put:
        put.send(1)
        put.send(2, 3)
    assert content(server) == [2, 3]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence": 1}, "'sequence' needs a 'producer'"),
        ({"producer": ""}, "a producer is named by"),
        ({"producer": "p", "sequence": -1}, "a sequence number is"),
        ({"producer": "p", "sequence": True}, "a sequence number is"),
        ({"journal": "forever"}, "'journal' in put command must be one of durable, memory, none"),
        ({"mod": "append"}, "unknown field 'mod' in put command; did you mean 'mode'"),
        ({"capacity": True}, "'capacity' in put command must be a whole number, not True"),
        ({"journal": "durable"}, "needs a directory"),
        ({"mode": "create", "kind": "static", "producer": "p"}, "has no producers"),
    ],
)
def test_commands_that_are_refused(server, flight_client, fields, message):
    with pytest.raises(pa.ArrowException, match=message):
        Put(flight_client, table="t", **fields)


def test_a_batch_without_a_number_is_refused(server, flight_client):
    put = Put(flight_client, table="t", producer="feed")
    with pytest.raises(pa.ArrowException, match="batch 1 of producer 'feed' has no number"):
        put.send(1)
    assert content(server) == []


@pytest.mark.parametrize("told", [b"x", b"[1]", b'{"sequence": -1}', b'{"sequence": "1"}'])
def test_numbers_that_are_none_are_refused(server, flight_client, told):
    put = Put(flight_client, table="t", producer="feed", sequence=1)
    put.writer.write_with_metadata(rows(1), told)
    with pytest.raises(pa.ArrowException):
        put.answer()
    assert content(server) == []


def test_after_a_batch_the_engine_refused_none_is_applied(server, flight_client):
    """Else the position would pass the refused one, and sending it again would do nothing."""
    server.create_table("k", {"k": "int64"}, key="k")
    schema = pa.schema({"k": pa.int64()})
    writer, reader = flight_client.do_put(command(table="k", producer="p", sequence=1), schema)
    reader.read()
    batches = [pa.RecordBatch.from_pydict({"k": v}, schema) for v in ([1], [None], [2])]

    def write_all() -> None:
        for batch in batches:
            writer.write_batch(batch)  # The refusal may come while the last one is written.
        assert json.loads(reader.read().to_pybytes())["sequence"] == 1
        assert reader.read() is None
        writer.close()

    with pytest.raises(pa.ArrowException, match="batch 2"):
        write_all()
    assert server.table("k").to_arrow().column("k").to_pylist() == [1]
    assert server.table("k").position("p") == 1


def test_a_call_that_is_cancelled_leaves_a_beginning_of_what_it_sent(server):
    """A later batch without an earlier one would make the earlier one look like a resend."""
    server.create_table("t", X)
    is_busy, may_go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        is_busy.set()
        assert may_go_on.wait(60)

    seconds, life = 0.5, 0
    while life < 5:
        is_busy.clear()
        may_go_on.clear()
        with flight.connect(server.uri) as client:
            # The deadline cancels the call while the engine is busy with something else.
            writer, reader = client.do_put(
                command(table="t", producer="p", sequence=1),
                rows().schema,
                options=flight.FlightCallOptions(timeout=seconds),
            )
            told = None
            with contextlib.suppress(flight.FlightTimedOutError):
                told = reader.read()
            if told is None:  # Too soon: the machine is busy with something else as well.
                seconds *= 2
                continue
            first = json.loads(told.to_pybytes())["sequence"] or 0
            life += 1
            server._parts.runtime.submit(occupy)
            assert is_busy.wait(60)
            with contextlib.suppress(pa.ArrowException, OSError):
                for number in range(first + 1, first + 200):
                    told = json.dumps({"sequence": number}).encode()
                    writer.write_with_metadata(rows(number), told)
            del writer, reader
        may_go_on.set()
        server._parts.runtime.submit(lambda: None).result(60)
        found = content(server)
        assert found == list(range(1, len(found) + 1)), life
        assert (server.table("t").position("p") or 0) == len(found)


def test_writes_of_the_python_api(server):
    table = server.create_table("t", X)
    first = table.add({"x": [1]}, producer="feed", sequence=17)
    assert table.add({"x": [1]}, producer="feed", sequence=17) >= first
    assert table.add({"x": [2]}, wait=False, producer="feed", sequence=18).result() > first
    assert table.position("feed") == 18
    assert table.position("other") is None
    assert content(server) == [1, 2]


def test_every_kind_of_write_can_be_numbered(server):
    keyed = server.create_table("k", {"k": "int64", "v": "int64"}, key="k")
    for _ in range(2):
        keyed.upsert({"k": [1, 2], "v": [1, 1]}, producer="p", sequence=1)
    keyed.upsert({"k": [1], "v": [7]})
    keyed.upsert({"k": [1, 2], "v": [1, 1]}, producer="p", sequence=1)
    for _ in range(2):
        keyed.remove([2], producer="p", sequence=2)
    assert keyed.to_arrow().to_pylist() == [{"k": 1, "v": 7}]
    listed = server.create_table("l", X, kind="list")
    for _ in range(2):
        listed.replace({"x": [1, 2, 3]}, producer="p", sequence=1)
        listed.insert(0, {"x": [0]}, producer="p", sequence=2)
        listed.delete(1, 2, producer="p", sequence=3)
    assert content(server, "l") == [0, 2, 3]


def test_a_transaction_is_numbered_as_a_whole(server):
    a, b = server.create_table("a", X), server.create_table("b", X)
    for _ in range(2):
        with server.transaction(producer="p", sequence=1) as changes:
            changes.add(a, {"x": [1]})
            changes.add(b, {"x": [2]})
            changes.add(a, {"x": [3]})
    assert (content(server, "a"), content(server, "b")) == ([1, 3], [2])


def test_a_transaction_that_reached_one_table_only_is_completed(server):
    a, b = server.create_table("a", X), server.create_table("b", X)
    a.add({"x": [1]}, producer="p", sequence=1)
    with server.transaction(producer="p", sequence=1) as changes:
        changes.add(a, {"x": [1]})
        changes.add(b, {"x": [2]})
    assert (content(server, "a"), content(server, "b")) == ([1], [2])


def test_a_refused_write_leaves_its_number_free(server):
    table = server.create_table("k", {"k": "int64"}, key="k")
    with pytest.raises(RowError):
        table.upsert({"k": [None]}, producer="p", sequence=1)
    table.upsert({"k": [1]}, producer="p", sequence=1)
    assert len(table) == 1


def test_a_numbered_write_that_changes_nothing_moves_its_producer(server):
    table = server.create_table("k", {"k": "int64"}, key="k")
    table.upsert({"k": [1]})
    table.upsert({"k": [1]}, producer="p", sequence=4)
    assert table.position("p") == 4


@pytest.mark.parametrize("given", [{"producer": "p"}, {"sequence": 1}])
def test_producer_and_sequence_go_together(server, given):
    table = server.create_table("t", X)
    with pytest.raises(SequenceError, match="go together"):
        table.add({"x": [1]}, **given)
    with pytest.raises(SequenceError, match="go together"):
        server.transaction(**given)


def test_the_asynchronous_api():
    async def run() -> None:
        async with barrage.AsyncServer() as server:
            table = await server.create_table("t", X)
            for _ in range(2):
                await table.add({"x": [1]}, producer="p", sequence=3)
                async with server.transaction(producer="p", sequence=4) as changes:
                    changes.add(table, {"x": [2]})
            assert await table.position("p") == 4
            assert (await table.to_arrow()).column("x").to_pylist() == [1, 2]

    asyncio.run(run())
