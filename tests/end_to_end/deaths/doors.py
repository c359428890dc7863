"""Workers of the doors for pages and for connectors, of results that are kept, and of alerts."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.server import Alert, ServerConfig
from tests.end_to_end.deaths.killing import (
    HANG_SECONDS,
    ROW,
    Killing,
    Scene,
    kills,
    refusal,
    scene,
)
from tests.end_to_end.deaths.servers import fails, statistics_fail
from tests.helpers.alert_receiver import AlertReceiver, receiver
from tests.helpers.connector_source import source
from tests.helpers.server_process import wait_until
from tests.helpers.users import ALICE_PASSWORD, users_file

LOOPBACK = "127.0.0.1"
ALICE = f"alice:{ALICE_PASSWORD}"


@kills("barrage-connector-admission")
def admission(killing: Killing) -> None:
    users = users_file(killing.directory / "users")
    config = ServerConfig(host=LOOPBACK, connector=f"{LOOPBACK}:0", users=str(users))
    with barrage.Server(config=config) as server:
        port = server.connector_port
        killing.newborn()
        with pytest.raises((EOFError, ConnectionError)), source(port, "t", cookie=ALICE):
            pass
        with source(port, "t", cookie=ALICE) as again:
            again.announce(1)
            again.send(1, 1)
            again.wait_safe(1, 1)


@kills("barrage-connector-statistics")
def connector_statistics(killing: Killing) -> None:
    statistics_fail(killing, "_connectors", config=ServerConfig(connector=f"{LOOPBACK}:0"))


@kills("barrage-web-request")
def web_request(killing: Killing) -> None:
    with scene(config=ServerConfig(web=True)) as s:
        port = urlsplit(s.server.web_uri).port
        killing.newborn()
        assert answer(port, "/")[0] == http.client.INTERNAL_SERVER_ERROR
        assert answer(port, "/")[0] == http.client.OK
        status, body = answer(port, "/healthz")
        assert (status, json.loads(body)) == (http.client.OK, {"status": "SERVING"})
        s.others_go_on()


def answer(port: int, path: str) -> tuple[int, bytes]:
    """What a page is sent."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=HANG_SECONDS)
    try:
        connection.request("GET", path)
        got = connection.getresponse()
        return got.status, got.read()
    finally:
        connection.close()


@kills("barrage-query-job")
def query_job(killing: Killing) -> None:
    with scene(host=LOOPBACK) as s:
        s.table.add(ROW)
        killing.newborn()
        told = refusal(lambda: s.session.table("t").snapshot(jobs=2))
        assert "barrage-query-job has died" in str(told)
        assert len(s.session.table("t").snapshot(jobs=2)) == 1
        s.others_go_on()


@kills("barrage-renew-result")
def renewer(killing: Killing) -> None:
    with scene(host=LOOPBACK) as s:
        s.table.add(ROW)
        killing.newborn()
        assert len(s.session.table("t").snapshot(jobs=2)) == 1
        s.others_go_on()


@contextmanager
def alerting() -> Iterator[tuple[Scene, AlertReceiver]]:
    """A server with two alerts, of which one has told something."""
    with receiver() as kept, scene(config=ServerConfig(alert_hosts=LOOPBACK)) as s:
        for name in ("first", "second"):
            told = {"table": "t", "where": "x > 0", "url": kept.url, "interval_ms": 0}
            s.server.add_alert(Alert(name=name, **told))
        s.table.add(ROW)
        kept.wait_for(2)
        yield s, kept


@kills("barrage-alerts")
def alert_keeper(killing: Killing) -> None:
    with alerting() as (s, _):
        killing.task()
        s.is_not_serving()
        s.others_go_on()


@kills("barrage-alert-delivery")
def alert_delivery(killing: Killing) -> None:
    with alerting() as (s, _):
        killing.task(0)
        s.is_not_serving()
        first, second = s.server._running.operations.alerts.alerts.values()
        wait_until(lambda: first.state.value == "failed", HANG_SECONDS)
        assert "barrage-alert-delivery has died" in str(first.detail)
        assert second.state.value == "watching"
        s.others_go_on()


@kills("barrage-alert-statistics")
def alert_statistics(killing: Killing) -> None:
    with alerting() as (s, _):
        wait_until(lambda: "_alerts" in s.server.table_names(), HANG_SECONDS)
        live = s.session.table("_alerts").subscribe().wait_ready(HANG_SECONDS)
        killing.task()
        fails(live)
        s.is_not_serving()
        s.others_go_on()
