"""kill -9 of the server at random moments under load: nothing acknowledged is lost, nothing is
there twice, and row keys, epochs and steps go on where they were."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.held_up_report import HeldUp
from tests.chaos.processes import (
    COMMAND,
    CheckerProcess,
    CommandLine,
    Nursery,
    ServerLife,
    free_port,
)
from tests.helpers.restless_server import HANG_SECONDS

pytestmark = pytest.mark.chaos

KILLED_AT_START = 0.15
"""Share of crashes after which the next life is killed while it starts."""

ANSWERED_EVERY = 2
"""Of so many lives one goes on until every writer was answered, however busy the machine is."""

REPLAY_EVERY = 10
"""Kills between two comparisons with a naive replay of all journals."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """How a server runs that is killed again and again."""

    seed: int
    kills: int
    settings: dict[str, Any] = field(default_factory=dict)
    is_command: bool = False
    """Whether it is ``barrage serve`` and not a script with writers of its own."""
    keeps_history: bool = True
    """Whether the whole history is kept, so that somebody else can replay it."""

    def starter(self, data: Path, port: int) -> Nursery | CommandLine:
        if self.is_command:
            return CommandLine("serve", "--json", "--data", str(data), "--port", str(port))
        return Nursery(str(data), str(port), json.dumps(self.settings))


SCENARIOS = {
    "default": Scenario(seed=1, kills=80),
    # Subscribers see much that is lost then: its steps must not come again.
    "slow groups": Scenario(seed=5, kills=30, settings={"journal_group_ms": 80}),
    "small segments": Scenario(
        seed=2,
        kills=50,
        settings={"journal_segment_bytes": 65536, "journal_retain_bytes": 262_144},
        keeps_history=False,
    ),
    "every cycle synced": Scenario(seed=3, kills=25, settings={"journal_group_ms": 0}),
    "barrage serve": Scenario(seed=4, kills=15, is_command=True),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_kills_under_load(name: str, tmp_path: Path) -> None:
    told = killed(SCENARIOS[name], tmp_path)
    sys.stderr.write(f"\n{name}: {told}\n")


def killed(scenario: Scenario, where: Path) -> dict[str, Any]:
    """Run a scenario; AssertionError when something was lost. How many kills there were, and what
    every producer was acknowledged."""
    data, port = where / "data", free_port()
    starter = scenario.starter(data, port)
    run = Run(scenario, starter)
    has_local = not scenario.is_command
    try:
        with CheckerProcess(f"127.0.0.1:{port}", data, has_local=has_local) as checker:
            told = run.kill_and_check(checker)
        run.life.kill()
    finally:
        starter.close()
    assert min(told["acknowledged"].values()) > run.kills // 5, told
    assert told["resent"] > 0
    verify(data)
    if has_local:
        held_up = HeldUp.read(data)
        sys.stderr.write(f"\n{held_up}\n")
        assert set(held_up.longest) == {"engine", "loop"}, "nothing was measured"
        assert held_up.violations == []
    return {"kills": run.kills, "acknowledged": told["acknowledged"], "resent": told["resent"]}


class Run:
    """One server, killed as often as its scenario says."""

    def __init__(self, scenario: Scenario, starter: Nursery | CommandLine) -> None:
        self.scenario = scenario
        self.starter = starter
        self.chance = random.Random(scenario.seed)
        self.kills = 0
        self.spent = {"start": 0.0, "check": 0.0}
        self.life = self._started()

    def _started(self) -> ServerLife:
        began = time.monotonic()
        life = self.starter.start()
        life.wait_ready()
        self.spent["start"] += time.monotonic() - began
        return life

    def kill_and_check(self, checker: CheckerProcess) -> dict[str, Any]:
        """Until the last check, whose answer this is."""
        for lives in itertools.count():
            if not self.scenario.is_command:
                self.life.go()
            before = self._ask(checker, "run")
            if lives % ANSWERED_EVERY == 0:
                self._wait_for_answers(checker, before["acknowledged"])
            time.sleep(self.chance.uniform(0.02, 0.3))
            local = self.life.kill()
            self.kills += 1
            self._ask(checker, "pause")
            if self.chance.random() < KILLED_AT_START:
                starting = self.starter.start()
                time.sleep(self.chance.uniform(0.0, 1.2 if self.scenario.is_command else 0.1))
                starting.kill()
                self.kills += 1
            is_last = self.kills >= self.scenario.kills
            self.life = self._started()
            began = time.monotonic()
            replay = self.scenario.keeps_history and (is_last or self.kills % REPLAY_EVERY == 0)
            told = self._ask(checker, "check", local=local, replay=replay)
            self.spent["check"] += time.monotonic() - began
            if is_last:
                return told
        raise AssertionError("lives are counted without an end")

    def _ask(self, checker: CheckerProcess, do: str, **fields: Any) -> dict[str, Any]:
        """What the checker found since it was asked last is in every answer, and only there."""
        told = checker.ask(do, **fields)
        assert told["problems"] == [], f"after kill {self.kills} of seed {self.scenario.seed}"
        return told

    def _wait_for_answers(self, checker: CheckerProcess, before: dict[str, int]) -> None:
        """Until every writer was told of a write it had not been told of ``before``."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            now = self._ask(checker, "progress")["acknowledged"]
            if all(number > before[producer] for producer, number in now.items()):
                return
            assert time.monotonic() < deadline, f"a writer waits for its first answer: {now}"
            time.sleep(0.02)


def verify(data: Path) -> None:
    """``barrage journal verify`` finds nothing wrong."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "journal", "verify", str(data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
