"""One life of a server and its clients, as strace records it.

``python -m tests.chaos.power.life ORDERS``, a JSON file (:class:`Orders`). Starts the server as a
process of its own and writes to it through Flight until enough was acknowledged or the server is
dead. Everything a client was told is put into the file ``marks`` at once, which puts it into the
record of system calls, behind the calls of the server that it depends on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import grpc

from tests.chaos.processes import COMMAND, free_port
from tests.chaos.writers import Gate, Scripts
from tests.helpers.server_process import RawExchange, raw_channel, subscription_request

LIFE_SECONDS_MAX = 120


@dataclass(kw_only=True)
class Orders:
    """What a life is to do, and afterwards what came of it."""

    data: str
    marks: str
    settings: dict[str, int] = field(default_factory=dict)
    has_local: bool = False
    """Whether the server is a script with writers of its own, not ``barrage serve``."""
    answers: int = 100
    """Acknowledgements after which it ends."""
    end: str = "kill"
    """``kill`` or ``term``."""
    kill_at: str = ""
    """A path in the data directory; the server is killed when it appears."""
    canary: str = ""
    """How the server is broken, see :mod:`tests.chaos.power.canaries`."""
    acknowledged: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    def command(self, port: int) -> tuple[list[str], dict[str, str]]:
        """The server's command and environment."""
        if self.has_local:
            arguments = [self.data, str(port), json.dumps(self.settings)]
            return [sys.executable, "-m", "tests.chaos.server", *arguments], {}
        arguments = ["serve", "--json", "--data", self.data, "--port", str(port)]
        told = {f"BARRAGE_{name.upper()}": str(value) for name, value in self.settings.items()}
        return [sys.executable, "-c", f"{_breaking(self.canary)}{COMMAND}", *arguments], told


def _breaking(canary: str) -> str:
    if not canary:
        return ""
    return f"from tests.chaos.power.canaries import CANARIES; CANARIES[{canary!r}](); "


class MarkingGate(Gate):
    """Notes in the record what clients are told."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.answers = 0
        self.changed = threading.Condition()

    def mark(self, **what: Any) -> None:
        os.write(self._file, json.dumps(what).encode() + b"\n")

    def saw_step(self, step: int) -> None:
        super().saw_step(step)
        self.mark(step=step)

    def saw_answer(self, table: str, producer: str, number: int) -> None:
        self.mark(table=table, producer=producer, number=number)
        with self.changed:
            self.answers += 1
            self.changed.notify_all()


def live(orders: Orders) -> None:
    port = free_port()
    gate = MarkingGate(orders.marks)
    command, environment = orders.command(port)
    server = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        text=True,
        bufsize=1,
    )
    assert server.stdout is not None
    assert server.stdin is not None
    if server.stdout.readline():
        scripts = Scripts(f"grpc://127.0.0.1:{port}", gate)
        for writer in scripts.writers:
            writer.acknowledged = orders.acknowledged.get(writer.producer, 0)
        threads = [
            threading.Thread(target=_hear, args=(server.stdout, gate), daemon=True),
            threading.Thread(target=_subscribe, args=(port, gate), daemon=True),
            *scripts.writers,
        ]
        for thread in threads:
            thread.start()
        server.stdin.write("go\n")
        gate.is_open.set()
        _wait(orders, server, gate)
        _end(server, orders.end)
        gate.is_over.set()
        orders.acknowledged = {w.producer: w.acknowledged for w in scripts.writers}
        for problem in gate.problems:
            gate.mark(problem=problem)
    server.wait()


def _wait(orders: Orders, server: subprocess.Popen[str], gate: MarkingGate) -> None:
    """Until the server is to end, or has."""
    awaited = Path(orders.data, orders.kill_at) if orders.kill_at else None
    deadline = time.monotonic() + LIFE_SECONDS_MAX
    with gate.changed:
        while server.poll() is None and gate.answers < orders.answers:
            if awaited is not None and awaited.exists():
                return
            assert time.monotonic() < deadline, "too few writes were acknowledged in time"
            gate.changed.wait(0.2 if awaited is None else 0.002)


def _end(server: subprocess.Popen[str], how: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        server.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
    server.wait(timeout=60)


def _hear(said: Any, gate: MarkingGate) -> None:
    """What the server's own writers were told."""
    for line in said:
        if line.startswith("ack "):
            _, table, number, step = line.split()
            gate.saw_step(int(step))
            gate.saw_answer(table, "local", int(number))


def _subscribe(port: int, gate: MarkingGate) -> None:
    """See the steps of one table, on the disk or not."""
    while not gate.is_over.is_set():
        with (
            contextlib.suppress(grpc.RpcError, StopIteration),
            raw_channel(f"127.0.0.1:{port}") as channel,
            RawExchange(channel) as exchange,
        ):
            exchange.send(subscription_request("events"))
            while True:
                gate.saw_step(exchange.read_update().last_step)
        gate.is_over.wait(0.02)


def main() -> None:
    path = Path(sys.argv[1])
    orders = Orders.read(path)
    live(orders)
    orders.write(path)
    # Threads of gRPC may still wait for the server that is gone.
    os._exit(0)


if __name__ == "__main__":
    main()
