"""Workers of the doors for pages and for connectors, and of results that are kept."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.server import ServerConfig
from tests.end_to_end.deaths.killing import HANG_SECONDS, ROW, Killing, kills, refusal, scene
from tests.end_to_end.deaths.servers import statistics_fail
from tests.helpers.connector_source import source
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
