"""A server recorded through several lives, and the power cuts that could have hit it.

Each life is a process of its own under strace, on the directory that the one before left: a kill
keeps the page cache, so what was not synced then is still not synced. Cuts are made from the
record, at many points of every life.
"""

from __future__ import annotations

import hashlib
import logging
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.power.disk import Disk, Tree, read_tree
from tests.chaos.power.judge import Expected, judged
from tests.chaos.power.life import Orders
from tests.chaos.power.replay import Replay, Told, UnexplainedKillError
from tests.chaos.power.strace import command

log = logging.getLogger(__name__)

LIFE_SECONDS_MAX = 300
RECORDINGS_MAX = 3
"""One in about sixty recordings of a scene cannot be explained, and nobody knows why."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """How one life goes. ``inject`` is a fault of strace's."""

    answers: int = 120
    end: str = "kill"
    inject: str | None = None
    kill_at: str = ""
    """A path in the data directory; the server is killed when it appears."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A server with settings, and its lives."""

    lives: Sequence[Life]
    settings: dict[str, int] = field(default_factory=dict)
    has_local: bool = False
    canary: str = ""
    """How the server is broken on purpose."""


@dataclass
class Recording:
    """The record of one life, and the directory that it left."""

    record: Path
    left: Tree


@dataclass
class Verdict:
    """What came of the cuts."""

    states: int = 0
    repeated: int = 0
    """States that had been judged already."""
    acknowledged: int = 0
    """Writes that clients were told of, in all lives."""
    failures: list[str] = field(default_factory=list)
    failed_states: int = 0


class BlackBox:
    """Records a scene, then cuts its power."""

    def __init__(self, scene: Scene, where: Path) -> None:
        self.scene = scene
        self.where = where
        self.data = where / "data"
        self.marks = where / "marks"
        self.recordings: list[Recording] = []

    def record(self) -> None:
        orders_path = self.where / "orders.json"
        acknowledged: dict[str, int] = {}
        for number, life in enumerate(self.scene.lives):
            Orders(
                data=str(self.data),
                marks=str(self.marks),
                settings=self.scene.settings,
                has_local=self.scene.has_local,
                answers=life.answers,
                end=life.end,
                kill_at=life.kill_at,
                canary=self.scene.canary,
                acknowledged=acknowledged,
            ).write(orders_path)
            record = self.where / f"life-{number}.strace"
            module = ["-m", "tests.chaos.power.life", str(orders_path)]
            done = subprocess.run(
                command(record, [sys.executable, *module], inject=life.inject),
                capture_output=True,
                text=True,
                check=False,
                timeout=LIFE_SECONDS_MAX,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            acknowledged = Orders.read(orders_path).acknowledged or acknowledged
            self.recordings.append(Recording(record, read_tree(self.data)))

    def moments(self) -> Iterator[tuple[Disk, Expected, str]]:
        """The disk after every call that changed it, with what had been told by then. The same
        disk and expectations, which go on: use them before the next moment."""
        disk, expected = Disk(), Expected()
        for number, recording in enumerate(self.recordings):
            replay = Replay(disk, root=self.data, marks=self.marks, record=recording.record)
            count = 0
            last = "start"
            for step in replay.steps():
                if isinstance(step, Told):
                    expected.hear(step.what)
                    continue
                # What was told since the last call was told while the disk was as it was.
                yield disk, expected, f"life {number}, call {count} ({last})"
                last = step.name
                count += 1
            replay.settle(recording.left)
            yield disk, expected, f"life {number}, its end"

    def cut(self, *, states: int, seed: int) -> Verdict:
        """Judge about as many states as asked for, spread over all moments."""
        chance = random.Random(seed)
        moments = sum(1 for _ in self.moments())
        chosen = sorted(chance.choices(range(moments), k=states))
        verdict = Verdict()
        judged_states: set[bytes] = set()
        wanted = iter([*chosen, -1])
        number = next(wanted)
        for index, (disk, expected, place) in enumerate(self.moments()):
            while number == index:
                number = next(wanted)
                tree = disk.after_a_cut(chance)
                digest = _digest(tree, expected)
                if digest in judged_states:
                    verdict.repeated += 1
                    continue
                judged_states.add(digest)
                self._judge(tree, expected, place, verdict)
        verdict.acknowledged = expected.rows()
        verdict.failures += expected.problems
        return verdict

    def _judge(self, tree: Tree, expected: Expected, place: str, verdict: Verdict) -> None:
        verdict.states += 1
        problems = judged(tree, expected, self.where / "cut")
        if problems:
            verdict.failed_states += 1
            verdict.failures.append(f"{place}: {'; '.join(problems)}")


def verdict_of(scene: Scene, root: Path, *, states: int, seed: int) -> Verdict:
    """Record a scene in a directory of its own and cut; once more, a few times at most, when what a
    kill left is explained by none of the calls that it met."""
    for attempt in range(RECORDINGS_MAX):
        where = root / str(attempt)
        where.mkdir()
        box = BlackBox(scene, where)
        box.record()
        try:
            return box.cut(states=states, seed=seed)
        except UnexplainedKillError as error:
            log.warning("recording the scene again: %s", error)
    raise AssertionError(f"no kill of {RECORDINGS_MAX} recordings can be explained")


def _digest(tree: Tree, expected: Expected) -> bytes:
    made = hashlib.blake2b(repr((sorted(expected.numbers.items()), expected.step)).encode())
    for path in sorted(tree):
        made.update(path.encode())
        made.update(b"\0directory\0" if tree[path] is None else tree[path] or b"\0empty\0")
    return made.digest()
