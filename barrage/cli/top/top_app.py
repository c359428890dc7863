"""The Textual application of ``barrage top``: a picture every second, sorted as one likes."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static

from barrage.cli.command_errors import EXIT_INTERRUPTED, CommandError, describe
from barrage.cli.top.picture_text import (
    ORDERS,
    alert_lines,
    connector_lines,
    duration_lines,
    subscription_lines,
    summary_lines,
)
from barrage.errors import BarrageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.app import ComposeResult

    from barrage.cli.top.picture import ServerPicture

ROWS_MAX = 1000
_KEYS = "s sorts by the next  space pause  ↑↓ scroll  q quit"


class TopApp(App[int]):
    """Asks for a picture again and again; one that cannot be had leaves the last one there."""

    CSS = """
    #head { height: 1; background: $primary-background; text-style: bold; }
    #foot { height: 1; color: $text-muted; }
    #durations { margin-top: 1; }
    #subscriptions { margin-top: 1; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q", "quit_with(0)", "quit"),
        Binding("s", "sort", "sort"),
        Binding("space", "hold", "pause"),
        Binding("ctrl+c", f"quit_with({EXIT_INTERRUPTED})", "interrupt", priority=True),
    ]

    def __init__(
        self,
        take: Callable[[], Awaitable[ServerPicture]],
        *,
        title: str,
        order: str,
        seconds: float,
    ) -> None:
        super().__init__()
        self._take = take
        self._name = title
        self._seconds = seconds
        self._orders = cycle(ORDERS)
        self._order = order
        while next(self._orders) != order:
            pass
        self._picture: ServerPicture | None = None
        self._trouble: str | None = None
        self._is_held = False
        self._is_looking = False

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with VerticalScroll():
            yield Static(id="summary")
            yield Static(id="durations")
            yield Static(id="subscriptions")
            yield Static(id="connectors")
            yield Static(id="alerts")
        yield Static(Text(_KEYS), id="foot")

    async def on_mount(self) -> None:
        self.set_interval(self._seconds, self.look)
        await self.look()

    async def look(self) -> None:
        """Take a picture and draw it, unless the one before is still being taken."""
        if self._is_held or self._is_looking:
            return
        self._is_looking = True
        try:
            self._picture = await self._take()
            self._trouble = None
        except (BarrageError, CommandError) as error:
            self._trouble = describe(error)
        finally:
            self._is_looking = False
        self.draw()

    def draw(self) -> None:
        """Show what is known."""
        state = self._trouble or ("paused" if self._is_held else "live")
        head = Text(f" {self._name}  ", no_wrap=True, overflow="ellipsis")
        head.append(f"● {state}", style="yellow" if self._trouble or self._is_held else "green")
        head.append(f"  sorted by {self._order}")
        self.query_one("#head", Static).update(head)
        picture = self._picture
        if picture is None:
            return
        width = max(40, self.size.width - 2)
        shown = {
            "summary": summary_lines(picture),
            "durations": duration_lines(picture),
            "subscriptions": subscription_lines(
                picture, order=self._order, rows_max=ROWS_MAX, width=width
            ),
            "connectors": connector_lines(picture, rows_max=ROWS_MAX, width=width),
            "alerts": alert_lines(picture, rows_max=ROWS_MAX, width=width),
        }
        for name, lines in shown.items():
            self.query_one(f"#{name}", Static).update(Text("\n".join(lines), no_wrap=True))

    def action_sort(self) -> None:
        self._order = next(self._orders)
        self.draw()

    def action_hold(self) -> None:
        self._is_held = not self._is_held
        self.draw()

    def action_quit_with(self, code: int) -> None:
        self.exit(code)
