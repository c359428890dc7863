"""The Textual application around the grid: header, footer, goto prompt and the redraw timer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.widgets import Static

from barrage.cli.command_errors import EXIT_INTERRUPTED
from barrage.cli.watch.grid_view import GridView
from barrage.clock import SystemClock

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from barrage.cli.watch.window_source import SourceStatus, WindowSource
    from barrage.clock import Clock

REDRAW_SECONDS = 0.05
_KEYS = "↑↓ PgUp PgDn Home End  g row  f follow  ←→ columns  space pause  q quit"


class GridApp(App[int]):
    """A live table in the terminal. The source is asked at the redraw rate, never faster than the
    eye.
    """

    CSS = """
    #header { height: 1; background: $primary-background; text-style: bold; }
    #footer { height: 1; color: $text-muted; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = [
        Binding("q", "quit_with(0)", "quit"),
        Binding("ctrl+c", f"quit_with({EXIT_INTERRUPTED})", "interrupt", priority=True),
    ]

    def __init__(self, source: WindowSource, *, title: str, clock: Clock | None = None) -> None:
        super().__init__()
        self._source = source
        self._name = title
        self._clock = clock or SystemClock()
        self._written: dict[str, Text] = {}
        self.grid = GridView(source.schema, source.key_columns)

    def compose(self) -> ComposeResult:
        yield Static(id="header")
        yield self.grid
        yield Static(id="footer")

    def on_mount(self) -> None:
        self.grid.focus()
        self.set_interval(REDRAW_SECONDS, self.redraw)

    def redraw(self) -> None:
        """Ask for the rows the screen needs, take the newest frame, tell the state."""
        now_ns = self._clock.monotonic_ns()
        self._source.request(self.grid.scroller.window())
        self.grid.show(self._source.frame(), now_ns)
        status = self._source.status()
        self._write("header", self._header(status))
        self._write("footer", self._footer())

    def _write(self, name: str, text: Text) -> None:
        """Draw a line of text again only when it says something else."""
        if self._written.get(name) != text:
            self._written[name] = text
            self.query_one(f"#{name}", Static).update(text)

    def _footer(self) -> Text:
        row = self.grid.typed_row
        words = _KEYS if row is None else f"go to row: {row}▏  Enter goes, Esc stays"
        return Text(words, no_wrap=True, overflow="ellipsis")

    def _header(self, status: SourceStatus) -> Text:
        scroller = self.grid.scroller
        lag = "-" if status.lag_ms is None else f"{status.lag_ms:,.0f} ms"
        parts = [
            f"{scroller.table_size:,} rows",
            f"{status.updates_per_second:.1f} updates/s",
            f"lag {lag}",
            *status.ways,
        ]
        parts += ["following"] if scroller.is_following else []
        parts += ["paused"] if self.grid.is_paused else []
        text = Text(f" {self._name}  ", no_wrap=True, overflow="ellipsis")
        text.append(f"● {status.label}", style="green" if status.is_live else "yellow")
        text.append("  " + "  ".join(parts))
        return text

    def action_quit_with(self, code: int) -> None:
        self.exit(code)
