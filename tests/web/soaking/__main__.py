"""A page that stays open: ``python -m tests.web.soaking [--minutes 30] [--out FILE]``.

A board with grids, charts, an alert and a table's history is open in Chromium for so long, while
its tables change ten times a second. Each minute the history is gone through and played, and the
page and the server are looked at; it fails when the second half has made something grow
(:mod:`tests.web.soaking.verdict`), or when the page complained. The file has the whole series and
is written anew with every sample.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any

from tests.web.conftest import ARGUMENTS
from tests.web.page.screen import Screen, wait_until
from tests.web.soaking.verdict import judged

SAMPLES_PER_MINUTE = 1.0
CHANGED = "document.querySelector('live-grid').core.rows.updateCount"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.web.soaking", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=60, help="seconds between two samples")
    parser.add_argument("--out", type=Path, default=Path("build/night/page.json"))
    parser.add_argument("--leak", action="store_true", help="a page that leaks, to be found")
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    report = soaked(
        arguments.minutes * 60, arguments.every, out=arguments.out, leaks=arguments.leak
    )
    print(json.dumps({name: report[name] for name in report if name != "samples"}, indent=1))
    return 0 if report["is_good"] else 1


def link() -> str:
    """Three grids, the last of them for its history; three kinds of charts; two alerts."""
    load = {"table": "ordered", "values": ["load"], "label": "name"}
    total = {"table": "total", "values": ["load"]}
    board = {
        "rows": [
            {"panels": [{"grid": {"table": "ordered"}}, {"grid": {"table": "events"}}]},
            {
                "panels": [
                    {"chart": {**load, "kind": "bars"}},
                    {"chart": {**total, "kind": "line", "seconds": 60}},
                    {"chart": {**total, "kind": "number"}},
                    {"grid": {"table": "loads"}},
                ]
            },
        ],
        "alerts": [
            {"table": "loads", "where": "load > 99.9"},
            {"table": "events", "where": "n % 1000 == 0"},
        ],
    }
    return f"#board={urllib.parse.quote(json.dumps(board))}"


def soaked(seconds: float, every: float, *, out: Path, leaks: bool) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    command = [sys.executable, "-m", "tests.web.soaking.server"]
    with subprocess.Popen(command, **pipes) as server, sync_playwright() as playwright:  # type: ignore[call-overload]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        try:
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            screen = Screen(page)
            page.goto(server.stdout.readline().strip() + link())
            open_history(page)
            if leaks:
                page.evaluate(LEAK)
            return watched(Watched(server, screen), seconds, every, out)
        finally:
            browser.close()
            server.stdin.close()
            server.wait(60)


LEAK = """
() => {
  globalThis.kept = [];
  setInterval(() => {
    kept.push(document.createElement('div'), new Float64Array(1000), 'x'.repeat(100) + kept.length);
  }, 100);
}
"""


class Watched:
    """A page and its server, and how they are looked at."""

    def __init__(self, server: subprocess.Popen[str], screen: Screen) -> None:
        self.screen = screen
        self.page = screen.page
        self._server = server
        self._devtools = self.page.context.new_cdp_session(self.page)
        self._devtools.send("HeapProfiler.enable")

    def sample(self) -> dict[str, Any]:
        for _ in range(3):
            self._devtools.send("HeapProfiler.collectGarbage")
        usage = self._devtools.send("Runtime.getHeapUsage")
        counters = self._devtools.send("Memory.getDOMCounters")
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write("\n")
        return {
            "heap_bytes": usage["usedSize"],
            "buffer_bytes": usage["backingStorageSize"],
            "nodes": counters["nodes"],
            "listeners": counters["jsEventListeners"],
            "documents": counters["documents"],
            "updates": self.page.evaluate(CHANGED),
            **json.loads(self._server.stdout.readline()),
        }


def watched(seen: Watched, seconds: float, every: float, out: Path) -> dict[str, Any]:
    samples: list[dict[str, Any]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        use_history(seen.page)
        seen.page.wait_for_timeout(every * 1000)
        samples.append({"seconds": round(time.monotonic() - began, 1), **seen.sample()})
        out.write_text(json.dumps(told(samples, seen.screen.complaints), indent=1))
    return told(samples, seen.screen.complaints)


def told(samples: list[dict[str, Any]], complaints: list[str]) -> dict[str, Any]:
    verdict = judged(samples) if len(samples) >= 6 else {}
    is_flat = bool(verdict) and all(each["is_flat"] for each in verdict.values())
    return {
        "seconds": samples[-1]["seconds"],
        "updates": samples[-1]["updates"] - samples[0]["updates"],
        "is_good": is_flat and not complaints,
        "complaints": complaints[:20],
        "verdict": verdict,
        "samples": samples,
    }


def open_history(page: Any) -> None:
    wait_until(lambda: page.locator("live-grid").count() == 3, "the grids")
    wait_until(lambda: page.locator("live-chart").count() == 3, "the charts")
    page.locator("live-grid").nth(2).locator(".tool").filter(has_text="History").click()
    slider = page.locator("live-grid").nth(2).locator(".timeslider")
    slider.wait_for()
    wait_until(lambda: not slider.is_disabled(), "the slider")


def use_history(page: Any) -> None:
    """Drag the slider back and play from there."""
    grid = page.locator("live-grid").nth(2)
    grid.locator(".timeslider").evaluate(
        "slider => { slider.value = Math.floor(Number(slider.max) / 2);"
        " slider.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    page.wait_for_timeout(500)
    play = grid.get_by_label("Play", exact=True)
    if play.count():
        # What the alerts say may lie above it.
        play.dispatch_event("click")


if __name__ == "__main__":
    sys.exit(main())
