"""The page in Chromium: first load, jumps among 10^8 rows, change to paint, CPU of a busy grid.

``python -m benchmarks.web_page`` prints JSON. It needs the extra ``browser`` and Chromium, so it is
no part of ``python -m benchmarks``.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import threading
import time
from statistics import quantiles

import numpy as np
import pyarrow as pa

from barrage import Server
from barrage.server import ServerConfig
from barrage.web.static_files import STATIC

ROWS = 100_000_000
JUMPS = 100
BUSY_SECONDS = 15
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

    chromium = shutil.which("chromium")
    if chromium is None:
        print("needs Chromium", file=sys.stderr)
        return 1
    with Server(config=ServerConfig(web=True)) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        figures = {"first_load": first_load(), "paint": paint(server, browser)}
        figures["jump"] = jump(server, browser)
        figures["busy"] = busy(server, browser)
        browser.close()
    print(json.dumps(figures, indent=2))
    return 0


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


def paint(server, browser) -> dict[str, float]:
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
    return {"first_contentful_ms_median": round(sorted(times)[2], 1)}


def jump(server, browser) -> dict[str, float]:
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


def busy(server, browser) -> dict[str, object]:
    """50 rows of 12 columns, every cell changed ten times a second."""
    names = [f"c{i}" for i in range(11)]
    table = server.create_table("busy", {"id": "int64"} | dict.fromkeys(names, "float64"), key="id")
    rng = np.random.default_rng(5)

    def change() -> None:
        columns = {name: np.round(rng.uniform(0, 1000, 50), 2).tolist() for name in names}
        table.upsert({"id": list(range(50)), **columns})

    change()
    page = browser.new_page(bypass_csp=True, viewport={"width": 1900, "height": 1400})
    page.goto(f"{server.web_uri}#table=busy")
    page.wait_for_function("document.querySelector('live-grid')?.core?.window.size > 0")
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.1):
            change()

    worker = threading.Thread(target=run)
    worker.start()
    try:
        page.wait_for_timeout(2000)
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        heap = "(gc(), gc(), performance.memory.usedJSHeapSize)"
        heap_before = page.evaluate(heap)
        before, began = cpu_seconds(devtools), time.perf_counter()
        count = "document.querySelector('live-grid').core.rows.updateCount"
        updates = page.evaluate(count)
        page.wait_for_timeout(BUSY_SECONDS * 1000)
        spent, seconds = cpu_seconds(devtools) - before, time.perf_counter() - began
        updates = page.evaluate(count) - updates
        lag = page.evaluate(
            "document.querySelector('live-grid').core.statistics.figures(Date.now())"
        )
        grown = page.evaluate(heap) - heap_before
    finally:
        stop.set()
        worker.join()
    page.close()
    return {
        "updates_per_s": round(updates / seconds, 1),
        "main_thread_share_of_a_core": round(spent / seconds, 3),
        "change_to_paint_ms": {
            "p50": round(lag["latencyP50"], 1),
            "p99": round(lag["latencyP99"], 1),
        },
        "heap_growth_bytes": grown,
    }


def cpu_seconds(devtools) -> float:
    """What the main thread of the page has spent in tasks."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


if __name__ == "__main__":
    raise SystemExit(main())
