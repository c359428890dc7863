"""What our client does within a session, on our own server: over ``dh://``, where everything
belongs to one, and over ``grpc://``, where one is opened when it is first needed."""

from __future__ import annotations

import gc
import time

import pyarrow as pa
import pytest

import barrage
from barrage.client import Backoff, State
from barrage.errors import (
    AuthenticationError,
    ExpressionError,
    RowError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    TicketError,
    UnsupportedError,
)
from barrage.transport.deephaven_messages import MESSAGES, SESSION_SERVICE

WAIT = 20
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
    channel = calls_of(session).connection.channel
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
    token = calls_of(session).connection.channel.authorization
    session.close()
    with pytest.raises(AuthenticationError):
        barrage.connect(uri, auth=token)
