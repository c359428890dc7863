"""An engine, two relays and clients on four hosts, with a network that is slow, loses packets and
is cut, and a relay that is killed under load.

The clients write through the relays and read there. Every number is told to each reader once and in
its order, and at the end everybody has the engine's rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.network import Host, Link, Network, refusal
from tests.chaos.processes import COMMAND

pytestmark = pytest.mark.chaos

TOKEN = "secret"
PORT = 10000
WAIT_SECONDS = 60
STEP = 150
"""Numbers that are to be acknowledged under each fault."""

FAST = Link(delay_ms=1)
SLOW = Link(delay_ms=20, jitter_ms=20, loss=0.03)
CUT = Link(is_cut=True)


class Process:
    """A command on a host, whose lines of JSON are read."""

    def __init__(self, host: Host, *words: str, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                host.command(sys.executable, *words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )
        self._read = b""

    def line(self) -> dict[str, Any]:
        """The next line it writes."""
        out = self._process.stdout
        assert out is not None
        while b"\n" not in self._read:
            ready, _, _ = select.select([out], [], [], WAIT_SECONDS)
            assert ready, "the process says nothing any more"
            part = os.read(out.fileno(), 65536)
            assert part, f"the process has ended with {self._process.wait()}"
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def lines_until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line that is so; they come several times a second."""
        for _ in range(WAIT_SECONDS * 5):
            line = self.line()
            if is_so(line):
                return line
        raise AssertionError(f"this is the last line: {line}")

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Without a warning."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Scene:
    """The hosts and what runs on them."""

    def __init__(self, network: Network, directory: Path) -> None:
        self.network = network
        self._directory = directory
        self._running: dict[str, Process] = {}

    def uri(self, name: str) -> str:
        return f"grpc://{self.network.hosts[name].address}:{PORT}"

    def _start(self, name: str, *words: str) -> Process:
        log = self._directory / f"{name}.log"
        process = self._running[name] = Process(self.network.hosts[name], *words, log=log)
        return process

    def serve(self, name: str, command: str, *words: str) -> None:
        """Start a server on a host, and wait until it listens."""
        host = self.network.hosts[name]
        own = ("--host", host.address, "--port", str(PORT), "--token", TOKEN, "--json")
        self._start(name, "-c", COMMAND, command, *words, *own).line()

    def relay(self, name: str) -> None:
        self.serve(name, "relay", self.uri("engine"), "--upstream-token", TOKEN)

    def clients(self) -> Process:
        uris = [self.uri("left"), self.uri("right")]
        return self._start("clients", "-m", "tests.chaos.network_clients", TOKEN, *uris)

    def kill(self, name: str) -> None:
        self._running.pop(name).kill()

    def close(self) -> None:
        for name in list(self._running):
            self.kill(name)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    reason = refusal()
    if reason is not None:
        pytest.skip(reason)
    with Network(["engine", "left", "right", "clients"], seed=13) as network:
        for other in ("left", "right"):
            network.link("engine", other, FAST)
            network.link("clients", other, FAST)
        made = Scene(network, tmp_path)
        try:
            yield made
        finally:
            made.close()


def test_clients_miss_nothing_whatever_the_network_does(scene: Scene, tmp_path: Path) -> None:
    network = scene.network
    scene.serve("engine", "serve", "--data", str(tmp_path / "data"))
    scene.relay("left")
    scene.relay("right")
    clients = scene.clients()
    done = clients.lines_until(lambda line: line["count"] >= STEP)["count"]

    def goes_on(readers: tuple[int, ...]) -> None:
        """Writers and these readers come further by a step."""
        nonlocal done
        wanted, done = done + STEP, done + STEP
        clients.lines_until(
            lambda line: (
                line["count"] >= wanted and all(line["told"][at] >= wanted for at in readers)
            )
        )

    # Readers 0 and 2 begin at the left relay, 1 and 3 at the right one; writers at the left.
    network.link("engine", "left", SLOW)
    goes_on((0, 1, 2, 3))
    network.link("clients", "right", SLOW)
    goes_on((0, 1, 2, 3))
    network.link("engine", "right", CUT)
    goes_on((0, 2))
    network.link("engine", "right", FAST)
    goes_on((0, 1, 2, 3))
    # The writers' own way is cut, in the middle of what they send: they go on at the other relay.
    network.link("engine", "left", CUT)
    goes_on((1, 3))
    network.link("engine", "left", FAST)
    goes_on((0, 1, 2, 3))
    scene.kill("left")
    goes_on((0, 1, 2, 3))
    scene.relay("left")
    scene.kill("right")
    goes_on((0, 1, 2, 3))
    scene.relay("right")
    goes_on((0, 1, 2, 3))
    clients.say("stop")
    end = clients.lines_until(lambda line: "end" in line)
    sys.stderr.write(f"\n{end}\n")
    assert end["wrong"] == []
    assert end["told"] == [end["count"]] * 4
    resumed = [text for texts in end["resumptions"] for text in texts]
    assert any(text.startswith("replayed") for text in resumed)
    for one, other in (("engine", "left"), ("clients", "right")):
        count = network.count(one, other)
        assert min(count.passed, count.lost) > 0
