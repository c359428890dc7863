"""Callers known by their connection: certificates, and users of sockets."""

from __future__ import annotations

import os
import pwd

import pytest

from barrage.errors import AuthenticationError, ConfigError
from barrage.server.identity.caller import ANYBODY, Proof
from barrage.server.identity.calls_under_way import CredentialsExpiredError
from barrage.transport.base import PeerCertificate, PeerIdentity
from tests.helpers.logging_in import Chain, ShownCall

ENDS_S = 1000
TLS_FILES = {"tls_cert": "server.pem", "tls_key": "server.key"}


def certificate(common_name: str | None = "carl", names=(), ends_s: int | None = ENDS_S):
    told = PeerCertificate(
        common_name=common_name, names=tuple(names), fingerprint="00", not_after_s=ends_s
    )
    return ShownCall(identity=PeerIdentity(certificate=told))


def user(number: int) -> ShownCall:
    return ShownCall("unix:", PeerIdentity(unix_user=number))


def test_a_certificate_is_proof_enough():
    caller = Chain(token="key").shown(None, certificate())
    assert (caller.name, caller.proof) == ("carl", Proof.CERTIFICATE)
    assert caller.expires_ns == ENDS_S * 10**9


def test_what_else_is_shown_counts_first():
    chain = Chain(token="key")
    assert chain.shown("Bearer key", certificate()).proof is Proof.KEY
    with pytest.raises(AuthenticationError):
        chain.shown("Bearer no", certificate())
    assert chain.shown("Anonymous", certificate()).proof is Proof.CERTIFICATE


@pytest.mark.parametrize(
    ("kind", "names", "name"),
    [
        ("dns", [("dns", "a.example"), ("uri", "spiffe://b")], "a.example"),
        ("uri", [("dns", "a.example"), ("uri", "spiffe://b")], "spiffe://b"),
        ("dns", [("dns", "a"), ("dns", "b")], None),
        ("email", [("dns", "a")], None),
        ("dns", [("dns", "a\nb")], None),
        ("none", [("dns", "a")], None),
    ],
)
def test_the_one_name_of_the_kind_is_the_callers(kind, names, name):
    chain = Chain(token="key", certificate_name=kind)
    if name is None:
        with pytest.raises(AuthenticationError):
            chain.shown(None, certificate(names=names))
    else:
        assert chain.shown(None, certificate(names=names)).name == name


def test_a_certificate_that_has_ended_is_none():
    chain = Chain(token="key")
    chain.clock.advance(ENDS_S * 10**9)
    with pytest.raises(CredentialsExpiredError):
        chain.shown(None, certificate())


def test_a_user_of_a_socket_has_to_be_trusted():
    with pytest.raises(AuthenticationError):
        Chain(token="key").shown(None, user(os.getuid()))
    chain = Chain(token="key", unix_peers=True, host="unix:///s")
    caller = chain.shown(None, user(os.getuid()))
    assert (caller.name, caller.proof) == (pwd.getpwuid(os.getuid()).pw_name, Proof.UNIX)


def test_where_everybody_may_call_the_user_is_told():
    assert Chain().shown(None, user(4_000_000)).name == "uid-4000000"
    assert Chain().shown(None) is ANYBODY


@pytest.mark.parametrize("elsewhere", [{"host": "localhost"}, {"http": "grpcio"}])
def test_users_of_sockets_are_not_trusted_where_nobody_tells_them(elsewhere):
    with pytest.raises(ConfigError, match="unix_peers needs a host unix"):
        Chain(**{"unix_peers": True, "host": "unix:///s", **elsewhere})


@pytest.mark.parametrize(
    "peers", [{"unix_peers": True, "host": "unix:///s"}, {"tls_client_ca": "ca.pem"}]
)
def test_where_connections_say_who_calls_nobody_else_passes_and_no_key_is_made_up(peers):
    chain = Chain(is_local=False, **TLS_FILES, **peers)
    assert chain.authenticator.key is None
    assert chain.authenticator.tells_apart
    assert not chain.authenticator.is_open
    for header in (None, "Anonymous", "Bearer x"):
        with pytest.raises(AuthenticationError):
            chain.shown(header, user(os.getuid()) if "tls_client_ca" in peers else ShownCall())
    shown = certificate() if "tls_client_ca" in peers else user(os.getuid())
    caller = chain.shown(None, shown)
    token = chain.authenticator.tokens.issue(caller)
    assert chain.shown(f"Bearer {token}").owner == caller.owner


def test_certificates_that_prove_nothing_are_no_way_to_log_in():
    chain = Chain(is_local=False, tls_client_ca="ca.pem", certificate_name="none", **TLS_FILES)
    assert chain.authenticator.key is not None
    with pytest.raises(AuthenticationError):
        chain.shown(None, certificate())


def test_roles_come_from_a_file(tmp_path):
    roles = tmp_path / "roles.toml"
    roles.write_text('carl = ["reader", "writer"]\n"spiffe://b" = ["x"]\n')
    chain = Chain(token="key", caller_roles=str(roles))
    assert chain.shown(None, certificate()).roles == {"reader", "writer"}


@pytest.mark.parametrize("text", ['carl = "reader"', "carl = [1]", "carl", 'carl = [""]'])
def test_a_file_of_roles_that_is_wrong_is_refused(tmp_path, text):
    roles = tmp_path / "roles.toml"
    roles.write_text(text)
    with pytest.raises(ConfigError, match="caller_roles"):
        Chain(caller_roles=str(roles))
