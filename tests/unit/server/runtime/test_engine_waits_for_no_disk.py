"""Tables of a data directory come and go while the disk takes its time; the engine goes on."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from barrage.errors import JournalFailedError, TableExistsError, TransportError
from barrage.server import Server
from barrage.server.api.table_handle import recipe_and_rows
from tests.helpers.faulty_storage import Disk
from tests.helpers.held_up import strict
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import wait_until
from tests.unit.server.runtime import test_durable_writes
from tests.unit.server.runtime.test_durable_writes import X, content

HANG_SECONDS = 180


@contextlib.contextmanager
def opened(root: Path, disk: Disk | None = None) -> Iterator[Server]:
    """A server whose disk answers again when it stops, also when the test has failed."""
    with test_durable_writes.opened(root) as server:
        try:
            yield server
        finally:
            if disk is not None:
                disk.release()


def create(server: Server, name: str):
    recipe, rows = recipe_and_rows(name, X, None, key=None, kind=None, capacity=None)
    return server._parts.tables.create(recipe, rows)


def drop(server: Server, name: str):
    return server._parts.tables.drop(name)


def hold(disk: Disk) -> None:
    """From here on the disk does not answer."""
    disk.hold()


def test_the_engine_goes_on_while_a_table_is_created_and_another_dropped(tmp_path, disk):
    with opened(tmp_path, disk) as server:
        server.create_table("old", X)
        memory = server.create_table("m", X, journal="memory")
        hold(disk)
        created = create(server, "new")
        assert disk.syncing.wait(HANG_SECONDS)
        dropped = drop(server, "old")
        stuck = server.table("new").add({"x": [1]}, wait=False)
        for number in range(3):
            memory.add({"x": [number]})
        assert content(server, "m") == [0, 1, 2]
        assert content(server, "new") == [1]
        assert server.table_names() == ["m", "new"]
        assert not created.done()
        assert not dropped.done()
        assert not stuck.done()
        disk.release()
        for future in (created, dropped, stuck):
            future.result(HANG_SECONDS)
    with opened(tmp_path, disk) as server:
        assert server.table_names() == ["new"]
        assert content(server, "new") == [1]


def test_a_name_that_is_dropped_and_created_again_has_what_was_written_last(tmp_path, disk):
    with opened(tmp_path, disk) as server:
        server.create_table("t", X).add({"x": [1]})
        epoch = server.table("t").cursor.epoch
        hold(disk)
        futures = [drop(server, "t")]
        for number in (2, 3):
            futures.append(create(server, "t"))
            futures.append(server.table("t").add({"x": [number]}, wait=False))
            futures.append(server.table("t").add({"x": [10 * number]}, wait=False))
            if number == 2:
                futures.append(drop(server, "t"))
        with pytest.raises(TableExistsError):
            create(server, "t").result(HANG_SECONDS)
        disk.release()
        for future in futures:
            future.result(HANG_SECONDS)
        assert content(server) == [3, 30]
    with opened(tmp_path, disk) as server:
        assert content(server) == [3, 30]
        assert server.table("t").cursor.epoch != epoch


def test_of_two_creations_at_once_one_is_refused(tmp_path, disk):
    with opened(tmp_path, disk) as server:
        hold(disk)
        first, second = create(server, "t"), create(server, "t")
        with pytest.raises(TableExistsError):
            second.result(HANG_SECONDS)
        assert not first.done()
        disk.release()
        assert first.result(HANG_SECONDS).name == "t"


@pytest.mark.parametrize("give", [create, drop], ids=["create", "drop"])
def test_a_disk_that_breaks_meanwhile_is_told_and_reading_goes_on(tmp_path, disk, give):
    with opened(tmp_path, disk) as server:
        server.create_table("other", X).add({"x": [1]})
        memory = server.create_table("m", X, journal="memory")
        server.create_table("busy", X)
        hold(disk)
        busy = server.table("busy").add({"x": [1]}, wait=False)
        assert disk.syncing.wait(HANG_SECONDS)
        future = give(server, "other" if give is drop else "new")
        memory.add({"x": [1]})
        disk.breaks = True
        disk.release()
        for waiting in (busy, future):
            with pytest.raises(JournalFailedError):
                waiting.result(HANG_SECONDS)
        assert content(server, "busy") == [1]
        disk.breaks = False


def test_a_server_that_stops_meanwhile_finishes_what_it_took(tmp_path, disk):
    with opened(tmp_path, disk) as server:
        server.create_table("old", X)
        hold(disk)
        futures = [create(server, "new"), drop(server, "old")]
        assert disk.syncing.wait(HANG_SECONDS)
        futures.append(server.table("new").add({"x": [1]}, wait=False))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        disk.release()
        stopping.join(HANG_SECONDS)
        assert not stopping.is_alive()
        for future in futures:
            assert future.done()
            assert not isinstance(future.exception(), TransportError)
    with opened(tmp_path, disk) as server:
        assert server.table_names() == ["new"]
        assert content(server, "new") == [1]


def test_uploads_to_other_tables_go_on_while_the_disk_does_not_answer(tmp_path, disk):
    """Rows that are applied leave room for others, also while they wait for the disk."""
    with test_durable_writes.opened(tmp_path, listens=True) as server:
        try:
            held = server.create_table("held", X)
            server.create_table("free", X, journal="none")
            count = server._parts.config.limits.ingest_rows_pending_max + 1
            with JournalClient(server.uri) as client:
                hold(disk)
                stuck, _ = upload(client, "held", count, producer="p", sequence=0)
                wait_until(lambda: len(content(server, "held")) == count, HANG_SECONDS)
                writer, answers = upload(client, "free", 3)
                assert json.loads(answers.read().to_pybytes())["rows"] == 3
                disk.release()
                writer.close()
                stuck.close()
            assert held.position("p") == 0
        finally:
            disk.release()


def test_uploads_to_other_tables_go_on_while_a_staged_batch_waits_for_the_disk(tmp_path, disk):
    with (
        test_durable_writes.opened(tmp_path, listens=True) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            server.create_table("held", X, key="x")
            server.create_table("free", X, journal="none")
            count = server._parts.config.limits.whole_batch_rows_max + 1
            with JournalClient(server.uri) as client:
                staged = client.stage("held", "job", 0, pa.table({"x": range(count)}))
                hold(disk)
                commit = pool.submit(client.commit, "held", "job", 0, staged)
                wait_until(lambda: len(content(server, "held")) == count, HANG_SECONDS)
                writer, answers = upload(client, "free", 3)
                assert json.loads(answers.read().to_pybytes())["rows"] == 3
                assert not commit.done()
                disk.release()
                assert commit.result(HANG_SECONDS)["rows"] == count
                writer.close()
        finally:
            disk.release()


def upload(client: JournalClient, table: str, count: int, **command: object):
    """Rows on their way, whose answer has not been read."""
    told = json.dumps({"table": table, **command}).encode()
    rows = pa.record_batch({"x": range(count)}, pa.schema([("x", pa.int64())]))
    writer, answers = client.client.do_put(
        flight.FlightDescriptor.for_command(told),
        rows.schema,
        flight.FlightCallOptions(timeout=HANG_SECONDS),
    )
    answers.read()
    writer.write_batch(rows)
    writer.done_writing()
    return writer, answers


def test_the_engine_thread_touches_no_file(tmp_path):
    with strict() as findings, opened(tmp_path) as server:
        table = server.create_table("t", X)
        table.add({"x": [1]})
        server.publish("again", table)
        server.drop_table("t")
        server.create_table("t", X, data={"x": [1, 2]})
        server.create_table("m", X, journal="memory")
        with server.transaction() as changes:
            changes.add(server.table("t"), {"x": [3]})
        server.drop_table("t")
    assert findings.file_calls == []


def test_a_table_without_files_is_dropped_without_waiting_for_the_writer():
    """Nobody tells the engine when a journal in memory has been let go of."""
    with Server(port=0, journal="memory") as server:
        server.create_table("m", X).add({"x": [1]})
        store = server._parts.journals.store
        with store._pump_lock:
            drop(server, "m").result(HANG_SECONDS)
        assert "m" not in server.table_names()
