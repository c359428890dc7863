"""What our client does within a session, on our own server: over ``dh://``, where everything
belongs to one, and over ``grpc://``, where one is opened when it is first needed."""

from __future__ import annotations

import gc
import time

import pyarrow as pa
import pytest

import barrage
from barrage.cli.main import app
from barrage.client import Backoff, State
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ExpressionError,
    RowError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    TicketError,
    UnsupportedError,
)
from barrage.transport.deephaven_messages import MESSAGES, SESSION_SERVICE

WAIT = 60
ROWS = {"symbol": ["a", "b", "c"], "price": [1.0, 5.0, 9.0]}


@pytest.fixture
def server():
    with barrage.Server() as server:
        schema = {"symbol": "string", "price": "float64"}
        server.create_table("quotes", schema, key="symbol", data=ROWS)
        yield server


@pytest.fixture(params=["grpc", "dh"])
def session(request, server):
    uri = server.uri.replace("grpc", request.param, 1)
    with barrage.connect(uri, auth=server.token) as session:
        yield session


@pytest.fixture
def deephaven(server):
    with barrage.connect(server.uri.replace("grpc", "dh", 1), auth=server.token) as session:
        yield session


def until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def calls_of(session):
    return session._session._session_tables.calls


def end_session(session):
    """End the session on the server without telling the client."""
    channel = calls_of(session).channel
    request = MESSAGES.encode("HandshakeRequest", payload=channel.authorization.encode())
    work = channel.unary(f"/{SESSION_SERVICE}/CloseSession", request, timeout=WAIT)
    session._thread.call(work, WAIT)


def test_opened_tables(server, session):
    with session.open_table("quotes") as table:
        assert table.schema.names == ["symbol", "price"]
        assert table.snapshot().to_pydict() == ROWS
    with pytest.raises(TableNotFoundError, match="did you mean 'quotes'"):
        session.open_table("quote")


def test_tables_are_listed(session):
    (info,) = session.tables()
    assert (info.name, info.kind, info.key, info.is_ticking) == (
        "quotes", "keyed", ("symbol",), True,
    )  # fmt: skip


def test_uploads(session):
    rows = pa.table({"n": range(200_000), "t": [f"t{n % 100}" for n in range(200_000)]})
    with session.upload(rows) as table:
        assert table.snapshot().equals(rows)
        assert table.where("n < 3").snapshot()["n"].to_pylist() == [0, 1, 2]
    assert session.upload(rows.slice(0, 0)).snapshot().num_rows == 0


def test_what_nobody_holds_is_released(session):
    table = session.upload({"a": [1]})
    released = []
    calls = calls_of(session)
    release = calls.release

    async def note(ticket):
        await release(ticket)
        released.append(ticket)

    calls.release = note
    ticket = table._table._source._exported.ticket
    del table
    gc.collect()
    until(lambda: released == [ticket])
    with pytest.raises(TicketError):
        session._thread.call(calls.describe(ticket, "gone", 1), WAIT)


def test_input_tables(session):
    schema = pa.schema([("K", pa.int32()), ("V", pa.string())])
    table = session.input_table(schema, key="K")
    assert table.key == ("K",)
    with table.subscribe(interval_ms=10) as live:
        live.wait_ready(WAIT)
        assert table.add({"K": [1, 2], "V": ["a", "b"]}) == 2
        table.add({"K": [2], "V": [None]})
        table.delete({"K": [1]})
        until(lambda: live.to_arrow().to_pydict() == {"K": [2], "V": [None]})
    with pytest.raises(RowError, match="'K'"):
        table.add({"K": [2**40], "V": ["x"]})
    with pytest.raises(SchemaError, match="'V'"):
        table.add({"K": [1]})


def test_shared_tables(server, session):
    shared = session.table("quotes").publish_shared()
    chosen = session.upload({"a": [1]}).publish_shared(b"hmine")
    assert chosen == b"hmine"
    with barrage.connect(server.uri.replace("grpc", "dh", 1), auth=server.token) as other:
        assert other.shared(shared).snapshot().to_pydict() == ROWS
        assert other.table_from_ticket(b"hmine").snapshot().num_rows == 1
        assert other.shared(shared).schema.names == ["symbol", "price"]
    with pytest.raises(TableExistsError):
        session.table("quotes").publish_shared(b"hmine")
    with pytest.raises(TableNotFoundError):
        session.shared(b"hnothing").snapshot()


def test_names_given_within_a_session(server, deephaven):
    deephaven.put("mine", {"a": [1, 2]})
    with barrage.connect(server.uri, auth=server.token) as other:
        assert other.table("mine").snapshot().to_pydict() == {"a": [1, 2]}
    with pytest.raises(TableExistsError):
        deephaven.put("mine", {"a": [1]}, mode="create")
    with pytest.raises(UnsupportedError):
        deephaven.put("mine", {"a": [1]}, mode="append")
    deephaven.drop_table("mine")
    with pytest.raises(TableNotFoundError):
        deephaven.table("mine").snapshot()
    deephaven.put("byname", {"s": ["x"], "n": [1]}, key="s")
    deephaven.put("byname", {"s": ["x", "y"], "n": [2, 3]})
    until(
        lambda: deephaven.table("byname").snapshot().to_pydict() == {"s": ["x", "y"], "n": [2, 3]}
    )
    deephaven.create_table("made", pa.schema([("a", pa.int64())]))
    with pytest.raises(TableExistsError):
        deephaven.create_table("made", pa.schema([("a", pa.int64())]))


def test_queries(session):
    quotes = session.table("quotes")
    dear = quotes.where("price > 3").sort("-price")
    assert dear.snapshot()["symbol"].to_pylist() == ["c", "b"]
    assert dear.schema.names == ["symbol", "price"]
    assert dear.snapshot(columns=["price"], rows=(0, 1)).to_pydict() == {"price": [9.0]}
    counted = quotes.agg_by(n="count()", top="max(price)")
    assert counted.snapshot().to_pydict() == {"n": [3], "top": [9.0]}
    assert quotes.select("price").select_distinct().head(2).snapshot().num_rows == 2
    assert quotes.slice(1, 3).flatten().snapshot()["symbol"].to_pylist() == ["b", "c"]
    assert quotes.last_by("symbol").drop("price").tail(1).snapshot().to_pydict() == {
        "symbol": ["c"]
    }
    twice = quotes.merge(dear)
    assert twice.snapshot()["symbol"].to_pylist() == ["a", "b", "c", "c", "b"]
    renamed = quotes.select("symbol", other="price * 2")
    joined = dear.natural_join(renamed, on="symbol", add="other")
    assert joined.snapshot()["other"].to_pylist() == [18.0, 10.0]
    with pytest.raises(TableNotFoundError):
        session.table("nope").head(1).snapshot()
    with pytest.raises(BarrageError, match="nope"):
        quotes.sort("price").where("nope > 3").snapshot()


def test_a_query_ticks(server, session):
    query = session.table("quotes").where("price > 3").agg_by(n="count()", top="max(price)")
    with query.subscribe(interval_ms=10) as live, query.subscribe(viewport=(0, 5)) as view:
        live.wait_ready(WAIT)
        view.wait_ready(WAIT)
        server.table("quotes").upsert({"symbol": ["d", "a"], "price": [70.0, 1.5]})
        until(lambda: live.to_arrow().to_pydict() == {"n": [3], "top": [70.0]})
        until(lambda: view.to_arrow().to_pydict() == {"n": [3], "top": [70.0]})


def test_a_query_on_ours_needs_no_session(server):
    with barrage.connect(server.uri, auth=server.token) as session:
        assert session.table("quotes").where("price > 3").snapshot().num_rows == 2
        assert session._session._session_tables is None


def test_a_query_of_uploaded_rows_joins_named_ones(session):
    rows = session.upload({"symbol": ["c", "x"], "n": [1, 2]})
    joined = rows.natural_join(session.table("quotes"), on="symbol")
    assert joined.snapshot()["price"].to_pylist() == [9.0, None]
    named = session.table("quotes").head(1).natural_join(rows, on="symbol")
    assert named.snapshot()["n"].to_pylist() == [None]


def test_queries_run_as_batches(deephaven):
    quotes = deephaven.table("quotes")
    dear = quotes.where("price > 3").sort("-price")
    assert dear.snapshot()["symbol"].to_pylist() == ["c", "b"]
    assert quotes.agg_by(n="count()", top="max(price)").snapshot().to_pydict() == {
        "n": [3],
        "top": [9.0],
    }
    assert quotes.select("price").select_distinct().head(2).snapshot().num_rows == 2
    names = deephaven.upload({"symbol": ["b"], "name": ["Bolt"]})
    assert dear.natural_join(names, on="symbol").snapshot()["name"].to_pylist() == [None, "Bolt"]
    with pytest.raises(ExpressionError, match=r"where\('nope > 3'\)"):
        quotes.sort("price").where("nope > 3").snapshot()


def test_a_session_that_ended_is_opened_anew(server, deephaven):
    opened = deephaven.open_table("quotes")
    uploaded = deephaven.upload({"a": [1]})
    query = deephaven.table("quotes").where("price > 3")
    backoff = Backoff(first_seconds=0.02)
    with (
        opened.subscribe(interval_ms=10, reconnect=backoff) as live,
        query.subscribe(interval_ms=10, reconnect=backoff) as few,
    ):
        live.wait_ready(WAIT)
        few.wait_ready(WAIT)
        end_session(deephaven)
        until(lambda: live.stats.reconnects and live.state is State.LIVE)
        until(lambda: few.stats.reconnects and few.state is State.LIVE)
        server.table("quotes").upsert({"symbol": ["d"], "price": [7.0]})
        until(lambda: len(live) == 4 and len(few) == 3)
    assert opened.snapshot().num_rows == 4
    with pytest.raises(TicketError, match="session"):
        uploaded.snapshot()


def test_closing_logs_out(server):
    uri = server.uri.replace("grpc", "dh", 1)
    session = barrage.connect(uri, auth=server.token)
    token = calls_of(session).channel.authorization
    session.close()
    with pytest.raises(AuthenticationError):
        barrage.connect(uri, auth=token)


@pytest.mark.parametrize("scheme", ["grpc", "dh"])
def test_queries_and_opened_tables_survive_a_new_server(scheme):
    schema = {"symbol": "string", "price": "float64"}
    first = barrage.Server()
    first.start()
    first.create_table("quotes", schema, key="symbol", data=ROWS)
    uri = first.uri.replace("grpc", scheme, 1)
    with barrage.connect(uri) as session:
        dear = session.table("quotes").where("price > 3").sort("-price")
        backoff = Backoff(first_seconds=0.05, seconds_max=0.5)
        with (
            dear.subscribe(interval_ms=10, reconnect=backoff) as live,
            session.open_table("quotes").subscribe(interval_ms=10, reconnect=backoff) as whole,
        ):
            live.wait_ready(WAIT)
            whole.wait_ready(WAIT)
            first.stop()
            until(lambda: live.state is State.RECONNECTING and whole.state is State.RECONNECTING)
            assert live.to_arrow()["symbol"].to_pylist() == ["c", "b"]
            with barrage.Server(port=first.port) as second:
                second.create_table("quotes", schema, key="symbol", data=ROWS)
                until(lambda: live.state is State.LIVE and whole.state is State.LIVE)
                second.table("quotes").upsert({"symbol": ["d"], "price": [100.0]})
                until(lambda: live.to_arrow()["symbol"].to_pylist() == ["d", "c", "b"])
                until(lambda: len(whole) == 4)


@pytest.mark.parametrize("scheme", ["grpc", "dh"])
def test_the_command_line_runs_queries(server, scheme, capsys):
    address = f"{server.uri.replace('grpc', scheme, 1)}/quotes"
    token = [] if server.token is None else ["--token", server.token]
    query = ["--where", "price > 3", "--agg", "n=count()", "--agg", "top=max(price)"]
    for command, wanted in (
        (["snapshot", address, *query], ["n,top", "2,9"]),
        (["snapshot", address, "--sort", "-price", "--head", "1"], ["symbol,price", "c,9"]),
        (
            ["snapshot", address, "--distinct", "symbol", "--sort", "-symbol", "--head", "1"],
            ["symbol", "c"],
        ),
        (
            ["snapshot", address, "--join", "quotes:symbol:again=price", "--head", "1"],
            ["symbol,price,again", "a,1,1"],
        ),
        (["schema", address, *query], ["column  type", "n       int64", "top     double"]),
        (["watch", address, "--once", "--json", *query], None),
    ):
        assert app([*command, *token], standalone_mode=False) == 0
        lines = capsys.readouterr().out.replace('"', "").splitlines()
        if wanted is None:
            assert "rows:[{n:2,top:9.0}]" in lines[0]
        else:
            assert lines == wanted
