"""What a source may send and still ends nobody else: payloads that become much, that nobody can
decode, and decoders that fail."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from barrage.limits import Limits
from barrage.proto.connector.source_session import WorkerFailed
from barrage.server import SourceMapping
from barrage.server.ingest.connector import source_program
from barrage.server.ingest.connector.stream_landings import StreamLandings
from barrage.wire.connector.frame_values import SentMessage
from barrage.wire.payloads.mapping_turns import TurnPace
from barrage.wire.payloads.record_decoders import FunctionDecoder
from barrage.wire.payloads.source_mapping import RowMapper
from tests.end_to_end.test_connector_tables import Given, push, rows, serving
from tests.helpers.connector_source import SocketSource, source
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until

WIDE = {f"c{at}": "int64" for at in range(20)}


def nulls(count: int) -> bytes:
    """Of an Arrow stream that has no bytes for its rows."""
    sink = pa.BufferOutputStream()
    columns = pa.record_batch({"other": pa.nulls(count)})
    with pa.ipc.new_stream(sink, columns.schema) as writer:
        writer.write_batch(columns)
    return sink.getvalue().to_pybytes()


def send(s: SocketSource, *payloads: bytes, first: int = 1) -> None:
    for number, payload in enumerate(payloads, first):
        s.session.send(SentMessage(1, number, 0, b"", payload))
    s.flush()


def mapping(program: str, **fields) -> SourceMapping:
    return SourceMapping(program=program, **({"columns": {"a": "int64"}} | fields))


def test_rows_of_a_batch_are_bounded_and_all_parts_have_their_positions(tmp_path) -> None:
    limits = Limits(connector_payload_rows_max=1000, connector_decoded_bytes_max=200_000)
    arrow = mapping("p", columns=WIDE, format="arrow")
    given = [nulls(300)] * 12 + [nulls(999), nulls(10)]
    with serving(arrow, limits=limits, data=str(tmp_path)) as server:
        push(server, Given(*given[:12]))
        push(server, Given(*given))
    with serving(arrow, limits=limits, data=str(tmp_path)) as server:
        push(server, Given(*given))
        assert server.table("p").to_arrow().num_rows == 12 * 300 + 999 + 10
        push(server, Given(*given, nulls(1001)))
        (letter,) = rows(server, "p__rejected")
        assert letter["message_id"] == 15
        assert "more than 1000 rows" in letter["reason"]


@pytest.fixture
def memory_ends(monkeypatch):
    """Mapping fails while it is set."""
    ends = threading.Event()
    real = RowMapper.map

    def failing(self, *given):
        if ends.is_set():
            raise MemoryError("none left")
        return real(self, *given)

    monkeypatch.setattr(RowMapper, "map", failing)
    return ends


@pytest.mark.parametrize("count", [3, 300], ids=["on the loop", "beside it"])
def test_a_mapper_that_fails_makes_dead_letters_and_ends_nobody(memory_ends, count) -> None:
    with serving(mapping("p"), mapping("q")) as server:
        with source(server.connector_port, "p") as s, source(server.connector_port, "q") as other:
            s.announce(1)
            other.announce(1)
            memory_ends.set()
            send(s, *[b'{"a":1}'] * count)
            s.wait_safe(1, count)
            memory_ends.clear()
            send(s, b'{"a":2}', first=count + 1)
            send(other, b'{"a":3}')
            s.wait_safe(1, count + 1)
            other.wait_safe(1, 1)
        assert rows(server, "p") == [{"a": 2}]
        assert rows(server, "q") == [{"a": 3}]
        letters = rows(server, "p__rejected")
        assert [each["message_id"] for each in letters] == list(range(1, count + 1))
        assert "MemoryError: none left" in letters[0]["reason"]


@pytest.mark.parametrize("count", [3, 300], ids=["on the loop", "beside it"])
def test_what_cannot_even_be_rejected_ends_its_program_alone(
    memory_ends, monkeypatch, count
) -> None:
    def nothing_goes(*_):
        raise MemoryError("none at all")

    with serving(mapping("p"), mapping("q")) as server, source(server.connector_port, "q") as other:
        other.announce(1)
        with source(server.connector_port, "p") as s:
            s.announce(1)
            send(s, b'{"a":1}')
            s.wait_safe(1, 1)
            with monkeypatch.context() as broken:
                broken.setattr(RowMapper, "rejected", nothing_goes)
                memory_ends.set()
                send(s, *[b'{"a":2}'] * count, first=2)
                assert "internal error" in s.until(WorkerFailed).message
                memory_ends.clear()
        send(other, b'{"a":3}')
        other.wait_safe(1, 1)
        # Who comes again goes on behind what was safe.
        with source(server.connector_port, "p") as s:
            s.announce(1)
            assert s.opened == {1: 1}
            send(s, b'{"a":4}', first=2)
            s.wait_safe(1, 2)
        assert rows(server, "p") == [{"a": 1}, {"a": 4}]
        assert rows(server, "p__rejected") == []


def test_an_engine_that_fails_of_one_program_ends_it_alone(monkeypatch) -> None:
    real = StreamLandings.write

    def failing(self, landing, *given):
        if landing.target.table == "p":
            raise RuntimeError("nobody expected it")
        return real(self, landing, *given)

    monkeypatch.setattr(StreamLandings, "write", failing)
    with (
        serving() as server,
        source(server.connector_port, "p") as s,
        source(server.connector_port, "q") as other,
    ):
        s.announce(1)
        other.announce(1)
        s.send(1, 1)
        assert "internal error" in s.until(WorkerFailed).message
        other.send(1, 1)
        other.wait_safe(1, 1)


class Gate:
    """Where a thread waits until it is let through."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self.opened.wait(HANG_SECONDS)


def test_a_program_waits_for_a_turn_of_another_and_not_for_its_batch() -> None:
    gates = {1: Gate(), 2: Gate()}
    slow_calls: list[bytes] = []
    before_good: list[int] = []

    def slow_row(payload: bytes) -> dict:
        slow_calls.append(payload)
        if len(slow_calls) in gates:
            gates[len(slow_calls)].pass_through()
        return {"a": int(payload)}

    def good_row(payload: bytes) -> dict:
        before_good.append(len(slow_calls))
        return {"a": int(payload)}

    slow_one = mapping("slow", format="python", function=slow_row)
    good_one = mapping("good", format="python", function=good_row)
    with (
        serving(slow_one, good_one) as server,
        source(server.connector_port, "slow") as slow,
        source(server.connector_port, "good") as good,
    ):
        door = server._app._connectors
        slow.announce(1)
        good.announce(1)
        send(slow, b"1")
        assert gates[1].reached.wait(HANG_SECONDS)
        send(slow, *[b"2"] * 5000, first=2)
        wait_until(lambda: max(each.messages for each in door.connections()) == 5001)
        gates[1].opened.set()
        # The batch is being decoded when another program has something.
        assert gates[2].reached.wait(HANG_SECONDS)
        send(good, b"1")
        wait_until(lambda: all(each.is_mapping for each in door._programs.values()))
        gates[2].opened.set()
        good.wait_safe(1, 1)
        slow.wait_safe(1, 5001)
        assert len(rows(server, "slow")) == 5001
    (count,) = before_good
    assert count <= 1 + FunctionDecoder.turn_messages


def test_many_frames_of_one_connection_leave_turns_to_others() -> None:
    limits = Limits(connector_turn_frames_max=3)
    with serving(limits=limits) as server, source(server.connector_port, "p") as s:
        s.announce(*range(200))
        for number in (1, 2):
            for stream in range(200):
                s.send(stream, number)
        for stream in range(200):
            s.wait_safe(stream, 2)
        assert server.table("p").to_arrow().num_rows == 400


def test_who_comes_after_a_batch_that_failed_is_told_of_all_its_parts(monkeypatch) -> None:
    """A batch fails in its second part while the engine has the first."""
    monkeypatch.setattr(source_program, "TurnPace", lambda: TurnPace(1))
    strict = mapping("p", on_bad_payload="error")
    with serving(strict) as server:
        is_busy, may_go_on = threading.Event(), threading.Event()

        def busy() -> None:
            is_busy.set()
            assert may_go_on.wait(HANG_SECONDS)

        with source(server.connector_port, "p") as s:
            s.announce(1)
            server._app._connectors._landings._tables._runtime.submit(busy)
            assert is_busy.wait(HANG_SECONDS)
            send(s, b'{"a":1}', b"bad")
            while not any(isinstance(event, WorkerFailed) for event in s.receive()):
                pass
            may_go_on.set()
        with source(server.connector_port, "p") as s:
            s.announce(1)
            assert s.opened == {1: 1}
            send(s, b'{"a":2}', first=2)
            s.wait_safe(1, 2)
        assert [row["a"] for row in rows(server, "p")] == [1, 2]
