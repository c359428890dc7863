"""When a write is acknowledged: after its journal is on the disk, never when it is not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from barrage.errors import (
    JournalFailedError,
    JournalFullError,
    SequenceError,
    TransportError,
)
from barrage.journal.stores.table_journal import TableJournal
from barrage.server import Server, ServerConfig
from tests.helpers.faulty_storage import Disk
from tests.helpers.server_process import wait_until
from tests.unit.server.test_flight_peer import command

X = {"x": "int64"}
KV = {"k": "int64", "v": "int64"}


@contextlib.contextmanager
def opened(root: Path, *, listens: bool = False) -> Iterator[Server]:
    """A server whose journal sets little room aside."""
    server = Server(config=ServerConfig(data=str(root), journal_reserve_bytes=1 << 16))
    if listens:
        server.start()
    try:
        yield server
    finally:
        server.stop()


def content(server: Server, name: str = "t", column: str = "x") -> list[int]:
    return server.table(name).to_arrow().column(column).to_pylist()


def settle(server: Server) -> None:
    """Return when the engine has done what it was given and run a cycle."""
    step = server._parts.runtime.graph.step
    server._parts.tables.run(lambda: None).result()
    wait_until(lambda: not server._parts.runtime.graph.has_pending, 5)
    server._parts.tables.run(lambda: None).result()
    assert server._parts.runtime.graph.step >= step


def test_a_write_is_seen_at_once_and_acknowledged_when_it_is_on_the_disk(tmp_path, disk):
    with opened(tmp_path) as server:
        table = server.create_table("t", X)
        disk.hold()
        written = table.add({"x": [1]}, wait=False)
        assert disk.syncing.wait(60)
        settle(server)
        assert content(server) == [1]
        assert not written.done()
        assert table.cursor.version < server._parts.runtime.graph.step
        disk.release()
        assert written.result(60) == table.cursor.version


def test_tables_in_memory_do_not_wait_for_the_disk(tmp_path, disk):
    with opened(tmp_path) as server:
        durable = server.create_table("t", X)
        memory = server.create_table("m", X, journal="memory")
        none = server.create_table("n", X, journal="none")
        disk.hold()
        waiting = durable.add({"x": [1]}, wait=False)
        memory.add({"x": [1]}, wait=False).result(60)
        none.add({"x": [1]}, wait=False).result(60)
        assert memory.cursor.version == server._parts.runtime.graph.step - 1
        assert not waiting.done()
        disk.release()
        waiting.result(60)


def test_a_resend_and_a_write_without_effect_wait_for_what_they_rest_on(tmp_path, disk):
    with opened(tmp_path) as server:
        table = server.create_table("t", KV, key="k")
        disk.hold()
        row = {"k": [1], "v": [1]}
        original = table.upsert(row, wait=False, producer="p", sequence=1)
        settle(server)
        resend = table.upsert(row, wait=False, producer="p", sequence=1)
        same = table.upsert(row, wait=False)
        removal = table.remove([7], wait=False)
        settle(server)
        assert not any(each.done() for each in (original, resend, same, removal))
        disk.release()
        for each in (original, resend, same, removal):
            each.result(60)
        assert len(table) == 1


def test_the_position_of_a_write_without_effect_is_kept(tmp_path):
    with opened(tmp_path) as server:
        table = server.create_table("t", KV, key="k")
        table.upsert({"k": [1], "v": [1]})
        table.upsert({"k": [1], "v": [1]}, producer="p", sequence=4)
        table.upsert({"k": [1], "v": [2]})
    with opened(tmp_path) as server:
        table = server.table("t")
        assert table.position("p") == 4
        table.upsert({"k": [1], "v": [1]}, producer="p", sequence=4)
        assert content(server, column="v") == [2]


def test_a_position_is_told_when_it_is_on_the_disk(tmp_path, disk):
    with opened(tmp_path) as server:
        table = server.create_table("t", X)
        disk.hold()
        written = table.add({"x": [1]}, wait=False, producer="p", sequence=4)
        settle(server)
        asked = server._parts.tables.position(table._source, "p")
        settle(server)
        assert not asked.done()
        disk.release()
        assert asked.result(60) == 4
        written.result(60)


def test_stopping_writes_what_was_taken(tmp_path):
    with opened(tmp_path) as server:
        table = server.create_table("t", X)
        written = [table.add({"x": [n]}, wait=False) for n in range(500)]
    assert all(each.result(0) > 0 for each in written)
    with opened(tmp_path) as server:
        assert content(server) == list(range(500))


def test_nothing_is_acknowledged_after_the_disk_broke(tmp_path, disk):
    with opened(tmp_path) as server:
        table = server.create_table("t", X)
        memory = server.create_table("m", X, journal="memory")
        table.add({"x": [1]})
        disk.hold()
        waiting = table.add({"x": [2]}, wait=False)
        assert disk.syncing.wait(60)
        disk.breaks = True
        disk.release()
        with pytest.raises(JournalFailedError, match="until a restart"):
            waiting.result(60)
        for write in (table.add, table.add):
            with pytest.raises(JournalFailedError):
                write({"x": [3]})
        memory.add({"x": [1]})
        assert content(server) == [1, 2]
        with pytest.raises(JournalFailedError):
            server.create_table("other", X)
        disk.breaks = False
    with opened(tmp_path) as server:
        assert content(server) in ([1], [1, 2])
        server.table("t").add({"x": [4]})


def test_writes_behind_the_failing_one_are_refused_too(tmp_path, disk):
    with opened(tmp_path) as server:
        table = server.create_table("t", X)
        disk.hold()
        first = table.add({"x": [1]}, wait=False)
        assert disk.syncing.wait(60)
        second = table.add({"x": [2]}, wait=False)
        settle(server)
        disk.breaks = True
        disk.release()
        for each in (first, second):
            with pytest.raises(JournalFailedError):
                each.result(60)


def fill_the_disk(server: Server, disk: Disk) -> None:
    """The disk has no room any more, and the journal has noticed it."""
    disk.is_full = True
    with pytest.raises(JournalFullError, match="reading goes on"):
        server.create_table("one too many", X)


def test_a_full_disk_refuses_writes_until_there_is_room(tmp_path, disk):
    with opened(tmp_path) as server:
        table = server.create_table("t", X)
        memory = server.create_table("m", X, journal="memory")
        table.add({"x": [1]})
        (tmp_path / "reserve").unlink()
        fill_the_disk(server, disk)
        with pytest.raises(JournalFullError):
            table.add({"x": [2]})
        with pytest.raises(JournalFullError):
            add_to_both(server, memory, table)
        assert content(server) == [1]
        assert content(server, "m") == []
        memory.add({"x": [1]})
        assert "one too many" not in server.table_names()
        disk.is_full = False
        wait_until(lambda: accepted(table, 3))
    with opened(tmp_path) as server:
        assert content(server) == [1, 3]


def add_to_both(server: Server, first, second) -> None:
    with server.transaction() as changes:
        changes.add(first, {"x": [1]})
        changes.add(second, {"x": [2]})


def accepted(table, value: int) -> bool:
    try:
        table.add({"x": [value]})
    except JournalFullError:
        return False
    return True


def test_after_a_refusal_a_producer_goes_on_with_the_refused_write(tmp_path, disk):
    with opened(tmp_path) as server:
        table = server.create_table("t", X)
        table.add({"x": [1]}, producer="p", sequence=1)
        (tmp_path / "reserve").unlink()
        fill_the_disk(server, disk)
        with pytest.raises(JournalFullError):
            table.add({"x": [2]}, producer="p", sequence=2)
        disk.is_full = False
        wait_until(lambda: accepted(table, 0))
        with pytest.raises(SequenceError, match="write 2 of producer 'p' was refused"):
            table.add({"x": [3]}, producer="p", sequence=3)
        table.add({"x": [2]}, producer="p", sequence=2)
        table.add({"x": [3]}, producer="p", sequence=3)
        assert content(server) == [1, 0, 2, 3]


def test_peers_are_told_that_the_disk_is_full_and_that_it_failed(tmp_path, disk):
    with opened(tmp_path, listens=True) as server, flight.connect(server.uri) as client:
        table = server.create_table("t", X)
        (tmp_path / "reserve").unlink()
        fill_the_disk(server, disk)
        assert "no room for more history" in refusal(client)
        assert client.do_get(flight.Ticket(b"s/t")).read_all().num_rows == 0
        disk.is_full = False
        wait_until(lambda: accepted(table, 1))
        disk.breaks = True
        with pytest.raises(JournalFailedError):
            table.add({"x": [1]})
        assert "until a restart" in refusal(client)
        disk.breaks = False


def refusal(client: flight.FlightClient) -> str:
    """What a peer is told whose row is not taken."""
    schema = pa.schema({"x": pa.int64()})
    writer, reader = client.do_put(command(table="t"), schema)
    reader.read()
    writer.write_batch(pa.RecordBatch.from_pydict({"x": [1]}, schema))
    assert reader.read() is None
    with pytest.raises(pa.ArrowException) as caught:
        writer.close()
    return str(caught.value)


def test_a_batch_of_a_peer_is_answered_when_it_is_on_the_disk(tmp_path, disk):
    with opened(tmp_path, listens=True) as server, flight.connect(server.uri) as client:
        server.create_table("t", X)
        schema = pa.schema({"x": pa.int64()})
        writer, reader = client.do_put(command(table="t"), schema)
        assert json.loads(reader.read().to_pybytes()) == {"rows": 0}
        disk.hold()
        writer.write_batch(pa.RecordBatch.from_pydict({"x": [1]}, schema))
        assert disk.syncing.wait(60)
        settle(server)
        assert len(server._parts.runtime._durable) == 1
        disk.release()
        told = json.loads(reader.read().to_pybytes())
        assert told["step"] == server.table("t").cursor.version
        writer.close()


def test_who_waits_when_the_server_stops_on_a_broken_disk_is_told(tmp_path, disk):
    server = Server(config=ServerConfig(data=str(tmp_path), journal_reserve_bytes=0))
    table = server.create_table("t", X)
    disk.hold()
    waiting = table.add({"x": [1]}, wait=False)
    assert disk.syncing.wait(60)
    disk.breaks = True
    disk.release()
    server.stop()
    with pytest.raises((JournalFailedError, TransportError)):
        waiting.result(60)


def test_a_write_that_could_not_be_recorded_is_not_acknowledged(tmp_path, monkeypatch):
    """However the journal fails: what it does not have is not acknowledged, then or later."""
    with opened(tmp_path) as server:
        table, other = (server.create_table(name, X) for name in ("t", "other"))
        memory = server.create_table("m", X, journal="memory")
        table.add({"x": [1]})

        def broken(*_: object, **__: object) -> int:
            raise RuntimeError("a bug of this test")

        monkeypatch.setattr(server._parts.journals.journal_named("t"), "append", broken)
        for write in (table.add, other.add):
            with pytest.raises(JournalFailedError, match="internal error"):
                write({"x": [2]})
        memory.add({"x": [1]})
        assert content(server) == [1, 2]
    with opened(tmp_path) as server:
        assert content(server) == [1]
        assert content(server, "other") == []


def test_a_cycle_that_was_recorded_by_half_leaves_no_half(tmp_path, monkeypatch):
    """One table has handed its change over when the other fails: later cycles do not take it
    along."""
    with opened(tmp_path) as server:
        table, other = (server.create_table(name, X) for name in ("t", "other"))
        table.add({"x": [1]})
        appended: list[object] = []

        def broken_second(journal: TableJournal) -> None:
            append = journal.append

            def append_once(*given: object, **named: object) -> int:
                if appended:
                    raise RuntimeError("a bug of this test")
                appended.append(given)
                return append(*given, **named)

            monkeypatch.setattr(journal, "append", append_once)

        for name in ("t", "other"):
            broken_second(server._parts.journals.journal_named(name))
        with pytest.raises(JournalFailedError):
            add_to_both(server, table, other)
        assert len(appended) == 1
        memory = server.create_table("m", X, journal="memory")
        memory.add({"x": [1]})
    with opened(tmp_path) as server:
        assert content(server) == [1]
        assert content(server, "other") == []
