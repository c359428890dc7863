"""A word of warning to processes that fork while they have a connection.

gRPC runs handlers of its own when a process forks, to make its state usable in the child. Beside a
connection at work these end in SIGSEGV or SIGABRT in a good part of all forks: of 40 children made
by ``Popen(preexec_fn=...)``, which is how PySpark starts its JVM, 14 died; with
``GRPC_ENABLE_FORK_SUPPORT=0``, set before gRPC is imported, none did. A child that only starts
another program needs none of it. Children of ``subprocess`` without ``preexec_fn`` are not forks of
this kind.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import Final

FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"
_OFF: Final = ("0", "false", "no")

_log = logging.getLogger(__name__)


class ForkGuard:
    """Tells once that a fork beside an open connection may kill the child."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[object] = weakref.WeakSet()
        self._is_registered = False
        self._has_told = False

    def opened(self, channel: object) -> None:
        """A connection is there from now on."""
        self._open.add(channel)
        if not self._is_registered and hasattr(os, "register_at_fork"):
            self._is_registered = True
            os.register_at_fork(before=self.before_fork)

    def closed(self, channel: object) -> None:
        """It is there no more."""
        self._open.discard(channel)

    def before_fork(self) -> None:
        """Called in the parent, which goes on to fork whatever happens here."""
        if self._has_told or not self._open:
            return
        if os.environ.get(FORK_SUPPORT, "").lower() in _OFF:
            return
        self._has_told = True
        _log.warning(
            "this process forks while it is connected by gRPC, which may kill the child: set %s=0 "
            "before Python starts, or make the child (PySpark's session) before the connection",
            FORK_SUPPORT,
        )


fork_guard = ForkGuard()
"""Of this process."""
