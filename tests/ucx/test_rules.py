"""Bodies over UCX where rules hold: made for the caller, and never in memory that others lie in."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.flight as flight
import pytest

import barrage
from barrage import Policy, Rule
from barrage.server.policy.rules import Operation
from barrage.server.settings.config import ServerConfig
from barrage.transport.ucx import UcxLibrary
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.ucx.test_flight_info import fetched, info_of

RULES = Policy.of(
    Rule(tables=("*", "_*"), users=("alice",), allow=frozenset({Operation.ADMIN})),
    Rule(tables=("t",), users=("bob",), allow=frozenset({Operation.READ}), rows="x < 9999"),
)
ROWS = 20_000


def serving(directory, **settings) -> barrage.Server:
    users = str(users_file(directory / "users"))
    server = barrage.Server(config=ServerConfig(users=users, **settings), policy=RULES).start()
    server.create_table("t", data={"x": range(ROWS)})
    server.create_table("hidden", data={"x": range(ROWS)})
    return server


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[barrage.Server]:
    made = serving(tmp_path_factory.mktemp("rules"), bodies="shm,ucx", ucx_rma=True)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """The server of this module keeps its context between tests."""


def client_of(server: barrage.Server, user: str) -> flight.FlightClient:
    with flight.connect(server.uri) as client:
        _, header = client.authenticate_basic_token(user, ALICE_PASSWORD)
    return flight.connect(server.uri, middleware=[_Header(header.decode())])


class _Header(flight.ClientMiddleware, flight.ClientMiddlewareFactory):
    """The same header with every call."""

    def __init__(self, header: str) -> None:
        self._header = header

    def start_call(self, _info: object) -> flight.ClientMiddleware:
        return self

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": self._header}


def test_a_snapshot_over_ucx_is_what_the_caller_is_shown(library: UcxLibrary, server) -> None:
    with client_of(server, "bob") as bob, client_of(server, "alice") as alice:
        assert fetched(library, info_of(bob, "t"))["x"].to_pylist() == list(range(9999))
        assert fetched(library, info_of(alice, "t")).num_rows == ROWS
        for name in ("hidden", "nothing"):
            with pytest.raises(KeyError, match=f"table '{name}' not found"):
                info_of(bob, name)


@pytest.mark.parametrize("place", ["shm", "rma"])
def test_memory_that_clients_read_is_for_those_who_see_all(
    library: UcxLibrary, server, place: str
) -> None:
    with client_of(server, "bob") as bob, client_of(server, "alice") as alice:
        assert fetched(library, info_of(alice, "t", bodies=place)).num_rows == ROWS
        with pytest.raises(flight.FlightUnauthorizedError, match="for those who may do everything"):
            info_of(bob, "t", bodies=place)


@pytest.mark.parametrize(
    ("settings", "asked", "way"),
    [
        ({"bodies": "ucx"}, "ucx", "ucx"),
        ({"bodies": "shm,ucx"}, "ucx", "ucx"),
        ({"bodies": "ucx", "ucx_rma": True}, "ucx", "inline"),
        ({"bodies": "shm"}, "shm", "inline"),
    ],
)
def test_streams_go_where_nobody_elses_bodies_lie(tmp_path, settings, asked, way) -> None:
    server = serving(tmp_path, **settings)
    try:
        auth = barrage.Basic("bob", ALICE_PASSWORD)
        with barrage.connect(server.uri, auth=auth, bodies=asked) as session:
            assert session.body_status().way.value == way
            rows = session.table("t").snapshot()["x"].to_pylist()
            assert rows == list(range(9999))
    finally:
        server.stop()
