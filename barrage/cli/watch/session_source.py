"""The grid's source from a real subscription: one viewport, moved as the screen moves.

Everything runs on one event loop. At most one change of the viewport is on its way: while it is,
wishes only replace each other, so holding a key down asks as often as the server answers, and every
snapshot that arrives belongs to the change that was asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from barrage.cli.command_errors import short_reason
from barrage.cli.watch.window_source import Frame, SourceStatus
from barrage.client.subscriptions.state import State
from barrage.supervision import Role, start_task

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.cli.watch.scroller import RowWindow
    from barrage.client import AsyncTickingTable, Update
    from barrage.errors import BarrageError

MOVER = Role("barrage-viewport", "the screen: the viewport does not follow it")


class SessionSource:
    """The newest frame of one subscription. ``window`` is the one it was opened with."""

    def __init__(
        self,
        ticking: AsyncTickingTable,
        *,
        key_columns: tuple[str, ...],
        window: RowWindow,
    ) -> None:
        self._ticking = ticking
        self._schema = ticking.schema
        self._key_columns = key_columns
        self._shown = window
        self._asked: RowWindow | None = None
        self._wanted = window
        self._is_answered = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._frame: Frame | None = None
        self._version = 0
        self._death: BarrageError | None = None
        if ticking.state is State.LIVE:
            self._show()
        self._stop_following = ticking.on_update(self._take)

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._key_columns

    def frame(self) -> Frame | None:
        return self._frame

    def status(self) -> SourceStatus:
        ticking, lag = self._ticking, self._ticking.lag
        stats = ticking.stats
        is_live = ticking.state is State.LIVE
        state = ticking.state.value
        if ticking.error is not None and not is_live:
            state = f"{state}: {short_reason(ticking.error)}"
        return SourceStatus(
            state=state,
            is_live=is_live,
            updates_per_second=stats.updates_per_second,
            lag_ms=None if lag is None else lag * 1e3,
            resumption=ticking.resumption,
            bodies=ticking.bodies,
            body_stats=stats.bodies,
            failure=ticking.error if ticking.state is State.FAILED else self._death,
        )

    def request(self, window: RowWindow) -> None:
        self._wanted = window
        is_asking = self._asking is not None and not self._asking.done()
        if window != self._shown and not is_asking and self._ticking.state is State.LIVE:
            self._asking = start_task(MOVER, self._ask(), on_death=self._died)

    async def close(self) -> None:
        """Stop following; the subscription is its owner's to close."""
        self._stop_following()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _died(self, error: BarrageError) -> None:
        """The screen would stay where it is, whatever is pressed."""
        self._death = error

    async def _ask(self) -> None:
        """Move the viewport until it is where the screen is."""
        while self._wanted != self._shown and not self._ticking.state.is_final:
            window = self._asked = self._wanted
            self._is_answered.clear()
            await self._ticking.set_viewport((window.start, window.stop), reverse=window.is_reverse)
            await self._is_answered.wait()

    def _take(self, update: Update) -> None:
        """An update was applied. More may have been by now; each of them is told as well."""
        if update.is_snapshot and self._asked is not None:
            self._shown, self._asked = self._asked, None
            self._is_answered.set()
        self._show()

    def _show(self) -> None:
        """Make a frame of the rows of now."""
        self._version += 1
        size = self._ticking.table_size
        self._frame = Frame(
            version=self._version,
            rows=self._ticking.to_arrow(),
            first_row=self._shown.first_row(size),
            table_size=size,
        )
