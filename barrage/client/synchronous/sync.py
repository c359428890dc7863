# Written by scripts/sync_client.py (make generated); do not edit.
# It follows from barrage/client/session.py.
"""The synchronous client: the same names as the asyncio one, over a private loop on a
thread of its own.

Every blocking call takes a timeout and can be interrupted (Ctrl+C). A session owns one
thread and ends it when it is closed; sessions left open are closed at exit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.client.bodies.bodies import BodyChoice
from barrage.client.connection.address import LISTED
from barrage.client.session import CONNECT_TIMEOUT_SECONDS, aconnect
from barrage.client.synchronous.on_thread import SessionOnThread
from barrage.client.synchronous.sync_journal import JournalBatches
from barrage.client.synchronous.sync_loop import opened
from barrage.client.synchronous.sync_tables import InputTable, RemoteTable
from barrage.client.synchronous.sync_writer import Writer
from barrage.client.tables.remote_table import TIMEOUT_SECONDS
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.client.bodies.bodies import BodyStatus
    from barrage.client.connection.address import Auth
    from barrage.client.connection.reconnect import Backoff
    from barrage.client.connection.table_info import TableInfo
    from barrage.client.writing.arrow_input import TableLike
    from barrage.client.writing.put import PutProgress
    from barrage.limits import Limits
    from barrage.model.schema_like import SchemaLike
    from barrage.transport.base import TLS, Address
    from barrage.wire.dissociated.ways import BodyWay


class Session(SessionOnThread):
    """A connection to one server, or to one of several. Close it or use it as a context
    manager."""

    @property
    def address(self) -> Address:
        """Of the server in use."""
        return self._session.address

    def tables(self, *, timeout: float | None = TIMEOUT_SECONDS) -> list[TableInfo]:
        """Every table of the server."""
        return self._thread.call(self._session.tables(timeout=None), timeout)

    def table(self, name: str) -> RemoteTable:
        """A handle; nothing is sent until it is used. A Deephaven application field is named by its
        ticket, ``a/app/f/field``."""
        return RemoteTable(self._session.table(name), self._thread)

    def open_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> RemoteTable:
        """A table that is there, with its columns known; TableNotFoundError names a near one.

        A Deephaven server holds it for this session until the handle is closed, also when the name
        changes its meaning.
        """
        work = self._session.open_table(name, timeout=None)
        return RemoteTable(self._thread.call(work, timeout), self._thread)

    def shared(self, ticket: bytes) -> RemoteTable:
        """A table another session has published under a shared ticket (``publish_shared``)."""
        return RemoteTable(self._session.shared(ticket), self._thread)

    def table_from_ticket(self, ticket: bytes) -> RemoteTable:
        """A table by its ticket, of any kind the server knows; nothing is sent until it is used."""
        return RemoteTable(self._session.table_from_ticket(ticket), self._thread)

    def upload(
        self,
        data: TableLike,
        *,
        name: str = "uploaded table",
        on_progress: Callable[[PutProgress], None] | None = None,
        timeout: float | None = None,
    ) -> RemoteTable:
        """Send rows as a table without a name, which the server holds for this session until the
        handle is closed. ``name`` is what messages call it. SchemaError when the server cannot hold
        a column. ``on_progress`` runs on the session's thread."""
        work = self._session.upload(data, name=name, on_progress=on_progress, timeout=None)
        return RemoteTable(self._thread.call(work, timeout), self._thread)

    def read_journal(
        self, ticket: bytes, *, table: str, is_in_order: bool, timeout: float | None = None
    ) -> JournalBatches:
        """The rows of a journal's ticket, which begins with ``j/``; see :class:`JournalRead`.
        ``timeout`` is the longest wait for one batch."""
        return JournalBatches(
            self._session.read_journal(ticket, table=table, is_in_order=is_in_order),
            self._thread,
            timeout,
        )

    def body_status(self, *, timeout: float | None = TIMEOUT_SECONDS) -> BodyStatus:
        """The way the bodies of a stream that began now might take, and why it is inline."""
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
        """A new table that rows are added to and deleted from, without a name on the server, held
        for this session until the handle is closed. ``kind``: "keyed" when there is a key, else
        "append_only"; or "blink". ``name`` is what messages call it."""
        work = self._session.input_table(schema, key=key, kind=kind, name=name, timeout=None)
        return InputTable(self._thread.call(work, timeout), self._thread)

    def open_input_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> InputTable:
        """An input table of the server by its name; TableNotFoundError, UnsupportedError when rows
        cannot be written to it."""
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
        """Send rows and wait until all are committed. Creates the table if there is none.

        ``mode``: None (append, or upsert when ``key`` is given), ``"append"``, ``"upsert"``,
        ``"create"``, ``"replace"`` or ``"delete"``. ``on_progress`` is called with every
        acknowledgement. On a Deephaven server rows are added to input tables; any other name
        becomes a new table, static unless it has a key. ``on_progress`` runs on the session's
        thread.
        """
        work = self._session.put(
            name, data, key=key, mode=mode, on_progress=on_progress, timeout=None
        )
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
        """Write to a table so that nothing is lost and nothing doubled, whatever happens to the
        connection: ``with session.writer("trades", producer="feed") as writer``.

        ``producer`` names who writes; the table remembers how far it has got. ``mode`` as for
        :meth:`put`, which makes the table when there is none.
        """
        work = self._session.writer(
            name, producer=producer, mode=mode, key=key, reconnect=reconnect
        )
        return Writer(self._thread.call(opened(work), timeout), self._thread)

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
        """Create an empty table; TableExistsError. ``schema`` is one of Arrow, or a mapping from
        column name to type (``{"Sym": "string"}``). ``kind`` is "keyed" when there is a key, else
        "append_only". ``journal`` is "durable", "memory" or "none", by default what the server
        does. On a Deephaven server it is an input table."""
        work = self._session.create_table(
            name, schema, key=key, kind=kind, capacity=capacity, journal=journal, timeout=None
        )
        return RemoteTable(self._thread.call(work, timeout), self._thread)

    def drop_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> None:
        """Remove a table from the server; its subscribers are told. TableNotFoundError.

        On a Deephaven server the name is taken back; who holds the table keeps it.
        """
        self._thread.call(self._session.drop_table(name, timeout=None), timeout)


def connect(
    uri: str | Sequence[str],
    *,
    auth: Auth = None,
    tls: TLS | None = None,
    revision: WireRevision | str = WireRevision.R1_0_0,
    timeout: float | None = CONNECT_TIMEOUT_SECONDS,
    limits: Limits = DEFAULT_LIMITS,
    bodies: BodyChoice | BodyWay | str = BodyChoice.AUTO,
    order: str = LISTED,
) -> Session:
    """Connect: ``with connect(uri) as session`` or ``session = connect(uri)``.

    ``uri``: see :func:`barrage.client.connection.address.parse_address`; ``auth``: a token,
    "Anonymous", (user, password), or one of Basic, Bearer, PreSharedKey, Handler.
    ConnectionLostError when nobody answers, AuthenticationError when refused.

    Several addresses, separated by commas or as a sequence, are servers of the same tables:
    they are tried in this order (``order="random"``: from any of them on), each for at most
    ``timeout`` seconds, and when the connection is lost the session goes on at the next.
    ConfigError when they are not all Deephaven's or all ours.

    ``bodies`` is the way large record batches take: ``"auto"``, shared memory where a server of
    ours on this host offers it; ``"shm"``, the same; ``"ucx"``, over UCX, which the server must
    have switched on; ``"inline"``, inside the messages; or the name of a plug-in's. Each falls
    back to inline, with the same rows; ``table.bodies`` says which it is and why.
    """
    work = aconnect(
        uri,
        auth=auth,
        tls=tls,
        revision=revision,
        timeout=timeout,
        limits=limits,
        bodies=bodies,
        order=order,
    )
    return Session._opened(uri, work)
