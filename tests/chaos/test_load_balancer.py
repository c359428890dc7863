"""The shipped configuration of HAProxy between clients and two servers, which are killed."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import barrage
from barrage.client import Backoff, State
from tests.chaos.processes import free_port
from tests.helpers.server_process import ServerProcess, wait_until

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
SOON = Backoff(first_seconds=0.02, seconds_max=0.5)
WAIT = 60
TOKEN = "secret"
ROWS = 1000

SERVER = """
import sys, barrage
server = barrage.Server(port={port}, token={token!r})
server.create_table("who", kind="static", data={{"number": [{number}]}})
server.create_table("t", key="k", data={{"k": list(range({rows})), "v": list(range({rows}))}})
server.start()
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
server.serve_forever()
"""

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(
        shutil.which("haproxy") is None, reason="haproxy is not installed (apt-get install haproxy)"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start haproxy as its own user"),
]


class Balancer:
    """HAProxy with the shipped configuration, and the servers behind it."""

    def __init__(self, log: io.BufferedWriter) -> None:
        self._log = log
        self.ports = (free_port(), free_port())
        self.servers: dict[int, ServerProcess] = {}
        self.uri = f"grpc://127.0.0.1:{free_port()}"
        self._statistics = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, number: int) -> None:
        """A server, 0 or 1; it gets connections as soon as it answers the health check."""
        script = SERVER.format(port=self.ports[number], token=TOKEN, number=number, rows=ROWS)
        self.servers[number] = ServerProcess(script)

    def balance(self) -> None:
        environment = {
            **os.environ,
            "BARRAGE_LISTEN": self.uri.removeprefix("grpc://"),
            "BARRAGE_STATISTICS": self._statistics,
            **{f"BARRAGE_SERVER_{i + 1}": f"127.0.0.1:{self.ports[i]}" for i in range(2)},
        }
        self._process = subprocess.Popen(
            ["haproxy", "-db", "-f", CONFIGURATION], env=environment, stderr=self._log
        )

    def wait_for(self, *states: str) -> None:
        """Until HAProxy says this of both servers."""
        wait_until(lambda: self._states() == states)

    def _states(self) -> tuple[str, ...]:
        assert self._process is not None
        assert self._process.poll() is None, "haproxy has ended"
        try:
            with urllib.request.urlopen(f"http://{self._statistics}/;csv", timeout=WAIT) as page:
                lines = csv.DictReader(io.StringIO(page.read().decode().removeprefix("# ")))
        except OSError:
            return ()
        found = {line["svname"]: line["status"] for line in lines if line["pxname"] == "tables"}
        return tuple(found[f"server{i + 1}"].partition(" ")[0] for i in range(2))

    def kill(self, number: int) -> None:
        """kill -9."""
        self.servers.pop(number).__exit__()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for number in list(self.servers):
            self.kill(number)


def server_of(session: barrage.Session) -> int:
    (number,) = session.table("who").snapshot(timeout=WAIT)["number"].to_pylist()
    return int(number)


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[Balancer]:
    with (
        open(tmp_path / "haproxy.log", "wb") as log,
        contextlib.closing(Balancer(log)) as balancer,
    ):
        for number in range(2):
            balancer.start(number)
        balancer.balance()
        balancer.wait_for("UP", "UP")
        yield balancer


def test_clients_go_on_when_their_server_is_killed(balancer: Balancer) -> None:
    with barrage.connect(balancer.uri, auth=TOKEN) as session:
        first = server_of(session)
        lives = [session.table("t").subscribe(interval_ms=10, reconnect=SOON) for _ in range(20)]
        lives += [
            session.table("t").subscribe(viewport=(i, i + 9), interval_ms=10, reconnect=SOON)
            for i in range(120)
        ]
        for live in lives:
            live.wait_ready(WAIT)
        balancer.kill(first)
        for live in lives:
            wait_until(lambda live=live: live.stats.reconnects > 0 and live.state is State.LIVE)
            live.wait_ready(WAIT)
        assert server_of(session) == 1 - first
        session.put("t", {"k": [ROWS], "v": [-1]}, key="k")
        for live in lives[:20]:
            wait_until(lambda live=live: len(live) == ROWS + 1)
        balancer.wait_for(*("UP" if number == 1 - first else "DOWN" for number in range(2)))


def test_a_server_that_is_back_takes_over_from_the_other(balancer: Balancer) -> None:
    with barrage.connect(balancer.uri, auth=TOKEN) as session:
        first = server_of(session)
        with session.table("t").subscribe(interval_ms=10, reconnect=SOON) as live:
            for number in (first, 1 - first):
                live.wait_ready(WAIT)
                reconnects = live.stats.reconnects
                balancer.kill(number)
                wait_until(lambda seen=reconnects: live.stats.reconnects > seen)
                wait_until(lambda: live.state is State.LIVE)
                balancer.wait_for(*("DOWN" if each == number else "UP" for each in range(2)))
                balancer.start(number)
                balancer.wait_for("UP", "UP")
            assert server_of(session) == first


def test_all_connections_of_a_session_lead_to_one_server(balancer: Balancer) -> None:
    """Uploads belong to a session, which has a connection of its own and further ones for its
    streams."""
    with barrage.connect(balancer.uri, auth=TOKEN) as session:
        table = session.upload({"x": [2, 1]})
        for _ in range(5):
            assert table.sort("x").snapshot(timeout=WAIT)["x"].to_pylist() == [1, 2]


def test_a_server_that_stops_says_so_in_its_health(balancer: Balancer) -> None:
    balancer.servers[0].terminate()
    balancer.servers[0].exit_code()
    balancer.wait_for("DOWN", "UP")
    with barrage.connect(balancer.uri, auth=TOKEN) as session:
        assert server_of(session) == 1


def test_a_server_that_is_not_well_gets_no_connections(balancer: Balancer) -> None:
    """It listens and answers, but says that its engine has failed."""
    balancer.kill(1)
    patient = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, patient)  # type: ignore[no-untyped-call]
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert patient.add_insecure_port(f"127.0.0.1:{balancer.ports[1]}") == balancer.ports[1]
    patient.start()
    try:
        balancer.wait_for("UP", "DOWN")
        for _ in range(3):
            with barrage.connect(balancer.uri, auth=TOKEN) as session:
                assert server_of(session) == 0
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        balancer.wait_for("UP", "UP")
    finally:
        patient.stop(0).wait()
