"""Servers with TLS and everybody who calls them: our clients in both forms, Arrow's own, commands,
relays and Spark's connection."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from barrage.errors import ConfigError, ConnectionLostError, TLSFailedError
from barrage.relay.patterns import TablePatterns
from barrage.relay.relay_server import Relay
from barrage.relay.settings import RelaySettings
from barrage.relay.upstream_link import UpstreamSettings
from barrage.server.serving.certificates import CERTIFICATES
from barrage.server.settings.config import ServerConfig
from spark_sink.connection import ServerConnection
from tests.helpers.certificates import DAY, authority
from tests.helpers.server_process import wait_until

WAIT = 60
ROWS = {"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]}
BOTH = pytest.mark.parametrize("http", ["own", "grpcio"])


class Place:
    """A folder of files, and servers that use them."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = authority().write(folder)
        self.certificate, self.key = authority().for_localhost().write(folder, "server")
        self.shown, self.shown_key = authority("clients").for_client().write(folder, "client")
        self.client_ca = authority("clients").write(folder, "client-ca")
        self.tls = barrage.TLS(ca=self.ca)
        self.mutual = barrage.TLS(ca=self.ca, certificate=self.shown, key=self.shown_key)

    def server(self, *, asks=False, pair=None, host="localhost", **settings):
        certificate, key = self.certificate, self.key
        if pair is not None:
            certificate, key = pair.write(self.folder, "other")
        config = ServerConfig(
            host=host,
            tls_cert=certificate,
            tls_key=key,
            tls_client_ca=self.client_ca if asks else None,
            tls_reload_ms=settings.pop("tls_reload_ms", 10),
            **settings,
        )
        made = barrage.Server(config=config)
        made.create_table("t", key="k", data=ROWS)
        return made


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def plain():
    with barrage.Server("localhost") as made:
        made.create_table("t", key="k", data=ROWS)
        yield made


# --- our clients ----------------------------------------------------------------------------------


@BOTH
def test_a_client_reads_follows_and_writes(place, http):
    with place.server(http=http) as server, barrage.connect(server.uri, tls=place.tls) as session:
        assert server.uri.startswith("grpcs://localhost:")
        with session.table("t").subscribe() as table:
            table.wait_ready(timeout=WAIT)
            session.put("t", pa.table({"k": [4], "v": [4.0]}))
            wait_until(lambda: len(table) == 4)
        assert session.table("t").snapshot().num_rows == 4


@BOTH
def test_a_client_shows_its_certificate(place, http):
    with place.server(http=http, asks=True) as server:
        with barrage.connect(server.uri, tls=place.mutual) as session:
            assert session.table("t").snapshot().num_rows == 3
        with pytest.raises(TLSFailedError, match=r"asks for a client's certificate; pass tls=TLS"):
            barrage.connect(server.uri, tls=place.tls, timeout=WAIT)
        certificate, key = authority("another").for_client().write(place.folder, "stranger")
        stranger = barrage.TLS(ca=place.ca, certificate=certificate, key=key)
        with pytest.raises(TLSFailedError, match=r"does not accept the certificate .*stranger"):
            barrage.connect(server.uri, tls=stranger, timeout=WAIT)


def test_the_asynchronous_form_does_too(place):
    async def scene(uri):
        async with (
            barrage.aconnect(uri, tls=place.mutual) as session,
            session.table("t").subscribe() as table,
        ):
            await table.wait_ready(timeout=WAIT)
            assert len(table) == 3

    with place.server(asks=True) as server:
        asyncio.run(scene(server.uri))


@pytest.mark.parametrize("asks", [False, True])
def test_large_snapshots_go_through_arrows_client(place, asks, monkeypatch):
    from barrage.transport import arrow_flight

    made = []
    init = arrow_flight.ArrowFlightClient.__init__

    def noted(self, uri, tls):
        made.append(uri)
        init(self, uri, tls)

    monkeypatch.setattr(arrow_flight.ArrowFlightClient, "__init__", noted)
    data = pa.table({name: pa.array(range(300_000)) for name in "abcd"})
    with place.server(asks=asks, bodies="inline") as server:
        server.create_table("large", kind="static", data=data)
        tls = place.mutual if asks else place.tls
        with barrage.connect(server.uri, tls=tls, bodies="inline") as session:
            assert session.table("large").snapshot() == data
    assert made == [server.uri.replace("grpcs", "grpc+tls")]


@BOTH
def test_a_deephaven_session_goes_through_tls(place, http):
    """The calls of Deephaven's own clients, by ours."""
    with place.server(http=http) as server:
        uri = server.uri.replace("grpcs://", "dhs://")
        with barrage.connect(uri, tls=place.tls) as session:
            assert session.open_table("t").snapshot().num_rows == 3


# --- what is wrong is said ------------------------------------------------------------------------


def failure(uri, tls=None):
    with pytest.raises(TLSFailedError) as caught:
        barrage.connect(uri, tls=tls, timeout=WAIT)
    assert isinstance(caught.value, ConnectionLostError)
    return str(caught.value)


@BOTH
def test_a_plain_client_is_told_that_the_server_speaks_tls(place, http):
    with place.server(http=http) as server:
        told = failure(f"grpc://localhost:{server.port}")
        assert told == f"localhost:{server.port} speaks TLS: use grpcs://localhost:{server.port}"
    with place.server(http=http, asks=True) as server:
        assert "speaks TLS: use grpcs://" in failure(f"grpc://localhost:{server.port}")


@pytest.mark.parametrize("http", ["own", "grpcio"])
def test_a_client_is_told_that_a_server_does_not_speak_tls(place, http):
    with barrage.Server(config=ServerConfig(host="localhost", http=http)) as server:
        assert "does not speak TLS" in failure(f"grpcs://localhost:{server.port}", place.tls)


@BOTH
def test_a_client_is_told_what_is_wrong_with_a_certificate(place, http):
    a = authority()
    cases = {
        "is not trusted: pass tls=TLS(ca=...)": authority("another").for_localhost(),
        "has expired": a.for_localhost(starts=-3 * DAY, ends=-DAY),
        "is of another host": a.signs("server", hosts=("elsewhere.example",)),
    }
    for words, pair in cases.items():
        with place.server(http=http, pair=pair) as server:
            told = failure(server.uri, place.tls)
            assert words in told
            assert f":{server.port} " in told


def test_the_name_of_a_certificate_can_be_said(place):
    pair = authority().signs("server", hosts=("elsewhere.example",))
    tls = barrage.TLS(ca=place.ca, server_name="elsewhere.example")
    with place.server(pair=pair) as server, barrage.connect(server.uri, tls=tls) as session:
        assert session.table("t").snapshot().num_rows == 3


def test_who_is_not_there_is_told_as_before(place):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        uri = f"grpcs://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ConnectionLostError, match="refused") as caught:
            barrage.connect(uri, tls=place.tls, timeout=WAIT)
    assert not isinstance(caught.value, TLSFailedError)


def test_a_server_that_closes_everything_is_not_said_to_speak_tls():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen(64)
        ends = threading.Event()
        held.settimeout(0.05)

        def close_all():
            while not ends.is_set():
                try:
                    held.accept()[0].close()
                except OSError:
                    continue

        closing = threading.Thread(target=close_all)
        closing.start()
        try:
            with pytest.raises(ConnectionLostError) as caught:
                barrage.connect(f"grpc://127.0.0.1:{held.getsockname()[1]}", timeout=WAIT)
            assert not isinstance(caught.value, TLSFailedError)
        finally:
            ends.set()
            closing.join()


KEY = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"


def test_files_of_a_client_are_checked(place):
    broken = place.folder / "broken.pem"
    broken.write_text(KEY)
    cases = (
        ({"ca": f"{place.folder}/nowhere"}, "cannot read tls.ca .*nowhere: No such file"),
        ({"ca": str(broken)}, "tls.ca .* has no certificates"),
        ({"certificate": place.shown, "key": str(broken)}, "no certificate with its key"),
        ({"certificate": place.shown, "key": place.key}, "no certificate with its key"),
    )
    for given, words in cases:
        with pytest.raises(ConfigError, match=words) as caught:
            barrage.connect("grpcs://localhost:1", tls=barrage.TLS(**given))
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="belong together"):
        barrage.TLS(key=place.key)
    with pytest.raises(ConfigError, match=r"tls.key is the path of a file") as caught:
        barrage.TLS(certificate=place.shown, key=KEY)
    assert "secret" not in str(caught.value)


def test_nothing_meant_for_tls_goes_in_the_clear(place):
    with pytest.raises(ConfigError, match="tls is given, and localhost:1 would be in the clear"):
        barrage.connect("localhost:1", tls=place.tls)
    for uri in ("grpcs://a:1,grpc://b:2", "b:2,grpc+tls://a:1", ["grpcs://a", "dhs://c", "b"]):
        with pytest.raises(ConfigError):
            barrage.connect(uri, auth="secret")
    with pytest.raises(ConfigError, match="b:2 would be told in the clear"):
        barrage.connect("grpcs://a:1,127.0.0.1:3,grpc://b:2", auth="secret")


def test_several_addresses_are_tried(place, plain):
    """Those of this machine may be without TLS; what nobody trusts is passed over."""
    stranger = authority("another").for_localhost()
    with place.server() as good, place.server(pair=stranger) as bad:
        uris = f"{bad.uri},{good.uri},unix:///nowhere/at/all"
        with barrage.connect(uris, tls=place.tls) as session:
            assert session.address.target == f"localhost:{good.port}"
            assert session.table("t").snapshot().num_rows == 3
        uris = [bad.uri, plain.uri]
        with barrage.connect(uris, tls=place.tls) as session:
            assert session.address.target == f"localhost:{plain.port}"
        with pytest.raises(ConnectionLostError, match="is not trusted"):
            barrage.connect([bad.uri, "unix:///nowhere/at/all"], tls=place.tls)


# --- files that change ----------------------------------------------------------------------------


def serial_of(port):
    import ssl

    text = ssl.get_server_certificate(("localhost", port))
    return ssl.PEM_cert_to_DER_cert(text)


@BOTH
def test_streams_live_through_a_new_certificate(place, http, caplog):
    """A pair that is of no use is told of and passed over, the next good one is taken."""
    with (
        place.server(http=http) as server,
        barrage.connect(server.uri, tls=place.tls) as session,
        session.table("t").subscribe() as table,
    ):
        table.wait_ready(timeout=WAIT)
        first = serial_of(server.port)
        with caplog.at_level(logging.ERROR, "barrage.server.serving.certificates"):
            (place.folder / "server.key").write_text(KEY)
            wait_until(lambda: "the certificate stays as it is" in caplog.text)
        assert "secret" not in caplog.text
        assert serial_of(server.port) == first
        authority().for_localhost("second").write(place.folder, "server")
        wait_until(lambda: serial_of(server.port) != first)
        session.put("t", pa.table({"k": [9], "v": [9.0]}))
        wait_until(lambda: len(table) == 4)
        assert table.stats.reconnects == 0
        with barrage.connect(server.uri, tls=place.tls) as later:
            assert later.table("t").snapshot().num_rows == 4


def test_a_clients_authority_can_be_taken_away(place):
    with place.server(asks=True) as server, barrage.connect(server.uri, tls=place.mutual) as kept:
        assert kept.table("t").snapshot().num_rows == 3
        authority("new clients").write(place.folder, "client-ca")

        def is_refused():
            try:
                barrage.connect(server.uri, tls=place.mutual, timeout=WAIT).close()
            except TLSFailedError:
                return True
            return False

        wait_until(is_refused)
        assert kept.table("t").snapshot().num_rows == 3


def test_files_are_left_alone_when_that_is_said(place):
    with place.server(tls_reload_ms=0) as server:
        assert CERTIFICATES.name not in {each.get_name() for each in server._app._background}


# --- others ---------------------------------------------------------------------------------------


def text_of(path):
    return Path(path).read_text()


@BOTH
@pytest.mark.parametrize("asks", [False, True])
def test_arrows_own_client(place, http, asks):
    with place.server(http=http, asks=asks, token="secret") as server:
        shown = {"cert_chain": text_of(place.shown), "private_key": text_of(place.shown_key)}
        with flight.connect(
            f"grpc+tls://localhost:{server.port}",
            tls_root_certs=authority().certificate,
            **(shown if asks else {}),
        ) as client:
            token = client.authenticate_basic_token("anybody", "secret")
            options = flight.FlightCallOptions(headers=[token])
            (endpoint,) = client.get_flight_info(
                flight.FlightDescriptor.for_path("t"), options
            ).endpoints
            assert client.do_get(endpoint.ticket, options).read_all().num_rows == 3
        if asks:
            with (
                flight.connect(
                    f"grpc+tls://localhost:{server.port}", tls_root_certs=authority().certificate
                ) as client,
                pytest.raises(flight.FlightUnavailableError),
            ):
                list(client.list_flights(b"", options))


def ask(*words, **variables):
    return CliRunner().invoke(app, list(words), env=variables)


def test_commands(place):
    with place.server(asks=True, token="secret") as server:
        flags = ("--tls-ca", place.ca, "--tls-cert", place.shown, "--tls-key", place.shown_key)
        address = server.uri
        found = ask("ls", address, "--json", "--token", "secret", *flags)
        assert "t" in [each["name"] for each in json.loads(found.stdout)], found.stderr
        variables = {
            "BARRAGE_TLS_CA": place.ca,
            "BARRAGE_TLS_CLIENT_CERT": place.shown,
            "BARRAGE_TLS_CLIENT_KEY": place.shown_key,
            "BARRAGE_TOKEN": "secret",
        }
        for words in (
            ("snapshot", f"{address}/t"),
            ("schema", f"{address}/t"),
            ("watch", f"{address}/t", "--once"),
        ):
            found = ask(*words, **variables)
            assert (found.exit_code, found.stderr) == (0, ""), words
        del variables["BARRAGE_TLS_CLIENT_CERT"], variables["BARRAGE_TLS_CLIENT_KEY"]
        found = ask("ls", address, **variables)
        assert found.exit_code == 1
        assert "pass --tls-cert FILE --tls-key FILE" in found.stderr
        found = ask("ls", address, "--token", "secret")
        assert "is not trusted: pass --tls-ca FILE with the authority" in found.stderr
        found = ask("ls", f"localhost:{server.port}", "--token", "secret")
        assert f"speaks TLS: use grpcs://localhost:{server.port}" in found.stderr
        found = ask("ls", f"localhost:{server.port}", *flags)
        assert found.exit_code == 2
        assert f"without it: write grpcs://localhost:{server.port}" in found.stderr
        assert "secret" not in found.stderr


def test_variables_for_grpcs_do_not_hinder_plain_addresses(place, plain):
    found = ask("ls", plain.address, "--json", BARRAGE_TLS_CA=place.ca)
    assert json.loads(found.stdout)[0]["name"] == "t"


async def appears(session, name):
    while name not in {info.name for info in await session.tables()}:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_a_relay_follows_a_server_with_tls(place):
    async def scene(upstream):
        relay = Relay(
            RelaySettings(
                upstream=UpstreamSettings(addresses=(upstream,), tls=place.mutual),
                patterns=TablePatterns.parse("*"),
            ),
            config=ServerConfig(
                host="localhost", journal="memory", tls_cert=place.certificate, tls_key=place.key
            ),
        )
        await relay.start()
        try:
            async with barrage.aconnect(relay.uri, tls=place.tls) as session:
                async with asyncio.timeout(WAIT):
                    await appears(session, "t")
                assert (await session.table("t").snapshot()).num_rows == 3
        finally:
            await relay.stop()

    with place.server(asks=True, journal="memory") as server:
        asyncio.run(scene(server.uri))


def test_a_relay_does_not_send_its_token_in_the_clear():
    with pytest.raises(ConfigError, match="b:1 would be told in the clear"):
        UpstreamSettings(addresses=("grpcs://a:1", "grpc://b:1")).check()


def test_sparks_connection(place):
    with place.server(asks=True, token="secret") as server:
        told = {
            "uri": server.uri,
            "auth.token": "secret",
            "tls.rootCertificates": place.ca,
            "tls.clientCertificate": place.shown,
            "tls.clientKey": place.shown_key,
        }
        connection = ServerConnection.of(told)
        kinds = {each.type for each in connection.client().list_actions(connection.call_options())}
        assert "journal.info" in kinds
        text = repr(connection)
        assert "secret" not in text
        assert "PRIVATE" not in text


# --- settings -------------------------------------------------------------------------------------


def test_settings_that_do_not_fit_are_refused(place):
    pair = {"tls_cert": place.certificate, "tls_key": place.key}
    for given, words in (
        ({"tls_cert": place.certificate}, "tls_cert .* needs tls_key as well"),
        ({"tls_key": place.key}, "tls_key .* needs tls_cert as well"),
        ({"tls_client_ca": place.ca}, "tls_client_ca .* needs tls_cert and tls_key"),
        ({**pair, "bodies": "ucx"}, "ucx_beside_tls = true"),
        ({"tls_cert": place.certificate, "tls_key": KEY}, "is the path of a file"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            ServerConfig(**given)
        assert "secret" not in str(caught.value)
    for host in ("unix:///run/never", "inproc://"):
        with pytest.raises(ConfigError, match="TLS is for addresses of a network"):
            barrage.Server(config=ServerConfig(host=host, **pair)).start()
    assert ServerConfig(**pair, bodies="ucx", ucx_beside_tls=True).body_ways == {"ucx"}


def test_a_server_of_broken_files_does_not_start(place):
    (place.folder / "server.key").write_text(KEY)
    server = place.server()
    with pytest.raises(ConfigError, match="are no certificate with its key") as caught:
        server.start()
    server.stop()
    told = "\n".join(map(str, server.config.described()))
    assert "secret" not in f"{caught.value} {server.config!r} {told}"
