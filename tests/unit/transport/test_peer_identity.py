"""Who a client has proved to be by its connection."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl

import grpc
import grpc.aio
import pytest

from barrage.transport.base import NOBODY, PeerIdentity
from barrage.transport.peer_identity import (
    identity_of,
    identity_of_connection,
    identity_of_properties,
)
from barrage.transport.tls.certificate_fields import not_after_of
from tests.helpers.certificates import DAY, authority
from tests.unit.transport.http2_served import run, unary
from tests.unit.transport.tls_scene import server_tls

NAMES = {"hosts": ("a.example", "10.1.2.3"), "emails": ("alice@example.org",)}
EXPECTED = (("dns", "a.example"), ("email", "alice@example.org"), ("ip", "10.1.2.3"))


def client_credentials(pair):
    return grpc.ssl_channel_credentials(authority().certificate, pair.key, pair.certificate)


def ends_of(pair):
    return int(pair.parsed.not_valid_after_utc.timestamp())


def test_a_client_certificate_says_who_calls(tmp_path):
    pair = authority().for_client("alice", **NAMES)

    async def scene(listener, behaviors):
        target = f"localhost:{listener.port}"
        async with grpc.aio.secure_channel(target, client_credentials(pair)) as channel:
            await unary(channel, "Echo")(b"x")
        found = behaviors.seen["identity"]
        assert found.certificate.common_name == "alice"
        assert found.certificate.names == EXPECTED
        assert found.certificate.fingerprint == pair.fingerprint
        assert found.certificate.not_after_s == ends_of(pair)
        assert found.unix_user is found.unix_group is found.unix_process is None

    run(scene, "localhost", tls=server_tls(tmp_path, client_ca=authority().certificate))


def test_a_certificate_nobody_asked_for_says_nothing(tmp_path):
    pair = authority().for_client("alice")

    async def scene(listener, behaviors):
        target = f"localhost:{listener.port}"
        async with grpc.aio.secure_channel(target, client_credentials(pair)) as channel:
            await unary(channel, "Echo")(b"x")
        assert behaviors.seen["identity"] == NOBODY

    run(scene, "localhost", tls=server_tls(tmp_path))


def test_a_socket_of_the_file_system_knows_its_user(tmp_path):
    path = f"unix://{tmp_path}/s"

    async def scene(listener, behaviors):
        async with grpc.aio.insecure_channel(path) as channel:
            await unary(channel, "Echo")(b"x")
        assert behaviors.seen["identity"] == PeerIdentity(
            unix_user=os.getuid(), unix_group=os.getgid(), unix_process=os.getpid()
        )

    run(scene, path)


def test_a_port_knows_nobody():
    async def scene(listener, behaviors):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.port}") as channel:
            await unary(channel, "Echo")(b"x")
        assert behaviors.seen["identity"] == NOBODY

    run(scene)


def test_a_socket_that_is_gone_knows_nobody():
    ours, theirs = socket.socketpair()
    ours.close()
    theirs.close()
    assert identity_of_connection(None, ours) == NOBODY
    assert identity_of_connection(None, None) == NOBODY


def test_grpcs_own_contexts_are_asked_in_their_way():
    """What gRPC tells of a real handshake."""
    pair = authority().for_client("alice", **NAMES)
    found = []

    async def echo(request, context):
        found.append(identity_of(context))
        return request

    async def scene():
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(echo)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Service", {"Echo": handler}),)
        )
        own = authority().for_localhost()
        credentials = grpc.ssl_server_credentials(
            [(own.key, own.certificate)], authority().certificate, require_client_auth=True
        )
        port = server.add_secure_port("localhost:0", credentials)
        plain = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.secure_channel(
            f"localhost:{port}", client_credentials(pair)
        ) as channel:
            await unary(channel, "Echo")(b"x")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{plain}") as channel:
            await unary(channel, "Echo")(b"x")
        await server.stop(0)

    asyncio.run(scene())
    first, second = found
    assert first.certificate.common_name == "alice"
    assert first.certificate.names == EXPECTED
    assert first.certificate.fingerprint == pair.fingerprint
    assert first.certificate.not_after_s == ends_of(pair)
    assert second == NOBODY


@pytest.mark.parametrize("years", [1, 20, 100])
def test_the_end_of_a_certificate_is_read_in_both_forms(years):
    """Times from 2050 on are written in another form."""
    pair = authority().for_client(ends=years * 365 * DAY)
    der = ssl.PEM_cert_to_DER_cert(pair.certificate.decode())
    assert not_after_of(der) == ends_of(pair)
    assert all(not_after_of(der[:size]) is None for size in range(len(der)))


def test_years_of_two_digits_end_with_2049():
    at = datetime.timedelta(days=(datetime.date(2049, 12, 1) - datetime.date.today()).days)
    pair = authority().for_client(ends=at)
    assert not_after_of(ssl.PEM_cert_to_DER_cert(pair.certificate.decode())) == ends_of(pair)


@pytest.mark.parametrize("junk", [b"", b"0", b"0\x80", b"0\x84\xff\xff\xff\xff", bytes(64)])
def test_what_is_no_certificate_has_no_end(junk):
    assert not_after_of(junk) is None


def test_a_call_without_one_certificate_is_nobodys():
    for given in ({}, {"transport_security_type": [b"ssl"]}, {"transport_security_type": [b"x"]}):
        assert identity_of_properties(given) == NOBODY
    assert identity_of(object()) == NOBODY
