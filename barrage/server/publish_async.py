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
from typing import TYPE_CHECKING, Any, Self

from barrage.errors import LocalProtocolError
from barrage.server.publish import Transaction
from barrage.server.serving import ServingParts, effective_config
from barrage.server.table_handle import SourceHandle, TableHandle, names_of, recipe_and_rows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import pyarrow as pa

    from barrage.server.app import ServerApp
    from barrage.server.config import ServerConfig
    from barrage.server.table_handle import SchemaLike
    from barrage.server.table_service import Change


class AsyncView(TableHandle):
    """A derived table; see :class:`barrage.server.View`."""

    async def to_arrow(self) -> pa.Table:
        return await asyncio.wrap_future(self._service.read(self._table))

    async def select(self, /, *columns: str, **computed: str) -> AsyncView:
        return await self._view("select", *columns, **computed)

    async def drop(self, *columns: str) -> AsyncView:
        return await self._view("drop", *columns)

    async def where(self, condition: str) -> AsyncView:
        return await self._view("where", condition)

    async def sort(self, *keys: str | tuple[str, str]) -> AsyncView:
        return await self._view("sort", *keys)

    async def head(self, count: int) -> AsyncView:
        return await self._view("head", count)

    async def tail(self, count: int) -> AsyncView:
        return await self._view("tail", count)

    async def last_by(self, *columns: str) -> AsyncView:
        return await self._view("last_by", *columns)

    async def agg_by(self, /, *by: str, **aggregations: str) -> AsyncView:
        return await self._view("agg_by", *by, **aggregations)

    async def select_distinct(self, *columns: str) -> AsyncView:
        return await self._view("select_distinct", *columns)

    async def natural_join(
        self, right: TableHandle, on: str | Sequence[str], add: str | Sequence[str] = ()
    ) -> AsyncView:
        return await self._view("natural_join", right._table, names_of(on), names_of(add))

    async def merge(self, *others: TableHandle) -> AsyncView:
        return await self._view("merge", *(other._table for other in others))

    async def flatten(self) -> AsyncView:
        return await self._view("flatten")

    async def slice(self, start: int, stop: int) -> AsyncView:
        return await self._view("slice", start, stop)

    async def snapshot(self) -> AsyncView:
        return await self._view("snapshot")

    async def _view(self, method: str, /, *arguments: Any, **named: Any) -> AsyncView:
        table = await asyncio.wrap_future(self._derived(method, *arguments, **named))
        return AsyncView(self._service, table, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}, {len(self)} rows>"


class AsyncPublishedTable(AsyncView, SourceHandle):
    """A source table; see :class:`barrage.server.PublishedTable`. To not wait, make a task."""

    async def add(self, rows: Any) -> int:
        return await self._commit(self._add(rows))

    async def upsert(self, rows: Any) -> int:
        return await self._commit(self._upsert(rows))

    async def remove(self, keys: Any) -> int:
        return await self._commit(self._remove(keys))

    async def insert(self, position: int, rows: Any) -> int:
        return await self._commit(self._insert(position, rows))

    async def delete(self, start: int, stop: int) -> int:
        return await self._commit(self._delete(start, stop))

    async def replace(self, rows: Any) -> int:
        return await self._commit(self._replace(rows))

    async def _commit(self, change: Change) -> int:
        return await asyncio.wrap_future(self._service.change([change]))


class AsyncTransaction(Transaction):
    """A transaction whose commit is awaited."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_open = False
        if kind is None and self._changes:
            self.step = await asyncio.wrap_future(self._service.change(self._changes))


class AsyncServer:
    """A server on the running event loop; see :class:`barrage.server.Server`."""

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        token: str | None = None,
        config: ServerConfig | None = None,
    ) -> None:
        self._parts = ServingParts(effective_config(config, host=host, port=port, token=token))
        self._app: ServerApp | None = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> Self:
        """Listen; ConfigError when the address cannot be had."""
        if self._app is not None:
            raise LocalProtocolError("the server was started before")
        app = self._parts.make_app()
        await app.start()
        self._app = app
        return self

    async def stop(self, grace: float | None = None) -> None:
        """Drain and stop; idempotent."""
        if self._app is not None:
            await self._app.stop(None if grace is None else int(grace * 1000))
        await asyncio.to_thread(self._parts.runtime.stop)

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
        return f"grpc://{self._running.address}"

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

    def transaction(self) -> AsyncTransaction:
        """Changes of several tables in one atomic cycle."""
        return AsyncTransaction(self._parts.tables)
