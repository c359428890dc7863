"""Many clients that connect at once: they take turns, all get there, and others are answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow.flight as flight
import pytest

import barrage
from barrage.client.bodies import body_routes
from barrage.limits import DEFAULT_LIMITS
from barrage.server.bodies import body_turns
from barrage.server.settings.config import ServerConfig
from barrage.transport.ucx import UcxListener
from tests.ucx.children import child

ROWS = 50_000
CHILDREN = 3
SESSIONS = 10
PATIENT = replace(DEFAULT_LIMITS, body_ticket_ns=120_000_000_000)


def subscribers(pipe: Connection, uri: str) -> None:
    """When told to, subscribes by as many sessions at once; says by which ways bodies come."""
    body_routes.CONNECT_SECONDS_MAX = 60.0
    body_routes.TURN_SECONDS_MAX = 120.0
    ways: list[str] = []
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(barrage.connect(uri, bodies="ucx")) for _ in range(SESSIONS)
        ]

        def subscribe(session: Any) -> None:
            table = stack.enter_context(session.table("t").subscribe())
            table.wait_ready(120)
            ways.append(f"{table.bodies.way.value} {table.bodies.reason}".strip())

        threads = [threading.Thread(target=subscribe, args=(each,)) for each in sessions]
        pipe.send("ready")
        pipe.recv()
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        pipe.send(ways)
        pipe.recv()


@contextmanager
def asking(uri: str) -> Iterator[list[int]]:
    """Asks for the list of tables over and over; how many came with each answer."""
    answers: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        with flight.connect(uri) as client:
            while not ended.is_set():
                answers.append(len(list(client.list_flights())))

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        yield answers
    finally:
        ended.set()
        asker.join()


def test_thirty_clients_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_turns, "TURN_SECONDS_MAX", 120.0)
    monkeypatch.setattr("tests.ucx.children.READY_SECONDS_MAX", 150.0)
    accept, queues, answered = UcxListener._accept, [], []

    def counted(listener: UcxListener, request: Any) -> None:
        queues.append(1 + len(listener._worker.requests_to_connect))
        answered.append(len(answers))
        accept(listener, request)

    monkeypatch.setattr(UcxListener, "_accept", counted)
    with ExitStack() as stack:
        server = stack.enter_context(
            barrage.Server(config=ServerConfig(bodies="ucx", port=0, limits=PATIENT))
        )
        server.create_table("t", data={"x": np.arange(ROWS)})
        children = [stack.enter_context(child(subscribers, server.uri)) for _ in range(CHILDREN)]
        with asking(f"grpc://{server.uri.rpartition('/')[2]}") as answers:
            for each in children:
                each.pipe.send("go")
            ways = [way for each in children for way in each.receive()]
        assert ways == ["ucx"] * (CHILDREN * SESSIONS)
        assert len(queues) == CHILDREN * SESSIONS
        assert max(queues) <= body_turns.TURNS_MAX
        # It was answered while they came, not before and after all of them.
        assert len(set(answered)) > CHILDREN
        for each in children:
            each.pipe.send("end")
