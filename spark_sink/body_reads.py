"""Reads of journals whose bodies come through shared memory of a server on this host.

Which way is taken is found out by the process that reads, for it may be on another host than the
driver. Servers that offer nothing are asked once in a while by the Flight client that is there
anyway; only where one does, a session of :mod:`barrage.client` is opened, one per process and
server, and kept. Whatever goes wrong with it means DoGet, as do options a session does not take.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError

if TYPE_CHECKING:
    from barrage.client import JournalBatches, Session
    from spark_sink.connection import ServerConnection

logger = logging.getLogger(__name__)

BODIES_ACTION = "barrage.bodies"
"""What a server has that offers other ways for bodies (docs/transports.md)."""

SHARED_MEMORY = "shm"
"""The way of bodies that is taken here."""

ASKED_AGAIN_SECONDS = 300.0
"""How long a server that offers nothing, or could not be reached this way, is not asked again."""


@dataclass(slots=True)
class _Known:
    """What is known of one server."""

    session: Session | None = None
    refused_until: float = 0.0
    """Of the monotonic clock: until then everything is inline."""


class BodyReads:
    """The sessions of this process. A forked child starts anew: gRPC does not survive it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._known: dict[tuple[ServerConnection, str], _Known] = {}

    def open(
        self, connection: ServerConnection, ticket: bytes, *, table: str, is_in_order: bool
    ) -> JournalBatches | None:
        """A read of a ticket; None when DoGet is all there is."""
        session = self._session(connection)
        timeout = connection.timeout_ms / 1000
        if session is None or session.body_status(timeout=timeout).way.value != SHARED_MEMORY:
            return None
        return session.read_journal(ticket, table=table, is_in_order=is_in_order, timeout=timeout)

    def refused(self, connection: ServerConnection) -> None:
        """The server does not know such reads: ask no more for some time."""
        with self._lock:
            self._entry(connection).refused_until = time.monotonic() + ASKED_AGAIN_SECONDS

    def close(self) -> None:
        """End the sessions. What was handed out stays valid. Others begin as at first."""
        with self._lock:
            known, self._known = self._known, {}
        for entry in known.values():
            if entry.session is not None:
                entry.session.close()

    def _entry(self, connection: ServerConnection) -> _Known:
        if self._pid != os.getpid():
            self._known, self._pid = {}, os.getpid()
        return self._known.setdefault((connection, connection.location), _Known())

    def _session(self, connection: ServerConnection) -> Session | None:
        if connection.headers or "skipverify" in dict(connection.tls):
            return None
        with self._lock:
            entry = self._entry(connection)
            if time.monotonic() < entry.refused_until:
                return None
            if entry.session is None:
                entry.session = _opened(connection)
            if entry.session is None:
                entry.refused_until = time.monotonic() + ASKED_AGAIN_SECONDS
            return entry.session


def _opened(connection: ServerConnection) -> Session | None:
    """A session with a server that offers another way; None when it does not."""
    try:
        actions = connection.client().list_actions(connection.call_options(connection.timeout_ms))
        if all(action.type != BODIES_ACTION for action in actions):
            return None
        # Not before: it takes half a second to load.
        from spark_sink.table_follower import open_session

        return open_session(connection, uri=connection.location)
    except (BarrageError, pa.ArrowException, OSError) as error:
        logger.debug("bodies come inline from %s: %s", connection.location, error)
        return None


body_reads = BodyReads()
