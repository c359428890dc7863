"""Readers of a journal plan with a read group live through kills of the server: what they read
before and after is of one version, whatever has been written meanwhile, or refused.

Every version has one generation in all rows, so that a row of another one is seen at once.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage.errors import BarrageError
from tests.chaos.processes import free_port
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import ServerProcess

KILLS = 8
ROWS = 3000
SPLITS = 4
HANG_SECONDS = 120.0

SCRIPT = """
import threading
from barrage.server import Server, ServerConfig
server = Server(config=ServerConfig(data={data!r}, port={port}, **{settings!r}))
server.start()
print(server.address, flush=True)
threading.Event().wait()
"""

SHORT = {"journal_segment_bytes": 65_536, "journal_retain_bytes": 131_072}

pytestmark = pytest.mark.chaos


class Writer(threading.Thread):
    """Writes one generation after the other into all rows, through every kill."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self._uri = uri
        self._is_over = threading.Event()
        self.generation = 0
        self.failures = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(BarrageError), barrage.connect(self._uri) as session:
                while not self._is_over.is_set():
                    rows = {"x": range(ROWS), "generation": [self.generation] * ROWS}
                    session.put("t", pa.table(rows), timeout=10)
                    self.generation += 1
            self.failures += 1

    def end(self) -> None:
        self._is_over.set()
        self.join(HANG_SECONDS)
        assert not self.is_alive()


class Plan:
    """One plan, and the generation its rows have."""

    def __init__(self, client: flight.FlightClient, group: str) -> None:
        asked = {"mode": "snapshot", "table": "t", "splits": SPLITS, "read_group": group}
        command = b"j/" + json.dumps(asked).encode()
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command))
        self.version: int = json.loads(info.app_metadata)["version"]
        self.tickets = [end.ticket for end in info.endpoints]
        self.generation: int | None = None
        self.refusals = 0

    def read(self, client: flight.FlightClient, part: int) -> int:
        """The rows of one part, which are of the plan's generation; none when they are refused."""
        try:
            rows = client.do_get(self.tickets[part]).read_all()
        except pa.ArrowException as error:
            if "history-lost" not in str(error):
                raise
            self.refusals += 1
            return 0
        found = set(rows["generation"].to_pylist())
        assert len(found) == 1
        if self.generation is None:
            self.generation = found.pop()
        else:
            assert found == {self.generation}
        return rows.num_rows


def refused_when_it_is_gone(script: str, plan: Plan, writer: Writer) -> None:
    """Nobody holds a plan's version after a restart: in the end all of its parts are refused."""
    limit = time.monotonic() + HANG_SECONDS
    with ServerProcess(script) as server, JournalClient(f"grpc://{server.address}") as client:
        while client.info("t")["earliest"] <= plan.version:
            assert writer.is_alive()
            assert time.monotonic() < limit
            time.sleep(0.05)
        before = plan.refusals
        assert [plan.read(client.client, part) for part in range(SPLITS)] == [0] * SPLITS
        assert plan.refusals == before + SPLITS


@pytest.mark.parametrize("settings", [{}, SHORT], ids=["all history", "little history"])
def test_parts_of_a_plan_are_of_one_version_through_kills(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    rng = random.Random(20_261_125)
    port = free_port()
    script = SCRIPT.format(data=str(tmp_path), port=port, settings=settings)
    plans: list[Plan] = []
    writer = Writer(f"grpc://127.0.0.1:{port}")
    with ServerProcess(script), barrage.connect(f"grpc://127.0.0.1:{port}") as session:
        session.create_table("t", {"x": "int64", "generation": "int64"}, key="x")
        session.put("t", pa.table({"x": range(ROWS), "generation": [-1] * ROWS}))
    writer.start()
    whole = 0
    try:
        for number in range(KILLS):
            with ServerProcess(script) as server:
                with flight.connect(f"grpc://{server.address}") as client:
                    for plan in plans:
                        whole += sum(plan.read(client, part) for part in range(SPLITS)) == ROWS
                    plans.append(Plan(client, f"g{number}"))
                    assert plans[-1].read(client, 0) > 0
                    begun = writer.generation
                    limit = time.monotonic() + HANG_SECONDS
                    while writer.generation < begun + 3:
                        assert writer.is_alive()
                        assert time.monotonic() < limit
                        time.sleep(rng.uniform(0.01, 0.05))
                    plans[-1].read(client, 1)
                server.process.kill()
        if settings:
            refused_when_it_is_gone(script, plans[0], writer)
    finally:
        writer.end()
    assert writer.failures >= KILLS - 1
    assert len({plan.generation for plan in plans}) == KILLS
    if not settings:
        assert whole == KILLS * (KILLS - 1) // 2
        assert not any(plan.refusals for plan in plans)
