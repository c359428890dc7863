"""A real file system that fills up under a server, and journal files that are damaged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import barrage
from barrage.client import Session
from barrage.errors import JournalCorruptError, JournalFullError
from barrage.server import Server, ServerConfig
from tests.chaos.naive_replay import replayed_rows
from tests.chaos.processes import CommandLine, free_port
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.chaos

MIB = 1024 * 1024
DISK_BYTES = 24 * MIB
RESERVE_BYTES = 2 * MIB
BALLAST = "ballast"
SCHEMA = pa.schema({"n": pa.int64(), "filling": pa.binary()})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of a few megabytes."""
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "barrage-test", str(where)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield where
    finally:
        # Files that were mapped into memory may still be, until the rows in them are freed.
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def config(data: Path) -> ServerConfig:
    return ServerConfig(
        data=str(data), journal_reserve_bytes=RESERVE_BYTES, journal_segment_bytes=MIB
    )


def rows(number: int, size: int = 64 * 1024) -> pa.Table:
    return pa.table({"n": [number], "filling": [os.urandom(size)]}, schema=SCHEMA)


def numbers(server: Server) -> list[int]:
    return server.table("t").to_arrow().column("n").to_pylist()


def write_until_full(server: Server, first: int) -> list[int]:
    """The numbers that were acknowledged before the disk was full."""
    acknowledged = []
    for number in range(first, first + 100_000):
        try:
            server.table("t").add(rows(number), producer="p", sequence=number)
        except JournalFullError:
            return acknowledged
        acknowledged.append(number)
    raise AssertionError("the disk did not fill up")


def test_a_disk_that_fills_up_refuses_writes_and_serves_readers_until_there_is_room(
    small_disk: Path,
) -> None:
    (small_disk / BALLAST).write_bytes(bytes(8 * MIB))
    with Server(config=config(small_disk / "data")) as server:
        server.create_table("t", SCHEMA)
        acknowledged = write_until_full(server, 1)
        assert len(acknowledged) > 10
        assert numbers(server) == acknowledged
        with barrage.connect(server.address) as session:
            assert session.table("t").snapshot().num_rows == len(acknowledged)
            with pytest.raises(JournalFullError, match="no room for more history"):
                session.put("t", rows(0))
        with pytest.raises(JournalFullError):
            server.create_table("another", SCHEMA)
        (small_disk / BALLAST).unlink()
        number = acknowledged[-1] + 1
        wait_until(lambda: is_taken(server, number))
        assert numbers(server) == [*acknowledged, number]
    with Server(config=config(small_disk / "data")) as server:
        assert numbers(server) == [*acknowledged, number]
        assert server.table("t").position("p") == number
    assert len(replayed_rows(small_disk / "data", "t")) == number


def is_taken(server: Server, number: int) -> bool:
    try:
        server.table("t").add(rows(number), producer="p", sequence=number)
    except JournalFullError:
        return False
    return True


def test_writes_that_wait_when_the_disk_fills_up_are_kept_or_refused(small_disk: Path) -> None:
    """Many writes are under way when the last byte goes: each is there, or was refused."""
    (small_disk / BALLAST).write_bytes(bytes(8 * MIB))
    with Server(config=config(small_disk / "data")) as server:
        table = server.create_table("t", SCHEMA)
        under_way = [(n, table.add(rows(n, 8192), wait=False)) for n in range(3000)]
        kept = [n for n, future in under_way if future.exception(60) is None]
        refused = [n for n, future in under_way if future.exception(60) is not None]
        assert kept
        assert refused
        assert all(
            isinstance(future.exception(), JournalFullError)
            for n, future in under_way
            if future.exception() is not None
        )
        assert numbers(server) == kept
    (small_disk / BALLAST).unlink()
    with Server(config=config(small_disk / "data")) as server:
        assert numbers(server) == kept


def test_a_server_that_is_killed_on_a_full_disk_comes_back(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, port = small_disk / "data", free_port()
    (small_disk / BALLAST).write_bytes(bytes(8 * MIB))
    monkeypatch.setenv("BARRAGE_JOURNAL_RESERVE_BYTES", str(RESERVE_BYTES))
    starter = CommandLine("serve", "--json", "--data", str(data), "--port", str(port))
    acknowledged = 0
    try:
        life = starter.start()
        life.wait_ready()
        with barrage.connect(f"127.0.0.1:{port}") as session:
            session.put("t", rows(0))
            while is_put(session, acknowledged + 1):
                acknowledged += 1
        life.kill()
        life = starter.start()
        life.wait_ready()
        with barrage.connect(f"127.0.0.1:{port}") as session:
            found = session.table("t").snapshot().column("n").to_pylist()
            assert found == list(range(acknowledged + 1))
        life.kill()
    finally:
        starter.close()


def is_put(session: Session, number: int) -> bool:
    try:
        session.put("t", rows(number))
    except JournalFullError:
        return False
    return True


# --- damage ---


def filled(data: Path) -> None:
    """Two tables, one of them in several segments."""
    with Server(config=config(data)) as server:
        for name in ("t", "other"):
            table = server.create_table(name, SCHEMA)
            for number in range(40):
                table.add(rows(number, 100_000 if name == "t" else 10))


@pytest.mark.parametrize("place", ["first byte of rows", "middle", "last segment but its end"])
def test_damage_is_reported_with_file_and_place(tmp_path: Path, place: str) -> None:
    data = tmp_path / "data"
    filled(data)
    segments = sorted((data / "tables" / "t" / "wal").glob("*.arrow"))
    assert len(segments) > 2
    file = segments[-1] if place.startswith("last") else segments[0]
    content = bytearray(file.read_bytes())
    offset = {"first byte of rows": 4096, "middle": len(content) // 2}.get(place, 8192)
    content[offset] ^= 0x10
    file.write_bytes(content)
    with Server(config=config(data)) as server:
        (error,) = server.damaged_tables().values()
        assert isinstance(error, JournalCorruptError)
        assert error.file.endswith(f"tables/t/wal/{file.name}"), error
        assert 0 <= error.offset <= offset
        assert "Restore the file from a copy" in str(error)
        with barrage.connect(server.address) as session:
            assert session.table("other").snapshot().num_rows == 40
            with pytest.raises(JournalCorruptError, match=r"damaged at byte .* Restore the file"):
                session.table("t").snapshot()
            with pytest.raises(JournalCorruptError):
                session.put("t", rows(0))
    assert file.read_bytes() == content


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    data = tmp_path / "data"
    filled(data)
    segments = sorted((data / "tables" / "t" / "wal").glob("*.arrow"))
    segments[1].unlink()
    with Server(config=config(data)) as server:
        assert list(server.damaged_tables()) == ["t"]
        assert [name for name in server.table_names() if not name.startswith("_")] == ["other"]


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_tail_that_was_being_written_is_cut_off(tmp_path: Path, kept: float) -> None:
    """A record more than was acknowledged, of which only a part is there."""
    data = tmp_path / "data"
    filled(data)
    segments = sorted((data / "tables" / "t" / "wal").glob("*.arrow"))
    with segments[-1].open("ab") as file:
        record = segments[0].read_bytes()[-100_500:]
        file.write(record[: int(len(record) * kept)])
    with Server(config=config(data)) as server:
        assert server.damaged_tables() == {}
        assert numbers(server) == list(range(40))
        server.table("t").add(rows(40))
    with Server(config=config(data)) as server:
        assert numbers(server) == list(range(41))
