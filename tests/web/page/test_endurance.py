"""Grids and charts of a page that is hidden for a minute, and of one whose line is slow."""

from __future__ import annotations

import json
import urllib.parse

from tests.web.page.screen import wait_until
from tests.web.page.test_alerts import HIDE

ROWS = 200
STEP_MS = 3_000


def link():
    chart = {"table": "t", "kind": "bars", "values": ["n"], "rows": 5}
    board = {"rows": [{"panels": [{"grid": {"table": "t"}}, {"chart": chart}]}]}
    return f"#board={urllib.parse.quote(json.dumps(board))}"


def filled(server):
    table = server.create_table("t", {"id": "int64", "n": "int64", "text": "string"}, key="id")
    put(table, 0)
    return table


def put(table, n):
    table.upsert({"id": list(range(ROWS)), "n": [n] * ROWS, "text": [f"{n} " * 20] * ROWS})


def opened(server, open_screen):
    screen = open_screen(server, link())
    screen.wait_ready()
    wait_until(lambda: bars(screen) == [0] * 5, "the chart")
    return screen


def bars(screen):
    shown = screen.page.evaluate("document.querySelector('live-chart')?.shown?.series ?? []")
    return shown[0] if shown else None


def connection(screen, member):
    return screen.page.evaluate(f"document.querySelector('live-grid').connection.{member}")


def test_a_minute_out_of_sight(server, open_screen):
    """The clock of the page is moved by hand. It hears next to nothing, stays connected, and has
    the latest state at once when it is seen."""
    table = filled(server)
    screen = opened(server, open_screen)
    screen.page.clock.install()
    screen.page.evaluate(HIDE, True)
    # Once this is answered the server knows.
    connection(screen, "call('barrage.boards')")
    screen.page.clock.run_for(200)
    held = screen.cells()[0]["n"]
    heard = connection(screen, "bytesReceived")
    for step in range(60_000 // STEP_MS):
        put(table, 1 + step)
        screen.page.clock.run_for(STEP_MS)
        wait_until(lambda: connection(screen, "state") == "live", "the heartbeat")
    assert connection(screen, "bytesReceived") - heard < 20_000
    assert screen.cells()[0]["n"] == held
    screen.page.evaluate(HIDE, False)
    screen.page.clock.resume()
    last = 60_000 // STEP_MS
    wait_until(lambda: screen.cells().get(0, {}).get("n") == str(last), "the grid")
    wait_until(lambda: bars(screen) == [last] * 5, "the chart")
    assert screen.pill == "live"


def test_a_slow_line(server, open_screen):
    """What it cannot carry is merged: the last state comes, and nobody is disconnected for it."""
    table = filled(server)
    screen = opened(server, open_screen)
    throttle = screen.page.context.new_cdp_session(screen.page)
    throttle.send("Network.enable")
    throttle.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 50, "downloadThroughput": 30_000, "uploadThroughput": 30_000},
    )
    for n in range(1, 101):
        put(table, n)
    wait_until(lambda: screen.cells().get(0, {}).get("n") == "100", "the grid")
    wait_until(lambda: bars(screen) == [100] * 5, "the chart")
    assert (screen.pill, screen.message) == ("live", "")
