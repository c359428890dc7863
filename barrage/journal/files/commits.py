"""The commit point of cycles that change several tables: ``DIR/commits``.

Every table has a file of its own, so a crash may come when the changes of a cycle are in one of
them and not in another. Records of such a cycle say that they are *joint*. Once the files of all
tables are synced, the step up to which that is so is written here and synced; only then anybody is
told. When the files are read back, a joint record after that step is taken off, and what stands
behind it in its table, none of which was acknowledged either. A round without joint records needs
no commit and writes none.

The file has two places of a sector each, written in turn, so that one of them is whole whatever
happens to the other; it never grows, so a full disk cannot keep a commit from being written. It is
there before the first joint record is: where it is missing, the tables came from another directory,
and what they have counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from barrage.errors import JournalCorruptError
from barrage.journal.disk.framing import crc_of

if TYPE_CHECKING:
    from barrage.journal.disk.storage import Storage

COMMITS_FILE: Final = "commits"
PLACE_BYTES: Final = 512
_PLACES: Final = 2
_LINE_BYTES: Final = 32


def _line(step: int) -> bytes:
    text = b"%020d" % step
    return b"%s %08x\n" % (text, crc_of([text]))


def _place(step: int) -> bytes:
    return _line(step).ljust(PLACE_BYTES, b"\0")


def _step_at(content: bytes) -> int | None:
    """The step in a place; None when it is torn."""
    text, _, crc = content[:_LINE_BYTES].partition(b" ")
    if len(text) != 20 or not text.isdigit() or crc[:8] != b"%08x" % crc_of([text]):
        return None
    return int(text)


def read_commit(storage: Storage) -> int | None:
    """The step up to which cycles over several tables are whole; None when there is no such file.
    JournalCorruptError when the file tells nothing."""
    try:
        content = storage.read(COMMITS_FILE).to_pybytes()
    except FileNotFoundError:
        return None
    places = (content[place * PLACE_BYTES :][:PLACE_BYTES] for place in range(_PLACES))
    steps = [step for step in map(_step_at, places) if step is not None]
    if not steps:
        raise JournalCorruptError(
            COMMITS_FILE,
            offset=0,
            reason="neither of its places is whole; without the file, changes of several tables "
            "that were not finished count as finished",
        )
    return max(steps)


class CommitLog:
    """The commits of one run of a store. Used by its writer only."""

    def __init__(self, storage: Storage, step: int) -> None:
        """Begin with everything up to ``step`` committed. The file is a new one: one that another
        process failed to sync is not written on. OSError."""
        self._storage = storage
        self._next = 0
        storage.replace(COMMITS_FILE, _PLACES * _place(step))

    def commit(self, step: int) -> None:
        """Return when everything up to ``step`` is whole for good. OSError."""
        self._storage.patch(COMMITS_FILE, self._next * PLACE_BYTES, _line(step))
        self._next = (self._next + 1) % _PLACES
