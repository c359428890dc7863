"""Servers broken on purpose, which the black box must find. Each breaks the process it runs in."""

from __future__ import annotations

from collections.abc import Callable

from barrage.journal.disk import storage


def acknowledge_without_syncing() -> None:
    """What was written to a file counts as kept."""
    storage.LocalAppendFile.sync = lambda _: None  # type: ignore[method-assign]


def leave_directories_unsynced() -> None:
    """Names are not synced, only what they stand for."""
    storage.SystemCalls.sync_names = lambda *_: None  # type: ignore[method-assign]


CANARIES: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (acknowledge_without_syncing, leave_directories_unsynced)
}
