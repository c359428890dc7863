"""Stores upon a disk in memory and a clock that is moved by hand."""

from __future__ import annotations

from random import Random

from barrage.journal import JournalOptions, JournalStore, TableJournal
from tests.helpers.journal_histories import RandomHistory, identity
from tests.helpers.memory_storage import MemoryStorage
from tests.helpers.virtual_clock import VirtualClock

MS = 1_000_000
SMALL = JournalOptions(reserve_bytes=0)


class Bench:
    """A store, its disk, its clock and one table ``t`` with a random history."""

    def __init__(
        self,
        options: JournalOptions = SMALL,
        *,
        storage: MemoryStorage | None = None,
        kind: str = "list",
        journal_class: str = "durable",
    ) -> None:
        self.storage = storage or MemoryStorage()
        self.clock = VirtualClock(1_000 * MS)
        self.options = options
        self.synced: list[int] = []
        self.history = RandomHistory(Random(5), is_append_only=kind == "append-only")
        self.store = self._open()
        self.journal = self.store.create(identity(kind=kind, journal_class=journal_class), step=0)

    def _open(self) -> JournalStore:
        store = JournalStore(
            self.storage, self.options, clock=self.clock, on_synced=self.synced.append
        )
        store.open_all()
        return store

    def append(self, count: int = 1) -> int:
        """Hand over some cycles; answers the last ticket."""
        ticket = 0
        for _ in range(count):
            change, positions = self.history.next_change()
            ticket = self.journal.append(
                change,
                step=self.history.step,
                wall_ns=self.clock.wall_ns(),
                positions=positions,
            )
            self.store.step_committed(self.history.step)
        return ticket

    def pump(self, after_ms: float = 0) -> int | None:
        """Let time pass, then pump."""
        self.clock.advance(int(after_ms * MS))
        return self.store.pump(self.clock.monotonic_ns())

    def write(self, count: int = 1) -> None:
        """Hand over and write, one round each."""
        for _ in range(count):
            self.append()
            self.pump(20)

    def reopen(self, *, is_crash: bool = False) -> TableJournal:
        """Another process takes over."""
        if is_crash:
            self.storage.crash()
        else:
            self.store.close()
        self.store = self._open()
        self.journal = self.store.journals["t"]
        return self.journal
