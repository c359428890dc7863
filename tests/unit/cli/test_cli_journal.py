"""``barrage journal`` on directories that a store has written, whole, damaged and in use."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from barrage.journal import JournalOptions, JournalStore, LocalStorage
from tests.helpers.journal_histories import RandomHistory, identity
from tests.unit.cli.test_cli_command_line import run

OPTIONS = JournalOptions(reserve_bytes=0, segment_bytes=20_000)
CYCLES = 60


def write(root: Path, name: str = "trades/eu", *, seed: int = 3) -> RandomHistory:
    """A table with a history."""
    history = RandomHistory(Random(seed))
    store = JournalStore(LocalStorage(root), OPTIONS)
    store.open_all()
    journal = store.create(identity(name), step=0)
    for _ in range(CYCLES):
        change, positions = history.next_change()
        journal.append(change, step=history.step, wall_ns=history.step, positions=positions)
        store.step_committed(history.step)
    store.close()
    return history


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RandomHistory]:
    root = tmp_path_factory.mktemp("data")
    return root, write(root)


def damage(root: Path, segment: str) -> int:
    """Flip a byte in the middle of a segment; answers which."""
    (path,) = root.glob(f"tables/*/wal/{segment}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(bytes(data))
    return len(data) // 2


@pytest.mark.parametrize("command", ["ls", "verify", "export", "compact", "backup", "restore"])
def test_every_journal_command_has_help_with_examples(command: str) -> None:
    code, out, _ = run("journal", command, "--help")
    assert code == 0
    assert f"  barrage journal {command} " in out


def test_ls_says_what_is_there(written: tuple[Path, RandomHistory]) -> None:
    root, history = written
    code, out, _ = run("journal", "ls", str(root))
    assert code == 0
    header, line = out.splitlines()
    assert header.split() == [
        "name",
        "kind",
        "rows",
        "earliest",
        "latest",
        "changes",
        "bytes",
        "state",
    ]
    assert line.split()[:3] == ["trades/eu", "list", str(len(history.rows))]
    code, out, _ = run("journal", "ls", str(root), "--json")
    (facts,) = json.loads(out)
    assert facts["latest"] == history.step
    assert facts["changes"] == CYCLES
    assert facts["damage"] is None


def test_verify_is_silent_about_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    assert run("journal", "verify", str(tmp_path))[:2] == (0, "trades/eu: ok\n")
    place = damage(tmp_path, "00000001.arrow")
    code, out, _ = run("journal", "verify", str(tmp_path), "trades/eu", "--json")
    assert code == 1
    (answer,) = json.loads(out)
    (found,) = answer["damage"]
    assert found["file"].endswith("wal/00000001.arrow")
    assert found["offset"] <= place
    code, out, _ = run("journal", "ls", str(tmp_path))
    assert code == 0
    assert "is damaged at byte" in out


def test_export_writes_rows_of_any_step_and_changes(
    written: tuple[Path, RandomHistory], tmp_path: Path
) -> None:
    root, history = written
    out = tmp_path / "rows.parquet"
    assert run("journal", "export", str(root), "trades/eu", "--out", str(out))[0] == 0
    rows = [tuple(row.values()) for row in pq.read_table(out).to_pylist()]
    assert rows == [cells for _, _, cells in history.snapshots[-1].rows]
    then = history.snapshots[20]
    words = ["--version", str(then.version), "--out", str(out), "--json"]
    code, answer, _ = run("journal", "export", str(root), "trades/eu", *words)
    assert code == 0
    assert json.loads(answer)["rows"] == len(then.rows) == pq.read_table(out).num_rows
    words = ["--changes", "--from", str(then.version), "--out", str(out)]
    assert run("journal", "export", str(root), "trades/eu", *words)[0] == 0
    changes = pq.read_table(out)
    assert changes.column("_commit_version").to_pylist()[0] > then.version
    counts = changes.column("_change_type").to_pylist()
    assert len(then.rows) + counts.count("insert") - counts.count("delete") == len(history.rows)


def test_export_refuses_what_is_not_there(
    written: tuple[Path, RandomHistory], tmp_path: Path
) -> None:
    root, history = written
    out = ["--out", str(tmp_path / "rows.parquet")]
    assert run("journal", "export", str(root), "trades", *out)[0] == 1
    code, _, err = run("journal", "export", str(root), "trades/eu", "--version", "99999", *out)
    assert (code, str(history.step) in err) == (1, True)
    assert run("journal", "export", str(root), "trades/eu", "--from", "1", *out)[0] == 2
    assert run("journal", "ls", str(tmp_path))[0] == 1
    assert not (tmp_path / "tables").exists()


def test_salvage_gives_what_is_before_the_damage(tmp_path: Path) -> None:
    history = write(tmp_path)
    damage(tmp_path, "00000002.arrow")
    out = tmp_path / "rows.parquet"
    words = ["journal", "export", str(tmp_path), "trades/eu", "--out", str(out)]
    code, _, err = run(*words)
    assert (code, out.exists()) == (1, False)
    assert "is damaged at byte" in err
    code, _, err = run(*words, "--salvage")
    assert code == 1
    rows = [tuple(row.values()) for row in pq.read_table(out).to_pylist()]
    states = {each.version: [row[2] for row in each.rows] for each in history.snapshots}
    (version,) = [version for version in states if f"ends at step {version}:" in err]
    assert 0 < version < history.step
    assert rows == states[version]


def test_compact_keeps_rows_ids_and_epoch_and_needs_the_lock(tmp_path: Path) -> None:
    history = write(tmp_path)
    store = JournalStore(LocalStorage(tmp_path), OPTIONS)
    (journal,) = store.open_all()
    epoch, ids = journal.epoch, journal.state_at(history.step).row_ids.tolist()
    code, _, err = run("journal", "compact", str(tmp_path))
    assert (code, "in use" in err) == (1, True)
    store.close()
    code, out, _ = run("journal", "compact", str(tmp_path), "--json")
    assert code == 0
    (answer,) = json.loads(out)
    assert answer["bytes_after"] < answer["bytes_before"]
    assert answer["earliest"] == history.step
    assert run("journal", "compact", str(tmp_path))[0] == 0
    assert run("journal", "verify", str(tmp_path))[:2] == (0, "trades/eu: ok\n")
    store = JournalStore(LocalStorage(tmp_path), OPTIONS)
    (journal,) = store.open_all()
    assert (journal.epoch, journal.earliest_version) == (epoch, history.step)
    assert journal.state_at(history.step).row_ids.tolist() == ids
    change, _ = history.next_change(store.first_step + 1)
    journal.append(change, step=history.step, wall_ns=1)
    store.close()
    code, out, _ = run("journal", "ls", str(tmp_path), "--json")
    assert json.loads(out)[0]["rows"] == len(history.rows)


def test_a_backup_is_made_and_restored(written: tuple[Path, RandomHistory], tmp_path: Path) -> None:
    root, history = written
    backup, data = str(tmp_path / "backup"), str(tmp_path / "data")
    code, out, _ = run("journal", "backup", str(root), backup, "--json", "--quiet")
    assert code == 0
    told = json.loads(out)
    assert [each["name"] for each in told["tables"]] == ["trades/eu"]
    assert told["step"] == history.step
    code, _, err = run("journal", "backup", str(root), backup)
    assert (code, err.count("\n")) == (1, 1)
    assert "is there already" in err
    code, _, err = run("journal", "restore", backup, data)
    assert code == 0
    assert f"restored to {data}" in err
    listed = [json.loads(run("journal", "ls", path, "--json")[1])[0] for path in (str(root), data)]
    assert listed[0] == listed[1]
    code, _, err = run("journal", "restore", backup, data)
    assert code == 1
    assert "not empty" in err
    code, _, err = run("journal", "restore", str(tmp_path), str(tmp_path / "other"))
    assert code == 1
    assert "no finished backup" in err
