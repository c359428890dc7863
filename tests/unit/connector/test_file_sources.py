"""Files as sources: rotation, truncation, resuming, and what is refused."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrage.connector import StateFile
from barrage.connector.shipped import file_tail
from barrage.connector.shipped.file_folder import FileFolder
from barrage.connector.shipped.file_tail import FileTail
from barrage.errors import ConfigError, SourceLostError

HANG_SECONDS = 180.0


def read_all(source, after: int | None = None) -> list[tuple[int, bytes]]:
    """Everything until the source ends."""

    async def collect():
        found = []
        async for batch in source.read(after):
            columns = batch.columns("s")
            found += zip(columns.ids.to_pylist(), columns.payloads.to_pylist(), strict=True)
        return found

    return asyncio.run(asyncio.wait_for(collect(), HANG_SECONDS))


class Reading:
    """A source that follows, read step by step."""

    def __init__(self, source, after: int | None = None) -> None:
        self.batches = source.read(after)
        self.found: list[tuple[int, bytes]] = []

    async def until(self, count: int) -> list[bytes]:
        """Payloads, once there are so many."""
        async with asyncio.timeout(HANG_SECONDS):
            while len(self.found) < count:
                batch = await anext(self.batches)
                columns = batch.columns("s")
                self.found += zip(
                    columns.ids.to_pylist(), columns.payloads.to_pylist(), strict=True
                )
        return [payload for _, payload in self.found]


def tail(path: Path, **options) -> FileTail:
    state = StateFile("tail", path.parent / "state")
    return FileTail(path, state=state, name="tail", poll_seconds=0.001, **options)


def once(path: Path) -> FileTail:
    return tail(path, follows=False)


def test_lines_and_where_they_end(tmp_path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n\ntwo\nrest")
    assert read_all(once(path)) == [(4, b"one"), (5, b""), (9, b"two"), (13, b"rest")]
    assert read_all(once(path), 4) == [(5, b""), (9, b"two"), (13, b"rest")]
    assert read_all(once(path), 13) == []


def test_lines_are_the_same_however_they_are_read(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.log"
    chance = random.Random(1)
    path.write_bytes(b"\n".join(bytes([97]) * chance.randint(0, 30) for _ in range(300)))
    whole = read_all(once(path))
    for size in (1, 7, 64):
        monkeypatch.setattr(file_tail, "READ_BYTES", size)
        at = chance.choice(whole)[0]
        assert read_all(once(path), at) == [each for each in whole if each[0] > at]


def test_rotation_while_it_is_read(tmp_path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1\n2\n")

    async def scene() -> None:
        reading = Reading(tail(path))
        await reading.until(2)
        # Written to after it was renamed, as programs do until they notice.
        with path.open("ab") as old:
            path.rename(tmp_path / "a.log.1")
            old.write(b"3\n4")
            old.flush()
            path.write_bytes(b"5\n")
            assert await reading.until(5) == [b"1", b"2", b"3", b"4", b"5"]
        path.rename(tmp_path / "a.log.2")
        path.write_bytes(b"6\n")
        assert (await reading.until(6))[-1] == b"6"
        await reading.batches.aclose()
        numbers = [number for number, _ in reading.found]
        assert numbers == [2, 4, 6, 7, 9, 11]
        # The same ids from anywhere, out of the files that stand beside it now.
        for at in numbers[:-1]:
            again = Reading(tail(path), at)
            await again.until(len([n for n in numbers if n > at]))
            assert again.found == [each for each in reading.found if each[0] > at]
            await again.batches.aclose()

    asyncio.run(scene())


def test_rotation_while_nobody_reads(tmp_path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1\n2\n")
    assert read_all(once(path)) == [(2, b"1"), (4, b"2")]
    for number in range(3, 6):
        path.rename(tmp_path / f"a.log.{number}")
        path.write_bytes(b"%d\n" % number)
        os.utime(path, ns=(number * 10**15, number * 10**15))
    os.utime(tmp_path / "a.log.3", ns=(2 * 10**15, 2 * 10**15))

    async def scene() -> None:
        reading = Reading(tail(path), 4)
        assert await reading.until(3) == [b"3", b"4", b"5"]
        await reading.batches.aclose()

    asyncio.run(scene())


def test_truncation_in_place(tmp_path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"long line\n")

    async def scene() -> None:
        reading = Reading(tail(path))
        await reading.until(1)
        path.write_bytes(b"x\n")
        assert await reading.until(2) == [b"long line", b"x"]
        assert reading.found[-1] == (12, b"x")
        await reading.batches.aclose()

    asyncio.run(scene())


def test_a_file_that_was_read_and_is_gone(tmp_path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1\n2\n")
    read_all(once(path))
    path.unlink()
    path.write_bytes(b"other\n")
    with pytest.raises(SourceLostError, match="not beside"):
        read_all(once(path), 2)
    (tmp_path / "state" / "tail.json").unlink()
    with pytest.raises(SourceLostError, match="is gone"):
        read_all(once(path), 2)
    (tmp_path / "state" / "tail.json").write_text("{")
    with pytest.raises(ConfigError, match="state"):
        read_all(once(path), 2)


def test_a_file_that_is_another_under_the_same_inode(tmp_path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"1" * 50 + b"\n")
    read_all(once(path))
    path.write_bytes(b"2" * 60 + b"\n")
    with pytest.raises(SourceLostError):
        read_all(once(path), 51)


def test_lines_that_are_too_long(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(file_tail, "LINE_BYTES_MAX", 10)
    path = tmp_path / "a.log"
    path.write_bytes(b"0123456789\n")
    assert read_all(once(path)) == [(11, b"0123456789")]
    for text in (b"0123456789a\n", b"0123456789a"):
        path.write_bytes(text)
        (tmp_path / "state" / "tail.json").unlink()
        with pytest.raises(ConfigError, match="more than 10"):
            read_all(once(path))
    with pytest.raises(ConfigError, match="cannot read"):
        read_all(FileTail(tmp_path / "none", state=StateFile("x", tmp_path / "state")))


# --- folders ---


def folder(path: Path) -> FileFolder:
    state = StateFile("folder", path.parent / "state")
    return FileFolder(path, state=state, name="folder", follows=False)


def numbers_in(found: list[tuple[int, bytes]]) -> list[int]:
    return [n for _, raw in found for n in pa.ipc.open_stream(raw).read_all()["n"].to_pylist()]


def test_files_of_a_folder_each_once(tmp_path) -> None:
    where = tmp_path / "in"
    where.mkdir()
    pq.write_table(pa.table({"n": range(20_000)}), where / "b.parquet", row_group_size=7_000)
    (where / "a.csv").write_text("n\n-1\n-2\n")
    (where / "notes.txt").write_text("not ours")
    found = read_all(folder(where))
    assert numbers_in(found) == [-1, -2, *range(20_000)]
    assert found[0][0] == 2
    assert found[-1][0] == 20_002
    for at, _ in found:
        assert read_all(folder(where), at) == [each for each in found if each[0] > at]
    # A new file comes after those that were read, whatever its name.
    (where / "0.jsonl").write_text('{"n":5}\n')
    assert [number for number, _ in read_all(folder(where), 20_002)] == [20_003]
    with pa.ipc.new_file(where / "c.arrow", pa.schema({"n": pa.int64()})) as writer:
        writer.write(pa.record_batch({"n": [7]}))
    assert numbers_in(read_all(folder(where), 20_003)) == [7]


def test_files_of_a_folder_that_change_or_go(tmp_path) -> None:
    where = tmp_path / "in"
    where.mkdir()
    (where / "a.csv").write_text("n\n1\n")
    read_all(folder(where))
    (where / "a.csv").unlink()
    assert read_all(folder(where), 1) == []
    (where / "b.csv").write_text("n\n1\n")
    read_all(folder(where), 1)
    (where / "b.csv").write_text("n\n1\n2\n")
    with pytest.raises(SourceLostError, match="was changed"):
        read_all(folder(where), 1)
    (tmp_path / "state" / "folder.json").unlink()
    with pytest.raises(SourceLostError, match="is gone"):
        read_all(folder(where), 1)
    (where / "b.csv").write_text("n\n1,2\n")
    with pytest.raises(ConfigError, match="cannot read"):
        read_all(folder(where))
