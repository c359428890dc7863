"""Floods of streams that are opened and reset: the server answers on, and what they took it gives
back."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

import barrage
from barrage.errors import BarrageError
from tests.helpers.server_process import (
    RawExchange,
    ServerProcess,
    raw_channel,
    subscription_request,
    wait_until,
)

pytestmark = pytest.mark.chaos

MIB = 1024 * 1024
STREAMS = 150_000
FLOODERS = 2
GROWTH_BYTES_MAX = 200 * MIB
"""What fragments of the heap may keep. Without giving memory back it is 290 MiB and more."""

SCRIPT = """
import threading
from barrage.server import Server
with Server() as server:
    print(server.address, flush=True)
    threading.Event().wait()
"""


def test_what_a_flood_took_is_given_back() -> None:
    with ServerProcess(SCRIPT) as server:
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        flooding = [sys.executable, "-m", "tests.chaos.reset_flood", server.address, str(STREAMS)]
        floods = [subprocess.Popen(flooding) for _ in range(FLOODERS)]
        for flood in floods:
            assert flood.wait(300) == 0
        # gRPC cancels some calls at random while very many wait.
        wait_until(lambda: answers(server.address), timeout=90)
        wait_until(lambda: process.memory_info().rss - before < GROWTH_BYTES_MAX, timeout=90)


HEAP_SCRIPT = """
import gc, sys
from barrage.server import Server
from barrage.server.serving.spare_memory import Glibc
with Server() as server:
    server.create_table("t", {"k": "int64"})
    print(server.address, flush=True)
    for _ in sys.stdin:
        gc.collect()
        print(Glibc().used_bytes(), flush=True)
"""
LEFT_BYTES_MAX = 30
"""A stream whose read is cut short leaves 80 bytes; what comes and goes is below 100 kB in all."""


def test_streams_that_are_reset_leave_nothing_behind_for_good() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HEAP_SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        used = []
        for _ in range(4):
            open_and_reset(address, streams=2000)
            wait_until(lambda: answers(address))
            server.stdin.write("\n")
            used.append(int(server.stdout.readline()))
        server.stdin.close()
    assert (used[-1] - used[0]) / (2000 * 3) < LEFT_BYTES_MAX


def open_and_reset(address: str, *, streams: int) -> None:
    """Streams of a gRPC client that ask for a table and are gone before its rows come."""
    with raw_channel(address) as channel:
        for _ in range(streams):
            with RawExchange(channel) as exchange:
                exchange.send(subscription_request("t"))


def answers(address: str) -> bool:
    try:
        with barrage.connect(address) as session:
            return len(session.tables()) < 2
    except BarrageError:
        return False
