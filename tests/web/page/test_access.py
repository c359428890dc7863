"""The page for everybody: assistive technology, themes, zoom, and nothing that a policy forbids."""

from __future__ import annotations

import gzip
import re
import subprocess
from pathlib import Path

import pytest

from barrage.web.static_files import STATIC
from tests.web.page.screen import wait_until

ROOT = Path(__file__).resolve().parents[3]
WEB = ROOT / "web"
FIRST_LOAD_BYTES_MAX = 60_000


@pytest.fixture
def quotes(server):
    table = server.create_table(
        "quotes", {"id": "int64", "symbol": "string", "price": "float64"}, key="id"
    )
    table.upsert({"id": list(range(100)), "symbol": ["A", None] * 50, "price": [1.5] * 100})
    return table


def audit(screen):
    """What axe-core finds, in the rules of WCAG 2.2 AA."""
    screen.page.evaluate((WEB / "node_modules/axe-core/axe.min.js").read_text())
    found = screen.page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa',"
        " 'best-practice']})"
    )
    return [
        f"{violation['id']}: {node['html'][:120]} {node['failureSummary']}"
        for violation in found["violations"]
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(server, quotes, open_screen, scheme):
    screen = open_screen(server, "#table=quotes", color_scheme=scheme)
    screen.wait_ready()
    assert audit(screen) == []
    screen.set_state(showsFilters=True, filters={"price": "> x"}, frozen=1)
    wait_until(lambda: screen.message)
    assert audit(screen) == []
    screen.in_grid(".tool").filter(has_text="Columns").click()
    assert audit(screen) == []
    screen.page.keyboard.press("Escape")
    quotes.upsert({"id": [0, 1], "symbol": ["B", "C"], "price": [9.0, -9.0]})
    wait_until(lambda: screen.cells()[0]["price"] == "9")
    assert audit(screen) == []


def test_a_screen_reader_knows_the_grid(server, quotes, open_screen):
    screen = open_screen(server, "#table=quotes")
    screen.wait_ready()
    grid = screen.focusable
    assert grid.get_attribute("aria-rowcount") == "101"
    assert grid.get_attribute("aria-colcount") == "4"
    assert grid.get_attribute("aria-label") == "quotes"
    screen.press("Control+End")
    wait_until(lambda: 99 in screen.cells())
    last = screen.in_grid("[role=row][aria-rowindex='101']")
    assert last.locator("[role=rowheader]").text_content() == "99"
    assert last.locator("[role=gridcell][aria-colindex='3']").text_content() == "null"


def test_the_page_at_two_hundred_percent(server, quotes, open_screen):
    screen = open_screen(
        server, "#table=quotes", viewport={"width": 640, "height": 480}, device_scale_factor=2
    )
    screen.wait_ready()
    assert screen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert len(screen.cells()) >= 3


def test_the_policy_of_the_page_is_strict(server, open_screen):
    screen = open_screen(server)
    answer = screen.page.request.get(server.web_uri)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_the_theme_is_kept(server, quotes, open_screen):
    screen = open_screen(server, "#table=quotes", color_scheme="dark")
    screen.wait_ready()
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = screen.page.evaluate(ground)
    screen.page.locator("button[aria-label='Theme: auto']").click()
    wait_until(lambda: screen.page.evaluate(ground) != dark)
    screen.page.reload()
    screen.wait_ready()
    assert screen.page.locator("button[aria-label='Theme: light']").count() == 1
    assert screen.page.evaluate(ground) != dark


def test_the_first_load_is_small():
    html = (STATIC / "index.html").read_text()
    first = [STATIC / "index.html", *(p for p in STATIC.iterdir() if p.name in html)]
    page = next(p for p in first if p.name.startswith("page-") and p.suffix == ".js").read_text()
    imported = set(re.findall(r'from"\./([^"]+)"', page))
    assert imported <= {p.name for p in first}
    later = {p.name.partition("-")[0] for p in STATIC.glob("*.js") if p not in first}
    # The last two are for notebooks and for the frame of Perspective.
    parts = {"alerts", "chart", "edit", "past", "perspective"}
    assert later - {"chunk"} == {*parts, "notebook.js", "perspective_frame"}
    assert sum(len(gzip.compress(p.read_bytes(), 9)) for p in first) < FIRST_LOAD_BYTES_MAX


def test_the_page_is_what_the_sources_build(tmp_path):
    subprocess.run(
        ["node", "scripts/build.mjs", str(tmp_path / "static")],
        cwd=WEB,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    built = {p.name: p.read_bytes() for p in (tmp_path / "static").iterdir()}
    kept = {p.name: p.read_bytes() for p in STATIC.iterdir() if not p.name.startswith(".")}
    assert built == kept, "run `make web` and commit what it makes"
