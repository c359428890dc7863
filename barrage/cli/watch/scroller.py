"""Which rows the grid shows and which it subscribes to. Pure arithmetic on row positions.

The table may have 10^8 rows: only the visible rows and an overscan of one screen on each side are
ever subscribed to, and the window moves only when the visible rows come near its edge, so that
scrolling line by line asks the server once per half screen and not once per line.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWindow:
    """Positions to subscribe to: half-open, counted from the end when ``is_reverse``."""

    start: int
    stop: int
    is_reverse: bool = False

    @property
    def size(self) -> int:
        return self.stop - self.start

    def first_row(self, table_size: int) -> int:
        """Position from the top of the first row this window shows in a table of ``table_size``
        rows.
        """
        if not self.is_reverse:
            return min(self.start, table_size)
        return max(0, table_size - self.stop)


class Scroller:
    """Position of the screen in the table.

    Invariants: ``0 <= top <= max(0, table_size - height)``; while following, the last row is on
    screen.
    """

    def __init__(self, *, height: int = 1, table_size: int = 0) -> None:
        self._height = max(1, height)
        self._table_size = table_size
        self._top = 0
        self._is_following = False
        self._window: RowWindow | None = None

    @property
    def top(self) -> int:
        """Position of the first row on screen."""
        return self._top_max if self._is_following else min(self._top, self._top_max)

    @property
    def height(self) -> int:
        return self._height

    @property
    def is_following(self) -> bool:
        return self._is_following

    @property
    def table_size(self) -> int:
        return self._table_size

    @property
    def _top_max(self) -> int:
        return max(0, self._table_size - self._height)

    def resize(self, height: int) -> None:
        """The screen has room for ``height`` rows."""
        self._height = max(1, height)

    def set_table_size(self, table_size: int) -> None:
        """The table has so many rows now."""
        self._table_size = table_size

    def scroll_by(self, rows: int) -> None:
        """Down by ``rows``, up when negative; ends following."""
        self.go_to(self.top + rows)

    def page(self, pages: int) -> None:
        """By whole screens, keeping one line in view."""
        self.scroll_by(pages * max(1, self._height - 1))

    def go_to(self, row: int) -> None:
        """Show ``row`` at the top, or as near to it as the table allows."""
        self._is_following = False
        self._top = min(max(0, row), self._top_max)

    def end(self) -> None:
        """Show the last rows as they are now."""
        self.go_to(self._top_max)

    def follow(self, is_on: bool) -> None:
        """Keep the last row on screen as rows arrive, or stay where the screen is now."""
        if is_on:
            self._is_following = True
        else:
            self.end()

    def window(self) -> RowWindow:
        """What to subscribe to. The same object as before while it still covers the screen
        comfortably.
        """
        if self._window is None or not self._is_comfortable(self._window):
            self._window = self._fresh_window()
        return self._window

    def _fresh_window(self) -> RowWindow:
        if self._is_following:
            return RowWindow(start=0, stop=2 * self._height, is_reverse=True)
        start = max(0, self.top - self._height)
        return RowWindow(start=start, stop=self.top + 2 * self._height)

    def _is_comfortable(self, window: RowWindow) -> bool:
        """Whether the screen, and a quarter of a screen around it, lies inside the window."""
        if window.is_reverse != self._is_following or window.size > 6 * self._height:
            return False
        if self._is_following:
            return window.size >= self._height
        slack = self._height // 4
        is_top_fine = window.start <= max(0, self.top - slack)
        return is_top_fine and window.stop >= self.top + self._height + slack
