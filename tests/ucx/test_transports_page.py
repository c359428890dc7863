"""The code of docs/transports.md that fetches a table over UCX runs as it stands."""

from __future__ import annotations

import pyarrow as pa
import pytest

import barrage
from tests.unit.cli.test_examples import python_blocks

pytestmark = pytest.mark.ucx

ROWS = 200_000


def test_the_page_runs(library):
    _make, _connect, _subscribe, fetch = python_blocks("docs/transports.md")
    with barrage.Server(bodies="ucx") as server:
        quotes = server.create_table("quotes", {"price": "float64"})
        quotes.add(pa.table({"price": pa.array(range(ROWS), pa.float64())}))
        names: dict[str, object] = {}
        exec(fetch.replace("10000", str(server.port)), names)
    table = names["table"]
    assert isinstance(table, pa.Table)
    assert table.column("price").to_pylist() == list(range(ROWS))
