"""What live tables can do for notebooks: show themselves, and feed Perspective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from barrage.client.notebook.perspective_mirror import MIRROR, PerspectiveMirror
from barrage.client.notebook.showing import HEIGHT
from barrage.client.notebook.shown_live import html_of, showing_of
from barrage.supervision import no_dependants, start_task

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    import pyarrow as pa

    from barrage.client.notebook.first_rows import FirstRows
    from barrage.client.notebook.showing import Showing
    from barrage.client.notebook.widget import LiveTable
    from barrage.client.subscriptions.state import SubscriptionSettings
    from barrage.client.updates.update import Update


class InNotebook(ABC):
    """Base of live tables."""

    _settings: SubscriptionSettings
    _columns: tuple[str, ...] | None
    _mirroring: asyncio.Task[None] | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the table that it follows."""

    @property
    @abstractmethod
    def table_size(self) -> int:
        """Rows of that table."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """The rows now."""

    @abstractmethod
    def updates(self) -> AsyncIterator[Update]:
        """Follow the table from now on; the first update is the whole state."""

    async def show(self, *, height: int = HEIGHT) -> LiveTable | FirstRows:
        """What a notebook displays as a live grid: all rows of the table that this one follows, of
        the same columns. See :meth:`AsyncRemoteTable.show`."""
        return (await self._showing(height=height)).displayed()

    async def _showing(self, *, height: int = HEIGHT) -> Showing:
        """What :meth:`show` needs of the server."""
        return await showing_of(self, self._settings.source, self._columns, height=height)

    async def to_perspective(self, client: Any = None, *, name: str | None = None) -> Any:
        """A table of Perspective's with these rows, kept in step for as long as this one lives.
        ``client``: of the Perspective to have it, otherwise one of this process. Its index is the
        column ``_row``. Needs the extra ``perspective``, a subscription without a viewport, and its
        first state."""
        updates = self.updates()
        mirror = PerspectiveMirror(client, self.to_arrow().schema, name=name)
        mirror.apply(await anext(updates))
        work = mirror.follow_on_loop(updates, self.updates)
        self._mirroring = start_task(MIRROR, work, on_death=no_dependants)
        return mirror.table

    def _repr_html_(self) -> str | None:
        return html_of(self)
