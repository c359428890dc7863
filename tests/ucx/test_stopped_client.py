"""A client over UCX that stops reading without going away: it holds up nobody, and when it goes on
it has every row."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.ucx

ROWS = 50_000
ROUNDS = 40

CLIENT = """
import sys, time, barrage
from barrage.client.bodies import body_routes
body_routes.CONNECT_SECONDS_MAX = 30
with barrage.connect(sys.argv[1], bodies="ucx") as session:
    with session.table("t").subscribe(interval_ms=10) as live:
        live.wait_ready(20)
        print(live.bodies.way.value, flush=True)
        for line in sys.stdin:
            wanted = int(line)
            while int(live.to_arrow().column("v")[0].as_py()) != wanted:
                time.sleep(0.02)
            cells = live.to_arrow().column("v").unique().to_pylist()
            print(cells, live.stats.reconnects, flush=True)
"""


def rows(value: int) -> pa.Table:
    return pa.table({"k": np.arange(ROWS), "v": np.full(ROWS, value)})


def test_a_stopped_client_holds_up_nobody(library):
    with barrage.Server(config=ServerConfig(bodies="ucx")) as server:
        table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
        table.upsert(rows(0))
        command = [sys.executable, "-c", CLIENT, server.uri]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as stopped:
            assert stopped.stdout is not None
            assert stopped.stdin is not None
            try:
                assert stopped.stdout.readline().strip() == "ucx"
                stopped.send_signal(signal.SIGSTOP)
                with (
                    barrage.connect(server.uri, bodies="ucx") as session,
                    session.table("t").subscribe(interval_ms=10) as healthy,
                ):
                    healthy.wait_ready(20)
                    assert healthy.bodies.way is BodyWay.UCX
                    for value in range(1, ROUNDS):
                        table.upsert(rows(value))
                        wait_until(lambda: shown(healthy) == {value})  # noqa: B023
                    limits = ServerConfig().limits
                    [ucx] = [each for each in server._app.bodies.facts() if each.way is BodyWay.UCX]
                    assert ucx.pending_bytes <= 2 * limits.body_window_bytes
                    assert healthy.stats.reconnects == 0
                stopped.send_signal(signal.SIGCONT)
                stopped.stdin.write(f"{ROUNDS - 1}\n")
                stopped.stdin.flush()
                assert stopped.stdout.readline().startswith(f"[{ROUNDS - 1}]")
            finally:
                stopped.send_signal(signal.SIGCONT)
                stopped.kill()


def shown(table) -> set[int]:
    return set(table.to_arrow().column("v").unique().to_pylist())
