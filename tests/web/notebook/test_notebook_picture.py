"""The picture of a notebook that the documents show: `make pictures` takes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.web.page.market import Market
from tests.web.page.screen import wait_until

PICTURES = Path(os.environ.get("BARRAGE_PICTURES", ""))


@pytest.mark.skipif("BARRAGE_PICTURES" not in os.environ, reason="only `make pictures` takes it")
def test_pictures_of_a_notebook(server, open_notebook):
    market = Market(server)
    cell = 'session.table("orders").where("price > 300").show(height=300)'
    notebook = open_notebook(server, cell)
    notebook.page.set_viewport_size({"width": 1100, "height": 620})
    notebook.run(1)
    wait_until(lambda: len(notebook.cells()) >= 5, "the grid")
    for _ in range(20):
        market.step()
        notebook.page.wait_for_timeout(100)
    notebook.page.screenshot(path=PICTURES / "notebook.png")
