"""The pictures of the page that the documents show: `make pictures` takes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.web.page.conftest import web_server
from tests.web.page.market import Market
from tests.web.page.screen import wait_until

PICTURES = Path(os.environ.get("BARRAGE_PICTURES", ""))

pytestmark = pytest.mark.skipif(
    "BARRAGE_PICTURES" not in os.environ, reason="only `make pictures` takes them"
)

SMALL = {"width": 960, "height": 480}
STEPS = 20


def moved(market, screen):
    """After changes that are seen, among them cells that flash."""
    for _ in range(STEPS):
        market.step()
        screen.page.wait_for_timeout(100)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_a_board(server, open_screen, scheme):
    market = Market(server)
    size = {"width": 1280, "height": 720}
    screen = open_screen(server, market.link, color_scheme=scheme, viewport=size)
    wait_until(lambda: len(screen.cells(1)) >= 5, "the panels")
    moved(market, screen)
    screen.page.screenshot(path=PICTURES / f"dashboard-{scheme}.png")


def test_pictures_of_a_grid(server, open_screen):
    market = Market(server)
    screen = open_screen(server, "#table=orders", color_scheme="light", viewport=SMALL)
    screen.wait_ready()
    filters = {"symbol": "in AAPL, NVDA", "qty": ">= 2000"}
    screen.set_state(showsFilters=True, filters=filters, sort=[{"name": "price"}])
    wait_until(lambda: 0 < screen.row_count < 20_000 and len(screen.cells()) >= 5)
    moved(market, screen)
    screen.page.screenshot(path=PICTURES / "grid.png")


def test_pictures_of_history(tmp_path, open_screen):
    with web_server(data=str(tmp_path)) as server:
        market = Market(server)
        screen = open_screen(server, "#table=orders", color_scheme="light", viewport=SMALL)
        screen.wait_ready()
        moved(market, screen)
        screen.press("h")
        slider = screen.in_grid("input[type=range]")
        wait_until(slider.is_visible, "the slider")
        slider.press("ArrowLeft")
        slider.press("ArrowLeft")
        wait_until(lambda: screen.is_current and len(screen.cells()) >= 5)
        screen.page.screenshot(path=PICTURES / "history.png")


def test_pictures_of_perspective(server, open_screen):
    pytest.importorskip("perspective")
    market = Market(server)
    screen = open_screen(server, market.pivot_link, color_scheme="light", viewport=SMALL)
    is_there = "live-perspective .inside[aria-busy=false]"
    wait_until(lambda: screen.page.query_selector(is_there), "the rows")
    moved(market, screen)
    screen.page.screenshot(path=PICTURES / "perspective.png")
