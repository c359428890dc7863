"""kill -9 of the worker and of its sources at random moments, with a durable table: no message is
lost, none is there twice, and each stream is in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from barrage.server import Server, ServerConfig
from barrage.wire.connector.frame_values import Dialect
from tests.chaos.connector_driver import PROGRAM, STREAMS
from tests.chaos.processes import CommandLine, free_port
from tests.helpers.connector_source import text_of
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.chaos

SEED = 20_261_124
KILLS = 30
LAST = 40_000
MAY_END = "may-end"
"""The file that lets sources send their last messages."""


class Driver:
    """A source of one dialect that is killed and started again."""

    def __init__(self, port: int, dialect: Dialect, where: Path) -> None:
        self._words = (
            *("-m", "tests.chaos.connector_driver", str(port), dialect.value, str(LAST)),
            str(where / MAY_END),
        )
        self._told = where / f"{dialect.value}.txt"
        self.start()

    def start(self) -> None:
        with self._told.open("ab") as told:
            self.process = subprocess.Popen([sys.executable, *self._words], stdout=told)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def is_done(self) -> bool:
        return self._told.read_bytes().endswith(b"done\n")

    def acknowledged(self) -> dict[int, int]:
        """The last id of each stream that was acknowledged to it in any of its lives."""
        found: dict[int, int] = {}
        for line in self._told.read_text().splitlines():
            words = line.split()
            if len(words) == 3 and words[2].isdigit():
                stream, number = int(words[1]), int(words[2])
                assert number >= found.get(stream, 0), "a position went back"
                found[stream] = number
        return found


def test_workers_and_sources_are_killed(tmp_path) -> None:
    chance = random.Random(SEED)
    port = free_port()
    data = tmp_path / "data"
    address = f"127.0.0.1:{port}"
    worker = CommandLine(
        *("serve", "--json", "--data", str(data), "--port", "0", "--connector", address)
    )
    life = worker.start()
    life.wait_ready()
    drivers = [Driver(port, dialect, tmp_path) for dialect in Dialect]
    kills = {"worker": 0, "source": 0}
    try:
        while sum(kills.values()) < KILLS:
            time.sleep(chance.uniform(0.05, 0.6))
            if chance.random() < 0.5:
                life.kill()
                kills["worker"] += 1
                life = worker.start()
                life.wait_ready()
            else:
                driver = chance.choice(drivers)
                driver.kill()
                kills["source"] += 1
                driver.start()
        (tmp_path / MAY_END).touch()
        wait_until(lambda: all(each.is_done for each in drivers), 10 * HANG_SECONDS)
        life.kill()
    finally:
        for driver in drivers:
            driver.kill()
        life.kill()
        worker.close()
    sys.stderr.write(f"\nkills: {kills}\n")
    assert min(kills.values()) > KILLS // 5, kills
    _check(data, drivers)


def _check(data: Path, drivers: list[Driver]) -> None:
    """Every message of every stream once and in order."""
    for driver in drivers:
        assert set(driver.acknowledged().values()) == {LAST}
    with Server(config=ServerConfig(data=str(data))) as server:
        rows = server.table(PROGRAM).to_arrow()
    names = rows["stream"].to_pylist()
    found: dict[str, list[int]] = {}
    for name, number, payload in zip(
        names, rows["message_id"].to_pylist(), rows["payload"].to_pylist(), strict=True
    ):
        assert payload == text_of(int(name), number)
        found.setdefault(name, []).append(number)
    wanted = {str(stream) for streams in STREAMS.values() for stream in streams}
    assert set(found) == wanted
    for name, numbers in found.items():
        assert numbers == list(range(1, LAST + 1)), name
