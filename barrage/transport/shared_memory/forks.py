"""What a fork does to shared memory: a hook for everything that has a mapped file open.

A child inherits mapping and descriptor, and a lock belongs to the descriptor's *opening*, which
parent and child then share: an unlock by one would unlock for both, and an opening a child keeps
would hide that its parent is gone. So parent and child are given separate openings. Only forks
that go on running Python come here (``os.fork``, ``multiprocessing``); programs started with
``subprocess`` close the descriptors as they start.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """Something that has to do with a file other processes have mapped too."""

    def before_fork(self) -> None:
        """In the parent; whatever must not move during the fork is held from here."""

    def after_fork_in_parent(self) -> None:
        """Also when the fork failed."""

    def after_fork_in_child(self) -> None:
        """No other thread runs here."""


_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_fork = threading.Lock()
"""Held during a fork, for two threads may fork at a time, and while a thing is added: one added
while the things are listed would make the list fail."""
_held: list[ForkAware] = []
_is_hooked = False


def watch_forks(thing: ForkAware) -> None:
    """Call the hooks of ``thing`` as long as it lives."""
    global _is_hooked
    with _fork:
        if not _is_hooked:
            _is_hooked = True
            os.register_at_fork(
                before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
            )
        _aware.add(thing)


def _before() -> None:
    _fork.acquire()
    _held[:] = list(_aware)  # kept until the fork is over
    for thing in _held:
        thing.before_fork()


def _after_in_parent() -> None:
    for thing in _held:
        thing.after_fork_in_parent()
    _held.clear()
    _fork.release()


def _after_in_child() -> None:
    for thing in _held:
        thing.after_fork_in_child()
    _held.clear()
    _fork.release()
