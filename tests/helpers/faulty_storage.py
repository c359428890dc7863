"""A data directory whose disk does what a test says: waits before it syncs, breaks, is full."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from barrage.journal.disk.storage import LocalStorage, SystemCalls
from barrage.server.journaling import journal_opening


class Disk:
    """What the disk does; the same for all files of a test."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncing = threading.Event()
        """Set once a sync has been asked for."""
        self.breaks = False
        self.is_full = False

    def hold(self) -> None:
        """From now on a sync waits until ``release``."""
        self.syncing.clear()
        self.may_sync.clear()

    def release(self) -> None:
        self.may_sync.set()

    def check_room(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on the device of this test")


class _System(SystemCalls):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def sync(self, file: int) -> None:
        self._disk.syncing.set()
        assert self._disk.may_sync.wait(60)
        if self._disk.breaks:
            raise OSError(errno.EIO, "the disk of this test is broken")
        super().sync(file)


class _Storage(LocalStorage):
    disk: Disk

    def __init__(self, root: Path | str) -> None:
        super().__init__(root, _System(self.disk))

    def allocate(self, path: str, size: int) -> None:
        self.disk.check_room()
        super().allocate(path, size)

    def replace(self, path: str, content: bytes) -> None:
        self.disk.check_room()
        super().replace(path, content)


def install(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk of every data directory opened in this test."""
    disk = Disk()
    monkeypatch.setattr(
        journal_opening, "LocalStorage", type("DiskStorage", (_Storage,), {"disk": disk})
    )
    return disk
