"""A journal's storage upon a simulated disk: the real one, with no disk behind it."""

from __future__ import annotations

from random import Random
from typing import Any

from barrage.journal.disk.storage import LocalStorage
from tests.helpers.simulated_disk import Directory, DiskFile, Faults, FileView, SimulatedDisk

__all__ = ["DiskFile", "Faults", "MemoryStorage"]

ROOT = "/data"


class MemoryStorage(LocalStorage):
    """Files by path, upon ``disk``. One process at a time, as the lock says."""

    def __init__(
        self,
        random: Random | None = None,
        *,
        room: int = 1 << 40,
        faults: Faults | None = None,
        disk: SimulatedDisk | None = None,
    ) -> None:
        self.disk = disk or SimulatedDisk(random, room=room, faults=faults)
        super().__init__(ROOT, self.disk)

    def again(self) -> MemoryStorage:
        """The storage of another process upon the same disk."""
        return MemoryStorage(disk=self.disk)

    @property
    def files(self) -> FileView:
        """All files; changing them is damage."""
        root = self.disk.root
        data = root.names.get(ROOT[1:])
        if data is None:
            data = root.names[ROOT[1:]] = root.platter[ROOT[1:]] = Directory()
        assert isinstance(data, Directory)
        return FileView(data)

    def crash(self) -> None:
        """The power fails."""
        self.disk.cut()
        self._forget()

    def kill(self) -> None:
        """The process ends."""
        self.disk.kill()
        self._forget()

    def _forget(self) -> None:
        # Another process knows nothing of this one's directories.
        self._sure.clear()
        self._lock_file = -1

    def __getattr__(self, name: str) -> Any:
        if name in ("room", "faults", "lost_syncs", "sync_count", "random"):
            return getattr(self.disk, name)
        raise AttributeError(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("room", "faults"):
            setattr(self.disk, name, value)
        else:
            super().__setattr__(name, value)
