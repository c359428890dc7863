"""Where to call, as whom, how often, and what a failure means."""

from __future__ import annotations

import pickle

import pytest

from barrage.errors import ConfigError
from spark_sink.connection import Failure, ServerConnection, ServerError
from spark_sink.patience import wait_meter
from tests.helpers.fake_journal import FakeJournalServer, FakeTable
from tests.unit.spark_sink.tables import TRADES


@pytest.fixture
def server():
    with FakeJournalServer() as running:
        running.tables["trades"] = FakeTable(TRADES)
        yield running


def test_locations_get_a_scheme_and_a_port():
    told = {"uri": "one, grpc://two:5/ ,dh://[::1]:9"}
    assert ServerConnection.of(told).uris == ("grpc://one:10000", "grpc://two:5", "dh://[::1]:9")
    told = {"uri": "grpcs://three:7, grpc+tls://four,127.0.0.1:8,dh://[::1]:9, localhost"}
    assert ServerConnection.of(told).uris == (
        "grpcs://three:7",
        "grpc+tls://four:10000",
        "grpc://127.0.0.1:8",
        "dh://[::1]:9",
        "grpc://localhost:10000",
    )
    assert ServerConnection.of({"host": "::1", "PORT": "8"}).uris == ("grpc://[::1]:8",)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "option uri is missing"),
        ({"uri": " , "}, "uri is empty"),
        ({"uri": "http://x"}, "begins with grpc://"),
        ({"uri": "x", "host": "y"}, "not both"),
        ({"uri": "x", "auth.token": "a", "auth.tokenEnv": "B"}, "auth.token or auth.tokenEnv"),
        ({"uri": "x", "auth.user": "a"}, "auth.password"),
        ({"uri": "x", "auth.user": "a", "auth.password": "p", "auth.token": "t"}, "not both"),
        ({"uri": "x", "fetchNumRetries": "-1"}, "fetchNumRetries"),
        ({"uri": "x", "fetchTimeoutMs": "soon"}, "fetchTimeoutMs"),
        ({"uri": "x", "header.a b": "1"}, "header of text"),
        ({"uri": "grpcs://x,y"}, "grpc://y:10000 would be told in the clear"),
        ({"uri": "x", "tls.rootCertificates": "ca.pem"}, "grpc://x:10000 would be told in the"),
    ],
)
def test_wrong_options_are_named(told, words):
    with pytest.raises(ConfigError, match=words):
        ServerConnection.of(told)


def test_secrets_are_sent_and_never_shown(server, monkeypatch):
    monkeypatch.setenv("TRADES_TOKEN", "s3cret")
    monkeypatch.setenv("ZONE", "eu")
    told = {"uri": server.uri, "auth.tokenEnv": "TRADES_TOKEN"}
    told |= {"header.x-plain": "one", "header.x-zone.env": "ZONE"}
    connection = pickle.loads(pickle.dumps(ServerConnection.of(told)))
    connection.action("journal.info", table="trades")
    headers = server.headers[-1]
    assert headers["authorization"] == ["Bearer s3cret"]
    assert (headers["x-plain"], headers["x-zone"]) == (["one"], ["eu"])
    assert "s3cret" not in repr(connection)
    direct = ServerConnection.of({"uri": server.uri, "auth.token": "s3cret"})
    assert "s3cret" not in repr(direct)


def test_user_and_password_are_basic(server):
    told = {"uri": server.uri, "auth.user": "u", "auth.password": "p"}
    ServerConnection.of(told).action("journal.info", table="trades")
    assert server.headers[-1]["authorization"] == ["Basic dTpw"]


def test_a_missing_variable_is_named(server, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    connection = ServerConnection.of({"uri": server.uri, "auth.tokenEnv": "NOT_SET"})
    with pytest.raises(ConfigError, match=r"spark\.executorEnv\.NOT_SET"):
        connection.action("journal.info", table="trades")


def test_a_server_that_is_away_for_a_moment_is_asked_again(server):
    connection = ServerConnection.of({"uri": server.uri, "fetchRetryIntervalMs": "1"})
    server.unavailable = 9
    assert connection.action("journal.info", table="trades")["table"] == "trades"
    server.unavailable = 3
    bounded = ServerConnection.of({"uri": server.uri, "fetchNumRetries": "2"})
    with pytest.raises(ServerError, match="reconnectTimeoutMs") as caught:
        bounded.action("journal.info", table="trades")
    assert caught.value.failure is Failure.UNREACHABLE


def test_the_last_cause_is_told_when_the_time_is_over(server, caplog):
    told = {"uri": server.uri, "reconnectTimeoutMs": "150", "fetchRetryIntervalMs": "10"}
    server.unavailable = 10_000
    before = wait_meter.counts
    with pytest.raises(ServerError, match=r"the fake is away.*tried for") as caught:
        ServerConnection.of(told).action("journal.info", table="trades")
    assert caught.value.failure is Failure.UNREACHABLE
    assert 2 <= 10_000 - server.unavailable < 100
    assert wait_meter.counts.waits == before.waits + 1
    assert wait_meter.counts.retries > before.retries
    assert "the server is away" in caplog.text
    server.unavailable = 0


def test_no_patience_is_one_try(server):
    server.unavailable = 1
    with pytest.raises(ServerError):
        ServerConnection.of({"uri": server.uri, "reconnectTimeoutMs": "0"}).action(
            "journal.info", table="trades"
        )
    assert not server.unavailable


def test_a_table_that_was_there_is_waited_for(server):
    """A server that has just started may make its tables in a moment."""
    connection = ServerConnection.of({"uri": server.uri, "reconnectTimeoutMs": "100"})
    with pytest.raises(ServerError, match=r"gone.*nothing") as caught:
        connection.action("journal.info", table="nothing", is_known=True)
    assert caught.value.failure is Failure.NOT_FOUND
    assert len(server.asked("journal.info")) > 1


def test_the_next_location_is_tried(server):
    connection = ServerConnection.of(
        {"uri": f"grpc://127.0.0.1:1,{server.uri}", "fetchRetryIntervalMs": "1"}
    )
    assert connection.action("journal.info", table="trades")["table"] == "trades"


@pytest.mark.parametrize(
    ("table", "body", "failure", "words"),
    [
        ("nothing", {}, Failure.NOT_FOUND, "option table"),
        ("trades", {"epoch": "f" * 16}, Failure.LOST, "another epoch"),
    ],
)
def test_failures_have_kinds(server, table, body, failure, words):
    with pytest.raises(ServerError, match=words) as caught:
        ServerConnection.of({"uri": server.uri}).action("journal.info", table=table, **body)
    assert caught.value.failure is failure


def test_one_client_a_process_and_server(server):
    first = ServerConnection.of({"uri": server.uri})
    second = ServerConnection.of({"URI": server.uri})
    assert first.client() is second.client()
    assert first.client() is not ServerConnection.of({"uri": server.uri, "header.a": "b"}).client()
