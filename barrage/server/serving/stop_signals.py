"""The signals that end a server, as something that its main thread waits for."""

from __future__ import annotations

import contextlib
import signal
import socket
from typing import Any, Self


class StopSignals:
    """SIGINT and SIGTERM as something to wait for, while the block runs; on the main thread."""

    def __init__(self) -> None:
        # The system may give a signal to any thread. Python then runs the handler on the main
        # thread once that wakes up, which waiting for a lock or an event it does not; the byte
        # that is written for each signal wakes it whoever got it.
        self._waiting, self._written = socket.socketpair()
        self._written.setblocking(False)
        self._previous: dict[int, Any] = {}
        self._previous_wakeup = -1

    def __enter__(self) -> Self:
        self._previous_wakeup = signal.set_wakeup_fd(self._written.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._waiting.close()
        self._written.close()

    def wait(self) -> int:
        """Block until one comes, its number; or until :meth:`end`, 0."""
        while True:
            (number,) = self._waiting.recv(1)
            if number == 0 or number in self._previous:
                return number

    def end(self) -> None:
        """Let the wait end without a signal; from any thread, also after the block."""
        with contextlib.suppress(OSError):
            self._written.send(b"\0")

    @staticmethod
    def _note(_number: int, _frame: object) -> None:
        """Have the signal handled by Python, which writes its number."""
