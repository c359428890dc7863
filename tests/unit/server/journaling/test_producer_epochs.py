"""One writer at a time writes for a producer: the later one fences the earlier, which is told."""

from __future__ import annotations

import threading

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.errors import ProducerFencedError, SequenceError
from tests.unit.server.api.test_producers import Put, content

FENCED = "producer 'feed' is fenced"


def refusal(put: Put, *values: int, sequence: int | None = None) -> str:
    """How the server refuses rows."""
    with pytest.raises(pa.ArrowException) as refused:
        put.send(*values, sequence=sequence)
    return str(refused.value)


def test_a_call_that_begins_fences_the_one_before(server, flight_client):
    first = Put(flight_client, table="t", producer="feed", sequence=0)
    first.send(1)
    with Put(flight_client, table="t", producer="feed", sequence=1) as second:
        # It goes on after what the first one was acknowledged.
        assert second.opening["sequence"] == 0
        assert second.opening["epoch"] > first.opening["epoch"]
        assert FENCED in refusal(first, 2)
        second.send(3)
    assert content(server) == [1, 3]


def test_an_idle_call_is_told_at_once(server, flight_client):
    first = Put(flight_client, table="t", producer="feed", sequence=0)
    second = Put(flight_client, table="t", producer="feed", sequence=0)
    with second, pytest.raises(pa.ArrowException, match=FENCED):
        first.answer()


def test_another_producer_and_another_table_are_no_matter(server, flight_client):
    with (
        Put(flight_client, table="t", producer="feed", sequence=0) as first,
        Put(flight_client, table="t", producer="other", sequence=0) as second,
        Put(flight_client, table="u", producer="feed", sequence=0) as third,
    ):
        for put in (first, second, third, first):
            put.send(1)


def test_a_writer_keeps_its_epoch_through_a_lost_connection(server, flight_client):
    lost = Put(flight_client, table="t", producer="feed", sequence=0)
    epoch = lost.opening["epoch"]
    with Put(flight_client, table="t", producer="feed", sequence=0, epoch=epoch) as again:
        assert again.opening["epoch"] == epoch
        again.send(1)
        # What its old connection still brings is not taken.
        assert FENCED in refusal(lost, 9)
    assert content(server) == [1]


def test_a_fenced_writer_does_not_come_back(server, flight_client):
    with Put(flight_client, table="t", producer="feed", sequence=0) as first:
        first.send(1)
    with Put(flight_client, table="t", producer="feed", sequence=1) as second:
        with pytest.raises(pa.ArrowException, match=FENCED):
            Put(flight_client, table="t", producer="feed", epoch=first.opening["epoch"])
        second.send(2)
    assert content(server) == [1, 2]


def test_after_a_restart_the_latest_writer_wins(tmp_path):
    epochs = []
    with barrage.Server(data=tmp_path) as server, flight.connect(server.uri) as client:
        for value in range(2):
            with Put(client, table="t", producer="feed", sequence=value) as put:
                put.send(value)
            epochs.append(put.opening["epoch"])
    with barrage.Server(data=tmp_path) as server, flight.connect(server.uri) as client:
        older = Put(client, table="t", producer="feed", epoch=epochs[0])
        with Put(client, table="t", producer="feed", epoch=epochs[1]) as newer:
            assert newer.opening["sequence"] == 1
            assert FENCED in refusal(older, 9, sequence=2)
            newer.send(2, sequence=2)
        with Put(client, table="t", producer="feed") as newest:
            assert newest.opening["epoch"] > epochs[1]
            assert newest.opening["sequence"] == 2
        assert sorted(content(server)) == [0, 1, 2]


def test_a_write_of_the_server_itself_fences_an_open_call(server, flight_client):
    put = Put(flight_client, table="t", producer="feed", sequence=0)
    put.send(1)
    server.table("t").add({"x": [2]}, producer="feed", sequence=1)
    assert FENCED in refusal(put, 3)
    server.table("t").add({"x": [4]}, producer="feed", sequence=2)
    assert content(server) == [1, 2, 4]


def test_the_numbers_of_one_call_grow(server, flight_client):
    put = Put(flight_client, table="t", producer="feed")
    put.send(1, sequence=5)
    # The same rows under the same number are a resend, other ones are a mistake.
    assert put.send(1, sequence=5)["sequence"] == 5
    assert "the numbers of a call must grow" in refusal(put, 2, sequence=5)
    put = Put(flight_client, table="t", producer="feed")
    put.send(1, sequence=7)
    assert "the numbers of a call must grow" in refusal(put, 1, sequence=6)
    assert content(server) == [1, 1]


def test_epochs_of_peers_are_checked(server, flight_client):
    for epoch in (-1, "now", True, 2**63):
        with pytest.raises(pa.ArrowException, match="an epoch of producer"):
            Put(flight_client, table="t", producer="feed", epoch=epoch)
    with pytest.raises(pa.ArrowException, match="'epoch' needs a 'producer'"):
        Put(flight_client, table="t", epoch=1)


def write_on(writer):
    """Until the writer fails, which may have heard of it or not."""
    for _ in range(2):
        writer.write({"x": [3]})
        writer.flush(60)


def test_a_writer_that_is_fenced_fails_with_a_typed_error(server):
    with barrage.connect(server.address) as session, barrage.connect(server.address) as other:
        server.create_table("t", {"x": "int64"})
        first = session.writer("t", producer="feed")
        first.write({"x": [1]})
        first.flush(60)
        with other.writer("t", producer="feed") as second:
            second.write({"x": [2]})
        with pytest.raises(ProducerFencedError, match=FENCED) as fenced:
            write_on(first)
        assert fenced.value.producer == "feed"
        assert isinstance(fenced.value, SequenceError)
        first.abandon()
    assert content(server) == [1, 2]


def test_four_writers_under_one_name_lose_nothing_they_were_told_is_there(server):
    """Each writes until it is fenced; every batch that was flushed is there once."""
    server.create_table("t", {"x": "int64"})
    flushed: list[int] = []
    with barrage.connect(server.address) as session:
        writers = [session.writer("t", producer="feed") for _ in range(4)]
        for number in range(100):
            for place, writer in enumerate(writers):
                value = place * 100 + number
                try:
                    writer.write({"x": [value]})
                    writer.flush(60)
                except ProducerFencedError:
                    assert place < 3
                else:
                    flushed.append(value)
        for writer in writers:
            writer.abandon()
    assert flushed[-1] == 399
    assert len(flushed) == 100
    assert content(server) == flushed


def test_a_server_that_stops_waits_for_no_idle_writer():
    server = barrage.Server().start()
    server.create_table("t", {"x": "int64"})
    with flight.connect(server.uri) as client, barrage.connect(server.uri) as session:
        live = session.table("t").subscribe()
        live.wait_ready(60)
        idle = Put(client, table="t", producer="feed", sequence=0)
        idle.send(1)
        with session.writer("t", producer="other") as writer:
            writer.write({"x": [2]})
            writer.flush(60)
            # The grace is longer than anybody would wait for this test.
            stopping = threading.Thread(target=server.stop, args=(3600,), daemon=True)
            stopping.start()
            with pytest.raises(flight.FlightUnavailableError, match="shutting down"):
                idle.answer()
            stopping.join(60)
            assert not stopping.is_alive()
            assert (writer.pending_count, writer.position) == (0, 0)
