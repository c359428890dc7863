"""Servers started with ``--bodies``, as a user starts them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import barrage
from tests.unit.cli.test_cli_processes import run, serving

SHARED = Path("/dev/shm")


def arena_names() -> set[str]:
    return {path.name for path in SHARED.iterdir() if path.name.startswith("barrage-")}


def test_a_served_table_comes_by_shared_memory_and_a_killed_server_leaves_nothing_for_long(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"x": np.arange(100_000)}), tmp_path / "t.parquet")
    before = arena_names()
    with serving("--bodies", "shm", "--table", f"t={tmp_path / 't.parquet'}") as (process, address):
        with barrage.connect(address) as session:
            live = session.table("t").subscribe()
            live.wait_ready(10)
            assert live.bodies.way.value == "shm"
            assert len(live) == 100_000
            (row,) = session.table("_bodies").snapshot().to_pylist()
            assert row["way"] == "shm"
        made = arena_names() - before
        assert made
        process.send_signal(signal.SIGKILL)
        process.wait()
    # The next server takes away what the one before could not.
    with serving("--bodies", "shm") as (process, _):
        assert not made & arena_names()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not arena_names() - before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--bodies", "fast"], "must be inline, shm, ucx, or shm,ucx"),
        (["--bodies", "inline,shm"], "must be inline alone"),
    ],
)
def test_unknown_ways_are_one_line(words, told):
    done = run("serve", "--port", "0", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_way_that_is_not_installed_is_one_line_that_says_what_to_do():
    environment = {**os.environ, "BARRAGE_UCX_LIBRARY": "/nowhere/libucp.so.0"}
    done: subprocess.CompletedProcess[str] = run(
        "serve", "--port", "0", "--bodies", "ucx", env=environment
    )
    assert done.returncode == 1
    assert "UCX" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_environment_switches_ways_on():
    done = run("serve", "--port", "0", env={**os.environ, "BARRAGE_BODIES": "fast"})
    assert "environment BARRAGE_BODIES" in done.stderr


def test_the_demo_takes_it_too():
    done = run("demo", "--port", "0", "--once", "--rows", "3", "--bodies", "shm")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3
