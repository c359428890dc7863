"""The grid widget: draws lines from the rows at hand and moves through a table it never loads.

Cost: one screen of cells is formatted when a new frame comes or the screen moves, at most at the
redraw rate, whatever the size of the table and the rate of its updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.strip import Strip
from textual.widget import Widget

from barrage.cli.cells import NULL_TEXT, is_right_aligned, printable
from barrage.cli.text_table import CELL_WIDTH_MAX, fit
from barrage.cli.watch.changes import Flash, FlashTracker, ScreenRow, screen_rows
from barrage.cli.watch.scroller import Scroller

if TYPE_CHECKING:
    import pyarrow as pa
    from textual import events

    from barrage.cli.watch.window_source import Frame

_COLUMN_WIDTH_MIN = 5
_GAP = "  "
_WHEEL_ROWS = 3
_ROW_DIGITS_MAX = 19

# Every segment has a style: Textual cannot take the colours out of none (NO_COLOR).
_PLAIN = Style()
_NAMES = Style(bold=True, underline=True)
_DIM = Style(dim=True)
_FLASHES = {
    Flash.UP: Style(color="black", bgcolor="green"),
    Flash.DOWN: Style(color="white", bgcolor="red"),
    Flash.CHANGED: Style(color="black", bgcolor="yellow"),
}


class GridView(Widget, can_focus=True):
    """Rows of one table. Invariant: everything drawn comes from one frame."""

    DEFAULT_CSS = "GridView { width: 1fr; height: 1fr; }"
    BINDINGS: ClassVar = [
        Binding("up", "scroll_rows(-1)", "up"),
        Binding("down", "scroll_rows(1)", "down"),
        Binding("pageup", "page(-1)", "page up"),
        Binding("pagedown", "page(1)", "page down"),
        Binding("home", "go_to(0)", "first row"),
        Binding("end", "end", "last row"),
        Binding("g", "ask_row", "go to a row"),
        Binding("f", "follow", "follow the end"),
        Binding("left", "scroll_columns(-1)", "columns left"),
        Binding("right", "scroll_columns(1)", "columns right"),
        Binding("space", "pause", "pause"),
    ]

    def __init__(self, schema: pa.Schema, key_columns: tuple[str, ...]) -> None:
        super().__init__()
        self.scroller = Scroller()
        self.is_paused = False
        self.typed_row: str | None = None
        """Digits typed so far at the prompt for a row; None while there is no prompt."""
        self._names = [printable(name) for name in schema.names]
        self._right = [is_right_aligned(field.type) for field in schema]
        self._widths = [
            max(_COLUMN_WIDTH_MIN, min(cell_len(n), CELL_WIDTH_MAX)) for n in self._names
        ]
        self._key_columns = key_columns
        self._tracker = FlashTracker()
        self._frame: Frame | None = None
        self._rows: dict[int, ScreenRow] = {}
        self._shown: tuple[int, int, int] | None = None
        self._first_column = 0
        self._now_ns = 0

    # -- data in

    def show(self, frame: Frame | None, now_ns: int) -> None:
        """Take the newest frame (ignored while paused, unless the screen has moved off the held
        one).
        """
        self._now_ns = now_ns
        if frame is not None and (not self.is_paused or not self._covers_screen()):
            self._frame = frame
            self.scroller.set_table_size(frame.table_size)
        is_changed = self._format_visible()
        if self._tracker.expire(now_ns) or is_changed:
            self.refresh()

    def _covers_screen(self) -> bool:
        frame = self._frame
        if frame is None:
            return False
        top, stop = (
            self.scroller.top,
            min(self.scroller.top + self.scroller.height, frame.table_size),
        )
        return frame.first_row <= top and stop <= frame.first_row + frame.rows.num_rows

    def _format_visible(self) -> bool:
        """Format the rows on screen, once for each frame and place; whether anything may look
        different.
        """
        frame = self._frame
        if frame is None:
            return False
        shown = (frame.version, self.scroller.top, self.scroller.height)
        if shown == self._shown:
            return False
        self._shown = shown
        offset = max(0, self.scroller.top - frame.first_row)
        stop = max(offset, self.scroller.top + self.scroller.height - frame.first_row)
        rows = screen_rows(
            frame.rows.slice(offset, stop - offset),
            first_row=frame.first_row + offset,
            key_columns=self._key_columns,
        )
        self._rows = {row.position: row for row in rows}
        self._tracker.show(rows, self._now_ns)
        self._widen(rows)
        return True

    def _widen(self, rows: list[ScreenRow]) -> None:
        """Columns only ever grow, so that they do not dance while values change."""
        for row in rows:
            for index, text in enumerate(row.texts):
                if text is not None and len(text) > self._widths[index]:
                    self._widths[index] = min(cell_len(text), CELL_WIDTH_MAX)

    # -- moving

    def action_scroll_rows(self, rows: int) -> None:
        self.scroller.scroll_by(rows)
        self._moved()

    def action_page(self, pages: int) -> None:
        self.scroller.page(pages)
        self._moved()

    def action_go_to(self, row: int) -> None:
        self.scroller.go_to(row)
        self._moved()

    def action_ask_row(self) -> None:
        self.typed_row = ""

    def on_key(self, event: events.Key) -> None:
        """While the prompt is open every key is its own; keys may come faster than the screen."""
        typed = self.typed_row
        if typed is None:
            return
        event.stop()
        event.prevent_default()
        if event.key == "backspace":
            self.typed_row = typed[:-1]
        elif event.key in ("enter", "escape"):
            self.typed_row = None
            if typed and event.key == "enter":
                self.action_go_to(int(typed))
        elif event.character is not None and event.character in "0123456789":
            self.typed_row = (typed + event.character)[:_ROW_DIGITS_MAX]

    def action_end(self) -> None:
        self.scroller.end()
        self._moved()

    def action_follow(self) -> None:
        self.scroller.follow(not self.scroller.is_following)
        self._moved()

    def action_scroll_columns(self, columns: int) -> None:
        last = max(0, len(self._names) - 1)
        self._first_column = min(max(0, self._first_column + columns), last)
        self.refresh()

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_scroll_rows(_WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_scroll_rows(-_WHEEL_ROWS)

    def on_resize(self, event: events.Resize) -> None:
        self.scroller.resize(event.size.height - 1)
        self._moved()

    def _moved(self) -> None:
        self._format_visible()
        self.refresh()

    # -- drawing

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y == 0:
            segments = self._name_segments()
        else:
            position = self.scroller.top + y - 1
            segments = self._row_segments(position) if position < self.scroller.table_size else []
        body = Strip(segments).adjust_cell_length(max(0, width - 1), _PLAIN)
        return Strip([*body, self._scrollbar(y)]).adjust_cell_length(width, _PLAIN)

    @property
    def _gutter(self) -> int:
        """Width of the row numbers."""
        return len(str(max(0, self.scroller.table_size - 1)))

    def _name_segments(self) -> list[Segment]:
        segments = [Segment(" " * self._gutter, _PLAIN)]
        for index in range(self._first_column, len(self._names)):
            segments.append(Segment(_GAP, _PLAIN))
            text = fit(self._names[index], self._widths[index], is_right=self._right[index])
            segments.append(Segment(text, _NAMES))
        return segments

    def _row_segments(self, position: int) -> list[Segment]:
        segments = [Segment(str(position).rjust(self._gutter), _DIM)]
        row = self._rows.get(position)
        if row is None:
            segments.append(Segment(f"{_GAP}…", _DIM))
            return segments
        room = self.size.width - self._gutter
        for index in range(self._first_column, len(self._names)):
            if room <= 0:
                break
            segments.append(Segment(_GAP, _PLAIN))
            segments.append(self._cell(row, index))
            room -= self._widths[index] + len(_GAP)
        return segments

    def _cell(self, row: ScreenRow, index: int) -> Segment:
        text = row.texts[index]
        flash = self._tracker.flash(row, index, self._now_ns)
        style = _FLASHES[flash] if flash is not None else (_DIM if text is None else _PLAIN)
        shown = NULL_TEXT if text is None else text
        return Segment(fit(shown, self._widths[index], is_right=self._right[index]), style)

    def _scrollbar(self, y: int) -> Segment:
        """Where the screen stands in the table; empty when everything is in view."""
        size, height = self.scroller.table_size, self.scroller.height
        if y == 0 or size <= height:
            return Segment(" ", _PLAIN)
        thumb = max(1, height * height // size)
        start = self.scroller.top * (height - thumb) // max(1, size - height)
        return Segment("█" if start <= y - 1 < start + thumb else "│", _DIM)
