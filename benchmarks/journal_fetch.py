"""The change feed and a snapshot out of a journal, by DoGet, against DoGet of the table itself.

All three are asked for by ``pyarrow.flight`` in a process of its own, in turn, and compared by
bytes per second: a feed row carries its change type, version, time and row id besides the table's
columns. The journal is on disk; the table was written in cycles of 50,000 rows, and one column of
half of it has been overwritten.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import pyarrow.flight as flight

import barrage
from barrage.server import ServerConfig
from benchmarks import shapes
from benchmarks.processes import child
from benchmarks.report import compared, result

CYCLE_ROWS = 50_000
WARM_UP_ROUNDS = 2
TABLE, CHANGES, SNAPSHOT = "table", "changes", "snapshot"


def serve(pipe: Connection, rows: int) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        barrage.Server(config=ServerConfig(data=directory)) as server,
    ):
        table = server.create_table("wide", shapes.SCHEMA, key=shapes.SCHEMA.names[0])
        for first in range(0, rows, CYCLE_ROWS):
            table.upsert(shapes.batch(first, CYCLE_ROWS))
        for first in range(0, rows // 2, CYCLE_ROWS):
            part = shapes.batch(first, CYCLE_ROWS)
            other = shapes.batch(first, CYCLE_ROWS, seed=1).column("volume")
            place = part.schema.get_field_index("volume")
            table.upsert(part.set_column(place, part.schema.field(place), other))
        pipe.send(server.uri)
        pipe.recv()


def read(pipe: Connection, uri: str) -> None:
    """Every word names what to read; the answer is how long it took and how much it was."""
    client = flight.connect(uri)
    (body,) = client.do_action(("journal.info", b'{"table": "wide"}'))
    info = json.loads(body.body.to_pybytes())
    at = {"table": "wide", "epoch": info["epoch"]}
    ends = {"from": info["earliest"], "to": info["version"]}
    tickets = {
        TABLE: b"s/wide",
        CHANGES: b"j/" + json.dumps({"mode": CHANGES, **at, **ends}).encode(),
        SNAPSHOT: b"j/" + json.dumps({"mode": SNAPSHOT, **at, "version": ends["to"]}).encode(),
    }
    pipe.send("ready")
    while (word := pipe.recv()) is not None:
        started = time.perf_counter()
        rows = size = 0
        for chunk in client.do_get(flight.Ticket(tickets[word])):
            rows, size = rows + chunk.data.num_rows, size + chunk.data.nbytes
        seconds = time.perf_counter() - started
        pipe.send({"rows": rows, "seconds": seconds, "rate": size / seconds / 1e6})
    client.close()


def run(*, quick: bool = False) -> dict[str, Any]:
    rows, rounds = (500_000, 3) if quick else (4_000_000, 9)
    answers: dict[str, list[dict[str, Any]]] = {TABLE: [], CHANGES: [], SNAPSHOT: []}
    with child(serve, rows) as server, child(read, server.ready) as reader:
        for _ in range(WARM_UP_ROUNDS + rounds):
            for word, told in answers.items():
                told.append(reader.ask(word))
    wanted = {TABLE: rows, CHANGES: rows + rows // 2, SNAPSHOT: rows}
    for word, told in answers.items():
        assert all(answer["rows"] == wanted[word] for answer in told), f"{word} was not complete"
    rates = {
        word: statistics.median(answer["rate"] for answer in told[WARM_UP_ROUNDS:])
        for word, told in answers.items()
    }
    return result(
        "journal_fetch",
        [
            compared(
                f"{what}, {wanted[word]:,} rows x {len(shapes.SCHEMA)} columns",
                rates[word],
                "MB/s",
                baseline="DoGet of the table",
                baseline_value=rates[TABLE],
                at_least=0.5,
                detail={"seconds": [answer["seconds"] for answer in answers[word]]},
            )
            for word, what in ((CHANGES, "changes"), (SNAPSHOT, "snapshot at a version"))
        ],
    )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
