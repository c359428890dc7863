"""The synchronous client: the same names as the asyncio one, over a private loop on a thread of its
own.

Every blocking call takes a timeout and can be interrupted (Ctrl+C). A session owns one thread and
ends it when it is closed; sessions left open are closed at exit.
"""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING

from barrage.client.bodies import BodyChoice, BodyCounter
from barrage.client.callbacks import close_all
from barrage.client.closing import ClosedByWith
from barrage.client.remote_table import TIMEOUT_SECONDS
from barrage.client.session import CONNECT_TIMEOUT_SECONDS, AsyncSession, aconnect
from barrage.client.sync_journal import JournalBatches
from barrage.client.sync_loop import CLOSE_TIMEOUT_SECONDS, LoopThread
from barrage.client.sync_tables import InputTable, RemoteTable
from barrage.client.sync_writer import Writer
from barrage.errors import SubscriptionClosedError, WorkerDiedError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.client.address import Auth
    from barrage.client.arrow_input import TableLike
    from barrage.client.bodies import BodyStatus
    from barrage.client.put import PutProgress
    from barrage.client.reconnect import Backoff
    from barrage.client.table_info import TableInfo
    from barrage.client.writer import AsyncWriter
    from barrage.limits import Limits
    from barrage.model.schema_like import SchemaLike
    from barrage.transport.grpc_channel import TLS


class Session(ClosedByWith):
    """A connection to one server; close it or use it as a context manager."""

    def __init__(self, session: AsyncSession, thread: LoopThread) -> None:
        self._session = session
        self._thread = thread
        self._is_closed = False
        thread.on_death = session.fail
        _open_sessions.add(self)

    def tables(self, *, timeout: float | None = TIMEOUT_SECONDS) -> list[TableInfo]:
        """Every table of the server."""
        return self._thread.call(self._session.tables(timeout=None), timeout)

    def table(self, name: str) -> RemoteTable:
        """A handle; nothing is sent until it is used."""
        return RemoteTable(self._session.table(name), self._thread)

    def open_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> RemoteTable:
        """See :meth:`AsyncSession.open_table`."""
        table = self._thread.call(self._session.open_table(name, timeout=None), timeout)
        return RemoteTable(table, self._thread)

    def shared(self, ticket: bytes) -> RemoteTable:
        """See :meth:`AsyncSession.shared`."""
        return RemoteTable(self._session.shared(ticket), self._thread)

    def table_from_ticket(self, ticket: bytes) -> RemoteTable:
        """See :meth:`AsyncSession.table_from_ticket`."""
        return RemoteTable(self._session.table_from_ticket(ticket), self._thread)

    def upload(
        self,
        data: TableLike,
        *,
        name: str = "uploaded table",
        on_progress: Callable[[PutProgress], None] | None = None,
        timeout: float | None = None,
    ) -> RemoteTable:
        """See :meth:`AsyncSession.upload`. ``on_progress`` runs on the session's thread."""
        work = self._session.upload(data, name=name, on_progress=on_progress)
        return RemoteTable(self._thread.call(work, timeout), self._thread)

    def read_journal(
        self, ticket: bytes, *, table: str, is_in_order: bool, timeout: float | None = None
    ) -> JournalBatches:
        """See :meth:`AsyncSession.read_journal`. ``timeout`` is the longest wait for one batch."""
        counter = BodyCounter()
        read = self._session.read_journal(
            ticket, table=table, is_in_order=is_in_order, counter=counter
        )
        return JournalBatches(read, counter, self._thread, timeout)

    def body_status(self, *, timeout: float | None = TIMEOUT_SECONDS) -> BodyStatus:
        """See :meth:`AsyncSession.body_status`."""
        return self._thread.call(self._session.body_status(), timeout)

    def input_table(
        self,
        schema: SchemaLike,
        *,
        key: Sequence[str] | str | None = None,
        kind: str | None = None,
        name: str = "input table",
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> InputTable:
        """See :meth:`AsyncSession.input_table`."""
        work = self._session.input_table(schema, key=key, kind=kind, name=name, timeout=None)
        return InputTable(self._thread.call(work, timeout), self._thread)

    def open_input_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> InputTable:
        """See :meth:`AsyncSession.open_input_table`."""
        work = self._session.open_input_table(name, timeout=None)
        return InputTable(self._thread.call(work, timeout), self._thread)

    def put(
        self,
        name: str,
        data: TableLike,
        *,
        key: Sequence[str] | str | None = None,
        mode: str | None = None,
        on_progress: Callable[[PutProgress], None] | None = None,
        timeout: float | None = None,
    ) -> PutProgress:
        """See :meth:`AsyncSession.put`. ``on_progress`` runs on the session's thread."""
        work = self._session.put(name, data, key=key, mode=mode, on_progress=on_progress)
        return self._thread.call(work, timeout)

    def writer(
        self,
        name: str,
        *,
        producer: str,
        mode: str | None = None,
        key: Sequence[str] | str | None = None,
        reconnect: Backoff | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> Writer:
        """See :meth:`AsyncSession.writer`."""

        async def open_it() -> AsyncWriter:
            return await self._session.writer(
                name, producer=producer, mode=mode, key=key, reconnect=reconnect
            )

        return Writer(self._thread.call(open_it(), timeout), self._thread)

    def create_table(
        self,
        name: str,
        schema: SchemaLike,
        *,
        key: Sequence[str] | str | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        journal: str | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> RemoteTable:
        """See :meth:`AsyncSession.create_table`."""
        self._thread.call(
            self._session.create_table(
                name,
                schema,
                key=key,
                kind=kind,
                capacity=capacity,
                journal=journal,
                timeout=None,
            ),
            timeout,
        )
        return self.table(name)

    def drop_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> None:
        """See :meth:`AsyncSession.drop_table`."""
        self._thread.call(self._session.drop_table(name, timeout=None), timeout)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End all subscriptions, the connection and the thread. Idempotent and quiet."""
        if self._is_closed:
            return
        self._is_closed = True
        _open_sessions.discard(self)
        try:
            self._thread.call(self._session.close(), CLOSE_TIMEOUT_SECONDS)
        except (TimeoutError, SubscriptionClosedError, WorkerDiedError):
            # The thread is ended anyway; closing never complains.
            pass
        finally:
            close_all(list(self._thread.callbacks))
            self._thread.close()

    def __repr__(self) -> str:
        return f"<Session {self._session.address.target}{', closed' if self._is_closed else ''}>"


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _close_all() -> None:
    for session in list(_open_sessions):
        session.close()


atexit.register(_close_all)


def connect(
    uri: str,
    *,
    auth: Auth = None,
    tls: TLS | None = None,
    revision: WireRevision | str = WireRevision.R1_0_0,
    timeout: float | None = CONNECT_TIMEOUT_SECONDS,
    limits: Limits = DEFAULT_LIMITS,
    bodies: BodyChoice | str = BodyChoice.AUTO,
) -> Session:
    """Connect to ``grpc://host:port`` (or ``dh://host:port``, a Deephaven server); see
    :func:`aconnect`. ``bodies``: the way of large record batches, ``"auto"``, ``"inline"``,
    ``"shm"`` or ``"ucx"``."""
    thread = LoopThread(f"barrage client {uri}")

    async def open_it() -> AsyncSession:
        return await aconnect(
            uri,
            auth=auth,
            tls=tls,
            revision=revision,
            timeout=timeout,
            limits=limits,
            bodies=bodies,
        )

    try:
        session = thread.call(open_it(), None)
    except BaseException:
        thread.close()
        raise
    return Session(session, thread)
