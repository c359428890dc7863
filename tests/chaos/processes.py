"""The processes of a crash test: the server that is killed and the checker that is not."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.chaos.held_up_report import WATCHED

START_SECONDS_MAX = 60.0
_ACK = re.compile(r"ack (\w+) (\d+) (\d+)")
COMMAND = "import sys; from barrage.cli.main import main; sys.argv[0] = 'barrage'; main()"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class ServerLife:
    """One life of the server: a process whose stdin and stdout are pipes of ours."""

    def __init__(self, pid: int, *, stdin: int, stdout: int) -> None:
        self.pid = pid
        self._stdin = stdin
        self._stdout = stdout
        self._read = bytearray()
        self._is_over = False

    def wait_ready(self) -> None:
        """Until it listens."""
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._stdout], [], [], START_SECONDS_MAX)
            assert ready, "the server did not start in time"
            assert self._read_some(), "the server ended before it listened"

    def go(self) -> None:
        """Let its own writers write; the second time, stop."""
        os.write(self._stdin, b"go\n")

    def kill(self) -> dict[str, tuple[int, int, int]]:
        """End it without a warning; of each of its own writers the last acknowledged number, its
        step, and the step of the first one."""
        if not self._is_over:
            os.kill(self.pid, signal.SIGKILL)
            self.wait_end()
        acknowledged: dict[str, tuple[int, int, int]] = {}
        for line in bytes(self._read).decode().splitlines():
            match = _ACK.fullmatch(line)
            if match is not None:
                table, number, step = match[1], int(match[2]), int(match[3])
                first = acknowledged[table][2] if table in acknowledged else step
                acknowledged[table] = number, step, first
        return acknowledged

    def wait_end(self) -> None:
        """Until nobody can write to its stdout any more."""
        while self._read_some():
            pass
        os.close(self._stdin)
        os.close(self._stdout)
        self._is_over = True

    def _read_some(self) -> bool:
        part = os.read(self._stdout, 65536)
        self._read += part
        return bool(part)


class CommandLine:
    """Starts ``barrage ARGUMENTS``."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> ServerLife:
        if self._process is not None:
            self._process.wait()
        self._process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        life = ServerLife(
            self._process.pid,
            stdin=os.dup(self._process.stdin.fileno()),
            stdout=os.dup(self._process.stdout.fileno()),
        )
        self._process.stdin.close()
        self._process.stdout.close()
        return life

    def close(self) -> None:
        if self._process is not None:
            self._process.wait()


class Nursery:
    """Starts the script of :mod:`tests.chaos.server`, by a fork of a process that has loaded it.
    Each life is watched for what holds its threads up."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.nursery"],
                stdin=theirs,
                env={**os.environ, WATCHED: "1"},
            )

    def start(self) -> ServerLife:
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        message = json.dumps(self._arguments).encode()
        socket.send_fds(self._orders, [message], [their_stdin, their_stdout])
        os.close(their_stdin)
        os.close(their_stdout)
        return ServerLife(int(self._orders.recv(64)), stdin=stdin, stdout=stdout)

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


class CheckerProcess:
    """The checker, asked line by line."""

    def __init__(self, address: str, data: Path, *, has_local: bool) -> None:
        arguments = [address, str(data), "local" if has_local else "remote"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.checker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
