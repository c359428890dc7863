"""A running server, channels to it, and a check that nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pyarrow.flight as flight
import pytest

import barrage
from tests.helpers import faulty_storage
from tests.helpers.faulty_storage import Disk
from tests.helpers.server_process import raw_channel, wait_until
from tests.helpers.serving import HOST


def barrage_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("barrage-")]


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    before = barrage_threads()
    yield
    wait_until(lambda: barrage_threads() == before)


@pytest.fixture
def on_a_port() -> None:
    """The server listens on a socket."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[barrage.Server]:
    """On a port for tests that speak to it as strangers do, else without."""
    is_raw = {"channel", "flight_client", "on_a_port"} & set(request.fixturenames)
    with barrage.Server("127.0.0.1" if is_raw else HOST) as running:
        yield running


@pytest.fixture
def channel(server: barrage.Server) -> Iterator[grpc.Channel]:
    with raw_channel(server.address) as opened:
        yield opened


@pytest.fixture
def flight_client(server: barrage.Server) -> Iterator[flight.FlightClient]:
    with flight.connect(server.uri) as client:
        yield client


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """What the journals of this test's servers write to; its calls can be held up and fail."""
    made = faulty_storage.install(monkeypatch)
    yield made
    made.release()
