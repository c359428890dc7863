"""Bodies as tagged messages over UCX on tcp between two processes, against UCX's own C benchmark
(``ucx_perftest`` tag_bw) of the same release, with the same settings.

Both send a few messages ahead into memory that is there already, wait on a descriptor instead of
spinning (``-E sleep``; two cores are shared by both ends), and take turns. Ours receives in both
ways, into receives posted beforehand and by probing; the faster one counts.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from barrage.errors import TransportError
from barrage.transport.ucx import (
    UcxConnection,
    UcxContext,
    UcxListener,
    UcxSettings,
    load_library,
)
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result, skipped

MIB = 1024 * 1024
ROUNDS = 9
WINDOW = 4
ORDER_TAG = 1 << 60
PERFTEST_SECONDS_MAX = 60
SEQUENCE_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Case:
    """Messages of one size."""

    title: str
    size: int
    count: int


CASES = (Case("1 MB", MIB, 400), Case("64 MB", 64 * MIB, 12))


# --- our two ends ---------------------------------------------------------------------------------


def sender(pipe: Connection) -> None:
    """Announces library and port; then sends whatever each order asks for."""

    async def serve() -> None:
        library = load_library()
        context = UcxContext(library, UcxSettings())
        accepted: asyncio.Queue[UcxConnection] = asyncio.Queue()
        listener = UcxListener(context, "127.0.0.1", 0, on_connection=accepted.put_nowait)
        pipe.send((library.path, library.release, listener.port))
        connection = await accepted.get()
        try:
            while True:
                order = pa.allocate_buffer(64)
                came = await connection.receive_posted(ORDER_TAG, 2**64 - 1, order)
                size, count = map(int, order.to_pybytes()[: came.length].split())
                await _send(connection, size, count)
        except TransportError:
            pass  # the receiver is done
        finally:
            await connection.close()
            context.close()

    asyncio.run(serve())


async def _send(connection: UcxConnection, size: int, count: int) -> None:
    body = memoryview(np.ones(size, np.uint8))
    room = asyncio.Semaphore(WINDOW)
    for sequence in range(count):
        await room.acquire()
        sent = connection.send_tagged(sequence, body)
        sent.add_done_callback(lambda _: room.release())
    await sent


def receiver(pipe: Connection, port: int) -> None:
    """Answers each ``(size, count, is_posted)`` with MB/s, until it is told None."""

    async def serve() -> None:
        context = UcxContext(load_library(), UcxSettings())
        connection = await UcxConnection.connect(context, "127.0.0.1", port, timeout=10)
        loop = asyncio.get_running_loop()
        pipe.send("ready")
        while (order := await loop.run_in_executor(None, pipe.recv)) is not None:
            size, count, is_posted = order
            buffers = [_writable(size)] * WINDOW  # one for all, as ucx_perftest has it
            receive = _receive_posted if is_posted else _receive_probed
            started = time.perf_counter()
            await receive(connection, buffers, size, count)
            pipe.send(size * count / MIB / (time.perf_counter() - started))
        await connection.close()
        context.close()

    asyncio.run(serve())


def _writable(size: int) -> pa.Buffer:
    """Memory that is there already, as a receiver's that is used again."""
    buffer = pa.allocate_buffer(size)
    np.frombuffer(buffer, np.uint8)[:] = 0
    return buffer


def _order(connection: UcxConnection, size: int, count: int) -> None:
    connection.send_tagged(ORDER_TAG, b"%d %d" % (size, count))


async def _receive_posted(
    connection: UcxConnection, buffers: list[pa.Buffer], size: int, count: int
) -> None:
    def post(sequence: int) -> asyncio.Future:
        buffer = buffers[sequence % len(buffers)]
        return connection.receive_posted(sequence, SEQUENCE_MASK, buffer)

    posted = [post(sequence) for sequence in range(min(len(buffers), count))]
    _order(connection, size, count)
    for sequence in range(count):
        slot = sequence % len(buffers)
        await posted[slot]
        if sequence + len(buffers) < count:
            posted[slot] = post(sequence + len(buffers))


async def _receive_probed(
    connection: UcxConnection, buffers: list[pa.Buffer], size: int, count: int
) -> None:
    free = list(buffers)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = count

    def came(receiving: asyncio.Future[pa.Buffer]) -> None:
        nonlocal left
        free.append(receiving.result())
        left -= 1
        if left == 0:
            done.set_result(None)
        take()

    def take() -> None:
        while free and (probed := connection.probe()) is not None:
            connection.receive(probed, free.pop()).add_done_callback(came)

    connection.on_tagged = take
    _order(connection, size, count)
    await done
    connection.on_tagged = None


# --- the C benchmark ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Perftest:
    """The benchmark that belongs to a library, and the environment that makes it use that one."""

    program: str
    environment: dict[str, str]

    def megabytes_per_second(self, case: Case) -> float:
        """One run, both ends. MB/s."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = [self.program, "-p", str(port), "-E", "sleep"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(common, env=self.environment, **quiet)
        try:
            _wait_until_it_listens(server.pid, port)
            client = subprocess.run(
                [
                    *common,
                    "127.0.0.1",
                    *("-t", "tag_bw", "-f", "-w", "2", "-O", str(WINDOW)),
                    *("-s", str(case.size), "-n", str(case.count)),
                ],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=PERFTEST_SECONDS_MAX,
                check=True,
            )
        finally:
            server.kill()
            server.wait()
        # Iterations; median, average and overall overhead; average and overall bandwidth; rates.
        return float(client.stdout.split()[-3])


def _wait_until_it_listens(pid: int, port: int) -> None:
    deadline = time.monotonic() + 10
    process = psutil.Process(pid)
    while time.monotonic() < deadline:
        for each in process.net_connections(kind="tcp"):
            if each.laddr.port == port and each.status == psutil.CONN_LISTEN:
                return
        time.sleep(0.01)
    raise TimeoutError("ucx_perftest does not listen")


def find_perftest(library_path: str) -> Perftest | None:
    """The program built with that library: the wheel brings its own, but finds the system's
    library unless it is told otherwise."""
    settings = {f"UCX_{name}": value for name, value in UcxSettings().entries().items()}
    environment = {**os.environ, **settings, "UCX_LOG_LEVEL": "fatal"}
    environment.pop("LD_LIBRARY_PATH", None)
    wheel = importlib.util.find_spec("libucx")
    places = wheel.submodule_search_locations if wheel is not None else None
    root = Path(next(iter(places))) if places else None
    if root is not None and Path(library_path).is_relative_to(root):
        program: str | None = str(root / "bin" / "ucx_perftest")
        environment["LD_LIBRARY_PATH"] = str(root / "lib")
    else:
        program = shutil.which("ucx_perftest")
    if program is None or not os.access(program, os.X_OK):
        return None
    return Perftest(program, environment)


# --- the comparison -------------------------------------------------------------------------------


def run(*, quick: bool = False) -> dict:
    try:
        with child(sender) as sending:
            path, release, port = sending.ready
            perftest = find_perftest(path)
            if perftest is None:
                lines = [skipped("no ucx_perftest (Debian: ucx-utils)")]
            else:
                with child(receiver, port) as receiving:
                    lines = [
                        measure(case, release, receiving, perftest, 3 if quick else ROUNDS)
                        for case in CASES
                    ]
    except (EOFError, TimeoutError):
        lines = [skipped("no UCX library (pip install 'barrage[ucx]')")]
    return result("ucx_transport", lines)


def measure(
    case: Case, release: str, receiving: Child, perftest: Perftest, rounds: int
) -> Measurement:
    """Medians of rounds in which all take turns."""
    values: dict[str, list[float]] = {"posted": [], "probed": [], "perftest": []}
    receiving.ask((case.size, WINDOW, True))  # fills the memory pools
    for _ in range(rounds):
        values["posted"].append(receiving.ask((case.size, case.count, True)))
        values["perftest"].append(perftest.megabytes_per_second(case))
        values["probed"].append(receiving.ask((case.size, case.count, False)))
    medians = {name: statistics.median(taken) for name, taken in values.items()}
    way = max(("posted", "probed"), key=lambda name: medians[name])
    return compared(
        f"UCX {release} on tcp, bodies of {case.title}, {way}",
        medians[way],
        "MB/s",
        baseline="ucx_perftest tag_bw",
        baseline_value=medians["perftest"],
        at_least=0.9,
        detail={
            "rounds": rounds,
            "window": WINDOW,
            **{name: [round(value) for value in taken] for name, taken in values.items()},
        },
    )
