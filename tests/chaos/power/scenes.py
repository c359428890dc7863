"""The lives that are recorded: what each is killed in the middle of."""

from __future__ import annotations

from tests.chaos.power.black_box import Life, Scene

SMALL = {"journal_segment_bytes": 65536, "journal_reserve_bytes": 65536}
SHORT_HISTORY = {**SMALL, "journal_retain_bytes": 262_144}
SLOW_NAMES = "fsync:delay_enter=250000"
"""Directories take a quarter of a second to sync, so that a kill falls before that."""


def _killed_syncing(*whens: int) -> list[Life]:
    """Lives that end between a write and its sync, the how-manieth sync it is."""
    return [Life(answers=400, inject=f"fdatasync:signal=KILL:when={when}") for when in whens]


SCENES = {
    "one life": Scene(settings=SMALL, lives=[Life(answers=400)]),
    "killed between write and sync": Scene(
        settings=SMALL,
        lives=[Life(answers=60), *_killed_syncing(9, 15), Life(answers=60)],
    ),
    "killed while segments change": Scene(
        settings=SMALL,
        lives=[*(Life(answers=250, inject=f"fsync:signal=KILL:when={n}") for n in (7, 8)), Life()],
    ),
    "killed before a new directory is synced": Scene(
        settings=SMALL,
        lives=[
            Life(inject=SLOW_NAMES, kill_at="tables/events"),
            Life(inject=SLOW_NAMES, kill_at="tables/book/wal"),
            Life(inject=SLOW_NAMES, kill_at="tables/ring/wal"),
            Life(answers=60),
        ],
    ),
    "transactions and lists": Scene(
        settings=SMALL,
        has_local=True,
        lives=[Life(answers=150), *_killed_syncing(14, 23), Life(answers=100, end="term")],
    ),
    "history is forgotten": Scene(
        settings=SHORT_HISTORY,
        lives=[Life(answers=600), *_killed_syncing(40, 60), Life(answers=200)],
    ),
}
