"""What a table's journal keeps its entries in: files (:mod:`.file_history`) or memory
(:mod:`.memory_history`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from barrage.journal.records.index import Index
    from barrage.journal.records.record import Entry
    from barrage.journal.records.table_state import TableState


class History(Protocol):
    """Entries that are kept, and states to start from. ``write``, ``sync``, ``publish`` and
    ``attest`` are called by the writer only, ``maintain`` by one thread at a time, the rest by any
    thread."""

    @property
    def index(self) -> Index:
        """The entries that may be read."""
        ...

    @property
    def earliest(self) -> int:
        """Oldest version whose state can be had."""
        ...

    def write(self, entry: Entry, frontier: int, *, is_joint: bool = False) -> None:
        """Keep an entry; ``is_joint``: other tables have some of the same cycle."""
        ...

    def sync(self) -> None:
        """Return when all entries written are sure to be kept."""
        ...

    def publish(self) -> None:
        """Make what was synced readable. No IO."""
        ...

    def attest(self) -> None:
        """Write down how far it was published, before anybody is told."""
        ...

    def rewind(self) -> None:
        """Take back what was written since the last sync."""
        ...

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Entry]:
        """The entries of these rows of the index."""
        ...

    def base_for(self, version: int) -> TableState:
        """A state at or before ``version``, the later the better."""
        ...

    def maintain(self, keep_from: Callable[[], int], now_wall_ns: int) -> None:
        """Make checkpoints and forget what may be forgotten; ``keep_from`` gives the version from
        which consumers need the history."""
        ...

    def close(self) -> None:
        """Release files."""
        ...


def entry_bytes(entries: Sequence[Entry]) -> int:
    """Memory that entries take."""
    return sum(entry.rows.nbytes for entry in entries)
