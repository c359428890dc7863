"""Which lives are ended, or meet a call that fails, at which of their calls to the disk. The suite
takes a few of them, ``python -m tests.chaos.night --calls N`` as many as it is told."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tests.helpers.short_lives import Deed, Lives, Trouble, calls_of, go_through

BEGIN: list[Deed] = [("create", "a"), ("create", "b"), ("cycle", "ab"), ("cycle", "a")]
GO_ON: list[Deed] = [("cycle", "ab"), ("cycle", "b"), ("cycle", "ab")]

SCRIPTS: dict[str, list[list[Deed]]] = {
    "dropped": [[*BEGIN, *GO_ON, ("drop", "b"), ("cycle", "a")], [("cycle", "a")]],
    "recreated": [[*BEGIN, ("cycle", "ab"), ("drop", "b"), ("create", "b"), *GO_ON], GO_ON],
    "damaged": [[*BEGIN, *GO_ON], [("damage", "b")], GO_ON, [("mend", "b")], GO_ON],
    "compacted": [[*BEGIN, *GO_ON, *GO_ON], [("compact", "b")], [("compact", "a")], GO_ON],
    "forgotten": [[*BEGIN, *GO_ON, *GO_ON, ("cycle", "ab"), ("cycle", "ab"), ("close", "")], GO_ON],
    "in memory": [
        [*BEGIN, ("remember", "m"), ("cycle", "abm"), ("cycle", "am"), ("cycle", "abm")],
        [("remember", "m"), ("cycle", "bm"), ("cycle", "abm")],
    ],
}
"""What becomes of one of two tables that change together."""

ENDS = ("kill", "only what was synced", "everything", "luck")
PAIRED_ENDS = (("kill", "only what was synced"), ("luck", "luck"), ("kill", "luck"))
ERRORS = (errno.EIO, errno.ENOSPC)


@dataclass(frozen=True)
class Case:
    """One run of a script."""

    script: str
    troubles: tuple[Trouble, ...]
    how: tuple[str, ...]
    seed: int

    def run(self) -> Lives:
        return go_through(SCRIPTS[self.script], *self.troubles, how=self.how, seed=self.seed)


def _calls(script: str) -> list[tuple[int, int]]:
    """Every call of every life of a script: life and number."""
    return [
        (life, call)
        for life, count in enumerate(calls_of(SCRIPTS[script]))
        for call in range(count)
    ]


def ended(script: str) -> list[Case]:
    """Each call is the last one of a life."""
    return [
        Case(script, (Trouble(life, call),), (how,), call)
        for life, call in _calls(script)
        for how in ENDS
    ]


def failing(script: str) -> list[Case]:
    """Each call fails, and the life goes on as long as it can."""
    return [
        Case(script, (Trouble(life, call, error),), (how,), call)
        for life, call in _calls(script)
        for error in ERRORS
        for how in ENDS
    ]


def ended_twice(script: str, count: int, seed: int = 0) -> Iterator[Case]:
    """A life ends at one call, and one after it at another."""
    random = Random(seed)
    calls = _calls(script)
    for number in range(count):
        (life, call), (later, last) = sorted(random.sample(calls, 2))
        if later == life:
            later, last = life + 1, random.randrange(60)
        how = PAIRED_ENDS[number % len(PAIRED_ENDS)]
        troubles = (Trouble(life, call), Trouble(later, last))
        yield Case(script, troubles, how, seed + number)


def failing_and_ended(script: str, count: int, seed: int = 0) -> Iterator[Case]:
    """A call fails, and a later life ends at another one."""
    random = Random(seed)
    for number, case in enumerate(ended_twice(script, count, seed)):
        first, second = case.troubles
        failed = Trouble(first.life, first.call, ERRORS[number % 2])
        yield Case(script, (failed, second), case.how, random.randrange(1 << 30))


def some(cases: Sequence[Case], count: int, first: int = 0) -> Sequence[Case]:
    """So many of them, spread over all."""
    return cases[first :: max(1, len(cases) // count)]


def all_kinds(script: str, count: int, seed: int = 0) -> Iterator[Case]:
    """About so many cases of each kind; all there are of a kind that has no more."""
    for cases in (ended(script), failing(script)):
        first = seed % max(1, len(cases) // count)
        yield from some(cases, count, first)
    yield from ended_twice(script, count, seed)
    yield from failing_and_ended(script, count, seed)
