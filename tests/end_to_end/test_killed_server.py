"""A server process that is killed in the middle of its streams and started again."""

from __future__ import annotations

import barrage
from barrage.client import State
from tests.helpers.server_process import ServerProcess, wait_until

SCRIPT = """
import sys, threading, barrage
server = barrage.Server(port={port}).start()
book = server.create_table("book", {{"k": "int64", "v": "int64"}}, key="k")
server.publish("ranked", book.sort("-v", "k"))
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
pause = threading.Event()
for n in range({changes}):
    book.upsert({{"k": [n * 7 % 100], "v": [n % 31 + {life}]}})
    pause.wait(0.002)
server.serve_forever()
"""


def expected(changes: int, life: int) -> list[dict]:
    """The table ``ranked`` after all changes of one life of the server."""
    rows = {n * 7 % 100: n % 31 + life for n in range(changes)}
    ranked = sorted(rows.items(), key=lambda row: (-row[1], row[0]))
    return [{"k": key, "v": value} for key, value in ranked]


def test_subscribers_recover_from_a_server_that_was_killed():
    first = ServerProcess(SCRIPT.format(port=0, changes=100_000, life=1000))
    port = first.address.rpartition(":")[2]
    states: list[State] = []
    with first, barrage.connect(first.address) as session:
        ranked = session.table("ranked")
        whole = ranked.subscribe(interval_ms=10, on_state=states.append)
        view = ranked.subscribe(viewport=(0, 5), interval_ms=10, columns=["v"])
        last = ranked.subscribe(viewport=(0, 3), interval_ms=10, reverse=True)
        for live in (whole, view, last):
            live.wait_ready(60)
        updates = whole.updates(timeout=60)
        assert next(updates).is_replacement
        first.process.kill()
        wait_until(lambda: whole.state is view.state is last.state is State.RECONNECTING)
        assert len(view) == 5 or view.table_size < 5
        view.set_viewport((2, 4))
        with ServerProcess(SCRIPT.format(port=port, changes=300, life=0)):
            for live in (whole, view, last):
                live.wait_ready(60)
            rows = expected(300, 0)
            # One iterator follows the table: without it reading would pause.
            wait_until(lambda: next(updates) is not None and whole.to_arrow().to_pylist() == rows)
            wait_until(lambda: view.to_arrow().to_pylist() == [{"v": r["v"]} for r in rows[2:4]])
            wait_until(lambda: last.to_arrow().to_pylist() == rows[-3:])
            assert [live.state for live in (whole, view, last)] == [State.LIVE] * 3
            assert whole.stats.reconnects >= 1
            lost = states.index(State.RECONNECTING)
            back = states.index(State.RESNAPSHOTTED)
            assert states.index(State.LIVE) < lost < back < len(states) - 1
