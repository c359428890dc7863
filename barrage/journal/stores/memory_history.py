"""History in memory: the entries themselves, upon a state they begin with. Gone with the
process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from barrage.errors import HistoryLostError
from barrage.journal.records.history import entry_bytes
from barrage.journal.records.index import Index, IndexRow
from barrage.journal.records.retention import forgettable_upto
from barrage.journal.records.table_state import replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from barrage.journal.records.options import JournalOptions
    from barrage.journal.records.record import Entry
    from barrage.journal.records.table_state import TableState


class MemoryHistory:
    """Entries by their version. Bounded by ``memory_bytes`` plus half of the rows themselves: the
    oldest go when so many of them are too many that folding them into the base is worth it."""

    def __init__(self, name: str, base: TableState, options: JournalOptions) -> None:
        self._name = name
        self._base = base
        self._options = options
        self._entries: dict[int, Entry] = {}
        self._written: list[IndexRow] = []
        self._index = Index()
        self._lock = threading.Lock()

    @property
    def index(self) -> Index:
        return self._index

    @property
    def earliest(self) -> int:
        return self._base.version

    def write(self, entry: Entry, frontier: int, *, is_joint: bool = False) -> None:
        self._entries[entry.step] = entry
        self._written.append(
            IndexRow(
                step=entry.step,
                wall_ns=entry.wall_ns,
                first_offset=entry.first_offset,
                row_count=entry.rows.num_rows,
                byte_count=entry_bytes([entry]),
                segment=0,
                place=0,
                before_count=entry.before_count,
            )
        )

    def sync(self) -> None:
        """Memory needs none."""

    def publish(self) -> None:
        with self._lock:
            self._index.extend(self._written)
            self._written = []

    def attest(self) -> None:
        """Memory outlives nobody who could ask."""

    def rewind(self) -> None:
        self._written = []

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Entry]:
        with self._lock:
            entries = [self._entries.get(step) for step in rows[:, 0].tolist()]
        for step, entry in zip(rows[:, 0].tolist(), entries, strict=True):
            if entry is None:
                raise HistoryLostError(
                    self._name, asked=str(step), reason="it was forgotten while it was read"
                )
            yield entry

    def base_for(self, version: int) -> TableState:
        return self._base

    def maintain(self, keep_from: Callable[[], int], now_wall_ns: int) -> None:
        upto = forgettable_upto(
            self._index.rows,
            self._options,
            retain_bytes=self._options.memory_bytes,
            keep_from=keep_from(),
            now_wall_ns=now_wall_ns,
        )
        if upto is None:
            return
        rows = self._index.span(self._base.version, upto)
        if 2 * int(rows[:, 4].sum()) < min(self._options.memory_bytes, self._base.rows.nbytes):
            return
        base = replayed(self._base, self.read(rows), producers_max=self._options.producers_max)
        with self._lock:
            self._base = base
            self._index.forget_upto(upto)
            for step in rows[:, 0].tolist():
                del self._entries[step]

    def close(self) -> None:
        """Nothing to release."""
