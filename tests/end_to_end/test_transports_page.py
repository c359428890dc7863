"""The code of docs/transports.md for shared memory runs as it stands, against a server that has it.
What is about UCX runs in tests/ucx."""

from __future__ import annotations

import pyarrow as pa

import barrage
from barrage.wire.dissociated.ways import BodyWay
from tests.unit.cli.test_examples import python_blocks

ROWS = 100_000


def test_the_page_runs(capsys):
    connect, subscribe, _ucx = python_blocks("docs/transports.md")
    with barrage.Server(bodies="shm") as server:
        quotes = server.create_table("quotes", {"price": "float64"})
        quotes.add(pa.table({"price": pa.array(range(ROWS), pa.float64())}))
        names = {"barrage": barrage}
        exec(connect.replace("10000", str(server.port)), names)
        with names["session"]:
            exec(subscribe, names)
            table = names["quotes"]
            assert table.bodies.way is BodyWay.SHM
            assert table.stats.bodies.shm.bytes >= 8 * ROWS
            assert table.to_arrow().column("price").to_pylist()[-1] == ROWS - 1
    said = capsys.readouterr().out
    assert said.startswith("shm\n")
    assert "BodyStats(" in said
