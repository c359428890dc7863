"""Our client as a full client of a real Deephaven 42.7 server: sessions, exports, writing,
queries, every type, and what happens when the server goes away."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time

import pyarrow as pa
import pytest

import barrage
from barrage.client import Backoff, Basic, Handler, PreSharedKey, State
from barrage.client.connection.login import DeephavenLogin
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ExpressionError,
    RowError,
    SchemaError,
    SubscriptionClosedError,
    TableExistsError,
    TableNotFoundError,
    TicketError,
    UnsupportedError,
)
from barrage.transport.deephaven_messages import MESSAGES, SESSION_SERVICE
from tests.interop.client_deephaven import ClientsServer
from tests.interop.processes import ROOT

pytestmark = pytest.mark.interop

WAIT = 20
COMMAND_LINE = "from barrage.cli.main import main; main()"


@pytest.fixture(scope="module")
def server(deephaven_interpreter, tmp_path_factory):
    process = ClientsServer(deephaven_interpreter, tmp_path_factory.mktemp("clients"))
    yield process
    process.close()


@pytest.fixture
def session(server):
    with barrage.connect(server.uri) as session:
        yield session


def until(condition, message="it never came"):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, message
        time.sleep(0.02)


def connection_of(session):
    return session._session._connection


def call(session, work):
    """Run a coroutine on the session's loop."""
    return session._thread.call(work, WAIT)


async def close_behind_its_back(connection):
    """End the session on the server without telling the client."""
    token = connection.channel.authorization
    request = MESSAGES.encode("HandshakeRequest", payload=token.encode())
    await connection.channel.unary(f"/{SESSION_SERVICE}/CloseSession", request, timeout=WAIT)


# --- sessions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "auth",
    [
        None,
        "Anonymous",
        "sesame",
        PreSharedKey("sesame"),
        Handler("io.deephaven.authentication.psk.PskAuthenticationHandler", "sesame"),
        "io.deephaven.authentication.psk.PskAuthenticationHandler sesame",
    ],
)
def test_every_way_to_log_in(server, auth):
    with barrage.connect(server.uri, auth=auth) as session:
        assert session.table("static_rows").snapshot(rows=(0, 2))["A"].to_pylist() == [0, 1]


@pytest.mark.parametrize(
    "auth",
    ["wrong", PreSharedKey("wrong"), ("user", "word"), Basic("user", "word"), Handler("no.such")],
)
def test_wrong_credentials_are_refused_with_a_typed_error(server, auth):
    with pytest.raises(AuthenticationError):
        barrage.connect(server.uri, auth=auth)


def test_closing_ends_the_session_on_the_server(server):
    session = barrage.connect(server.uri)
    token = connection_of(session).channel.authorization
    session.close()
    with pytest.raises(AuthenticationError):
        barrage.connect(server.uri, auth=token)


def test_a_session_the_server_forgot_is_opened_anew(server, session):
    connection = connection_of(session)
    opened = session.open_table("keyed")
    before = connection.channel.authorization
    call(session, close_behind_its_back(connection))
    assert opened.snapshot().num_rows > 40
    assert connection.channel.authorization != before
    assert connection.login.generation == 2
    call(session, close_behind_its_back(connection))
    assert len(session.tables()) > 4
    call(session, close_behind_its_back(connection))
    assert session.upload({"a": [1]}).snapshot().num_rows == 1


def test_what_was_uploaded_goes_with_its_session(server, session):
    uploaded = session.upload({"a": [1, 2]})
    assert uploaded.snapshot().num_rows == 2
    call(session, close_behind_its_back(connection_of(session)))
    with pytest.raises(TicketError, match="session"):
        uploaded.snapshot()


def test_subscriptions_of_an_ended_session_come_back(server, session):
    table = session.open_table("grown")
    query = session.table("grown").where("N < 5")
    with (
        table.subscribe(interval_ms=50, reconnect=Backoff(first_seconds=0.05)) as live,
        query.subscribe(interval_ms=50, reconnect=Backoff(first_seconds=0.05)) as few,
    ):
        live.wait_ready(WAIT)
        few.wait_ready(WAIT)
        call(session, close_behind_its_back(connection_of(session)))
        for one in (live, few):
            until(lambda one=one: one.stats.reconnects and one.state is State.LIVE)
        server.add()
        until(lambda: live.to_arrow().equals(server.truth("grown")))
        assert len(few) == 5


# --- tables -------------------------------------------------------------------------------------


def test_opened_tables_know_their_columns_and_are_released(server, session):
    with session.open_table("keyed") as table:
        assert table.schema.names == ["K", "V", "S"]
        assert table.info().key == ("K",)
        assert table.snapshot().equals(server.truth("keyed"))
        live = table.subscribe(interval_ms=50)
        live.wait_ready(WAIT)
    assert table.is_closed
    with pytest.raises(SubscriptionClosedError):
        table.snapshot()
    server.add()
    until(lambda: live.to_arrow().equals(server.truth("keyed")), "a subscription outlives a handle")
    live.close()


def test_what_was_exported_is_released_when_nobody_holds_it(session, monkeypatch):
    released = []
    calls = connection_of(session).calls

    async def note(ticket):
        released.append(ticket)

    monkeypatch.setattr(calls, "release", note)
    table = session.open_table("keyed")
    ticket = table._table._source._exported.ticket
    query = table.where("K < 3")
    assert query.snapshot().num_rows <= 3
    del table
    gc.collect()
    assert released == [], "the query needs it"
    del query
    gc.collect()
    until(lambda: len(released) == 2 and ticket in released)
    with pytest.raises(TableNotFoundError):
        session.open_table("keye")
    until(lambda: len(released) == 3)


def test_unknown_names_come_with_near_ones(session):
    with pytest.raises(TableNotFoundError, match="did you mean 'static_rows'"):
        session.open_table("static_row")
    with session.table("nope").subscribe() as live, pytest.raises(TableNotFoundError, match="nope"):
        live.wait_ready(WAIT)


def test_every_table_is_listed_with_what_is_known_of_it(session):
    infos = {info.name: info for info in session.tables()}
    assert {"keyed", "grown", "static_rows", "all_types", "a/demo/f/offered"} <= set(infos)
    assert (infos["keyed"].kind, infos["keyed"].key) == ("keyed", ("K",))
    assert infos["keyed"].is_ticking is True
    assert infos["keyed"].schema.names == ["K", "V", "S"]
    assert (infos["static_rows"].kind, infos["static_rows"].total_records) == ("static", 1000)
    assert infos["static_rows"].is_ticking is False


def test_many_tables_are_listed_quickly(session):
    handles = [session.upload({"a": [n]}) for n in range(3)]
    for number, handle in enumerate(handles * 50):
        session.put(f"many_{number}", handle.snapshot())
    begin = time.monotonic()
    assert len(session.tables()) > 150
    assert time.monotonic() - begin < 5
    for number in range(150):
        session.drop_table(f"many_{number}")


def test_application_fields(session):
    table = session.table("a/demo/f/offered")
    assert table.snapshot()["X"].to_pylist() == [0, 1, 2]
    assert table.schema.names == ["X"]
    assert session.open_table("a/demo/f/offered").snapshot().num_rows == 3
    assert session.table_from_ticket(b"a/demo/f/offered").snapshot().num_rows == 3


def test_shared_tickets(server, session):
    shared = session.table("keyed").publish_shared()
    chosen = session.table("static_rows").where("A < 3").publish_shared(b"hmine")
    assert chosen == b"hmine"
    with barrage.connect(server.uri, auth="sesame") as other:
        assert other.shared(shared).snapshot().equals(server.truth("keyed"))
        assert other.table_from_ticket(b"hmine").snapshot().num_rows == 3
        with other.shared(shared).subscribe(interval_ms=50) as live:
            live.wait_ready(WAIT)
            server.add()
            until(lambda: live.to_arrow().equals(server.truth("keyed")))
    with pytest.raises(TableExistsError):
        session.table("keyed").publish_shared(shared)
    with pytest.raises(TableNotFoundError):
        session.shared(b"hnothing").snapshot()
    with pytest.raises(TicketError, match="h and more"):
        session.shared(b"s/keyed")


@pytest.mark.parametrize("ticket", [b"s/static_rows"])
def test_raw_tickets(session, ticket):
    assert session.table_from_ticket(ticket).snapshot().num_rows == 1000


@pytest.mark.parametrize("ticket", [b"zzz", b"e\x01\x02", b"s/nope", b"h"])
def test_tickets_of_nothing_are_typed_errors(session, ticket):
    with pytest.raises(BarrageError):
        session.table_from_ticket(ticket).snapshot(timeout=WAIT)


# --- writing ------------------------------------------------------------------------------------

UPLOADS = {
    "int8": pa.array([1, None, -128 + 1], pa.int8()),
    "int16": pa.array([1, None, 2**15 - 1], pa.int16()),
    "int32": pa.array([1, None, 2**31 - 1], pa.int32()),
    "int64": pa.array([1, None, 2**63 - 1], pa.int64()),
    "uint16": pa.array([65, None, 66], pa.uint16()),
    "float32": pa.array([0.5, None, float("inf")], pa.float32()),
    "float64": pa.array([0.5, None, float("inf")], pa.float64()),
    "bool": pa.array([True, None, False]),
    "string": pa.array(["a", None, ""]),
    "timestamp": pa.array([1, None, 2], pa.timestamp("ns", tz="UTC")),
    "date64": pa.array([0, None, 86_400_000], pa.date64()),
    "time64": pa.array([0, None, 7], pa.time64("ns")),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", UPLOADS)
def test_uploaded_values_come_back(session, kind):
    with session.upload({"X": UPLOADS[kind]}) as table:
        assert table.snapshot()["X"].to_pylist() == UPLOADS[kind].to_pylist()


def test_uploads_of_many_rows_and_of_none(session):
    rows = pa.table({"N": range(300_000), "T": [f"t{n}" for n in range(300_000)]})
    with session.upload(rows, timeout=60) as table:
        assert table.snapshot(timeout=60).equals(rows)
        assert table.info().total_records == 300_000
    empty = session.upload(rows.slice(0, 0))
    assert empty.snapshot().num_rows == 0
    assert empty.schema.names == ["N", "T"]


def test_put_gives_a_name(server, session):
    session.put("mine", {"a": [1, 2]})
    assert server.truth("mine").to_pydict() == {"a": [1, 2]}
    session.put("mine", {"b": ["x"]})
    with barrage.connect(server.uri) as other:
        assert other.table("mine").snapshot().to_pydict() == {"b": ["x"]}
    with pytest.raises(TableExistsError):
        session.put("mine", {"a": [1]}, mode="create")
    with pytest.raises(UnsupportedError, match="input table"):
        session.put("mine", {"a": [1]}, mode="append")
    with pytest.raises(SchemaError, match="name"):
        session.put("not a name", {"a": [1]})
    session.drop_table("mine")
    with pytest.raises(TableNotFoundError):
        session.drop_table("mine")


def test_put_with_a_key_is_a_table_that_is_changed(session):
    session.put("byname", {"Name": ["a", "b"], "Size": [1, 2]}, key="Name", mode="replace")
    with session.table("byname").subscribe(interval_ms=50) as live:
        live.wait_ready(WAIT)
        session.put("byname", {"Name": ["b", "c"], "Size": [20, 30]})
        wanted = {"Name": ["a", "b", "c"], "Size": [1, 20, 30]}
        until(lambda: live.to_arrow().to_pydict() == wanted)
        session.put("byname", {"Name": ["b"]}, mode="delete")
        until(lambda: live.to_arrow().to_pydict() == {"Name": ["a", "c"], "Size": [1, 30]})
    session.drop_table("byname")


def test_created_tables_are_input_tables(session):
    schema = pa.schema([("Name", pa.string()), ("When", pa.timestamp("us")), ("Day", pa.date32())])
    session.create_table("made", schema, key=["Name"])
    with pytest.raises(TableExistsError):
        session.create_table("made", schema)
    table = session.open_input_table("made")
    assert table.key == ("Name",)
    with pytest.raises(UnsupportedError):
        session.open_input_table("static_rows")
    session.drop_table("made")


def test_input_tables(session):
    schema = pa.schema([("K", pa.int32()), ("V", pa.string())])
    table = session.input_table(schema, key="K")
    with table.subscribe(interval_ms=50) as live:
        live.wait_ready(WAIT)
        assert table.add({"K": [1, 2], "V": ["a", "b"]}) == 2
        table.add({"K": [2], "V": [None]})
        table.delete({"K": [1]})
        until(lambda: live.to_arrow().to_pydict() == {"K": [2], "V": [None]})
    with pytest.raises(RowError, match="'K'"):
        table.add({"K": [2**40], "V": ["x"]})
    with pytest.raises(SchemaError, match="'V'"):
        table.add({"K": [1]})
    with pytest.raises(SchemaError, match="'W'"):
        table.add({"K": [1], "V": ["x"], "W": [1]})
    added = session.input_table(schema)
    added.add([{"K": 1, "V": "x"}, {"K": 1, "V": "y"}])
    until(lambda: added.snapshot()["V"].to_pylist() == ["x", "y"])
    with pytest.raises(UnsupportedError, match="key"):
        added.delete({"K": [1]})
    assert session.input_table(schema, kind="blink").info().kind == "blink"


def test_columns_that_cannot_be_are_refused(session):
    with pytest.raises(SchemaError, match="k cannot be the name"):
        session.input_table(pa.schema([("k", pa.int32())]), key="k")
    with pytest.raises(SchemaError, match="'X'"):
        session.input_table(pa.schema([("X", pa.struct([("a", pa.int32())]))]))


# --- queries ------------------------------------------------------------------------------------


def test_queries(session):
    rows = session.table("static_rows")
    assert rows.where("A < 100", "B = `b3`").sort("-A").head(2).snapshot().to_pydict() == {
        "A": [93, 83],
        "B": ["b3", "b3"],
    }
    counted = rows.agg_by("B", n="count()", total="sum(A)").sort("B").head(1)
    assert counted.snapshot().to_pydict() == {"B": ["b0"], "n": [100], "total": [49500]}
    assert counted.schema.names == ["B", "n", "total"]
    assert rows.agg_by(n="count()").snapshot().to_pydict() == {"n": [1000]}
    assert rows.select("A", C="A * 2").tail(1).snapshot().to_pydict() == {"A": [999], "C": [1998]}
    assert rows.drop("A").select_distinct().snapshot().num_rows == 10
    assert rows.select_distinct("B").flatten().snapshot().num_rows == 10
    assert rows.slice(1, 3).merge(rows.head(1)).snapshot()["A"].to_pylist() == [1, 2, 0]
    assert rows.last_by("B").sort("A").snapshot()["A"].to_pylist() == list(range(990, 1000))
    joined = session.table("keyed").natural_join(session.table("sectors"), "S", "Sector")
    sectors = dict(zip(*joined.select_distinct("S", "Sector").snapshot().columns, strict=True))
    assert str(sectors[pa.scalar("s1")]) == "food"
    assert sectors[pa.scalar("s2")].as_py() is None


def test_a_query_ticks(server, session):
    query = session.table("keyed").where("V > 20").agg_by("S", n="count()", top="max(V)").sort("S")
    with query.subscribe(interval_ms=50) as live:
        live.wait_ready(WAIT)
        for _ in range(3):
            server.add()

            def arrived():
                truth = server.truth("keyed").to_pandas().query("V > 20").groupby("S")["V"]
                wanted = truth.agg(["count", "max"]).reset_index().values.tolist()
                return live.to_pandas().values.tolist() == wanted

            until(arrived)


def test_a_query_starts_from_uploaded_rows(session):
    uploaded = session.upload({"A": pa.array([1, 2], pa.int32()), "Name": ["one", "two"]})
    joined = session.table("static_rows").head(3).natural_join(uploaded, on="A", add="Name")
    assert joined.snapshot()["Name"].to_pylist() == [None, "one", "two"]
    assert uploaded.where("A > 1").snapshot()["Name"].to_pylist() == ["two"]


def test_a_refused_query_names_the_operator(session):
    with pytest.raises(ExpressionError, match=r"where\('Q > 3'\)"):
        session.table("static_rows").sort("A").where("Q > 3").head(1).snapshot()
    with pytest.raises(UnsupportedError, match="median"):
        session.table("static_rows").agg_by(m="median(A)").snapshot()
    with pytest.raises(TableNotFoundError):
        session.table("nope").where("A > 3").snapshot()


# --- following ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all_types", "extremes", "grouped", "static_rows"])
def test_every_type_arrives_as_the_server_exports_it(server, session, name):
    truth = server.truth(name)
    names = truth.column_names[::-1]
    table = session.open_table(name)
    assert table.snapshot().equals(truth)
    part = table.snapshot(columns=names, rows=(0, 2))
    assert part.equals(truth.select(names).slice(0, 2))
    with table.subscribe() as live, table.subscribe(viewport=(1, 3)) as view:
        live.wait_ready(WAIT)
        view.wait_ready(WAIT)
        assert live.to_arrow().equals(truth)
        assert view.to_arrow().equals(truth.slice(1, 2))
        assert live.schema.field(0).metadata[b"deephaven:type"]


async def arrival(live, wanted):
    """Follow the table until it shows ``wanted``."""
    async with asyncio.timeout(WAIT):
        async for _ in live.updates():
            if live.to_arrow().equals(wanted):
                return


def test_five_hundred_subscriptions(server):
    async def main():
        async with barrage.aconnect(server.uri) as session:
            for _ in range(2):
                tables = [
                    await session.table("keyed").subscribe(
                        interval_ms=50, viewport=None if number % 2 else (number % 40, 50)
                    )
                    for number in range(250)
                ]
                for live in tables:
                    await live.wait_ready(60)
                await asyncio.to_thread(server.add)
                truth = await asyncio.to_thread(server.truth, "keyed")
                for number, live in enumerate(tables):
                    start = 0 if number % 2 else number % 40
                    wanted = truth if number % 2 else truth.slice(start, 50 - start)
                    await arrival(live, wanted)
                for live in tables:
                    await live.close()
            assert not session._subscriptions

    asyncio.run(main())


def test_a_storm_of_viewports(server, session):
    names = ["N", "T"]
    with session.table("grown").subscribe(viewport=(0, 10), interval_ms=50) as live:
        for number in range(300):
            live.set_viewport((number, number + 20), reverse=number % 3 == 0)
            if number % 7 == 0:
                live.set_columns(names[: 1 + number % 2])
            if number % 20 == 0:
                server.add()
        live.set_columns(None)
        live.set_viewport((5, 25))
        live.wait_ready(WAIT)
        assert live.to_arrow().equals(server.truth("grown").slice(5, 20))


# --- servers that go away -----------------------------------------------------------------------


def test_a_killed_server_that_comes_back(deephaven_interpreter, tmp_path):
    server = ClientsServer(deephaven_interpreter, tmp_path)
    try:
        with barrage.connect(server.uri) as session:
            sources = {
                "named": session.table("keyed"),
                "opened": session.open_table("keyed"),
                "query": session.table("keyed").where("K < 10").sort("-K"),
            }
            uploaded = session.upload({"a": [1]})
            lives = {
                name: source.subscribe(interval_ms=50, reconnect=Backoff(seconds_max=1))
                for name, source in sources.items()
            }
            lost = uploaded.subscribe(reconnect=Backoff(seconds_max=1))
            for live in (*lives.values(), lost):
                live.wait_ready(WAIT)
            server.close()
            for live in lives.values():
                until(lambda live=live: live.state is State.RECONNECTING)
                assert len(live) > 0, "the last rows stay"
            server.start()
            for live in lives.values():
                until(lambda live=live: live.state is State.LIVE)
            assert len(lives["named"]) == len(lives["opened"]) == 50
            assert lives["query"].to_arrow()["K"].to_pylist() == list(range(9, -1, -1))
            until(lambda: lost.state is State.FAILED)
            assert isinstance(lost.error, TicketError)
            server.add()
            until(lambda: lives["opened"].to_arrow().equals(server.truth("keyed")))
            assert sources["opened"].snapshot().equals(server.truth("keyed"))
    finally:
        server.close()


def test_tokens_that_expire(deephaven_interpreter, tmp_path, monkeypatch):
    server = ClientsServer(deephaven_interpreter, tmp_path, lifetime_ms=10_000)
    try:
        with barrage.connect(server.uri) as kept:
            first = connection_of(kept).channel.authorization
            with kept.open_table("keyed").subscribe(interval_ms=50) as live:
                live.wait_ready(WAIT)
                time.sleep(16)
                assert live.state is State.LIVE
                assert live.stats.reconnects == 0
            assert connection_of(kept).channel.authorization != first, "the token is renewed"
            assert connection_of(kept).login.generation == 1, "the session is the same"
            assert kept.open_table("keyed").snapshot().num_rows == 50

        async def never(login):
            await asyncio.sleep(600)

        monkeypatch.setattr(DeephavenLogin, "keep_alive", never)
        with barrage.connect(server.uri) as silent:
            opened = silent.open_table("keyed")
            live = opened.subscribe(interval_ms=50)
            live.wait_ready(WAIT)
            time.sleep(16)
            assert opened.snapshot().num_rows == 50
            assert connection_of(silent).login.generation == 2
            server.add()
            until(lambda: live.to_arrow().equals(server.truth("keyed")))
    finally:
        server.close()


def test_the_example_runs_on_a_deephaven_server(server):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "deephaven_session.py"), server.uri],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "[{'City': 'Oslo', 'Max': 31}, {'City': 'Rome', 'Max': 40}]" in done.stdout


def test_the_command_line_runs_queries_there(server):
    address = f"{server.uri}/static_rows"
    query = ["--where", "A < 100", "--by", "B", "--agg", "n=count()", "--sort=-B", "--head", "2"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND_LINE, "snapshot", address, *query],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ['"B","n"', '"b9",10', '"b8",10']
