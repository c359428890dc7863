"""What a user sees of the page, and does with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

HANG_SECONDS = 60

READ_GRID = """
(grid) => {
  const root = grid?.shadowRoot;
  if (!root) return null;
  const names = new Map();
  for (const head of root.querySelectorAll('.titles [role=columnheader]')) {
    const label = head.querySelector('.label');
    if (label) names.set(head.getAttribute('aria-colindex'), label.textContent);
  }
  const filters = root.querySelector('.filters').hidden ? 1 : 2;
  const rows = {};
  for (const row of root.querySelectorAll('.body > .row')) {
    if (row.hidden || row.classList.contains('unseen') || row.classList.contains('old')) continue;
    const cells = {};
    for (const cell of row.querySelectorAll('.cell')) {
      if (cell.hidden || cell.classList.contains('unknown')) continue;
      const isNull = cell.classList.contains('null');
      cells[names.get(cell.getAttribute('aria-colindex'))] = isNull ? null : cell.textContent;
    }
    rows[Number(row.getAttribute('aria-rowindex')) - 1 - filters] = cells;
  }
  return rows;
}
"""
READ_CELLS = f"(index) => ({READ_GRID})(document.querySelectorAll('live-grid')[index])"


def wait_until(
    look: Callable[[], Any], what: str = "", *, hang_seconds: float = HANG_SECONDS
) -> Any:
    """What ``look`` gives once it is true."""
    deadline = time.monotonic() + hang_seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what or 'the condition'} did not come true in time"
        time.sleep(0.03)


class Screen:
    """A page of the browser."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        """Errors and warnings of the console, but for sockets that a test has cut."""
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _heard(self, message: Any) -> None:
        is_cut = "WebSocket connection to" in message.text or "ERR_CONNECTION" in message.text
        if message.type in ("error", "warning") and not is_cut:
            self.complaints.append(message.text)

    @property
    def grid(self) -> Any:
        return self.page.locator("live-grid").first

    @property
    def focusable(self) -> Any:
        return self.grid.locator("[role=grid]")

    def in_grid(self, selector: str) -> Any:
        return self.grid.locator(selector)

    def cells(self, index: int = 0) -> dict[int, dict[str, str | None]]:
        """Texts by row and column, of what is whole and as the server has it now."""
        rows = self.page.evaluate(READ_CELLS, index)
        return {int(row): cells for row, cells in (rows or {}).items()}

    def wait_ready(self) -> None:
        wait_until(lambda: self.is_current and (self.cells() or self.row_count == 0), "the rows")

    @property
    def is_current(self) -> bool:
        return bool(self.focusable.get_attribute("aria-busy") == "false")

    @property
    def pill(self) -> str:
        return str(self.in_grid(".pill").text_content())

    @property
    def message(self) -> str:
        message = self.in_grid(".message")
        return str(message.locator("span").text_content()) if message.is_visible() else ""

    @property
    def row_count(self) -> int:
        filters = 2 if self.in_grid(".row.filters").is_visible() else 1
        return int(self.focusable.get_attribute("aria-rowcount") or 0) - filters

    @property
    def columns(self) -> list[str]:
        """Names of the columns in sight, from left to right."""
        heads = self.in_grid(".titles .headcell")
        found = heads.evaluate_all(
            "heads => heads.filter(h => !h.hidden)"
            ".map(h => [Number(h.getAttribute('aria-colindex')),"
            " h.querySelector('.label').textContent]).sort((a, b) => a[0] - b[0])"
        )
        return [name for _, name in found]

    def go_to(self, row: int) -> None:
        self.page.evaluate("row => document.querySelector('live-grid').goTo(row)", row)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.focusable.press(key)

    def state(self) -> dict[str, Any]:
        return dict(self.page.evaluate("document.querySelector('live-grid').state"))

    def set_state(self, **part: Any) -> None:
        """As a user would have it changed by menus."""
        self.page.evaluate(
            "part => { const grid = document.querySelector('live-grid');"
            " grid.state = {...grid.state, ...part}; }",
            part,
        )

    def column_values(self, name: str) -> list[str | None]:
        """What stands in a column, from top to bottom."""
        return [cells[name] for _, cells in sorted(self.cells().items()) if name in cells]
