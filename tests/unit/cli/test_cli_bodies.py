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
from tests.helpers.body_peer import ask_for_channel
from tests.helpers.server_process import raw_channel
from tests.unit.cli.test_cli_processes import run, serving

SHARED = Path("/dev/shm")


def arena_files(address: str) -> list[Path]:
    """The shared memory of the server at ``address``."""
    with raw_channel(address) as channel:
        return list(SHARED.glob(f"{ask_for_channel(channel).arena}*"))


def test_a_served_table_comes_by_shared_memory_and_a_killed_server_leaves_nothing_for_long(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"x": np.arange(100_000)}), tmp_path / "t.parquet")
    with serving("--bodies", "shm", "--table", f"t={tmp_path / 't.parquet'}") as (process, address):
        with barrage.connect(address) as session:
            live = session.table("t").subscribe()
            live.wait_ready(60)
            assert live.bodies.way.value == "shm"
            assert len(live) == 100_000
            (row,) = session.table("_bodies").snapshot().to_pylist()
            assert row["way"] == "shm"
        killed = arena_files(address)
        assert len(killed) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
    # The next server takes away what the one before could not.
    with serving("--bodies", "shm") as (process, address):
        assert not any(path.exists() for path in killed)
        files = arena_files(address)
        assert files
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not any(path.exists() for path in files)


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
