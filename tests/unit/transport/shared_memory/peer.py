"""A process at the other end: ``python -m tests.unit.transport.shared_memory.peer DIRECTORY``.

It reads one word per line with its arguments and answers with one line. As a client it opens arenas
and borrows bodies, as a server it makes them; a test kills it whenever it likes.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from barrage.errors import BarrageError
from barrage.transport.shared_memory import Arena, ArenaMapping, Region
from barrage.wire.dissociated.references import BodyReference
from tests.unit.transport.shared_memory.bodies import SMALL, content

ROOT = Path(__file__).resolve().parents[4]


class Peer:
    """What the process does, one method per word."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.arenas: list[Arena] = []
        self.regions: list[Region] = []
        self.mapping: ArenaMapping | None = None
        self.buffers: dict[int, object] = {}
        self.told: list[int] = []
        self.child = 0
        self.to_child = -1
        self.from_child = -1

    def create(self) -> str:
        self.arenas.append(Arena.create(SMALL, directory=self.directory))
        return self.arenas[-1].name

    def place(self, seed: str, length: str) -> str:
        region = self.arenas[-1].place([content(int(seed), int(length))], int(length))
        if region is None:
            return "full"
        self.regions.append(region)
        return region.reference().encode().hex()

    def close(self) -> str:
        self.arenas.pop().close()
        return "closed"

    def become(self, user_id: str) -> str:
        os.setgroups([])
        os.setgid(int(user_id))
        os.setuid(int(user_id))
        return str(os.geteuid())

    def open(self, name: str) -> str:
        self.mapping = ArenaMapping.open(name, directory=self.directory)
        return self.mapping.proof().hex()

    def borrow(self, reference: str) -> str:
        found = BodyReference.decode(bytes.fromhex(reference))
        assert self.mapping is not None
        self.buffers[found.address] = self.mapping.borrow(found, self.told.append)
        return "held"

    def read(self, seed: str) -> str:
        """Whether all that is held is the body of that seed."""
        return str(
            all(
                buffer.to_pybytes() == content(int(seed), buffer.size)
                for buffer in self.buffers.values()
            )
        )

    def drop(self) -> str:
        self.buffers.clear()
        return str(len(self.told))

    def fork(self, word: str = "") -> str:
        """Fork a child that does what ``tell`` tells it, as this process does; ``poor``: without a
        descriptor to spare."""
        ours, theirs = os.pipe(), os.pipe()
        with all_descriptors() if word == "poor" else nullcontext():
            self.child = os.fork()
        if not self.child:
            os.dup2(ours[0], 0)
            os.dup2(theirs[1], 1)
            for fd in (*ours, *theirs):
                os.close(fd)
            os.write(1, b"up\n")
            try:
                serve(self, child_lines())
            finally:
                os._exit(0)
        os.close(ours[0])
        os.close(theirs[1])
        self.to_child, self.from_child = ours[1], theirs[0]
        assert os.read(self.from_child, 3) == b"up\n"
        return str(self.child)

    def tell(self, *words: str) -> str:
        """Let the child do something."""
        os.write(self.to_child, " ".join(words).encode() + b"\n")
        return os.read(self.from_child, 4096).decode().strip()

    def wait(self) -> str:
        """Let the child end."""
        os.close(self.to_child)
        os.close(self.from_child)
        return str(os.waitpid(self.child, 0)[1])


@contextmanager
def all_descriptors() -> Iterator[None]:
    """Nothing more can be opened in the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def child_lines() -> Iterator[str]:
    """Lines of standard input, past the buffer that was forked."""
    with open(0, closefd=False) as file:
        yield from file


def serve(peer: Peer, lines: Iterator[str]) -> None:
    for line in lines:
        word, *arguments = line.split()
        try:
            answer = getattr(peer, word)(*arguments)
        except BarrageError as error:
            answer = f"{type(error).__name__}: {error}"
        except Exception:
            answer = "failed: " + traceback.format_exc().replace("\n", "; ")
        os.write(1, f"{answer}\n".encode())


class Process:
    """The other process, from here."""

    def __init__(self, directory: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def ask(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(60)


@contextmanager
def peer(directory: str) -> Iterator[Process]:
    """Another process, until the block ends."""
    process = Process(directory)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()
        process.close()


if __name__ == "__main__":
    serve(Peer(sys.argv[1]), sys.stdin)
