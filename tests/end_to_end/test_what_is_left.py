"""What stays behind when clients come and go: nothing."""

from __future__ import annotations

import gc
import threading

import psutil
import pytest

import barrage
from barrage.client import State
from tests.helpers.server_process import wait_until


def client_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("barrage") and name not in SERVER_THREADS]


SERVER_THREADS = ("barrage-loop", "barrage-engine")


@pytest.fixture
def server():
    with barrage.Server() as running:
        running.create_table("k", key="id", data={"id": list(range(100)), "v": [0] * 100})
        yield running


def test_closing_a_session_ends_the_callbacks_of_its_tables(server):
    """The tables themselves are left open, with callbacks of every kind."""
    states: list[State] = []
    session = barrage.connect(server.uri)
    live = session.table("k").subscribe(on_state=states.append, on_update=lambda _: None)
    live.wait_ready(5)
    session.close()
    assert states[-1] is State.CLOSED
    assert client_threads() == []


def test_a_callback_may_close_its_session(server):
    session = barrage.connect(server.uri)
    session.table("k").subscribe(on_state=lambda _: session.close())
    wait_until(lambda: session.is_closed and client_threads() == [])
    wait_until(lambda: server.stream_count == 0)


def come_and_go(server: barrage.Server, number: int) -> None:
    with barrage.connect(server.uri) as session:
        whole = session.table("k").subscribe(interval_ms=10, on_update=lambda _: None)
        view = session.table("k").subscribe(viewport=(0, 10), interval_ms=10)
        whole.wait_ready(5)
        view.wait_ready(5)
        server.table("k").upsert({"id": [number % 10], "v": [number]})
        next(view.updates(timeout=5))


def test_two_hundred_clients_leave_no_thread_and_no_socket(server):
    for number in range(5):
        come_and_go(server, number)
    process = psutil.Process()
    files, threads = process.num_fds(), threading.active_count()
    memory = process.memory_info().rss
    for number in range(200):
        come_and_go(server, number)
    gc.collect()
    wait_until(lambda: server.stream_count == 0)
    wait_until(lambda: process.num_fds() <= files + 2)
    assert threading.active_count() <= threads
    assert process.memory_info().rss - memory < 50_000_000
