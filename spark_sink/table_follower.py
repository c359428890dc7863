"""Following a table of any Barrage server by a plain subscription."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import barrage
from barrage.client import TLS, Basic, PreSharedKey, State, Token
from barrage.errors import BarrageError, ConfigError, SubscriptionClosedError
from barrage.supervision import Role, start_thread
from spark_sink.connection import is_tls

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.client import Auth, Session, TickingTable, Update
    from spark_sink.connection import ServerConnection
    from spark_sink.options import SourceOptions

FOLLOWER = Role("barrage-follow", "the rows of a table without a journal")

INTERVAL_MS = 100
"""How often the server is asked to tell of changes."""

PATIENCE_SECONDS = 0.2
"""How long the thread waits for an update before it looks whether it is to end."""


def open_session(
    connection: ServerConnection, *, uri: str | None = None, bodies: str = "auto"
) -> Session:
    """A session with a location, by default the first; ConfigError for what a session does not
    take."""
    if connection.headers:
        raise ConfigError("options header.* do not go with journalLocation")
    uri = uri or connection.uris[0]
    told = dict(connection.tls)
    tls = None
    if told and is_tls(uri):
        if "skipverify" in told:
            raise ConfigError("option tls.skipVerify does not go with journalLocation")
        tls = TLS(
            ca=told.get("rootcertificates"),
            certificate=told.get("clientcertificate"),
            key=told.get("clientkey"),
            server_name=told.get("servername"),
        )
    timeout = connection.timeout_ms / 1000
    auth = _auth(connection, uri)
    return barrage.connect(uri, auth=auth, tls=tls, timeout=timeout, bodies=bodies)


def _auth(connection: ServerConnection, uri: str) -> Auth:
    if connection.user is not None and connection.password is not None:
        return Basic(connection.user, connection.password.read())
    if connection.token is None:
        return None
    secret = connection.token.read()
    return PreSharedKey(secret) if uri.startswith("dh") else Token(secret)


def remote_schema(options: SourceOptions) -> pa.Schema:
    """The columns of the table, asked now."""
    with open_session(options.connection, bodies=options.bodies) as session:
        return session.table(options.table).schema


class TableFollower:
    """A subscription in a thread. ``record`` gets None when a new state begins, then updates;
    ``fail`` the error that ended it."""

    def __init__(
        self,
        options: SourceOptions,
        record: Callable[[Update | None], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._options = options
        self._record = record
        self._fail = fail
        self._is_closing = threading.Event()
        self._ticking: TickingTable | None = None
        self._broken_at: float | None = None
        self._thread = start_thread(FOLLOWER, self._run, on_death=fail)

    def _run(self) -> None:
        try:
            with open_session(self._options.connection) as session:
                table = session.table(self._options.table)
                with table.subscribe(interval_ms=INTERVAL_MS) as ticking:
                    self._ticking = ticking
                    with ticking.updates(timeout=PATIENCE_SECONDS) as updates:
                        while not self._is_closing.is_set():
                            with contextlib.suppress(TimeoutError):
                                self._tell(next(updates))
        except StopIteration:
            self._fail(SubscriptionClosedError("the subscription was closed"))
        except BarrageError as error:
            if not self._is_closing.is_set():
                self._fail(error)
        except Exception as error:
            self._fail(error)

    def _tell(self, update: Update) -> None:
        if update.is_replacement:
            self._record(None)
        self._record(update)

    def trouble(self, patience_seconds: float) -> BarrageError | None:
        """Why there is no connection, once there has been none for that long."""
        ticking = self._ticking
        if ticking is None or ticking.state is not State.RECONNECTING:
            self._broken_at = None
            return None
        if self._broken_at is None:
            self._broken_at = time.monotonic()
        is_long = time.monotonic() - self._broken_at > patience_seconds
        return ticking.error if is_long else None

    @property
    def away_seconds(self) -> float:
        """How long :meth:`trouble` has found no connection."""
        broken = self._broken_at
        return 0.0 if broken is None else time.monotonic() - broken

    def close(self) -> None:
        """End the subscription and the thread."""
        self._is_closing.set()
        self._thread.join(10)
