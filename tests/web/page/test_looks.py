"""The page looks as it did: pictures in both themes and at both zooms, held against kept ones.

``make references`` takes them anew, after a change that is meant to be seen. Of a picture that
differs, what was seen lies in ``build/pictures``.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from tests.web.page.conftest import web_server
from tests.web.page.pictures import painting_browser, pixels, problem_of, smaller
from tests.web.page.screen import Screen, wait_until

ROOT = Path(__file__).resolve().parents[3]
FONTS = ROOT / "web/node_modules/dejavu-fonts-ttf/ttf"
KEPT = Path(__file__).parent / "references"
SEEN = ROOT / "build/pictures"
IS_RENEWING = "BARRAGE_REFERENCES" in os.environ
KEPT_BYTES_MAX = 600_000
ZOOMS = {
    100: {"viewport": {"width": 860, "height": 500}},
    200: {"viewport": {"width": 480, "height": 340}, "device_scale_factor": 2},
}
"""As a browser does it: at 200 % a window has half as many pixels of the page."""
THEMES = ("light", "dark")
HIDDEN = """
.figures { visibility: hidden !important; }
*, *::before, *::after { caret-color: transparent !important; }
"""
"""What tells of time, and carets."""
ROWS = 200
DAY_NS = 86_400 * 10**9


def fill(server: Any) -> None:
    """Tables that stand still."""
    quotes = {
        "id": "int64",
        "symbol": "string",
        "price": "float64",
        "size": "int32",
        "isOpen": "bool",
        "ts": pa.timestamp("ns", "UTC"),
    }
    table = server.create_table("quotes", quotes, key="id")
    table.upsert(
        {
            "id": list(range(ROWS)),
            "symbol": [None if i % 7 == 3 else f"S{i % 12}" for i in range(ROWS)],
            "price": [
                None if i % 11 == 5 else round(50 + (i * 37 % 100) * 0.73, 2) for i in range(ROWS)
            ],
            "size": [i * 131 % 1000 * 100 for i in range(ROWS)],
            "isOpen": [None if i % 5 == 4 else i % 2 == 0 for i in range(ROWS)],
            "ts": [20_000 * DAY_NS + i * 123_456_789 for i in range(ROWS)],
        }
    )
    wave = [round(40 + 30 * ((i * 7) % 13) / 13, 2) for i in range(60)]
    server.create_table("wave", kind="static", data={"x": list(range(60)), "y": wave})


def grid_link(**state: Any) -> str:
    return board_link([{"grid": {"table": "quotes", **state}}])


def board_link(*rows: list[dict[str, Any]], alerts: list[dict[str, str]] | None = None) -> str:
    board: dict[str, Any] = {"rows": [{"panels": panels} for panels in rows]}
    if alerts:
        board["alerts"] = alerts
    return f"#board={urllib.parse.quote(json.dumps(board))}"


CHARTS = [
    [
        {"grid": {"table": "quotes"}},
        {"chart": {"table": "wave", "kind": "line", "values": ["y"], "along": "x", "rows": 60}},
    ],
    [
        {
            "chart": {
                "table": "quotes",
                "kind": "bars",
                "values": ["price"],
                "label": "symbol",
                "rows": 10,
                "thresholds": [{"from": 60, "level": "wary"}, {"from": 90, "level": "bad"}],
            }
        },
        {
            "chart": {
                "table": "quotes",
                "kind": "number",
                "values": ["size"],
                "operations": [["where", "id == 3"]],
                "thresholds": [{"from": 0, "level": "good"}],
            }
        },
    ],
]


def drawn(screen: Screen, count: int) -> None:
    look = (
        "[...document.querySelectorAll('live-chart')].filter(c => c.shown?.series?.length).length"
    )
    wait_until(lambda: screen.page.evaluate(look) == count, "the charts")


def open_grid(screen: Screen) -> None:
    screen.in_grid("[role=gridcell]").nth(4).click()
    screen.press("Shift+ArrowDown", "Shift+ArrowRight")


def open_columns(screen: Screen) -> None:
    wait_until(lambda: screen.message)
    screen.in_grid(".tool").filter(has_text="Columns").click()


def open_charts(screen: Screen) -> None:
    drawn(screen, 3)


def open_settings(screen: Screen) -> None:
    drawn(screen, 1)
    screen.page.locator("live-chart").get_by_text("Settings").click()


def open_saving(screen: Screen) -> None:
    screen.page.get_by_role("button", name="Boards").click()
    screen.page.get_by_text("Save …").click()
    wait_until(lambda: screen.page.locator("dialog[open]").count() == 1, "the dialog")


def open_alerts(screen: Screen) -> None:
    rule = screen.page.locator(".alertrules small")
    wait_until(lambda: "rows" in "".join(rule.all_text_contents()), "the alert")
    screen.page.get_by_role("button", name="Alerts").click()


@dataclass(frozen=True)
class Scene:
    """What is opened, and what is done then."""

    link: str
    act: Callable[[Screen], None]


SCENES = {
    "grid": Scene(
        grid_link(
            showsFilters=True,
            filters={"size": "> 1000"},
            frozen=1,
            sort=[{"name": "price", "isDescending": True}],
        ),
        open_grid,
    ),
    "columns": Scene(grid_link(showsFilters=True, filters={"price": "> x"}), open_columns),
    "charts": Scene(board_link(*CHARTS), open_charts),
    "settings": Scene(board_link([CHARTS[1][0]]), open_settings),
    "saving": Scene(grid_link(), open_saving),
    "alerts": Scene(
        board_link(
            [{"grid": {"table": "quotes"}}], alerts=[{"table": "quotes", "where": "price > 100"}]
        ),
        open_alerts,
    ),
}


@pytest.fixture(scope="module")
def still() -> Any:
    with web_server() as served:
        fill(served)
        yield served


@pytest.fixture(scope="module")
def painting(browser: Any, tmp_path_factory: Any) -> Any:
    with painting_browser(browser, tmp_path_factory.mktemp("fonts"), FONTS) as launched:
        yield launched


def picture(
    painting: Any, server: Any, name: str, theme: str, zoom: int, *, style: str = ""
) -> bytes:
    """One picture of a scene, with nothing on it that moves."""
    scene = SCENES[name]
    context = painting.new_context(
        color_scheme=theme,
        reduced_motion="reduce",
        locale="en-US",
        timezone_id="UTC",
        bypass_csp=True,  # for the style that hides what tells of time
        **ZOOMS[zoom],
    )
    try:
        page = context.new_page()
        screen = Screen(page)
        page.goto(f"{server.web_uri}{scene.link}")
        if "grid" in scene.link:
            wait_until(lambda: screen.cells() or screen.message, "the rows")
        scene.act(screen)
        page.mouse.move(0, 0)
        return steady(
            lambda: page.screenshot(animations="disabled", caret="hide", style=HIDDEN + style)
        )
    finally:
        context.close()


def steady(take: Callable[[], bytes]) -> bytes:
    """A picture that is the same twice in a row."""
    before = [b""]

    def is_same() -> bool:
        before.append(take())
        return before[-1] == before[-2]

    wait_until(is_same, "a page that stands still")
    return before[-1]


@pytest.mark.parametrize("zoom", ZOOMS)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", SCENES)
def test_the_page_looks_as_it_did(painting, still, name, theme, zoom):
    seen = picture(painting, still, name, theme, zoom)
    path = KEPT / f"{name}-{theme}-{zoom}.png"
    if IS_RENEWING:
        KEPT.mkdir(exist_ok=True)
        path.write_bytes(smaller(seen))
        return
    problem = problem_of(path.read_bytes(), seen)
    if problem:
        SEEN.mkdir(parents=True, exist_ok=True)
        (SEEN / path.name).write_bytes(seen)
    assert problem == "", f"{path.name}: {problem}; `make references` if it is meant to be so"


def test_the_kept_pictures_are_small():
    assert len(list(KEPT.iterdir())) == len(SCENES) * len(THEMES) * len(ZOOMS)
    assert sum(path.stat().st_size for path in KEPT.iterdir()) < KEPT_BYTES_MAX


@pytest.mark.parametrize(
    ("name", "variable", "colour"),
    [
        ("grid", "--text", "#c0c8d0"),
        ("grid", "--line", "#43515f"),
        ("charts", "--accent", "#a08bff"),
        ("columns", "--bad", "#ff7d60"),
        ("saving", "--surface", "#262c33"),
    ],
)
def test_another_colour_in_one_theme_is_seen(painting, still, name, variable, colour):
    other = f"@media (prefers-color-scheme: dark) {{ * {{ {variable}: {colour} !important; }} }}"
    problems = {
        theme: problem_of(
            (KEPT / f"{name}-{theme}-100.png").read_bytes(),
            picture(painting, still, name, theme, 100, style=other),
        )
        for theme in THEMES
    }
    assert problems["light"] == ""
    assert "pixels differ" in problems["dark"]


def test_what_is_elsewhere_is_seen(painting, still):
    kept = (KEPT / "grid-light-100.png").read_bytes()
    for style in (".tool { margin-left: 2px; }", ".pill { display: none !important; }"):
        assert "differ" in problem_of(
            kept, picture(painting, still, "grid", "light", 100, style=style)
        )


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: path.stem)
def test_letters_may_be_softer(path):
    """As on a machine that smooths their edges otherwise; how they are fitted to pixels is the same
    everywhere, for the browser of these tests has its own settings for it."""
    kept = path.read_bytes()
    assert problem_of(kept, softened(kept)) == ""


def softened(png: bytes) -> bytes:
    """Every pixel with a tenth of those beside it."""
    found = pixels(png)
    beside = (np.roll(found, 1, axis=1) + np.roll(found, -1, axis=1)) // 2
    out = BytesIO()
    Image.fromarray((found + (beside - found) // 10).astype(np.uint8), "RGB").save(out, "PNG")
    return out.getvalue()
