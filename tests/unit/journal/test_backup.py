"""Backups of directories in use, and directories made of them: whole, or not at all."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import barrage
from barrage.errors import BarrageError, JournalCorruptError
from barrage.journal.disk.storage import LocalStorage
from barrage.journal.stores import backup as backups
from barrage.journal.stores.backup import (
    ATTEMPTS_MAX,
    MANIFEST_FILE,
    STEPS_SKIPPED,
    Backup,
    BackupError,
    make_backup,
    restore_backup,
)
from barrage.server import ServerConfig
from tests.helpers import warm_python
from tests.helpers.server_process import wait_until
from tests.unit.journal.test_older_directory import VECTORS, expected, found

HANG_S = 180
SCHEMA = {"a": "int64", "text": "string"}


class Killed(BaseException):
    """The process is gone: nothing is cleaned up."""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A directory with three tables of several files each, in which nobody writes."""
    data = tmp_path / "data"
    config = ServerConfig(data=str(data), journal_segment_bytes=64 * 1024)
    with barrage.Server(config=config) as server:
        keyed = server.create_table("keyed", SCHEMA, key="a")
        events = server.create_table("events/of 2026", SCHEMA)
        server.create_table("empty", SCHEMA)
        for number in range(16):
            rows = {"a": [number, 1000], "text": ["x" * 8000, "y" * number]}
            with server.transaction() as changes:
                changes.upsert(keyed, rows)
                changes.add(events, rows)
    return data


def contents(data: Path) -> dict[str, list[dict[str, object]]]:
    with barrage.Server(data=data) as server:
        names = [name for name in server.table_names() if not name.startswith("_")]
        return {name: server.table(name).to_arrow().to_pylist() for name in names}


def test_a_backup_is_restored_as_the_directory_was(written: Path, tmp_path: Path) -> None:
    told: list[int] = []
    made = make_backup(written, tmp_path / "backup", told.append)
    assert Backup.read(tmp_path / "backup") == made
    assert sum(told) == made.byte_count
    assert [each.name for each in made.tables] == ["empty", "events/of 2026", "keyed"]
    assert len([path for path in made.files if "/wal/" in path]) > 4, "several segments"
    (tmp_path / "restored").mkdir()
    assert restore_backup(tmp_path / "backup", tmp_path / "restored") == made
    assert contents(tmp_path / "restored") == contents(written)
    assert not list(tmp_path.glob("*.pending"))


def test_an_older_format_can_be_backed_up(tmp_path: Path) -> None:
    make_backup(VECTORS / "data", tmp_path / "backup")
    restore_backup(tmp_path / "backup", tmp_path / "data")
    assert found(tmp_path / "data")["tables"] == expected()["tables"]


def test_steps_of_after_the_backup_are_not_used_again(tmp_path: Path) -> None:
    with barrage.Server(data=tmp_path / "data") as server:
        table = server.create_table("t", SCHEMA, key="a")
        table.upsert({"a": [1], "text": ["before"]})
        made = make_backup(tmp_path / "data", tmp_path / "backup")
        table.upsert({"a": [2], "text": ["lost"]})
        with barrage.connect(server.uri) as session, session.table("t").subscribe() as live:
            live.wait_ready(HANG_S)
            cursor, rows = live.checkpoint()
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    with barrage.Server(data=tmp_path / "restored") as server:
        step = server.table("t").upsert({"a": [3], "text": ["new"]})
        assert step > made.step + STEPS_SKIPPED
        with (
            barrage.connect(server.uri) as session,
            session.table("t").subscribe(resume_from=cursor, rows=rows) as live,
        ):
            live.wait_ready(HANG_S)
            wait_until(lambda: live.to_arrow().column("text").to_pylist() == ["before", "new"])
            assert "snapshot" in live.resumption


@pytest.mark.further
def test_while_a_server_writes_and_forgets(tmp_path: Path) -> None:
    """Cycles over two tables are whole in each backup, and what was acknowledged before is in
    it; segments are begun and forgotten all the time."""
    config = ServerConfig(
        data=str(tmp_path / "data"), journal_segment_bytes=64 * 1024, journal_retain_steps=5
    )
    with barrage.Server(config=config) as server:
        one = server.create_table("one", SCHEMA, key="a")
        other = server.create_table("other", SCHEMA, key="a")
        alone = server.create_table("alone", SCHEMA, key="a")
        done, is_over = [0], threading.Event()
        wrote = threading.Condition()

        def write() -> None:
            while not is_over.is_set():
                number = done[0] + 1
                rows = {"a": [0], "text": [f"{number}:" + "x" * 6000]}
                with server.transaction() as changes:
                    changes.upsert(one, rows)
                    changes.upsert(other, rows)
                alone.upsert(rows)
                with wrote:
                    done[0] = number
                    wrote.notify()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for round_ in range(4):
                with wrote:
                    least = 15 * (round_ + 1)
                    assert wrote.wait_for(lambda least=least: done[0] >= least, HANG_S)
                before = done[0]
                make_backup(tmp_path / "data", tmp_path / f"backup{round_}")
                restore_backup(tmp_path / f"backup{round_}", tmp_path / f"data{round_}")
                rows = contents(tmp_path / f"data{round_}")
                numbers = {name: int(str(rows[name][0]["text"]).partition(":")[0]) for name in rows}
                assert numbers["one"] == numbers["other"] >= before
                assert numbers["one"] - 1 <= numbers["alone"] <= numbers["one"]
                assert numbers["alone"] >= before
        finally:
            is_over.set()
            writer.join()


def test_a_history_that_begins_later_meanwhile_is_copied_anew(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []
    real = backups._copied

    def copied(*arguments):
        tries.append(1)
        if len(tries) < 3:
            raise FileNotFoundError("a segment went away")
        return real(*arguments)

    monkeypatch.setattr(backups, "_copied", copied)
    make_backup(written, tmp_path / "backup")
    assert len(tries) == 3
    tries[:] = [0] * -ATTEMPTS_MAX
    monkeypatch.setattr(backups, "_copied", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    with pytest.raises(BackupError, match="changes faster"):
        make_backup(written, tmp_path / "another")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "data"]


# --- what goes wrong ------------------------------------------------------------------------------


def test_killed_at_every_place_there_is_no_backup(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(make_backup(written, tmp_path / "whole").files)
    monkeypatch.setattr(backups, "_remove", lambda _: None)
    for place in range(count):
        left = place

        def advance(_: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        with pytest.raises(Killed):
            make_backup(written, tmp_path / "backup", advance)
        assert not (tmp_path / "backup").exists()
        with pytest.raises(BackupError, match="no finished backup"):
            restore_backup(tmp_path / "backup.pending", tmp_path / "restored")
        left = place
        with pytest.raises(Killed):
            restore_backup(tmp_path / "whole", tmp_path / "restored", advance)
        assert not (tmp_path / "restored").exists()
        shutil.rmtree(tmp_path / "backup.pending")
        shutil.rmtree(tmp_path / "restored.pending")
    monkeypatch.undo()
    (tmp_path / "backup.pending").mkdir()
    make_backup(written, tmp_path / "backup")
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(written)


@pytest.mark.slow
def test_killed_for_real(written: Path, tmp_path: Path) -> None:
    """kill -9 of the command, ever later, until it has got to its end."""
    for number in range(1000):
        words = ["-c", "from barrage.cli.main import main; main()", "journal", "backup"]
        process = warm_python.popen([*words, str(written), str(tmp_path / "backup")])
        try:
            process.wait(timeout=0.002 * number)
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        if (tmp_path / "backup").exists():
            break
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert contents(tmp_path / "restored") == contents(written)


@pytest.mark.parametrize("room", [0, 3, 7])
def test_a_disk_that_fills_up_leaves_nothing(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    make_backup(written, tmp_path / "whole")
    real, left = LocalStorage.append_to, [0]

    def append_to(self, path):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "no space left on device")
        return real(self, path)

    monkeypatch.setattr(LocalStorage, "append_to", append_to)
    left[0] = room
    with pytest.raises(BackupError, match="no room for the backup"):
        make_backup(written, tmp_path / "backup")
    left[0] = room
    with pytest.raises(BackupError, match="could not be made"):
        restore_backup(tmp_path / "whole", tmp_path / "restored")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "whole"]


def test_a_backup_that_was_changed_is_refused_whatever_was(written: Path, tmp_path: Path) -> None:
    made = make_backup(written, tmp_path / "backup")
    for name in (*(f"files/{path}" for path in made.files), MANIFEST_FILE):
        path = tmp_path / "backup" / name
        whole = path.read_bytes()
        for broken in (whole[:-1], whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], None):
            if broken is None:
                path.unlink()
            else:
                path.write_bytes(broken)
            with pytest.raises((JournalCorruptError, BackupError)):
                restore_backup(tmp_path / "backup", tmp_path / "restored")
            assert sorted(each.name for each in tmp_path.iterdir()) == ["backup", "data"]
            path.write_bytes(whole)
    restore_backup(tmp_path / "backup", tmp_path / "restored")


def test_where_a_backup_and_a_directory_may_be_made(written: Path, tmp_path: Path) -> None:
    make_backup(written, tmp_path / "backup")
    with pytest.raises(BackupError, match="is there already"):
        make_backup(written, tmp_path / "backup")
    with pytest.raises(BackupError, match="inside the data directory"):
        make_backup(written, written / "tables" / "backup")
    with pytest.raises(BackupError, match="has no tables"):
        make_backup(tmp_path / "nothing", tmp_path / "another")
    in_use = pytest.raises(BackupError, match="is not empty and a server may be using it")
    with barrage.Server(data=written), in_use:
        restore_backup(tmp_path / "backup", written)
    (tmp_path / "file").write_text("")
    with pytest.raises(BarrageError, match="is not a directory"):
        restore_backup(tmp_path / "backup", tmp_path / "file")


def test_a_manifest_may_not_lead_outside(written: Path, tmp_path: Path) -> None:
    made = make_backup(written, tmp_path / "backup")
    for path in ("../../evil", "/tmp/evil", "tables/../../evil"):
        wrong = Backup(step=made.step, tables=made.tables, gaps=(), files={path: (1, 1)})
        (tmp_path / "backup" / MANIFEST_FILE).write_bytes(wrong.encode())
        with pytest.raises(BackupError, match="outside of it"):
            restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert json.loads(made.encode())["format"] == 1


def test_a_damaged_table_is_told_and_nothing_is_copied(written: Path, tmp_path: Path) -> None:
    (path,) = written.glob("tables/keyed/wal/00000001.arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(bytes(data))
    with pytest.raises(JournalCorruptError, match="keyed"):
        make_backup(written, tmp_path / "backup")
    assert [each.name for each in tmp_path.iterdir()] == ["data"]
