"""The boards that come with the sources: opened from their files, upon data that moves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from barrage.cli.host_tables import HostTables
from tests.spark.session import has_java, java_options
from tests.web.page.conftest import web_server
from tests.web.page.screen import HANG_SECONDS, wait_until
from tests.web.page.test_access import audit

SPARK_SECONDS_MAX = 240
"""Until a Spark has started and its queries have written, twice."""

BOARDS = Path(__file__).resolve().parents[3] / "examples" / "boards"


def open_file(screen, path):
    screen.page.get_by_label("File of a board").set_input_files(path)


def drawn(screen, index):
    return screen.page.evaluate(
        "i => JSON.stringify(document.querySelectorAll('live-chart')[i]?.shown?.series ?? null)",
        index,
    )


def ticks(look, hang_seconds=HANG_SECONDS):
    """It shows something, and something else later."""
    first = wait_until(look, hang_seconds=hang_seconds)
    wait_until(lambda: look() not in (None, first), "a change", hang_seconds=hang_seconds)


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


def named_page(process):
    """The address in the second line of the example."""
    lines = iter(process.stdout.readline, "")
    return next(found.group() for line in lines if (found := re.search(r"http://[\d.:]+/", line)))


@pytest.mark.spark
def test_the_board_of_a_spark_job(open_screen):
    pytest.importorskip("pyspark")
    if not has_java():
        pytest.skip("needs Java")
    example = BOARDS.parent / "spark_pipeline" / "pipeline.py"
    started = subprocess.Popen(
        [sys.executable, example, "--kills", "0", "--batches", "1000"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "JDK_JAVA_OPTIONS": java_options()},
    )
    with started as job:
        try:
            screen = open_screen(named_page(job), "#table=orders")
            screen.wait_ready()
            open_file(screen, BOARDS / "spark.json")
            for grid in (0, 1):
                ticks(lambda grid=grid: screen.cells(grid) or None, SPARK_SECONDS_MAX)
            for index in (0, 1):
                ticks(lambda index=index: drawn(screen, index))
            big = screen.page.locator("live-chart").nth(2).locator(".big .value")
            ticks(lambda: big.text_content() or None)
            assert {"sym", "minute", "count"} == screen.cells(0)[0].keys()
            assert {"order", "sym", "qty"} == screen.cells(1)[0].keys()
            assert job.poll() is None
        finally:
            os.killpg(job.pid, signal.SIGKILL)  # its server and its Spark are of its group


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
