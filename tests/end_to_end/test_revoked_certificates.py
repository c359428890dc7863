"""Certificates that were revoked: refused in the handshake, and cut off where they are."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

import barrage
from barrage.errors import AuthenticationError, ConfigError, TLSFailedError
from barrage.server import ServerConfig
from barrage.transport.tls.certificate_fields import identifier_of, revoked_by
from barrage.transport.tls.server_tls import ServerTLS, TLSPaths
from tests.helpers.certificates import DAY, Pair, authority
from tests.helpers.server_process import wait_until

HANG_SECONDS = 120


class Scene:
    """A server that asks for certificates and has a list of revoked ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = authority()
        self.crl = folder / "revoked.pem"
        self.crl.write_bytes(self.ca.revokes())
        cert, key = self.ca.for_localhost().write(folder, "server")
        self.config = ServerConfig(
            tls_cert=cert,
            tls_key=key,
            tls_client_ca=self.ca.write(folder),
            tls_crl=str(self.crl),
            tls_reload_ms=50,
        )

    def put(self, *revoked: Pair, **options) -> None:
        """Another list takes the place of the one there."""
        other = self.folder / "next.pem"
        other.write_bytes(self.ca.revokes(*revoked, **options))
        other.replace(self.crl)

    def tls(self, pair: Pair, name: str) -> barrage.TLS:
        certificate, key = pair.write(self.folder, name)
        return barrage.TLS(ca=str(self.folder / "ca.pem"), certificate=certificate, key=key)


@pytest.fixture
def scene(tmp_path) -> Scene:
    return Scene(tmp_path)


def test_a_revoked_certificate_is_refused_and_others_are_not(scene):
    alice, bob = scene.ca.for_client("alice"), scene.ca.for_client("bob")
    scene.put(alice)
    with barrage.Server(config=scene.config) as server:
        server.create_table("t", {"x": "int64"})
        with (
            pytest.raises((TLSFailedError, AuthenticationError)) as told,
            barrage.connect(server.uri, tls=scene.tls(alice, "alice")) as session,
        ):
            session.tables()
        assert "certificate" in str(told.value)
        with barrage.connect(server.uri, tls=scene.tls(bob, "bob")) as session:
            assert session.tables()


def test_who_is_revoked_is_cut_off_where_it_is_and_nobody_else(scene):
    alice, bob = scene.ca.for_client("alice"), scene.ca.for_client("bob")
    with barrage.Server(config=scene.config) as server:
        table = server.create_table("t", {"x": "int64"}, data={"x": [1]})
        with (
            barrage.connect(server.uri, tls=scene.tls(alice, "alice")) as session,
            barrage.connect(server.uri, tls=scene.tls(bob, "bob")) as other,
        ):
            hers = session.table("t").subscribe().wait_ready(HANG_SECONDS)
            his = other.table("t").subscribe().wait_ready(HANG_SECONDS)
            scene.put(alice)
            wait_until(lambda: hers.error is not None, HANG_SECONDS)
            assert isinstance(hers.error, AuthenticationError)
            assert "revoked" in str(hers.error)
            # Nor does the connection that is still there.
            with pytest.raises((AuthenticationError, TLSFailedError)):
                session.tables()
            table.add({"x": [2]})
            wait_until(lambda: len(his) == 2, HANG_SECONDS)
            assert his.stats.reconnects == 0
            hers.close()
            his.close()


def test_a_list_that_is_none_changes_nothing_and_is_told(scene, caplog):
    bob = scene.ca.for_client("bob")
    with barrage.Server(config=scene.config) as server, caplog.at_level(logging.ERROR):
        scene.crl.write_bytes(b"nothing")
        wait_until(lambda: "has no list of revoked certificates" in caplog.text, HANG_SECONDS)
        with barrage.connect(server.uri, tls=scene.tls(bob, "bob")) as session:
            session.tables()


def test_what_is_no_list_is_refused_at_the_start(scene):
    for content, text in (
        (b"nothing", "has no list of revoked certificates"),
        (scene.ca.certificate, "must have lists of revoked certificates and nothing else"),
        (
            scene.ca.revokes() + authority("another").certificate,
            "must have lists of revoked certificates and nothing else",
        ),
    ):
        scene.crl.write_bytes(content)
        with pytest.raises(ConfigError, match=text):
            ServerTLS(
                TLSPaths(
                    certificate=scene.config.tls_cert,
                    key=scene.config.tls_key,
                    client_ca=scene.config.tls_client_ca,
                    crl=scene.config.tls_crl,
                ),
                file_bytes_max=2**20,
            )


def test_a_list_that_has_ended_lets_nobody_in(scene):
    scene.put(ends=-DAY / 2)
    with (
        barrage.Server(config=scene.config) as server,
        pytest.raises((TLSFailedError, AuthenticationError)),
        barrage.connect(server.uri, tls=scene.tls(scene.ca.for_client("bob"), "b")) as session,
    ):
        session.tables()


@pytest.mark.parametrize("changed", [{"tls_client_ca": None}, {"http": "grpcio"}])
def test_a_list_needs_authorities_of_clients_and_our_own_http(scene, changed):
    files = {"tls_cert": "c.pem", "tls_key": "k.pem", "tls_client_ca": "a.pem", **changed}
    with pytest.raises(ConfigError, match=r"tls_crl .* needs tls_client_ca"):
        ServerConfig(tls_crl="r.pem", **files)


def test_lists_name_certificates_as_they_name_themselves():
    ca, other = authority(), authority("another")
    pairs = [ca.for_client(str(number)) for number in range(20)]
    strangers = [other.for_client("x"), ca.for_client("y")]
    lists = ca.revokes(*pairs) + other.revokes()
    named = revoked_by(lists)
    assert named == {identifier_of(der(pair)) for pair in pairs}
    assert not named & {identifier_of(der(pair)) for pair in strangers}
    for cut in range(0, len(lists), 97):
        broken = lists[:cut] + lists[cut + 1 :]
        try:
            revoked_by(broken)
        except ValueError:
            continue


def der(pair: Pair) -> bytes:
    return pair.parsed.public_bytes(serialization.Encoding.DER)
