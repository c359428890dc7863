"""What stays behind when clients come and go: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import psutil
import pytest

import barrage
from barrage.client import State
from barrage.errors import ConnectionLostError, SubscriptionClosedError
from barrage.supervision import in_thread
from tests.helpers.server_process import wait_until


def client_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("barrage") and name not in SERVER_THREADS]


SERVER_THREADS = ("barrage-loop", "barrage-engine", "barrage-watchdog")


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
    live.wait_ready(60)
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
        whole.wait_ready(60)
        view.wait_ready(60)
        server.table("k").upsert({"id": [number % 10], "v": [number]})
        next(view.updates(timeout=60))


@pytest.mark.further
@pytest.mark.parametrize("clients", [40, pytest.param(400, marks=pytest.mark.slow)])
def test_many_clients_leave_no_thread_and_no_socket(server, clients):
    for number in range(5):
        come_and_go(server, number)
    # The server looks at its memory now and then, on a thread that begins with the first look.
    asyncio.run_coroutine_threadsafe(in_thread(gc.collect), server._loop).result(60)
    process = psutil.Process()
    files, threads = process.num_fds(), threading.active_count()
    memory = process.memory_info().rss
    for number in range(clients):
        come_and_go(server, number)
    gc.collect()
    wait_until(lambda: server.stream_count == 0)
    # What each client leaves is counted, not what comes and goes with the rest of the process.
    wait_until(lambda: process.num_fds() <= files + clients // 4)
    wait_until(lambda: threading.active_count() <= threads + clients // 4)
    assert process.memory_info().rss - memory < 50_000_000


@pytest.mark.further
def test_an_upload_that_is_given_up_and_closed_is_quiet(server, caplog):
    """As after Ctrl+C: nobody is there to hear how its tasks end."""
    may_go_on = threading.Event()
    for _ in range(3):
        session = barrage.connect(server.uri)
        server.create_table("up", {"x": "int64"})
        blocked = server._parts.runtime.submit(may_go_on.wait)
        with pytest.raises(TimeoutError):
            session.put("up", {"x": range(3_000_000)}, timeout=0.05)
        session.close()
        may_go_on.set()
        blocked.result()
        server.drop_table("up")
        may_go_on.clear()
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_a_snapshot_that_is_given_up_and_closed_is_quiet(server, caplog):
    server.create_table("big", data={"x": range(3_000_000)})
    for timeout in (0.005, 0.01, 0.02, 0.05):
        session = barrage.connect(server.uri)
        with contextlib.suppress(TimeoutError):
            session.table("big").snapshot(timeout=timeout)
        session.close()
    gc.collect()
    wait_until(lambda: client_threads() == [])
    assert [record.getMessage() for record in caplog.records] == []


def test_a_session_closed_under_a_call_ends_it_with_an_error_and_is_quiet(server, caplog):
    may_go_on = threading.Event()
    server.create_table("up", {"x": "int64"})
    session = barrage.connect(server.uri)
    blocked = server._parts.runtime.submit(may_go_on.wait)
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(session.put, "up", {"x": range(3_000_000)})
        wait_until(lambda: upload.running())
        session.close()
        with pytest.raises((SubscriptionClosedError, ConnectionLostError, CancelledError)):
            upload.result(60)
    may_go_on.set()
    blocked.result()
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []
