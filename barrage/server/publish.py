"""The Python API: a server in this process and the tables it publishes.

Example::

    with barrage.Server() as server:
        quotes = server.create_table("quotes", {"Sym": "string", "Price": "float64"}, key="Sym")
        quotes.upsert([{"Sym": "A", "Price": 1.5}])
        server.publish("cheap", quotes.where("Price < 2"))
        print(server.uri)

Every method may be called from any thread. Calls that change a table block until a cycle has
committed the change; with ``wait=False`` they return a future of the step that committed it. The
asynchronous form, :class:`barrage.server.AsyncServer`, has the same names.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from barrage.engine.derive import BUILDERS
from barrage.engine.operators.snapshot import snapshot
from barrage.engine.source import SourceTable
from barrage.errors import LocalProtocolError
from barrage.server.operator_methods import OperatorMethods
from barrage.server.serving import ServingParts, effective_config
from barrage.server.stop_signals import StopSignals
from barrage.server.table_handle import (
    SourceHandle,
    TableHandle,
    position_of,
    recipe_and_rows,
)
from barrage.server.watchdog import WatchedLoop
from barrage.supervision import Role, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    import pyarrow as pa

    from barrage.engine.table import Table
    from barrage.errors import BarrageError, WorkerDiedError
    from barrage.model.schema_like import SchemaLike
    from barrage.server.app import ServerApp
    from barrage.server.config import ServerConfig
    from barrage.server.history import Moment
    from barrage.server.journal_opening import Recovery
    from barrage.server.runtime import RuntimeStats
    from barrage.server.table_handle import Numbered
    from barrage.server.table_service import Change, TableService


LOOP = Role("barrage-loop", "every connection, and serve_forever")


class View(OperatorMethods["View"], TableHandle):
    """A derived table. It ticks with its parent and costs nothing once nobody refers to it."""

    def to_arrow(self) -> pa.Table:
        """The rows as of the last cycle."""
        return self._service.read(self._table)

    def as_of(self, moment: Moment) -> View:
        """A table of the rows as they were at a step, a cursor or a time, which never changes.
        NoJournalError, HistoryLostError."""
        rows = self._rows_at(moment)
        return View(self._service, self._service.create_static(rows).result(), None)

    def changes(self, after: Moment, upto: Moment | None = None, **options: Any) -> pa.Table:
        """What changed after one moment up to another (default: now), a row for each change with
        its kind, version, time and row id before the table's columns. NoJournalError,
        HistoryLostError."""
        return self._changes(after, upto, options)

    def snapshot(self) -> View:
        """A table of the rows as of now, which never changes."""
        return self._made(snapshot)

    def _view(self, operator: str, /, *arguments: Any, **named: Any) -> View:
        return self._made(BUILDERS[operator], *arguments, **named)

    def _made(self, build: Callable[..., Table], /, *arguments: Any, **named: Any) -> View:
        return View(self._service, self._derived(build, *arguments, **named).result(), None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}, {len(self)} rows>"


class PublishedTable(View, SourceHandle):
    """A source table: what is written here reaches every subscriber and every derived table.

    Rows may be Arrow, pandas, polars, anything with ``__arrow_c_stream__``, a list of dicts or a
    dict of lists. A batch is applied whole or not at all: SchemaError and RowError name what does
    not fit. With ``wait=False`` rows are still checked for their form at once; the future gets the
    step, or the error that only the engine can find (a null key, for example). Such calls block
    only while ``limits.ingest_bytes_pending_max`` bytes wait to be committed.

    With a durable journal a write returns when it is on disk. It may be numbered by its
    ``producer``: with a ``sequence`` not larger than the last one the table has of that producer it
    is not applied again, so a program that cannot know whether a write got through just repeats it.
    """

    @overload
    def add(
        self, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def add(
        self, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def add(
        self, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Add rows at the end. Returns the step that committed them."""
        return self._commit(self._add(rows), wait, **numbered)

    @overload
    def upsert(
        self, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def upsert(
        self, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def upsert(
        self, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Replace the rows with these keys and add those whose key is new."""
        return self._commit(self._upsert(rows), wait, **numbered)

    @overload
    def remove(
        self, keys: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def remove(
        self, keys: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def remove(
        self, keys: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Remove the rows with these keys: one value, a list of values or tuples, or rows that have
        the key columns. Keys that do not exist are ignored."""
        return self._commit(self._remove(keys), wait, **numbered)

    @overload
    def insert(
        self, position: int, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def insert(
        self, position: int, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def insert(
        self, position: int, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Insert rows before the row at ``position``."""
        return self._commit(self._insert(position, rows), wait, **numbered)

    @overload
    def delete(
        self, start: int, stop: int, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def delete(
        self, start: int, stop: int, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def delete(
        self, start: int, stop: int, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Delete the rows at positions ``start`` to ``stop - 1``."""
        return self._commit(self._delete(start, stop), wait, **numbered)

    @overload
    def replace(
        self, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def replace(
        self, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def replace(
        self, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Make these rows the whole content."""
        return self._commit(self._replace(rows), wait, **numbered)

    def position(self, producer: str) -> int | None:
        """The last ``sequence`` the table has of a producer; None when it has none."""
        return self._last_position(producer).result()

    def _commit(
        self, change: Change, wait: bool, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        position = position_of(**numbered)
        if wait:
            return self._service.change([change], position).result()
        return self._service.change_soon(change, position)


class Transaction:
    """Changes of several tables that become visible in one cycle, all of them or none.

    Rows are checked as they are given; when the block ends everything is committed together, and an
    error there leaves every table as it was. A block left by an exception commits nothing.
    """

    def __init__(self, service: TableService, **numbered: Unpack[Numbered]) -> None:
        self._service = service
        self._position = position_of(**numbered)
        self._changes: list[Change] = []
        self._is_open = True
        self._lock = threading.Lock()
        self.step: int | None = None
        """The step that committed the changes; None before that and when there were none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        changes = self._end()
        if kind is None and changes:
            self.step = self._service.change(changes, self._position).result()

    def add(self, table: SourceHandle, rows: Any) -> None:
        """Add rows at the end of ``table``."""
        self._note(table._add(rows))

    def upsert(self, table: SourceHandle, rows: Any) -> None:
        """Replace the rows with these keys and add those whose key is new."""
        self._note(table._upsert(rows))

    def remove(self, table: SourceHandle, keys: Any) -> None:
        """Remove the rows with these keys."""
        self._note(table._remove(keys))

    def insert(self, table: SourceHandle, position: int, rows: Any) -> None:
        """Insert rows before the row at ``position``."""
        self._note(table._insert(position, rows))

    def delete(self, table: SourceHandle, start: int, stop: int) -> None:
        """Delete the rows at positions ``start`` to ``stop - 1``."""
        self._note(table._delete(start, stop))

    def replace(self, table: SourceHandle, rows: Any) -> None:
        """Make these rows the whole content of ``table``."""
        self._note(table._replace(rows))

    def _note(self, change: Change) -> None:
        with self._lock:
            if not self._is_open:
                raise LocalProtocolError("the transaction has ended; open another one")
            self._changes.append(change)

    def _end(self) -> Sequence[Change]:
        """The changes; whoever comes with one from here on is told that it is too late."""
        with self._lock:
            self._is_open = False
            return tuple(self._changes)


class Server:
    """A server in this process, on an event loop in a thread of its own.

    With a ``data`` directory its tables are back when the server has been made, ``on_progress`` is
    told how far that is, and writes are acknowledged when they are on disk; ``journal`` is what
    tables get for which nothing else is said: ``durable``, ``memory`` or ``none``.

    ``bodies``: other ways than the stream itself by which our own clients may get the bodies of
    large messages, ``shm`` (shared memory on the same host), ``ucx``, or ``shm,ucx``; none by
    default.

    Tables can be created before it listens. ``port=0`` lets the system choose one. On another than
    a loopback address a token is needed; one is made up and shown when none is given. With the host
    ``inproc://name`` there is no port: clients of this process connect to that.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        token: str | None = None,
        data: str | Path | None = None,
        journal: str | None = None,
        bodies: str | None = None,
        config: ServerConfig | None = None,
        on_progress: Callable[[Recovery], None] | None = None,
    ) -> None:
        directory = None if data is None else str(data)
        effective = effective_config(
            config,
            host=host,
            port=port,
            token=token,
            data=directory,
            journal=journal,
            bodies=bodies,
        )
        self._parts = ServingParts(effective, on_progress=on_progress)
        self._app: ServerApp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started: Future[None] | None = None
        self._death: WorkerDiedError | None = None
        self._is_stopped = False
        self._stop_signals: StopSignals | None = None

    # --- life ---

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Listen. Returns when clients can connect; ConfigError when the address cannot be had."""
        started: Future[None]
        with self._life_lock:
            if self._is_stopped:
                raise LocalProtocolError("the server was stopped; make another one")
            if self._thread is not None:
                raise LocalProtocolError("the server was started before")
            started = self._started = concurrent.futures.Future()
            self._thread = start_thread(
                LOOP, partial(self._serve, started), on_death=partial(self._died, started)
            )
        try:
            started.result()
        except BaseException:
            self.stop(0)
            raise
        return self

    def _died(self, started: Future[None], error: WorkerDiedError) -> None:
        """On the loop's thread, when nothing runs on it any more."""
        if not started.done():
            started.set_exception(error)
        self._death = error
        self._end_serving()

    def _end_serving(self) -> None:
        """Let :meth:`serve_forever` return, now or as soon as it is called; nobody starts it any
        more."""
        with self._life_lock:
            # In this order: who waits looks at them in the other one.
            self._is_stopped = True
            if self._stop_signals is not None:
                self._stop_signals.end()

    def stop(self, grace: float | None = None) -> None:
        """Stop serving: streams get what is queued for them and end with UNAVAILABLE; what is left
        after ``grace`` seconds is cut. Then the engine ends. Idempotent."""
        self._end_serving()
        thread, started = self._thread, self._started
        if thread is not None and started is not None:
            # Another thread may be starting it: only what has begun can be told to end.
            concurrent.futures.wait([started])
            loop, app = self._loop, self._app
            if loop is not None and app is not None and thread.is_alive():
                grace_ms = None if grace is None else int(grace * 1000)
                with contextlib.suppress(RuntimeError):  # The loop has ended in this very moment.
                    loop.call_soon_threadsafe(app.begin_stop, grace_ms)
            thread.join()
        self._parts.close()

    def serve_forever(self) -> None:
        """Serve until Ctrl+C, SIGTERM or :meth:`stop`, then drain. Call on the main thread; starts
        if need be. WorkerDiedError when the event loop has died."""
        if self._thread is None and not self._is_stopped:
            self.start()
        try:
            with StopSignals() as signals:
                self._stop_signals = signals
                if not self._is_stopped:
                    signals.wait()
        finally:
            self.stop()
        if self._death is not None:
            raise self._death

    def _serve(self, started: Future[None]) -> None:
        watch = self._parts.watchdog.loop
        with asyncio.Runner(loop_factory=lambda: WatchedLoop(watch)) as runner:
            try:
                runner.run(self._serve_on_loop(started))
            except BaseException:
                # What ended the loop has not closed it: the server is ended on it, and whoever is
                # connected is told.
                if self._app is not None:
                    runner.run(self._app.stop(0))
                raise

    async def _serve_on_loop(self, started: Future[None]) -> None:
        try:
            app = self._parts.make_app()
            await app.start()
        except BaseException as error:
            started.set_exception(error)
            return
        self._app, self._loop = app, asyncio.get_running_loop()
        started.set_result(None)
        await app.wait_for_termination()

    # --- where it is ---

    @property
    def port(self) -> int:
        """The TCP port; the chosen one when 0 was asked for."""
        return self._running.port

    @property
    def address(self) -> str:
        """``host:port``, as gRPC wants it."""
        return self._running.address

    @property
    def uri(self) -> str:
        """What to pass to :func:`barrage.connect`."""
        return self._running.uri

    @property
    def token(self) -> str | None:
        """The bearer token calls need; None when they need none."""
        return self._running.token

    @property
    def stats(self) -> RuntimeStats:
        """Counters of the engine thread."""
        return self._parts.runtime.stats

    @property
    def config(self) -> ServerConfig:
        return self._parts.config

    @property
    def stream_count(self) -> int:
        """Open subscriptions and snapshots."""
        return self._running.stream_count

    @property
    def _running(self) -> ServerApp:
        if self._app is None:
            raise LocalProtocolError("the server has not been started; use 'with' or start()")
        return self._app

    # --- tables ---

    def create_table(
        self,
        name: str,
        schema: SchemaLike | None = None,
        *,
        key: str | Sequence[str] | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        data: Any = None,
        is_read_only: bool = False,
        journal: str | None = None,
    ) -> PublishedTable:
        """Create and publish a table. ``kind`` is ``static``, ``append_only``, ``keyed``, ``list``,
        ``ring`` (the last ``capacity`` rows) or ``blink`` (rows live for one cycle); without it,
        keyed when there is a ``key``, ring when there is a ``capacity``, else append_only.

        ``schema`` is a pyarrow.Schema or a dict of name to type; without it, that of ``data``.
        Clients may write the table (DoPut, Deephaven's input tables) unless it ``is_read_only``.
        ``journal`` is ``durable``, ``memory`` or ``none``; without it, the server's default.
        Errors: TableExistsError, SchemaError, RowError.
        """
        recipe, rows = recipe_and_rows(
            name,
            schema,
            data,
            key=key,
            kind=kind,
            capacity=capacity,
            is_read_only=is_read_only,
            journal=journal,
        )
        made = self._parts.tables.create(recipe, rows).result()
        return PublishedTable(self._parts.tables, made.table, name)

    def publish(self, name: str, view: TableHandle, *, is_read_only: bool = False) -> View:
        """Publish a derived table (or another name for a table, which clients may write unless it
        ``is_read_only``). TableExistsError.

        Derived tables have no journal: after a restart they are published again by whoever
        publishes them, and so are other names."""
        self._parts.tables.publish(name, view._table, is_read_only=is_read_only).result()
        return View(self._parts.tables, view._table, name)

    def drop_table(self, name: str) -> None:
        """Take a table out of the catalog; its subscriptions end with NOT_FOUND. Tables derived
        from it live on. TableNotFoundError."""
        self._parts.tables.drop(name).result()

    def table(self, name: str) -> View:
        """The published table of that name: a PublishedTable when it can be written."""
        found = self._parts.tables.look_up(name).result()
        return handle_of(self._parts.tables, found.table, name)

    def table_names(self) -> list[str]:
        """Names of all published tables, sorted."""
        return [facts.name for facts in self._parts.tables.all_facts().result()]

    def damaged_tables(self) -> dict[str, BarrageError]:
        """Tables of the data directory that could not be read, and why. Their names are taken; the
        files are left as they are."""
        return dict(self._parts.catalog.blocked)

    def transaction(self, **numbered: Unpack[Numbered]) -> Transaction:
        """Changes of several tables in one atomic cycle, as a context manager. It may be numbered
        by a producer as a whole, like a write."""
        return Transaction(self._parts.tables, **numbered)


def handle_of(service: TableService, table: Table, name: str) -> View:
    """The right handle for a published table."""
    kind = PublishedTable if isinstance(table, SourceTable) else View
    return kind(service, table, name)
