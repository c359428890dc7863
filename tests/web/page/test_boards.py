"""The boards that come with the sources: opened from their files, upon data that moves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from barrage.cli.host_tables import HostTables
from tests.web.page.conftest import web_server
from tests.web.page.screen import wait_until
from tests.web.page.test_access import audit

BOARDS = Path(__file__).resolve().parents[3] / "examples" / "boards"


def open_file(screen, path):
    screen.page.get_by_label("File of a board").set_input_files(path)


def drawn(screen, index):
    return screen.page.evaluate(
        "i => JSON.stringify(document.querySelectorAll('live-chart')[i]?.shown?.series ?? null)",
        index,
    )


def ticks(look):
    """It shows something, and something else later."""
    first = wait_until(look)
    wait_until(lambda: look() not in (None, first), "a change")


def test_the_board_of_a_host(open_screen):
    with web_server() as server, HostTables(server):
        screen = open_screen(server, "#table=cpu")
        screen.wait_ready()
        open_file(screen, BOARDS / "host.json")
        wait_until(lambda: len(screen.cells(0)) > 3 and len(screen.cells(1)) > 0, "the grids")
        assert "cpu_percent" in next(iter(screen.cells(0).values()))
        for index in (0, 1):
            ticks(lambda index=index: drawn(screen, index))
        big = screen.page.locator("live-chart").nth(2).locator(".big .value")
        wait_until(lambda: big.count() and big.text_content() not in ("", "null"))
        assert audit(screen) == []


def test_the_board_of_an_order_book(open_screen, tmp_path):
    file = tmp_path / "order_book.parquet"
    subprocess.run([sys.executable, BOARDS / "order_book.py", file], check=True)
    play = "from barrage.cli.main import main; main()"
    with web_server() as server:
        address = f"localhost:{server.port}/book"
        words = ["replay", file, address, "--time", "time", "--key", "side,level", "--quiet"]
        player = subprocess.Popen([sys.executable, "-c", play, *words])
        try:
            wait_until(lambda: "book" in server.table_names())
            screen = open_screen(server, "#table=book")
            screen.wait_ready()
            open_file(screen, BOARDS / "order_book.json")
            ticks(lambda: screen.cells(0) or None)
            ticks(lambda: screen.cells(1) or None)
            for index in (0, 1):
                ticks(lambda index=index: drawn(screen, index))
            sides = [{cells["side"] for cells in screen.cells(grid).values()} for grid in (0, 1)]
            assert sides == [{"BID"}, {"ASK"}]
            assert player.poll() is None
        finally:
            player.kill()
            player.wait()


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"rows": []}'])
def test_a_file_that_is_no_board(server, open_screen, tmp_path, text):
    server.create_table("t", {"id": "int64"}, key="id").upsert({"id": [1]})
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    wrong = tmp_path / "wrong.json"
    wrong.write_text(text)
    open_file(screen, wrong)
    wait_until(
        lambda: "wrong.json is no board" in screen.page.locator("dialog[open]").text_content()
    )
    assert screen.state()["table"] == "t"
