"""Callers whom the connection knows: a client certificate over TLS, and the user of a socket of the
file system. Nothing else is shown; what the audit log and the statistics say of them is read."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path

import pytest

import barrage
from barrage.errors import AuthenticationError, ConfigError
from barrage.server import ServerConfig
from tests.helpers.certificates import authority
from tests.helpers.server_process import wait_until

BOTH = pytest.mark.parametrize("http", ["own", "grpcio"])
HANG_SECONDS = 180
SCHEMA = {"x": "int64"}


def served(folder: Path, **settings: object) -> barrage.Server:
    """A server with a table, an audit log and a key."""
    config = ServerConfig(token="the-key", audit=str(folder / "audit.log"), **settings)
    made = barrage.Server(config=config)
    made.create_table("t", SCHEMA, data={"x": [1]})
    return made


def secure(folder: Path, http: str, **settings: object) -> barrage.Server:
    """One that asks for certificates of clients."""
    certificate, key = authority().for_localhost().write(folder, "server")
    return served(
        folder,
        host="localhost",
        http=http,
        tls_cert=certificate,
        tls_key=key,
        tls_client_ca=authority("clients").write(folder, "clients"),
        **settings,
    )


def shown(folder: Path, name: str = "alice") -> barrage.TLS:
    """The certificate of a client of that name."""
    certificate, key = authority("clients").for_client(name).write(folder, name)
    return barrage.TLS(ca=authority().write(folder), certificate=certificate, key=key)


def noted(folder: Path, method: str) -> set[tuple[str, str, str]]:
    """Of every call of the method: user, proof and outcome. After the server has stopped."""
    lines = map(json.loads, (folder / "audit.log").read_text().splitlines())
    return {
        (each.get("user"), each.get("proof"), each["outcome"])
        for each in lines
        if each["method"].endswith(f"/{method}")
    }


def calls_of(user: str, seen: barrage.client.TickingTable) -> list[str]:
    """By what the user is known, of the calls under way."""
    rows = seen.to_arrow().to_pylist()
    return [row["proof"] for row in rows if row["user"] == user and row["calls"]]


@BOTH
def test_a_certificate_is_its_caller(tmp_path, http):
    with secure(tmp_path, http) as server:
        with (
            barrage.connect(server.uri, tls=shown(tmp_path)) as session,
            session.table("t").subscribe().wait_ready(HANG_SECONDS) as live,
        ):
            assert len(live) == 1
            wait_until(lambda: "_callers" in [each.name for each in session.tables()], HANG_SECONDS)
            with session.table("_callers").subscribe().wait_ready(HANG_SECONDS) as seen:
                wait_until(lambda: calls_of("alice", seen) == ["certificate"], HANG_SECONDS)
        with barrage.connect(server.uri, tls=shown(tmp_path, "bob")) as session:
            session.put("t", {"x": [2]})
        with (
            pytest.raises(AuthenticationError),
            barrage.connect(server.uri, tls=shown(tmp_path), auth="wrong") as session,
        ):
            session.tables()
    assert noted(tmp_path, "DoPut") == {("bob", "certificate", "OK")}


@BOTH
def test_a_certificate_may_be_asked_for_beside_a_key(tmp_path, http):
    with secure(tmp_path, http, certificate_name="none") as server:
        with (
            pytest.raises(AuthenticationError, match="no credentials"),
            barrage.connect(server.uri, tls=shown(tmp_path)) as session,
        ):
            session.tables()
        with barrage.connect(server.uri, tls=shown(tmp_path), auth="the-key") as session:
            session.put("t", {"x": [2]})
    assert noted(tmp_path, "DoPut") == {("key", "key", "OK")}


def test_a_user_of_a_socket_is_the_caller(tmp_path):
    uri = f"unix://{tmp_path}/s"
    me = pwd.getpwuid(os.getuid()).pw_name
    with served(tmp_path, host=uri, unix_peers=True), barrage.connect(uri) as session:
        session.put("t", {"x": [2]})
        assert session.table("t").snapshot()["x"].to_pylist() == [1, 2]
    assert noted(tmp_path, "DoPut") == {(me, "unix", "OK")}


def test_a_user_of_a_socket_is_nobody_unless_that_is_said(tmp_path):
    uri = f"unix://{tmp_path}/s"
    with (
        served(tmp_path, host=uri),
        pytest.raises(AuthenticationError, match="no credentials"),
        barrage.connect(uri) as session,
    ):
        session.tables()


def test_who_a_socket_belongs_to_has_to_be_known(tmp_path):
    for host, http in ((f"unix://{tmp_path}/s", "grpcio"), ("localhost", "own")):
        with pytest.raises(ConfigError, match="unix_peers needs a host unix"):
            served(tmp_path, host=host, http=http, unix_peers=True).start()
