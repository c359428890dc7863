"""The server that is killed: a data directory, and writers that use the Python API.

``python -m tests.chaos.server DIR PORT SETTINGS``. It prints its address, then waits for a line
before it writes anything; afterwards it prints ``ack TABLE NUMBER STEP`` for every acknowledgement.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from barrage.server import Server, ServerConfig
from tests.chaos.held_up_report import WATCHED, report_path
from tests.chaos.scripts import NOTES, PAIR, NotesScript
from tests.helpers.held_up import watch_process

PRODUCER = "local"


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def run(data: str, port: str, settings: str) -> None:
    """One life of the server."""
    if WATCHED in os.environ:
        watch_process(str(report_path(data)))
    config = ServerConfig(data=data, port=int(port), **json.loads(settings))
    server = Server(config=config)
    for name, schema, kind in (
        ("notes", NOTES, "list"),
        ("left", PAIR, "append_only"),
        ("right", PAIR, "append_only"),
    ):
        if name not in server.table_names():
            server.create_table(name, schema, kind=kind)
    server.start()
    say(f"serving {server.address}")
    sys.stdin.readline()
    threads = [
        threading.Thread(target=work, args=(server,), daemon=True) for work in (edit, transact)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    server.stop()


def edit(server: Server) -> None:
    """Edit the list, from where it is."""
    table = server.table("notes")
    script = NotesScript.after(table.position(PRODUCER) or 0)
    while True:
        operation, arguments = script.advance()
        number = script.count
        step = getattr(table, operation)(*arguments, producer=PRODUCER, sequence=number)
        say(f"ack notes {number} {step}")


def transact(server: Server) -> None:
    """Add a row to each of two tables in one transaction. One that a crash has cut apart is
    completed."""
    left, right = server.table("left"), server.table("right")
    number = min(table.position(PRODUCER) or 0 for table in (left, right))
    while True:
        number += 1
        with server.transaction(producer=PRODUCER, sequence=number) as changes:
            changes.add(left, {"n": [number]})
            changes.add(right, {"n": [number]})
        say(f"ack pair {number} {changes.step}")


if __name__ == "__main__":
    run(*sys.argv[1:])
