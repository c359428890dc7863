"""Transports and body transports of other packages, and sockets of the file system: what is found
in the registry carries a subscription like what was always there."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from barrage.client import BodyStatus
from barrage.errors import AuthenticationError, ConfigError, ConnectionLostError, TableNotFoundError
from barrage.server.settings.config import ServerConfig, load_config
from barrage.transport.registry import BODIES, TRANSPORTS
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.server_process import wait_until
from tests.helpers.toy_backends import ToyBodies, ToySettings, ToyTransport

WAIT = 60
ROWS = 100_000


@pytest.fixture
def toy_transport():
    TRANSPORTS.register("toy", ToyTransport())
    yield
    TRANSPORTS.unregister("toy")


@pytest.fixture
def toy_bodies():
    made = ToyBodies()
    BODIES.register("toy", made)
    yield made
    BODIES.unregister("toy")


def follow(session, table) -> None:
    """A subscription, a change that comes through it, and a change of its viewport."""
    with session.table("t").subscribe(viewport=(0, 3)) as live:
        live.wait_ready(timeout=WAIT)
        assert live.to_arrow()["x"].to_pylist() == [0, 1, 2]
        table.add({"x": [-1]})
        live.set_viewport((10, 12))
        wait_until(lambda: live.to_arrow()["x"].to_pylist() == [-1])


# --- transports -----------------------------------------------------------------------------------


def test_a_subscription_over_a_transport_of_somebody_else(toy_transport) -> None:
    with barrage.Server("toy://anywhere") as server:
        assert server.uri == f"toy://127.0.0.1:{server.port}"
        table = server.create_table("t", {"x": "int64"})
        table.add({"x": range(10)})
        with barrage.connect(server.uri) as session:
            assert [each.name for each in session.tables()] == ["t"]
            with pytest.raises(TableNotFoundError, match="did you mean 't'"):
                session.table("tt").snapshot()
            assert session.put("more", {"y": [1, 2]}).rows == 2
            assert session.table("more").snapshot()["y"].to_pylist() == [1, 2]
            follow(session, table)
        uri = server.uri
    with pytest.raises(ConnectionLostError):
        barrage.connect(uri)


def test_a_client_of_a_socket_of_the_file_system(tmp_path: Path) -> None:
    uri = f"unix://{tmp_path}/s"
    with barrage.Server(uri, token="secret") as server:
        assert (server.uri, server.address, server.port) == (uri, uri, 0)
        table = server.create_table("t", {"x": "int64"})
        table.add({"x": range(10)})
        with pytest.raises(AuthenticationError):
            barrage.connect(uri)
        with barrage.connect(f"grpc+{uri}", auth="secret") as session:
            follow(session, table)
            assert session.table("t").snapshot().num_rows == 11
        with pytest.raises(ConfigError, match="another server does"):
            barrage.Server(uri).start()
    with pytest.raises(ConnectionLostError):
        barrage.connect(uri)


def test_commands_reach_it(tmp_path: Path) -> None:
    uri = f"unix://{tmp_path}/s"
    with barrage.Server(uri) as server:
        server.create_table("t", data={"x": [1, 2]})
        listed = CliRunner().invoke(app, ["ls", uri, "--json"])
        assert '"t"' in listed.stdout
        shown = CliRunner().invoke(app, ["snapshot", f"{uri}/t"])
        assert (shown.exit_code, "x" in shown.stdout) == (0, True)
    gone = CliRunner().invoke(app, ["ls", uri])
    assert f"`barrage serve --host {uri}`" in gone.stderr


def test_a_socket_that_was_left_behind_is_used_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/s")
    with barrage.Server(f"unix://{tmp_path}/s") as server, barrage.connect(server.uri) as session:
        assert server.token is None
        assert session.tables() == []


def test_addresses_nobody_can_listen_on(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no transport 'telex'; there are grpc, .*inproc"):
        barrage.Server("telex://here").start()
    with pytest.raises(ConfigError, match="has no path"):
        barrage.Server("unix://here").start()
    with pytest.raises(ConfigError, match="cannot listen on unix:"):
        barrage.Server(f"unix://{tmp_path}/none/s").start()


@pytest.mark.parametrize("http", ["own", "grpcio"])
@pytest.mark.parametrize("is_port", [True, False])
def test_either_library_serves_http(tmp_path: Path, http: str, is_port: bool) -> None:
    host = "127.0.0.1" if is_port else f"unix://{tmp_path}/s"
    config = load_config(flags={"host": host, "http": http})
    with barrage.Server(config=config) as server, barrage.connect(server.uri) as session:
        server.create_table("t", data={"x": list(range(ROWS))})
        assert session.table("t").snapshot().num_rows == ROWS
        with session.table("t").subscribe(viewport=(10, 20)) as live:
            live.wait_ready(timeout=WAIT)
            assert live.to_arrow()["x"].to_pylist() == list(range(10, 20))


def test_another_library_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"http = 'nginx'.* must be"):
        ServerConfig(http="nginx")  # type: ignore[arg-type]


# --- bodies ---------------------------------------------------------------------------------------


def test_bodies_by_a_transport_of_somebody_else(toy_bodies) -> None:
    config = ServerConfig(bodies="toy")
    with barrage.Server(config=config) as server:
        table = server.create_table("t", data={"x": np.arange(ROWS)}, kind="append_only")
        for _ in range(2):
            session = barrage.connect(server.uri, bodies="toy")
            with session, session.table("t").subscribe() as live:
                live.wait_ready(timeout=WAIT)
                assert live.bodies == BodyStatus(BodyWay("toy"))
                assert live.to_arrow()["x"].to_numpy().sum() == ROWS * (ROWS - 1) // 2
                by_way = dict(live.stats.bodies.by_way())
                assert by_way["toy"].count >= 1
                assert by_way["toy"].bytes >= ROWS * 8
        table.add({"x": [0]})
        with barrage.connect(server.uri) as session, session.table("_bodies").subscribe() as told:
            told.wait_ready(timeout=WAIT)
            wait_until(lambda: told.to_arrow()["bodies_out"].to_pylist() >= [2])
            assert told.to_arrow()["way"].to_pylist() == ["toy"]
    assert toy_bodies.served == [ToySettings()]


def test_settings_that_a_body_transport_declares(toy_bodies, tmp_path: Path) -> None:
    file = tmp_path / "barrage.toml"
    file.write_text('bodies = "toy,shm"\ntoy_release = "2"\n')
    config = load_config(file)
    assert config.body_ways == {"toy", "shm"}
    assert ("toy_release", "'2'", f"file {file}") in list(config.described())
    with barrage.Server(config=config) as server:
        assert toy_bodies.served == [ToySettings(release="2")]
        server.create_table("t", data={"x": np.arange(ROWS)})
        session = barrage.connect(server.uri, bodies=BodyWay("toy"))
        with session, session.table("t").subscribe() as live:
            live.wait_ready(timeout=WAIT)
            told = str(live.bodies)
    assert told == "inline (toy: the toy is of release 2)"
    with pytest.raises(ConfigError, match=r"toy_release = 2 .* must be text"):
        load_config(None, flags={"toy_release": 2})
    with pytest.raises(ConfigError, match="unknown setting 'toy_colour'"):
        load_config(None, flags={"toy_colour": "red"})


def test_ways_nobody_has(toy_bodies) -> None:
    with pytest.raises(ConfigError, match="'auto', 'inline', 'shm', 'ucx', 'toy'"):
        barrage.connect("grpc://localhost:1", bodies="carrier-pigeon")
    with pytest.raises(ConfigError, match="must be inline, shm, ucx, toy, or shm,ucx,toy"):
        ServerConfig(bodies="pigeon")


def test_doctor_asks_them_all(toy_bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    from barrage.transport.ucx import examination

    monkeypatch.setattr(examination, "run_self_test", lambda: ({}, ""))
    assert "ok       toy" in CliRunner().invoke(app, ["doctor"]).stdout


@pytest.mark.parametrize("name", ["a b", "50%20", "what?", "#1", "ü"])
def test_a_socket_has_the_name_it_was_given(tmp_path, name):
    with barrage.Server(f"unix://{tmp_path}/{name}") as server:
        assert [each.name for each in tmp_path.iterdir()] == [name]
        with barrage.connect(server.uri) as session:
            assert session.tables() == []


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_of_somebody_who_does_not_answer_is_left_alone(tmp_path, kind):
    with socket.socket(socket.AF_UNIX, kind) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(f"{tmp_path}/s")
        if kind == socket.SOCK_STREAM:
            busy.listen(0)
            waiting.connect(f"{tmp_path}/s")
        with pytest.raises(ConfigError, match="another server does"):
            barrage.Server(f"unix://{tmp_path}/s").start()


def test_the_host_of_grpc_is_no_uri():
    with pytest.raises(ConfigError, match="an address without a scheme"):
        barrage.Server("grpc://127.0.0.1").start()
