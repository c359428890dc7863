"""Servers that are killed and come back with their journals: subscriptions and writers go on."""

from __future__ import annotations

import threading

import pytest

import barrage
from barrage.client import Backoff, State
from barrage.server.exchange.resume_planner import LOST_STEP
from tests.helpers.cutter import Cutter
from tests.helpers.server_process import ServerProcess, wait_until

SOON = Backoff(first_seconds=0.02, seconds_max=0.2)

SERVER = """
import sys, barrage
server = barrage.Server(port=0, data={data!r})
if not any(name == "t" for name in server.table_names()):
    server.create_table("t", {{"k": "int64", "v": "int64"}}, key="k")
    server.create_table("log", {{"n": "int64"}})
server.publish("low", server.table("t").where("v < 500").sort("-v", "k"))
server.start()
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
server.serve_forever()
"""


@pytest.fixture
def life(tmp_path):
    """Starts a server over the same directory, again and again."""
    started = []

    def start() -> ServerProcess:
        started.append(ServerProcess(SERVER.format(data=str(tmp_path / "data"))))
        return started[-1]

    yield start
    for process in started:
        process.__exit__()


def kill(process: ServerProcess) -> None:
    process.process.kill()
    process.process.communicate()


def live_tables(session):
    t = session.table("t")
    options = {"interval_ms": 10, "reconnect": SOON}
    return {
        "full": t.subscribe(**options),
        "view": t.subscribe(viewport=(1, 3), columns=["v"], **options),
        "query": t.where("v > 1").sort("-v").subscribe(**options),
        "published": session.table("low").subscribe(viewport=(0, 2), **options),
        "steps": t.subscribe(resume="steps", **options),
    }


def contents(session):
    t = session.table("t")
    return {
        "full": t.snapshot(),
        "view": t.snapshot(rows=(1, 3), columns=["v"]),
        "query": t.where("v > 1").sort("-v").snapshot(),
        "published": session.table("low").snapshot(rows=(0, 2)),
        "steps": t.snapshot(),
    }


def test_what_was_acknowledged_is_resumed_after_a_kill(life):
    first = life()
    with Cutter(first.address) as cutter, barrage.connect(cutter.uri) as session:
        session.put("t", {"k": list(range(9)), "v": list(range(9))})
        lives = live_tables(session)
        for live in lives.values():
            live.wait_ready(60)
        wait_until(lambda: len(lives["full"]) == 9)
        replacements = {name: 0 for name in lives}
        for name, live in lives.items():
            live.on_update(
                lambda update, name=name: replacements.__setitem__(
                    name, replacements[name] + update.is_replacement
                )
            )
        cutter.close()
        kill(first)
        second = life()
        with barrage.connect(second.address) as writer:
            writer.put("t", {"k": [3, 20], "v": [33, 99]})
            writer.put("t", {"k": [0]}, mode="delete")
            cutter.aim(second.address)
            cutter.open()
            for name, live in lives.items():
                wait_until(lambda live=live: live.state is State.LIVE)
                live.wait_ready(60)
                assert live.resumption == "replayed 2 steps", name
            wanted = contents(writer)
            for name, live in lives.items():
                wait_until(lambda live=live, name=name: live.to_arrow() == wanted[name])
            # Nobody missed anything the second time.
            cutter.close()
            kill(second)
            third = life()
            cutter.aim(third.address)
            cutter.open()
            for name, live in lives.items():
                wait_until(lambda live=live: live.stats.reconnects > 1)
                wait_until(lambda live=live: live.state is State.LIVE)
                live.wait_ready(60)
                assert live.resumption == "live", name
                assert live.to_arrow() == wanted[name]
        with barrage.connect(third.address) as writer:
            writer.put("t", {"k": [50], "v": [50]})
            wait_until(lambda: len(lives["full"]) == len(wanted["full"]) + 1)
    assert set(replacements.values()) == {1}


def test_no_subscriber_is_ever_wrong_after_kills_under_load(life):
    """A subscriber may have seen what the crash took away: then it is told, and starts anew."""
    server = life()
    with Cutter(server.address) as cutter, barrage.connect(cutter.uri) as session:
        lives = live_tables(session)
        for live in lives.values():
            live.wait_ready(60)
        for round_number in range(2):
            stop = threading.Event()

            def write(address=server.address, stop=stop, base=1000 * round_number):
                try:
                    with barrage.connect(address) as writer:
                        number = base
                        while not stop.is_set():
                            writer.put("t", {"k": [number % 50], "v": [number % 900]})
                            number += 1
                except barrage.errors.BarrageError:
                    return

            writing = threading.Thread(target=write)
            writing.start()
            before = lives["full"].stats.updates
            wait_until(lambda before=before: lives["full"].stats.updates > before + 10)
            kill(server)
            stop.set()
            writing.join()
            server = life()
            cutter.aim(server.address)
            with barrage.connect(server.address) as other:
                wanted = contents(other)
                for name, live in lives.items():
                    wait_until(
                        lambda live=live, wanted=wanted[name]: (
                            live.state is State.LIVE and live.to_arrow() == wanted
                        )
                    )
                    kinds = ("live", "replayed ", f"resnapshot ({LOST_STEP})")
                    assert live.resumption.startswith(kinds), live.resumption


def test_a_writer_neither_loses_nor_doubles_through_kills_and_cuts(life):
    server = life()
    total = 0
    with Cutter(server.address) as cutter, barrage.connect(cutter.uri) as session:
        with session.writer("log", producer="feed", reconnect=SOON) as writer:
            for round_number in range(4):
                for _ in range(100):
                    writer.write({"n": [total]})
                    total += 1
                if round_number % 2:
                    cutter.cut()
                else:
                    cutter.close()
                    kill(server)
                    server = life()
                    cutter.aim(server.address)
                    cutter.open()
        assert writer.position == total - 1
        assert session.table("log").snapshot().column("n").to_pylist() == list(range(total))
    with barrage.connect(server.address) as session:
        with session.writer("log", producer="feed") as writer:
            assert writer.position == total - 1
            # Read from somewhere before: what is there already is left out.
            for number in range(total - 10, total + 5):
                writer.write({"n": [number]}, sequence=number)
        assert session.table("log").snapshot().column("n").to_pylist() == list(range(total + 5))
