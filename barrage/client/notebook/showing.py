"""What ``show()`` gives: a widget where a kernel has pages, the first rows elsewhere."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from barrage.clock import SystemClock
from barrage.errors import ConfigError
from barrage.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Sequence

    from barrage.client.connection.connection import Connection
    from barrage.client.connection.table_sources import TableSource
    from barrage.client.notebook.first_rows import FirstRows
    from barrage.client.notebook.page_port import Pace
    from barrage.client.notebook.widget import LiveTable

HEIGHT = 400
"""Of a table that is shown, in pixels."""

HEIGHT_MIN, HEIGHT_MAX = 160, 4000

NEEDED = "anywidget"
NOT_INSTALLED = 'not live: pip install "barrage[notebook]"'
NO_NOTEBOOK = "not live: there is no notebook"
NO_NAME = "not live: only tables with a name on the server are, and queries to them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Showing:
    """What is to be shown, and what it takes to do it."""

    rows: FirstRows
    shown: dict[str, Any] | None
    """The table's name and operators; None where only its rows can be had."""
    connection: Connection
    loop: AbstractEventLoop
    height: int

    def displayed(self) -> LiveTable | FirstRows:
        """What a notebook displays. On the thread of whoever asked: a widget begins with a message
        of the cell that runs."""
        if self.shown is None:
            return replace(self.rows, note=NO_NAME)
        if not in_notebook():
            return replace(self.rows, note=NO_NOTEBOOK)
        if find_spec(NEEDED) is None:
            return replace(self.rows, note=NOT_INSTALLED)
        from barrage.client.notebook.kernel_pages import KernelPages
        from barrage.client.notebook.page_door import PageDoor
        from barrage.client.notebook.widget import LiveTable

        widget = LiveTable(self.shown, height=self.height, rows=self.rows)
        pages = KernelPages(
            partial(PageDoor, self.connection),
            widget.send_to_page,
            loop=self.loop,
            pace=_pace(),
            limits=self.connection.limits,
        )
        widget.connect(pages.received, pages.close)
        return widget


def height_of(height: int) -> int:
    """``height``, if a table may have it; ConfigError."""
    if isinstance(height, bool) or not isinstance(height, int):
        raise ConfigError(f"height is {height!r}, it must be a whole number of pixels")
    if not HEIGHT_MIN <= height <= HEIGHT_MAX:
        raise ConfigError(f"height is {height}, it must be from {HEIGHT_MIN} to {HEIGHT_MAX}")
    return height


async def shown_of(
    source: TableSource, columns: Sequence[str] | None = None
) -> dict[str, Any] | None:
    """How a page asks for a table: the name and the operators; None where it cannot."""
    if source.connection.address.is_deephaven:
        return None
    ticket = (await source.ticket()).decode(errors="replace")
    shown: dict[str, Any]
    if ticket.startswith("s/"):
        shown = {"table": ticket[2:], "operations": []}
    elif ticket.startswith("q/"):
        query = json.loads(ticket[2:])
        shown = {"table": query["table"], "operations": query["ops"]}
    else:
        return None
    if columns is not None:
        shown["operations"] = [*shown["operations"], ["select", list(columns)]]
    return shown


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@cache
def _pace() -> Pace:
    """Of this process: what it keeps to is a limit of the kernel, whatever sessions that has."""
    from barrage.client.notebook.page_port import Pace

    limits = DEFAULT_LIMITS
    return Pace(
        SystemClock(),
        bytes_per_s=limits.notebook_bytes_per_s,
        burst=limits.notebook_burst_bytes,
    )
