"""Clients tell who is not authenticated from who is not allowed from what is not found, by the
class of the error, and say what to do: at every door a client has."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator

import pyarrow.flight as flight
import pytest
from typer.testing import CliRunner

import barrage
from barrage import Policy, Rule
from barrage.cli.main import app
from barrage.client import Session
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    PermissionDeniedError,
    TableNotFoundError,
)
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.policy.rules import Operation
from tests.helpers.certificates import authority
from tests.helpers.users import ALICE_PASSWORD, users_file

HANG_SECONDS = 120
NOW = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
ROWS = {"x": [1]}
RULES = Policy.of(
    Rule(tables=("seen",), users=("bob",), allow=frozenset({Operation.READ})),
    Rule(tables=("part",), users=("bob",), allow=frozenset({Operation.READ}), rows="x < 1"),
    Rule(tables=("*", "_*"), users=("alice",), allow=frozenset({Operation.ADMIN})),
)
READING: dict[str, Callable[[Session, str], object]] = {
    "snapshot": lambda session, name: session.table(name).snapshot(),
    "subscribe": lambda session, name: session.table(name).subscribe().wait_ready(HANG_SECONDS),
    "info": lambda session, name: session.table(name).info(),
    "query": lambda session, name: (
        session.table("seen").natural_join(session.table(name), on="x").snapshot()
    ),
    "as_of": lambda session, name: session.table(name).as_of(NOW),
    "changes": lambda session, name: next(iter(session.table(name).changes(0))),
}
WRITING: dict[str, Callable[[Session, str], object]] = {
    "put": lambda session, name: session.put(name, ROWS),
    "create": lambda session, name: session.create_table(name, {"x": "int64"}),
    "writer": lambda session, name: written(session, name),
}
DROPPING = {"drop": lambda session, name: session.drop_table(name)}
DOORS = {**READING, **WRITING, **DROPPING, "tables": lambda session, _: session.tables()}
HISTORY = ("as_of", "changes")


def written(session: Session, name: str) -> None:
    with session.writer(name, producer="p", mode="append") as writer:
        writer.write(ROWS)
        writer.flush()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[barrage.Server]:
    users = users_file(tmp_path_factory.mktemp("told") / "users")
    limits = Limits(login_failures_max=10_000)
    config = ServerConfig(users=str(users), journal="memory", limits=limits)
    with barrage.Server(config=config, policy=RULES) as made:
        for name in ("seen", "part", "hidden"):
            made.create_table(name, {"x": "int64"}, key="x", data=ROWS)
        yield made


def told(server: barrage.Server, auth: object, door: str, name: str) -> BarrageError:
    with (
        pytest.raises(BarrageError) as caught,
        barrage.connect(server.uri, auth=auth) as session,
    ):
        DOORS[door](session, name)
    return caught.value


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("auth", [None, barrage.Basic("bob", "nope")], ids=["nothing", "wrong"])
def test_who_is_not_authenticated(server, door, auth):
    error = told(server, auth, door, "seen")
    assert type(error) is AuthenticationError
    assert "pass auth=barrage.Basic" in error.__notes__[0]


@pytest.mark.parametrize("door", [*WRITING, *DROPPING, *HISTORY])
def test_who_is_not_allowed(server, door):
    error = told(server, barrage.Basic("bob", ALICE_PASSWORD), door, "part")
    assert type(error) is PermissionDeniedError
    wanted = "is for those who see all of it" if door in HISTORY else "you may not"
    assert wanted in str(error)
    assert "ask whoever keeps" in f"{error} {error.__notes__}"


@pytest.mark.parametrize("door", [*READING, *DROPPING])
def test_what_is_not_found(server, door):
    for name in ("hidden", "nothing"):
        error = told(server, barrage.Basic("bob", ALICE_PASSWORD), door, name)
        assert type(error) is TableNotFoundError
        assert error.name == name
        assert str(error) == f"table {name!r} not found" or door == "query"


# --- commands ---


@pytest.mark.parametrize(
    ("words", "shown", "wanted"),
    [
        (["snapshot", "{}/seen"], {}, "pass --token or set BARRAGE_TOKEN, or --user"),
        (["ls", "{}"], {"BARRAGE_TOKEN": "nope"}, "pass --token or set BARRAGE_TOKEN, or --user"),
        (["snapshot", "{}/hidden"], {"BARRAGE_USER": "bob"}, "table 'hidden' not found; `barrage"),
        (["watch", "{}/hidden", "--once"], {"BARRAGE_USER": "bob"}, "table 'hidden' not found"),
        (["schema", "{}/hidden"], {"BARRAGE_USER": "bob"}, "table 'hidden' not found"),
    ],
)
def test_commands_say_which_it_is_and_what_to_do(server, words, shown, wanted):
    given = [word.format(server.address) for word in words]
    environment = {"BARRAGE_PASSWORD": ALICE_PASSWORD, **shown}
    done = CliRunner().invoke(app, given, env=environment)
    assert done.exit_code == 1
    assert wanted in done.output
    assert ALICE_PASSWORD not in done.output


# --- pyarrow.flight ---


def flight_calls(client: flight.FlightClient, options: flight.FlightCallOptions, name: str):
    yield lambda: client.do_get(flight.Ticket(b"s/" + name.encode()), options).read_all()
    descriptor = flight.FlightDescriptor.for_path(name)
    yield lambda: client.get_flight_info(descriptor, options)
    yield lambda: client.get_schema(descriptor, options)


@pytest.mark.parametrize("way", ["basic", "bearer", "certificate"])
def test_a_plain_flight_client(tmp_path, way):
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    asks = {"tls_client_ca": authority().write(tmp_path)} if way == "certificate" else {}
    users = {} if asks else {"users": str(users_file(tmp_path / "users"))}
    config = ServerConfig(host="localhost", tls_cert=certificate, tls_key=key, **asks, **users)
    shown = authority().for_client("bob")
    options = {"tls_root_certs": authority().certificate}
    if asks:
        options |= {"cert_chain": shown.certificate, "private_key": shown.key}
    with barrage.Server(config=config, policy=RULES) as server:
        server.create_table("seen", {"x": "int64"}, data=ROWS)
        server.create_table("hidden", {"x": "int64"}, data=ROWS)
        with flight.connect(server.uri.replace("grpcs", "grpc+tls"), **options) as client:
            headers = []
            if way != "certificate":
                headers.append(client.authenticate_basic_token("bob", ALICE_PASSWORD))
                if way == "basic":
                    headers = [(b"authorization", basic_header("bob"))]
            call = flight.FlightCallOptions(headers=headers)
            for work in flight_calls(client, call, "seen"):
                work()
            for work in flight_calls(client, call, "hidden"):
                with pytest.raises(KeyError, match="table 'hidden' not found"):
                    work()
            action = flight.Action("barrage.drop_table", b'{"table": "seen"}')
            with pytest.raises(flight.FlightUnauthorizedError, match="you may not drop"):
                list(client.do_action(action, call))
            if way == "certificate":
                return
            for work in flight_calls(client, flight.FlightCallOptions(), "seen"):
                # Of a stream that has begun pyarrow knows the words alone.
                refused = (flight.FlightUnauthenticatedError, OSError)
                with pytest.raises(refused, match="no credentials"):
                    work()


def basic_header(user: str) -> bytes:
    return barrage.Basic(user, ALICE_PASSWORD).header.encode()
