"""What users get wrong with the Python client, and the errors they read."""

from __future__ import annotations

import socket

import pytest

import barrage
from barrage.client.connection.reconnect import Backoff
from barrage.errors import ConfigError, ConnectionLostError, SchemaError
from tests.helpers.serving import HOST


@pytest.fixture
def server():
    with barrage.Server(HOST) as running:
        running.create_table("t", data={"x": list(range(10)), "y": ["a"] * 10})
        yield running


def test_an_unknown_revision_names_the_known_ones(server):
    with pytest.raises(ConfigError, match=r"'1999' is not one of 1\.0\.0, 2020"):
        barrage.connect(server.uri, revision="1999")


def test_a_port_that_accepts_and_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionLostError, match=r"no answer within 0\.3 seconds"):
            barrage.connect(f"localhost:{port}", timeout=0.3)


@pytest.fixture
def session(server):
    with barrage.connect(server.uri) as opened:
        yield opened


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"columns": "xy"}, SchemaError, "not the text 'xy'"),
        ({"columns": [1]}, SchemaError, r"list of names, not \[1\]"),
        ({"viewport": "0-3"}, ConfigError, "two ends"),
        ({"viewport": [0, 3]}, ConfigError, "two ends"),
        ({"viewport": 5}, ConfigError, "two ends"),
        ({"viewport": (None, 3)}, ConfigError, "whole numbers"),
        ({"viewport": (0, 2.5)}, ConfigError, "whole numbers"),
        ({"viewport": (0, 2**63)}, ConfigError, r"2\*\*63 - 1"),
        ({"interval_ms": -1}, ConfigError, "interval_ms is -1"),
        ({"interval_ms": 2**31}, ConfigError, "interval_ms"),
        ({"interval_ms": 1.5}, ConfigError, "interval_ms is 1.5"),
        ({"preview_list_length_limit": 2**63}, ConfigError, "preview_list_length_limit"),
        ({"reconnect": "yes"}, ConfigError, "reconnect is 'yes'"),
    ],
)
def test_wrong_arguments_of_subscribe_are_named_at_once(session, arguments, error, text, caplog):
    with pytest.raises(error, match=text):
        session.table("t").subscribe(**arguments)
    assert caplog.records == []


def test_largest_arguments_of_subscribe(session):
    with session.table("t").subscribe(
        viewport=(0, 2**63 - 1), interval_ms=2**31 - 1, preview_list_length_limit=-(2**63)
    ) as live:
        assert len(live.wait_ready(60)) == 10


def test_columns_given_as_text_are_refused_everywhere(session):
    table = session.table("t")
    with pytest.raises(SchemaError, match="not the text"):
        table.snapshot(columns="x")
    with table.subscribe(viewport=(0, 2)) as live:
        live.wait_ready(60)
        with pytest.raises(SchemaError, match="not the text"):
            live.set_columns("x")


def test_a_number_no_column_can_hold_is_a_schema_error(session):
    with pytest.raises(SchemaError, match="cannot make a table"):
        session.put("new", {"x": [2**70]})


def test_a_schema_of_another_kind_is_refused(session):
    with pytest.raises(SchemaError, match=r"a pyarrow\.Schema or a mapping .*, not list"):
        session.create_table("t", ["x"])


def test_subscriptions_do_not_share_the_callers_backoff(session):
    backoff = Backoff(first_seconds=0.2)
    with session.table("t").subscribe(reconnect=backoff) as live:
        ours = live._table._settings.backoff
        assert ours is not backoff
        assert ours.first_seconds == 0.2


def test_every_update_shows_the_columns_in_the_order_asked_for(session, server):
    """Not only the first one, which is the whole state."""
    table = server.create_table("k", key="id", data={"id": [1, 2], "a": ["p", "q"], "b": [1, 2]})
    with session.table("k").subscribe(columns=["b", "id"], interval_ms=10) as live:
        live.wait_ready(60)
        updates = live.updates(timeout=60)
        assert next(updates).added.column_names == ["b", "id"]
        table.upsert({"id": 3, "a": "r", "b": 3})
        update = next(updates)
        assert update.added.to_pylist() == [{"b": 3, "id": 3}]
        assert update.added.column_names == ["b", "id"]
        table.remove(1)
        update = next(updates)
        assert update.removed.column_names == ["b", "id"]
        assert update.schema.names == ["b", "id"]
