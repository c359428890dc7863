"""Makes a data directory as a server leaves it that is killed, and says what is in it:
``python make_directory.py TARGET``, with the ``barrage`` that is to write it importable.

Two runs: after the first, which ends cleanly, table ``book`` is compacted; the second is copied
while it runs, everything acknowledged, and half of one more record is put behind ``events``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from barrage.journal import JournalStore, LocalStorage
from barrage.journal.stores.offline import compact, find_table
from barrage.server import Server, ServerConfig

COLUMNS = {"n": pa.int64(), "text": pa.string()}
EVENTS_FILE = "tables/events/wal/00000002.arrow"


def rows(first: int, count: int = 2) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


def server_of(data: Path) -> Server:
    config = ServerConfig(data=str(data), port=0, journal_reserve_bytes=0)
    return Server(config=config)


def first_run(server: Server) -> None:
    events = server.create_table("events", COLUMNS)
    book = server.create_table("book", COLUMNS, key="n")
    ring = server.create_table("ring", COLUMNS, capacity=3)
    notes = server.create_table("notes/of 2026", COLUMNS, kind="list")
    blink = server.create_table("ticks", COLUMNS, kind="blink")
    for number in range(3):
        events.add(rows(10 * number), producer="feed", sequence=number)
        book.upsert(rows(number))
        ring.add(rows(number))
        notes.insert(0, rows(number, 1))
        blink.add(rows(number))
    book.remove([1])


def second_run(server: Server) -> None:
    events, book, notes = (server.table(name) for name in ("events", "book", "notes/of 2026"))
    with server.transaction(producer="pair", sequence=7) as transaction:
        transaction.add(events, rows(100))
        transaction.upsert(book, rows(3))
    events.add(rows(200), producer="feed", sequence=5)
    book.upsert(rows(2))
    notes.delete(0, 1)
    for batch in range(2):
        stage_and_commit(f"grpc://127.0.0.1:{server.port}", batch)


def stage_and_commit(uri: str, batch: int) -> None:
    part = {"table": "staged", "writer": "job", "batch": batch, "partition": 0, "attempt": 1}
    with flight.connect(uri) as client:
        command = flight.FlightDescriptor.for_command(json.dumps({"stage": part}))
        writer, answers = client.do_put(command, rows(0).schema)
        with writer:
            writer.write_table(rows(10 * batch))
            writer.done_writing()
            while answers.read() is not None:
                pass
        name = {"table": "staged", "writer": "job", "batch": batch}
        body = {**name, "staged": [[0, 1]], "mode": "append", "create": True}
        list(client.do_action(("stage.commit", json.dumps(body).encode())))


def facts_of(data: Path) -> dict[str, Any]:
    """Everything that is in a directory, as the journal reads it."""
    store = JournalStore(LocalStorage(data))
    store.open_all()
    facts = {name: _facts(journal) for name, journal in sorted(store.journals.items())}
    first_step = store.first_step
    store.close()
    return {"first_step": first_step, "tables": facts}


def _facts(journal: Any) -> dict[str, Any]:
    earliest, latest = journal.earliest_version, journal.latest_version
    return {
        "kind": journal.identity.kind,
        "key": list(journal.identity.key),
        "capacity": journal.identity.capacity,
        "epoch": journal.epoch,
        "state": _state(journal.state_at(latest)),
        "earliest": _state(journal.state_at(earliest)),
        "entries": [
            {
                "step": entry.step,
                "wall_ns": entry.wall_ns,
                "first_offset": entry.first_offset,
                "rows": entry.rows.to_pylist(),
            }
            for entry in journal.entries(earliest, latest)
        ],
    }


def _state(state: Any) -> dict[str, Any]:
    return {
        "version": state.version,
        "next_offset": state.next_offset,
        "positions": dict(state.positions),
        "keys": list(state.keys),
        "row_ids": state.row_ids.tolist(),
        "rows": state.rows.to_pylist(),
    }


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as where:
        live, read = Path(where, "live"), Path(where, "read")
        with server_of(live) as server:
            first_run(server)
        storage = LocalStorage(live)
        storage.lock()
        compact(storage, find_table(storage, "book"))
        storage.unlock()
        with server_of(live) as server:
            second_run(server)
            shutil.copytree(live, target / "data")
            server.table("events").add(rows(300))
            whole = (live / EVENTS_FILE).read_bytes()
        size = (target / "data" / EVENTS_FILE).stat().st_size
        torn = whole[: size + (len(whole) - size) // 2]
        (target / "data" / EVENTS_FILE).write_bytes(torn)
        shutil.copytree(target / "data", read)
        facts = facts_of(read)
    (target / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
