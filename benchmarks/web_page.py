"""The page in Chromium: first load, jumps among 10^8 rows, change to paint, CPU of a busy grid; and
the busy table in Deephaven's table widget, on the same server, and in Perspective's viewer.

``python -m benchmarks.web_page [--update PAGE]`` prints JSON and writes it to build/bench. It needs
the extras ``browser`` and ``interop``, Chromium and npm, so ``python -m benchmarks`` leaves it out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from barrage import Server
from barrage.server import ServerConfig
from barrage.web.static_files import STATIC
from benchmarks import __main__ as benchmark_names
from benchmarks.peers.viewers import DRAWN_ON_CANVAS, deephaven_files, perspective_page
from benchmarks.report import Measurement, result, save, update_table

ROWS = 100_000_000
JUMPS = 100
BUSY_SECONDS = 15
WARM_UP_MS = 2000
LARGE = {"width": 1900, "height": 1400}
PEERS = {"deephaven": "Deephaven's table widget", "perspective": "Perspective's viewer"}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--js-flags=--expose-gc"]

JUMP = """
async (rows) => {
  const grid = document.querySelector('live-grid');
  const root = grid.shadowRoot;
  const times = [];
  for (const row of rows) {
    const text = row.toLocaleString();
    const begin = performance.now();
    grid.goTo(row);
    for (;;) {
      await new Promise(requestAnimationFrame);
      const slots = [...root.querySelectorAll('.body > .row:not([hidden]):not(.unseen):not(.old)')];
      if (slots.some((slot) => slot.querySelector('.cell')?.textContent === text)) break;
    }
    times.push(performance.now() - begin);
  }
  return times;
}
"""


def main() -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m benchmarks.web_page", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--update", type=Path, metavar="PAGE")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("needs Chromium", file=sys.stderr)
        return 1
    with deephaven_files() as front, sync_playwright() as playwright:
        config = ServerConfig(web=True, web_origins=front.origin)
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        with Server(config=config) as server:
            parts = urlsplit(server.web_uri or "")
            front.lead_to(parts.hostname or "", parts.port or 0)
            figures: dict[str, Any] = {"first_load": first_load(), "paint": paint(server, browser)}
            figures["jump"] = jump(server, browser)
            with changing(server):
                figures["busy"] = busy(server, browser)
                figures["calm"] = busy(server, browser, reduced_motion="reduce")
                figures["deephaven"] = deephaven(browser, front.origin)
                figures["perspective"] = perspective(browser)
        browser.close()
    answer = result("web_page", lines(figures))
    save(answer, chosen.out)
    if chosen.update is not None:
        update_table(chosen.update, [answer], benchmark_names.NAMES)
    print(json.dumps(answer, indent=2))
    return 0


def line(name: str, value: float, unit: str, most: float | None, **detail: Any) -> Measurement:
    """A line of the table with a goal that bounds the value itself."""
    return Measurement(
        line=name,
        value=value,
        unit=unit,
        goal="" if most is None else f"≤ {most:g} {unit}",
        met=None if most is None else value <= most,
        detail=detail,
    )


def lines(figures: dict[str, dict[str, Any]]) -> list[Measurement]:
    load, paints, jumps, own = (figures[name] for name in ("first_load", "paint", "jump", "busy"))
    where = "50 rows x 12 columns, all changing at 10 Hz"
    found = [
        line("first load of the page, gzip", load["gzip_bytes"] / 1000, "KB", 60, **load),
        line("first contentful paint", paints["first_contentful_ms_median"], "ms", 700, **paints),
        line("jump to a random row among 10^8 until painted, p50", jumps["p50"], "ms", 60, **jumps),
        line("jump to a random row among 10^8 until painted, p99", jumps["p99"], "ms", 150),
        line(
            "change on the server until painted, 10 Hz, p99",
            own["change_to_paint_ms"]["p99"],
            "ms",
            150,
            **own["change_to_paint_ms"],
        ),
        line(f"main thread of the page, {where}", own["percent"], "% of a core", 15, **own),
        line(
            f"main thread without flashes, {where}",
            figures["calm"]["percent"],
            "% of a core",
            15,
            **figures["calm"],
        ),
        line("until a number is seen", own["seen_ms"], "ms", None),
        line(
            f"heap that came in {BUSY_SECONDS} s, {where}", own["heap_growth_bytes"] / 1e6, "MB", 1
        ),
    ]
    for name, title in PEERS.items():
        if name in figures:
            peer = figures[name]
            found += [
                line(f"{title}: loaded, gzip", peer["gzip_bytes"] / 1000, "KB", None, **peer),
                line(f"{title}: until a number is seen", peer["seen_ms"], "ms", None),
                line(f"{title}: main thread, {where}", peer["percent"], "% of a core", None),
            ]
    return found


def percentiles(values: list[float]) -> dict[str, float]:
    cuts = quantiles(values, n=100)
    return {"p50": round(cuts[49], 1), "p90": round(cuts[89], 1), "p99": round(cuts[98], 1)}


def first_load() -> dict[str, int]:
    html = (STATIC / "index.html").read_text()
    files = [STATIC / "index.html", *(path for path in STATIC.iterdir() if path.name in html)]
    return {
        "requests": len(files),
        "gzip_bytes": sum(len(gzip.compress(path.read_bytes(), 9)) for path in files),
    }


def paint(server: Server, browser: Any) -> dict[str, float]:
    """First contentful paint in pages with nothing kept from before."""
    server.create_table("small", kind="static", data={"x": [1, 2, 3]})
    times = []
    for _ in range(5):
        page = browser.new_context(bypass_csp=True).new_page()
        page.goto(f"{server.web_uri}#table=small")
        entry = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
        page.wait_for_function(entry)
        times.append(page.evaluate(entry))
        page.context.close()
    return {"first_contentful_ms_median": round(median(times), 1)}


def jump(server: Server, browser: Any) -> dict[str, float]:
    """From the call until a frame with the row has been made."""
    numbers = pa.array(np.arange(ROWS, dtype=np.int32))
    server.create_table("huge", kind="static", data=pa.table({"n": numbers}))
    page = browser.new_page(bypass_csp=True, viewport={"width": 1280, "height": 760})
    page.goto(f"{server.web_uri}#table=huge")
    page.wait_for_function("document.querySelector('live-grid')?.core?.window.size > 0")
    rows = np.random.default_rng(3).integers(0, ROWS, JUMPS).tolist()
    page.evaluate(JUMP, rows[:10])
    times = page.evaluate(JUMP, rows)
    page.close()
    server.drop_table("huge")
    return {"rows": ROWS, "jumps": JUMPS, **percentiles(times)}


@contextmanager
def changing(server: Server) -> Iterator[None]:
    """A table of 50 rows and 12 columns, every cell changed ten times a second."""
    names = [f"c{i}" for i in range(11)]
    table = server.create_table("busy", {"id": "int64"} | dict.fromkeys(names, "float64"), key="id")
    rng, stop = np.random.default_rng(5), threading.Event()

    def change() -> None:
        columns = {name: np.round(rng.uniform(0, 1000, 50), 2).tolist() for name in names}
        table.upsert({"id": list(range(50)), **columns})

    def run() -> None:
        while not stop.wait(0.1):
            change()

    change()
    worker = threading.Thread(target=run)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def opened(browser: Any, **options: Any) -> Any:
    page = browser.new_page(bypass_csp=True, viewport=LARGE, **options)
    page.set_default_timeout(120_000)
    return page


SEEN_IN_OURS = """
() => {
  const rows = document.querySelector('live-grid')?.shadowRoot.querySelectorAll('.body > .row');
  const isSeen = [...(rows ?? [])].some((row) => !row.hidden && !row.classList.contains('unseen'));
  return isSeen && performance.now();
}
"""


def busy(server: Server, browser: Any, **options: Any) -> dict[str, Any]:
    page = opened(browser, **options)
    page.goto(f"{server.web_uri}#table=busy")
    seen = page.wait_for_function(SEEN_IN_OURS, polling="raf").json_value()
    page.wait_for_timeout(WARM_UP_MS)
    heap = "(gc(), gc(), performance.memory.usedJSHeapSize)"
    count = "document.querySelector('live-grid').core.rows.updateCount"
    heap_before, updates = page.evaluate(heap), page.evaluate(count)
    spent = main_thread(page)
    updates = page.evaluate(count) - updates
    lag = page.evaluate("document.querySelector('live-grid').core.statistics.figures(Date.now())")
    grown = page.evaluate(heap) - heap_before
    page.close()
    return {
        "seen_ms": seen,
        "updates_per_s": round(updates / BUSY_SECONDS, 1),
        **spent,
        "change_to_paint_ms": {
            name: round(lag[f"latency{name.upper()}"], 1) for name in ("p50", "p99")
        },
        "heap_growth_bytes": grown,
    }


class Loaded:
    """What a page has asked for, counted as gzip would have it."""

    def __init__(self, page: Any) -> None:
        self._answers: list[Any] = []
        page.on("response", lambda answer: self._answers.append(answer))

    def gzip_bytes(self) -> int:
        bodies = [answer.body() for answer in self._answers if answer.status == 200]
        return sum(len(gzip.compress(body, 6)) for body in bodies)


def deephaven(browser: Any, origin: str) -> dict[str, Any]:
    """The table widget on our server."""
    page = opened(browser)
    loaded = Loaded(page)
    page.add_init_script(DRAWN_ON_CANVAS)
    page.goto(f"{origin}/iframe/widget/?name=busy")
    page.wait_for_function("globalThis.seenAt > 0")
    page.wait_for_timeout(WARM_UP_MS)
    figures = {"seen_ms": page.evaluate("seenAt"), "gzip_bytes": loaded.gzip_bytes()}
    drawn = page.evaluate("drawn")
    figures |= main_thread(page)
    figures["numbers_drawn_per_s"] = (page.evaluate("drawn") - drawn) / BUSY_SECONDS
    page.close()
    return figures


SEEN_IN_GRID = """
() => {
  const inside = (root) => [...root.querySelectorAll('*')].some((each) =>
    (each.localName === 'td' && /^\\d+(,\\d+)*\\.\\d+$/.test(each.textContent)) ||
    (each.shadowRoot && inside(each.shadowRoot)));
  return globalThis.change && inside(document) ? performance.now() : false;
}
"""
BEGIN_CHANGES = "() => { setInterval(change, 100); }"


def perspective(browser: Any) -> dict[str, Any]:
    """The viewer with its engine in a worker of the page, where changes are made."""
    with perspective_page() as address:
        page = opened(browser)
        loaded = Loaded(page)
        page.goto(address)
        seen = page.wait_for_function(SEEN_IN_GRID, polling="raf").json_value()
        figures = {"seen_ms": seen, "gzip_bytes": loaded.gzip_bytes()}
        page.evaluate(BEGIN_CHANGES)
        page.wait_for_timeout(WARM_UP_MS)
        figures |= main_thread(page)
        page.close()
    return figures


def main_thread(page: Any) -> dict[str, float]:
    """Percents of a core that it has spent in tasks, and on what of them."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, began = cpu_seconds(devtools), time.perf_counter()
    page.wait_for_timeout(BUSY_SECONDS * 1000)
    after, seconds = cpu_seconds(devtools), time.perf_counter() - began
    return {
        name: round(100 * (after[metric] - before[metric]) / seconds, 1)
        for name, metric in SPENT.items()
    }


SPENT = {
    "percent": "TaskDuration",
    "script_percent": "ScriptDuration",
    "style_percent": "RecalcStyleDuration",
    "layout_percent": "LayoutDuration",
}


def cpu_seconds(devtools: Any) -> dict[str, float]:
    """What the main thread of the page has spent so far."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return {metric["name"]: metric["value"] for metric in metrics}


if __name__ == "__main__":
    raise SystemExit(main())
