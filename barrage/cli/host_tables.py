"""Live tables of this machine, published by threads of their own: what ``--demo host`` serves.

``processes`` is keyed by pid and read every second; ``processes_by_cpu`` is the same table sorted,
so its rows move; ``cpu``, ``memory``, ``disk`` and ``network`` get one row each ten times a second
and only grow (about 60 MB a day together). A sample that fails is logged and the next one is taken:
a demo does not die of a counter the system withholds for a moment.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

import psutil

from barrage.cli.host_samples import (
    MACHINE_SCHEMAS,
    PROCESS_SCHEMA,
    MachineSampler,
    ProcessSampler,
)
from barrage.clock import SystemClock
from barrage.supervision import Role, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage import Server
    from barrage.clock import Clock
    from barrage.errors import WorkerDiedError
    from barrage.server import PublishedTable

PROCESSES = Role("sample-processes", "the table of processes and its subscriptions")
MACHINE = Role("sample-machine", "the tables of the machine and their subscriptions")

PROCESSES_NS = 1_000_000_000
MACHINE_NS = 100_000_000

_log = logging.getLogger(__name__)


class HostTables:
    """Publishes the tables, and the processes as they are now, when made.

    Samples from ``start`` to ``stop``, or while used as a context; the server must not end before.
    """

    def __init__(self, server: Server, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._server = server
        self._processes = ProcessSampler()
        self._machine = MachineSampler()
        # What a machine did is nothing to find again on the disk, but to look back at for a while.
        self._process_table = server.create_table(
            "processes", PROCESS_SCHEMA, key="pid", journal="memory"
        )
        server.publish("processes_by_cpu", self._process_table.sort("-cpu_percent"))
        self._machine_tables = {
            name: server.create_table(name, schema, journal="memory")
            for name, schema in MACHINE_SCHEMAS.items()
        }
        self.sample_processes()
        self._is_stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to sample, on threads of its own."""
        for role, step, every_ns, tables in (
            (PROCESSES, self.sample_processes, PROCESSES_NS, [self._process_table]),
            (MACHINE, self.sample_machine, MACHINE_NS, list(self._machine_tables.values())),
        ):
            work = partial(self._repeat, step, every_ns)
            self._threads.append(start_thread(role, work, on_death=partial(_fail, tables)))

    def stop(self) -> None:
        """Stop sampling and wait for the threads; the tables stay."""
        self._is_stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def __enter__(self) -> HostTables:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def sample_processes(self) -> None:
        """Read all processes once; the engine keeps only cells that changed as modifications."""
        rows, gone = self._processes.sample()
        with self._server.transaction() as changes:
            changes.upsert(self._process_table, rows)
            changes.remove(self._process_table, gone)

    def sample_machine(self) -> None:
        """Add one row to each of the growing tables."""
        samples = self._machine.sample(
            now_ns=self._clock.monotonic_ns(), wall_ns=self._clock.wall_ns()
        )
        with self._server.transaction() as changes:
            for name, row in samples.items():
                changes.add(self._machine_tables[name], row)

    def _repeat(self, step: Callable[[], None], every_ns: int) -> None:
        """Call ``step`` at a steady pace until stopped; a late call does not move the ones after
        it.
        """
        due_ns = self._clock.monotonic_ns()
        while not self._is_stopping.is_set():
            try:
                step()
            except (psutil.Error, OSError):
                _log.warning("a sample of this machine failed", exc_info=True)
            now_ns = self._clock.monotonic_ns()
            due_ns = max(due_ns + every_ns, now_ns)
            self._is_stopping.wait((due_ns - now_ns) / 1e9)


def _fail(tables: list[PublishedTable], error: WorkerDiedError) -> None:
    """Nothing will change them any more: whoever follows them is told."""
    for table in tables:
        table.fail(error)
