"""The asynchronous form of the Python API: the same names as :mod:`barrage.server.publish`,
awaited.

It is a class of its own because a method cannot both block and be awaited. The server runs on the
event loop that enters it::

    async with AsyncServer() as server:
        quotes = await server.create_table("quotes", {"Sym": "string"}, key="Sym")
        await quotes.upsert([{"Sym": "A"}])
        async with server.transaction() as changes:
            changes.upsert(quotes, [{"Sym": "B"}])
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, Unpack

from barrage.engine.derive import BUILDERS
from barrage.engine.operators.snapshot import snapshot
from barrage.errors import LocalProtocolError
from barrage.server.operator_methods import OperatorMethods
from barrage.server.publish import Transaction
from barrage.server.serving import ServingParts, effective_config
from barrage.server.table_handle import (
    SourceHandle,
    TableHandle,
    position_of,
    recipe_and_rows,
)
from barrage.server.watchdog import watch_iterations
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from barrage.engine.table import Table
    from barrage.errors import BarrageError
    from barrage.model.schema_like import SchemaLike
    from barrage.server.app import ServerApp
    from barrage.server.config import ServerConfig
    from barrage.server.history import Moment
    from barrage.server.journal_opening import Recovery
    from barrage.server.table_handle import Numbered
    from barrage.server.table_service import Change


class AsyncView(OperatorMethods[Coroutine[Any, Any, "AsyncView"]], TableHandle):
    """A derived table; see :class:`barrage.server.View`."""

    async def to_arrow(self) -> pa.Table:
        return await in_thread(self._service.read, self._table)

    async def as_of(self, moment: Moment) -> AsyncView:
        rows = await in_thread(self._rows_at, moment)
        table = await asyncio.wrap_future(self._service.create_static(rows))
        return AsyncView(self._service, table, None)

    async def changes(self, after: Moment, upto: Moment | None = None, **options: Any) -> pa.Table:
        return await in_thread(self._changes, after, upto, options)

    async def snapshot(self) -> AsyncView:
        return await self._made(snapshot)

    async def _view(self, operator: str, /, *arguments: Any, **named: Any) -> AsyncView:
        return await self._made(BUILDERS[operator], *arguments, **named)

    async def _made(
        self, build: Callable[..., Table], /, *arguments: Any, **named: Any
    ) -> AsyncView:
        table = await asyncio.wrap_future(self._derived(build, *arguments, **named))
        return AsyncView(self._service, table, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}, {len(self)} rows>"


class AsyncPublishedTable(AsyncView, SourceHandle):
    """A source table; see :class:`barrage.server.PublishedTable`. To not wait, make a task."""

    async def add(self, rows: Any, **numbered: Unpack[Numbered]) -> int:
        return await self._commit(self._add(rows), **numbered)

    async def upsert(self, rows: Any, **numbered: Unpack[Numbered]) -> int:
        return await self._commit(self._upsert(rows), **numbered)

    async def remove(self, keys: Any, **numbered: Unpack[Numbered]) -> int:
        return await self._commit(self._remove(keys), **numbered)

    async def insert(self, position: int, rows: Any, **numbered: Unpack[Numbered]) -> int:
        return await self._commit(self._insert(position, rows), **numbered)

    async def delete(self, start: int, stop: int, **numbered: Unpack[Numbered]) -> int:
        return await self._commit(self._delete(start, stop), **numbered)

    async def replace(self, rows: Any, **numbered: Unpack[Numbered]) -> int:
        return await self._commit(self._replace(rows), **numbered)

    async def position(self, producer: str) -> int | None:
        return await asyncio.wrap_future(self._last_position(producer))

    async def _commit(self, change: Change, **numbered: Unpack[Numbered]) -> int:
        return await asyncio.wrap_future(self._service.change([change], position_of(**numbered)))


class AsyncTransaction(Transaction):
    """A transaction whose commit is awaited."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        changes = self._end()
        if kind is None and changes:
            committed = self._service.change(changes, self._position)
            self.step = await asyncio.wrap_future(committed)


class AsyncServer:
    """A server on the running event loop; see :class:`barrage.server.Server`. A ``data`` directory
    is read by :meth:`start`, beside the loop."""

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
        self._config = effective_config(
            config,
            host=host,
            port=port,
            token=token,
            data=directory,
            journal=journal,
            bodies=bodies,
        )
        self._on_progress = on_progress
        self._opened = None if self._config.data is not None else ServingParts(self._config)
        self._app: ServerApp | None = None
        self._life_lock = asyncio.Lock()
        self._is_started = False
        self._is_stopped = False
        self._unwatch: Callable[[], None] = lambda: None

    @property
    def _parts(self) -> ServingParts:
        if self._opened is None:
            raise LocalProtocolError(
                "the data directory is read by start(); use 'async with' or start() first"
            )
        return self._opened

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> Self:
        """Listen; ConfigError when the address cannot be had."""
        if self._is_stopped:
            raise LocalProtocolError("the server was stopped; make another one")
        if self._is_started:
            raise LocalProtocolError("the server was started before")
        self._is_started = True
        async with self._life_lock:
            if self._opened is None:
                self._opened = await in_thread(
                    ServingParts, self._config, on_progress=self._on_progress
                )
            app = self._parts.make_app()
            self._unwatch = watch_iterations(asyncio.get_running_loop(), self._parts.watchdog.loop)
            try:
                await app.start()
            except BaseException:
                self._unwatch()
                await in_thread(self._parts.close)
                raise
            self._app = app
        return self

    async def stop(self, grace: float | None = None) -> None:
        """Drain and stop; idempotent."""
        self._is_stopped = True
        # What is being started by another task can be ended when it has been.
        async with self._life_lock:
            if self._app is not None:
                await self._app.stop(None if grace is None else int(grace * 1000))
            if self._opened is not None:
                self._unwatch()
                await in_thread(self._opened.close)

    async def serve_forever(self) -> None:
        """Serve until Ctrl+C or SIGTERM (on the main thread) or :meth:`stop`, then drain."""
        if self._app is None:
            await self.start()
        app = self._running
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, app.begin_stop)
        try:
            await app.wait_for_termination()
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            await self.stop()

    @property
    def port(self) -> int:
        return self._running.port

    @property
    def address(self) -> str:
        return self._running.address

    @property
    def uri(self) -> str:
        return self._running.uri

    @property
    def token(self) -> str | None:
        return self._running.token

    @property
    def _running(self) -> ServerApp:
        if self._app is None:
            raise LocalProtocolError("the server has not been started; use 'async with' or start()")
        return self._app

    async def create_table(
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
    ) -> AsyncPublishedTable:
        """Create and publish a table; see :meth:`barrage.server.Server.create_table`."""
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
        made = await asyncio.wrap_future(self._parts.tables.create(recipe, rows))
        return AsyncPublishedTable(self._parts.tables, made.table, name)

    async def publish(
        self, name: str, view: TableHandle, *, is_read_only: bool = False
    ) -> AsyncView:
        """Publish a derived table (or another name for a table, which clients may write unless it
        ``is_read_only``). TableExistsError."""
        published = self._parts.tables.publish(name, view._table, is_read_only=is_read_only)
        await asyncio.wrap_future(published)
        return AsyncView(self._parts.tables, view._table, name)

    async def drop_table(self, name: str) -> None:
        """Take a table out of the catalog and end its subscriptions. TableNotFoundError."""
        await asyncio.wrap_future(self._parts.tables.drop(name))

    async def table_names(self) -> list[str]:
        """Names of all published tables, sorted."""
        return [f.name for f in await asyncio.wrap_future(self._parts.tables.all_facts())]

    def damaged_tables(self) -> dict[str, BarrageError]:
        """Tables of the data directory that could not be read, and why."""
        return dict(self._parts.catalog.blocked)

    def transaction(self, **numbered: Unpack[Numbered]) -> AsyncTransaction:
        """Changes of several tables in one atomic cycle, numbered by a producer or not."""
        return AsyncTransaction(self._parts.tables, **numbered)
