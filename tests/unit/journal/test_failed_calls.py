"""Calls to the disk that fail, one at a time: what was acknowledged stays, and what went wrong is
told."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from barrage.errors import JournalFullError
from barrage.journal import JournalOptions
from barrage.journal.files.file_history import BEGIN_FILE, FileHistory
from tests.helpers.journal_histories import content, identity
from tests.helpers.simulated_disk import SimulatedDisk
from tests.unit.journal.stores import SMALL, Bench


def fail_at(disk: SimulatedDisk, name: str, path: str, error: int, *, after: str = "") -> list[str]:
    """Let the next call of that name upon such a path fail, once one upon a path that ends with
    ``after`` has been made. Answers the list of those that failed."""
    failed: list[str] = []
    seen = [not after]

    def fail(called: str, at: str) -> int:
        seen[0] |= bool(after) and at.endswith(after)
        if failed or not seen[0] or called != name or path not in at:
            return 0
        failed.append(at)
        return error

    disk.fail = fail
    return failed


def test_a_checkpoint_that_the_history_may_begin_with_is_kept() -> None:
    """Where the history begins was written, and the sync of its name failed: either may be found
    later, the old beginning or the new one."""
    bench = Bench(replace(SMALL, segment_bytes=1))
    bench.write(4)
    history = bench.journal.history
    assert isinstance(history, FileHistory)
    # A checkpoint of just where a segment ends.
    history.checkpoint(bench.history.snapshots[3].version)
    history._options = JournalOptions(retain_steps=1)
    failed = fail_at(bench.storage.disk, "sync names", "tables/t", errno.EIO, after=BEGIN_FILE)
    with pytest.raises(OSError, match="Input/output"):
        bench.journal.maintain()
    assert failed == ["/data/tables/t"]
    history.checkpoint(bench.history.step)
    bench.storage.kill()
    bench.store = bench._open()
    journal = bench.store.journals["t"]
    assert content(journal.state_at(bench.history.step)) == bench.history.snapshots[-1].rows


def test_a_table_that_was_refused_for_want_of_room_does_not_come_back_empty() -> None:
    bench = Bench()
    failed = fail_at(bench.storage.disk, "sync names", "tables/u", errno.ENOSPC, after="table.json")
    with pytest.raises(JournalFullError):
        bench.store.create(identity("u"))
    assert failed
    bench.storage.kill()
    assert set(bench._open().journals) == {"t"}
