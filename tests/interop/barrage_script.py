"""Runs a server of this package in a process of its own: the tables of the matrix, changed on
command.

The twin of ``deephaven_script.py``: the same tables under the same names, the same updates from
the same seed, the same commands (:mod:`tests.interop.driven_server`).
"""

from __future__ import annotations

import faulthandler
import gc
import json
import pathlib
import signal
import sys

import psutil
import pyarrow as pa

import barrage
from barrage.engine.tables.table import Table
from barrage.limits import NANOS_PER_MS, Limits
from barrage.server import ServerConfig
from tests.helpers.living import Living
from tests.helpers.secured import IS_SECURED, Secured, rules
from tests.interop.workload import (
    AFFECTED,
    KEY_COLUMNS,
    RING_ROWS,
    SMALL_VALUE,
    SOURCES,
    Workload,
    all_types,
)

faulthandler.register(signal.SIGUSR1, all_threads=True)  # What it hangs in goes to the log.
workload = Workload(int(sys.argv[2]))
directory = pathlib.Path(sys.argv[3])
INTERVAL_NS = 20 * NANOS_PER_MS
"""The interval for clients that leave it to the server, as short as that of the real one here."""

EXPORT_WAIT_NS = 1000 * NANOS_PER_MS
PARTS = (
    "sorted_by_value",
    "small_values",
    "last_rows",
    "joined",
    "per_digit",
    "ring",
    "grown",
    "big",
    "extra",
    "types",
    "feed",
)
"""What clients are shown by an operator of rules, where the server has rules (:func:`rules`): they
write none of these."""

LIMITS = Limits(interval_ns_default=INTERVAL_NS, export_wait_ns_max=EXPORT_WAIT_NS)

living_tables = Living(Table).begin()
settings = Secured(directory).settings() if IS_SECURED else {}
config = ServerConfig(port=int(sys.argv[1]), limits=LIMITS, **settings)
server = barrage.Server(config=config, policy=rules(*PARTS) if IS_SECURED else None)
versions: dict[str, int] = {}
tables: dict = {}


def create_tables() -> None:
    for name, schema in SOURCES.items():
        kind = "blink" if name == "feed" else None
        tables[name] = server.create_table(name, schema, key=KEY_COLUMNS.get(name), kind=kind)
        rows = workload.initial[name]
        if rows.num_rows:
            verb = "upsert" if name in KEY_COLUMNS else "add"
            getattr(tables[name], verb)(rows)
    tables["ring"] = server.create_table("ring", SOURCES["feed"], capacity=RING_ROWS)
    fixed_tables = {
        name: workload.initial[name] for name in ("static_rows", "no_rows", "odd_lists")
    }
    for name, rows in {**fixed_tables, "all_types": all_types()}.items():
        tables[name] = server.create_table(name, data=rows, kind="static")
    keyed = tables["keyed"]
    derive("sorted_by_value", lambda: keyed.sort("V", "K"))
    derive("small_values", lambda: keyed.where(f"V < {SMALL_VALUE}"))
    derive("last_rows", lambda: keyed.tail(20))
    derive("joined", lambda: keyed.natural_join(tables["extra"], on=["K"]))
    derive(
        "per_digit",
        lambda: keyed.select("V", "D", G="V - floor(V / 10) * 10").agg_by(
            "G", n="count()", total="sum(V)", lowest="min(V)", highest="max(D)"
        ),
    )


def derive(name: str, make) -> None:
    tables[name] = make()
    server.publish(name, tables[name])


def record(name: str, rows: pa.Table | None = None) -> None:
    """Keep what ``name`` holds now as its next version."""
    rows = tables[name].to_arrow() if rows is None else rows
    number = versions[name] = versions.get(name, -1) + 1
    write(rows, directory / f"{name}.{number}.arrow")


def write(rows: pa.Table, path: pathlib.Path | str) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


def apply(changes) -> None:
    """All changes of a step in one transaction, or one by one every other time: both ways must
    be right."""
    if workload.number % 2:
        for change in changes:
            apply_together([change])
    else:
        apply_together(changes)


def apply_together(changes) -> None:
    with server.transaction() as transaction:
        for change in changes:
            targets = ("feed", "ring") if change.table == "feed" else (change.table,)
            for target in targets:
                getattr(transaction, change.verb)(tables[target], change.rows)
    affected = {name: None for change in changes for name in AFFECTED[change.table]}
    for name in affected:
        record(name, changes_of("feed", changes) if name == "feed" else None)


def changes_of(name: str, changes) -> pa.Table:
    return pa.concat_tables([change.rows for change in changes if change.table == name])


def stats() -> dict:
    """What is in use; all but ``rss`` must come back to where it was when clients have gone."""
    gc.collect()
    app, runtime = server._running, server._parts.runtime
    sessions = list(app.sessions)
    return {
        "rss": psutil.Process().memory_info().rss,
        "streams": server.stream_count,
        "sessions": len(sessions),
        "exports": sum(len(session.exports) for session in sessions),
        "producers": len(runtime._producers),
        "tables": len(living_tables),
    }


def answer(words: list[str]) -> dict:
    if words[0] == "step":
        apply(workload.next_step().changes)
    elif words[0] == "big_step":
        apply(workload.next_big_step().changes)
    elif words[0] == "truth":
        write(tables[words[1]].to_arrow(), words[2])
    elif words[0] == "stats":
        return stats()
    return {"versions": versions, "step": workload.number}


def main() -> None:
    create_tables()
    for name in tables:
        record(name)
    server.start()
    print(json.dumps({"ok": True, "port": server.port, "versions": versions}), flush=True)
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] == "quit":
            break
        try:
            reply = {"ok": True, **answer(words)}
        except Exception as error:
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(reply), flush=True)
    server.stop()


main()
