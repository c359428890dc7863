"""Our client reads in parts: polls, reads endpoints in parallel, follows locations, renews, gives
up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app as command
from barrage.client.connection.connection import Connection
from barrage.client.tables import parallel_snapshot
from barrage.errors import ConfigError, TableNotFoundError, TransportError
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig
from barrage.server.results.pinned_results import PinnedResults
from barrage.server.serving.app import ServerApp
from tests.helpers.flight_peer import HeldReads
from tests.helpers.server_process import wait_until

LIMITS = replace(DEFAULT_LIMITS, endpoint_rows=1000)


def wide(count: int = 5500) -> pa.Table:
    return pa.table({"x": pa.array(range(count), pa.int64()), "y": [i / 8 for i in range(count)]})


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    with barrage.Server("127.0.0.1", config=ServerConfig(limits=LIMITS)) as running:
        running.create_table("wide", data=wide())
        running.create_table("none", {"x": "int64"})
        yield running


def app_of(server: barrage.Server) -> ServerApp:
    found = server._app
    assert found is not None
    return found


@pytest.fixture
def session(server: barrage.Server) -> Iterator[barrage.Session]:
    with barrage.connect(server.uri) as opened:
        yield opened
    # What was read, or was not, is given up at once.
    results = app_of(server).results.results
    wait_until(lambda: results.byte_count == 0)
    assert app_of(server).results.running_count == 0


def test_parts_are_the_table(session: barrage.Session) -> None:
    sizes: list[int] = []
    done: list[float] = []
    got = session.table("wide").snapshot(jobs=3, on_progress=sizes.append, on_query=done.append)
    assert got.equals(wide())
    assert sizes == sorted(sizes)
    assert sizes[-1] == wide().nbytes
    assert done[-1] == 1.0


@pytest.mark.parametrize(
    "wanted",
    [
        {"columns": ["y"]},
        {"rows": (100, 4200)},
        {"rows": (0, 3000), "reverse": True},
        {"rows": (10, 4200), "reverse": True, "columns": ["y", "x"]},
        {"rows": (5400, 9000)},
    ],
    ids=str,
)
def test_parts_of_some_rows_are_what_one_stream_has(
    session: barrage.Session, wanted: dict[str, Any]
) -> None:
    table = session.table("wide").where("x != 7")
    assert table.snapshot(jobs=4, **wanted).equals(table.snapshot(**wanted))


def test_no_rows_are_a_schema(session: barrage.Session) -> None:
    got = session.table("none").snapshot(jobs=2)
    assert got.equals(pa.table({"x": pa.array([], pa.int64())}))


def test_wrong_numbers_of_jobs_and_tables_that_are_not_there(session: barrage.Session) -> None:
    for wrong in (0, 33, True, "2"):
        with pytest.raises(ConfigError, match="from 1 to 32"):
            session.table("wide").snapshot(jobs=wrong)  # type: ignore[arg-type]
    with pytest.raises(TableNotFoundError):
        session.table("nope").snapshot(jobs=2)


def test_rows_are_read_while_others_are_still_to_come(
    session: barrage.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldReads(monkeypatch)
    sizes: list[int] = []
    rows: list[pa.Table] = []

    def read() -> None:
        rows.append(session.table("wide").snapshot(jobs=2, on_progress=sizes.append))

    reading = threading.Thread(target=read)
    reading.start()
    for number in range(1, 6):
        held.let_through(1)
        wait_until(lambda: bool(sizes) and sizes[-1] == number * 16_000)  # noqa: B023
    held.let_through()
    reading.join(60)
    assert rows[0].equals(wide())


def test_a_cancelled_read_gives_the_result_up(
    server: barrage.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldReads(monkeypatch)
    jobs = app_of(server).results

    async def scenario() -> None:
        async with barrage.aconnect(server.uri) as session:
            told: list[float] = []
            wanted = session.table("wide").snapshot(jobs=2, on_query=told.append)
            reading = asyncio.ensure_future(wanted)
            await asyncio.to_thread(wait_until, lambda: jobs.running_count == 1)
            held.let_through(2)
            # Before the first answer the client knows of nothing that it could give up.
            await asyncio.to_thread(wait_until, lambda: bool(told) and jobs.results.byte_count > 0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    asyncio.run(asyncio.wait_for(scenario(), 180))
    wait_until(lambda: jobs.running_count == 0 and jobs.results.byte_count == 0)
    held.let_through()


def test_a_result_that_is_read_for_long_is_renewed(
    session: barrage.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_snapshot, "RENEW_SECONDS_MIN", 0.0)
    monkeypatch.setattr(parallel_snapshot.time, "time_ns", lambda: 2**62)
    renewed = threading.Event()
    renew = PinnedResults.renew

    def noted(results: PinnedResults, result: Any) -> None:
        renew(results, result)
        if result.parts:
            renewed.set()

    held = HeldReads(monkeypatch)
    monkeypatch.setattr(PinnedResults, "renew", noted)
    reading = threading.Thread(target=lambda: session.table("wide").snapshot(jobs=2))
    reading.start()
    held.let_through(1)
    assert renewed.wait(60)
    held.let_through()
    reading.join(60)


def test_a_stream_that_fails_fails_the_read(
    session: barrage.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_connection: Connection, location: str) -> Any:
        raise TransportError(f"nothing at {location!r}")

    monkeypatch.setattr(Connection, "client_at", broken)
    with pytest.raises(TransportError, match="nothing at"):
        session.table("wide").snapshot(jobs=2)


def test_without_a_connection_of_arrow_the_rows_come_in_one_stream() -> None:
    with barrage.Server("inproc://", config=ServerConfig(limits=LIMITS)) as server:
        server.create_table("wide", data=wide())
        with barrage.connect(server.uri) as session:
            assert session.table("wide").snapshot(jobs=4).equals(wide())


# --- locations ------------------------------------------------------------------------------------


class Elsewhere(flight.FlightServerBase):
    """A server that has the rows of tickets, and remembers what headers it was shown."""

    def __init__(self) -> None:
        self.headers: list[dict[str, list[str]]] = []
        noted = self.headers

        class Noting(flight.ServerMiddlewareFactory):
            def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
                noted.append(headers)

        super().__init__("grpc://127.0.0.1:0", middleware={"noting": Noting()})

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.RecordBatchStream:
        return flight.RecordBatchStream(pa.table({"x": [1, 2]}))


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as running:
        yield running


def test_credentials_go_to_the_servers_own_authority_only(elsewhere: Elsewhere) -> None:
    other = f"grpc://127.0.0.1:{elsewhere.port}"
    config = ServerConfig(token="secret", limits=LIMITS, flight_location=other)
    with barrage.Server("127.0.0.1", config=config) as server:
        server.create_table("wide", data=wide(3))
        with barrage.connect(server.uri, auth=barrage.Bearer("secret")) as session:
            got = session.table("wide").snapshot(jobs=2)
    assert got["x"].to_pylist() == [1, 2]
    assert elsewhere.headers
    assert all("authorization" not in headers for headers in elsewhere.headers)


def test_a_location_that_is_the_server_itself_gets_credentials() -> None:
    reuse = "arrow-flight-reuse-connection://?"
    config = ServerConfig(token="secret", limits=LIMITS, flight_location=reuse)
    with barrage.Server("127.0.0.1", config=config) as server:
        server.create_table("wide", data=wide())
        with barrage.connect(server.uri, auth=barrage.Bearer("secret")) as session:
            assert session.table("wide").snapshot(jobs=2).equals(wide())
            connection = session._session._connection
            own = connection.client_at("")
            assert own[1] == {"authorization": "Bearer secret"}
            for location in (reuse, f"grpc://{server.address}", f"grpc+tcp://{server.address}/"):
                assert connection.client_at(location) == own
            assert connection.client_at("grpc://127.0.0.1:1")[1] == {}


@pytest.mark.parametrize("location", ["https://example.org/x", "ftp://x", "nonsense"])
def test_locations_that_are_no_flight_servers(session: barrage.Session, location: str) -> None:
    connection = session._session._connection
    with pytest.raises(TransportError, match="no Flight server"):
        connection.client_at(location)


def test_a_setting_that_is_no_location() -> None:
    with pytest.raises(ConfigError, match="flight_location"):
        ServerConfig(flight_location="localhost:1")


# --- the command ----------------------------------------------------------------------------------


def test_the_command_reads_in_parts(server: barrage.Server, session: barrage.Session) -> None:
    told = CliRunner().invoke(
        command, ["snapshot", f"127.0.0.1:{server.port}/wide", "--jobs", "3", "--where", "x < 2500"]
    )
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    assert len(lines) == 2501
    assert lines[-1].startswith("2499,")
    wrong = CliRunner().invoke(command, ["snapshot", "127.0.0.1:1/wide", "--jobs", "0"])
    assert wrong.exit_code == 2
