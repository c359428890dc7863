"""Child processes for end-to-end benchmarks: a server whose CPU seconds and memory can be read
from outside."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any

import psutil

READY_SECONDS_MAX = 300.0
_context = mp.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Child:
    """A running child: what it announced when ready, and a pipe for further words."""

    process: psutil.Process
    ready: Any
    pipe: Connection

    def cpu_seconds(self) -> float:
        """User plus system seconds so far."""
        times = self.process.cpu_times()
        return times.user + times.system

    def resident_bytes(self) -> int:
        return int(self.process.memory_info().rss)

    def ask(self, word: Any, *, timeout_seconds: float = READY_SECONDS_MAX) -> Any:
        """Send one word and wait for the answer."""
        self.pipe.send(word)
        return self.receive(timeout_seconds=timeout_seconds)

    def receive(self, *, timeout_seconds: float = READY_SECONDS_MAX) -> Any:
        if not self.pipe.poll(timeout_seconds):
            raise TimeoutError(f"child {self.process.pid} said nothing for {timeout_seconds} s")
        return self.pipe.recv()


def shared_semaphore(value: int) -> Semaphore:
    """A semaphore that children can be given."""
    return _context.Semaphore(value)


@contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """Run ``target(pipe, *arguments)`` in a new interpreter until the block ends.

    The target announces itself by sending one object, and ends when it receives None.
    """
    ours, theirs = _context.Pipe()
    process = _context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(READY_SECONDS_MAX):
            raise TimeoutError("the child did not become ready")
        assert process.pid is not None
        yield Child(process=psutil.Process(process.pid), ready=ours.recv(), pipe=ours)
    finally:
        with suppress(OSError):  # it may have ended by itself
            ours.send(None)
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()
