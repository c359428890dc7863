"""``barrage doctor HOST:PORT``: servers, and relays with their upstream servers and tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from barrage.cli.server_health import examine_server
from barrage.client.synchronous.sync_loop import LoopThread
from barrage.relay.relay_statistics import RELAYED_TABLE
from barrage.server.settings.config import ServerConfig
from barrage.transport.findings import CheckStatus
from tests.helpers.certificates import authority
from tests.helpers.server_process import wait_until
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.unit.relay.scene import relay_of

NOBODY = "grpc://127.0.0.1:1"


@contextmanager
def relaying(*upstreams: str, until: str = "live", **settings: Any) -> Iterator[str]:
    """A relay on a port, once it tells that its tables are so."""
    loop = LoopThread("relay of a test")
    config = ServerConfig(host="127.0.0.1")
    try:
        relay = loop.call(_started(*upstreams, config=config, **settings), 60)
        try:
            uri = f"grpc://{relay.address}"
            with barrage.connect(uri) as session:
                wait_until(lambda: states(session) == [until] if until else True, 60)
            yield uri
        finally:
            loop.call(relay.stop(), 60)
    finally:
        loop.close()


async def _started(*upstreams: str, **settings: Any) -> Any:
    return await relay_of(*upstreams, **settings).start()


def states(session: Any) -> list[str]:
    names = [each.name for each in session.tables()]
    if RELAYED_TABLE not in names:
        return []
    return session.table(RELAYED_TABLE).snapshot()["state"].to_pylist()


def doctor(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *words])
    checks = json.loads(result.stdout)["checks"]
    return result.exit_code, {each["name"]: each for each in checks}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrage.relay.relay_statistics.INTERVAL_S", 0.02)


@contextmanager
def owner(**settings: Any) -> Iterator[tuple[barrage.Server, str]]:
    with barrage.Server("127.0.0.1", journal="memory", **settings) as server:
        yield server, f"grpc://{server.address}"


def test_a_relay_is_shown_with_its_upstream_servers_and_tables() -> None:
    with owner() as (server, uri):
        server.create_table("quotes", {"Sym": "string"}).add([{"Sym": "A"}])
        with relaying(uri, NOBODY) as relay:
            code, found = doctor(relay.removeprefix("grpc://"))
            assert code == 0
            assert found[relay]["text"] == "a relay, 1 tables"
            assert found[f"upstream {uri}"]["text"] == "followed now, connected 1 times so far"
            assert found[f"upstream {NOBODY}"]["status"] == "ok"
            assert found["relayed quotes"]["text"].startswith("live at step ")
            assert "1 snapshots" in found["relayed quotes"]["text"]
            assert len(found) == 4


def test_what_is_wrong_with_a_relay_is_a_problem() -> None:
    with relaying(NOBODY, until="") as relay:
        with barrage.connect(relay) as session:
            wait_until(
                lambda: (
                    "_upstreams" in [each.name for each in session.tables()]
                    and session.table("_upstreams").snapshot()["trouble"].to_pylist() != [None]
                ),
                60,
            )
        code, found = doctor(relay)
        assert code == 1
        assert found[f"upstream {NOBODY}"]["status"] == "problem"
        assert "not followed: " in found[f"upstream {NOBODY}"]["text"]
        assert found["relayed tables"]["status"] == "warning"


def test_a_table_that_stands_still_is_a_warning_and_one_that_is_not_served_a_problem() -> None:
    for limit, state, status in ((None, "paused", "warning"), (1, "waiting", "problem")):
        with owner() as (server, uri):
            server.create_table("quotes", {"Sym": "string"}, kind="static", data=[{"Sym": "A"}])
            with relaying(uri, lag_ms_max=limit) as relay:
                server.stop()
                with barrage.connect(relay) as session:
                    wait_until(lambda at=session, wanted=state: states(at) == [wanted], 60)
                code, found = doctor(relay)
                assert code == 1, "the upstream server is lost"
                assert found["relayed quotes"]["status"] == status
                assert found[f"upstream {uri}"]["status"] == "problem"


def test_several_servers_are_looked_at_one_by_one() -> None:
    with owner() as (_, first), owner(token="secret") as (_, second):
        code, found = doctor(f"{first},{second},{NOBODY}")
        assert code == 1
        assert found[first]["text"] == "a server, 0 tables"
        assert found[second]["advice"].startswith("pass --token or set BARRAGE_TOKEN")
        assert found[NOBODY]["status"] == "problem"
        code, found = doctor(second, "--token", "secret")
        assert (code, found[second]["status"]) == (0, "ok")


def test_users_and_authorities_are_shown(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    config = ServerConfig(
        host="localhost",
        users=str(users_file(tmp_path / "users.jsonl")),
        tls_cert=certificate,
        tls_key=key,
    )
    monkeypatch.setenv("BARRAGE_PASSWORD", ALICE_PASSWORD)
    with barrage.Server(config=config) as server, owner() as (_, plain):
        options = ["--user", "alice", "--tls-ca", authority().write(tmp_path)]
        code, found = doctor(f"{server.uri},{plain}", *options)
        assert (code, found[server.uri]["status"]) == (0, "ok")
        assert found[plain]["status"] == "ok"
        code, found = doctor(server.uri, "--user", "alice")
        assert (code, found[server.uri]["status"]) == (1, "problem")
        assert "pass --tls-ca FILE" in found[server.uri]["text"]
        result = CliRunner().invoke(app, ["doctor", f"{server.uri},grpc://example.org", *options])
        assert result.exit_code == 2
        assert "in the clear" in result.stderr


def test_lines_for_people() -> None:
    with owner() as (_, uri):
        result = CliRunner().invoke(app, ["doctor", uri])
        assert result.stdout == f"ok       {uri}  a server, 0 tables\n"
        (finding,) = examine_server(uri, None)
        assert finding.status is CheckStatus.OK
