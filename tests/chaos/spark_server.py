"""A server whose table never rests: ``python -m tests.chaos.spark_server PORT DATA SEED CONTROL``.

``DATA`` is a directory, or ``-`` for journals in memory. The process prints its address, then
changes the table ``book`` until a file ``pause`` is in the directory ``CONTROL``; while that is
there, ``rest`` beside it says that the last change is done.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import barrage

SCHEMA = {"sym": "string", "qty": "int64", "note": "string"}
TABLE = "book"


def change(table: barrage.server.PublishedTable, prng: random.Random, number: int) -> None:
    """One or two cycles: some keys new, some again, some gone."""
    keys = [f"k{prng.randrange(400)}" for _ in range(prng.randrange(1, 30))]
    table.upsert(
        [
            {"sym": key, "qty": number, "note": f"n{prng.random():.3f}"}
            for key in dict.fromkeys(keys)
        ]
    )
    if prng.random() < 0.4:
        held = [row["sym"] for row in table.to_arrow().to_pylist()]
        gone = prng.sample(held, min(len(held), prng.randrange(1, 5)))
        table.remove([{"sym": key} for key in gone])


def main(port: str, data: str, seed: str, control: str) -> None:
    directory = None if data == "-" else data
    journal = "memory" if directory is None else None
    pause, rest = Path(control, "pause"), Path(control, "rest")
    prng = random.Random(int(seed))
    with barrage.Server(port=int(port), data=directory, journal=journal) as server:
        if TABLE in server.table_names():
            table = server.table(TABLE)
        else:
            table = server.create_table(TABLE, SCHEMA, key="sym")
        sys.stdout.write(f"{server.uri}\n")
        sys.stdout.flush()
        number, wait = 0, threading.Event()
        while True:
            if pause.exists():
                rest.touch()
            else:
                rest.unlink(missing_ok=True)
                number += 1
                change(table, prng, number)
            wait.wait(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
