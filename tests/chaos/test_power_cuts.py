"""The power fails at any moment of a recorded server's life: whatever the disk then has, what was
acknowledged is there."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.power import strace
from tests.chaos.power.black_box import Life, Scene, verdict_of
from tests.chaos.power.canaries import CANARIES
from tests.chaos.power.scenes import SCENES

pytestmark = pytest.mark.chaos

STATES = 150
SEED = 20_261_122


@pytest.fixture(scope="module", autouse=True)
def _strace() -> None:
    """Make sure that calls can be recorded, with Debian's package where we may install it."""
    if not strace.is_there() and os.geteuid() == 0:
        for step in (["update"], ["install", "-y", "strace"]):
            subprocess.run(["apt-get", "-q", *step], capture_output=True, check=False)
    if not strace.is_there():
        pytest.skip("system calls cannot be recorded: strace is not installed or may not trace")


@pytest.mark.parametrize("name", SCENES)
def test_what_was_acknowledged_outlives_a_power_cut(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(SCENES[name], tmp_path, states=STATES, seed=SEED)
    assert verdict.failures == []
    assert verdict.states > STATES // 3
    assert verdict.acknowledged > 50


@pytest.mark.parametrize("canary", CANARIES)
def test_a_broken_server_is_found(canary: str, tmp_path: Path) -> None:
    scene = Scene(settings=SCENES["one life"].settings, lives=[Life(answers=80)], canary=canary)
    scene = replace(scene, canary=canary)
    assert verdict_of(scene, tmp_path, states=60, seed=SEED).failed_states > 0
