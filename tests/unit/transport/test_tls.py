"""TLS of a listener: who gets in, what a change of the files does, and what junk costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct

import grpc
import grpc.aio
import pytest

from barrage.errors import ConfigError, LimitExceededError
from barrage.limits import Limits
from barrage.transport import registry
from barrage.transport.base import ListenOptions
from barrage.transport.tls.server_tls import ServerTLS, TLSPaths
from tests.helpers.certificates import DAY, authority
from tests.unit.transport.contract import TOLD_SECONDS
from tests.unit.transport.http2_served import SERVICE, Behaviors, gone, raw, run, unary
from tests.unit.transport.tls_scene import files_in, secure_channel, server_tls

BOTH = pytest.mark.parametrize("http", ["own", "grpcio"])


class Both(Behaviors):
    """Behaviors that do not ask for more than contexts of either server have."""

    async def echo(self, request, context):
        return request

    def handler(self):
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
                "Reversed": grpc.stream_stream_rpc_method_handler(self.reversed),
            },
        )


def run_on(http, tls, scene, host="localhost", **limits):
    async def main():
        async with asyncio.timeout(TOLD_SECONDS):
            options = ListenOptions(
                port=0,
                message_bytes_max=1 << 22,
                keepalive_ms=30_000,
                http=http,
                tls=tls,
                limits=Limits(**limits),
            )
            listener = registry.TRANSPORTS.find("grpc").listen(host, options)
            listener.add_generic_rpc_handlers((Both().handler(),))
            listener.bind()
            await listener.start()
            try:
                await scene(listener)
            finally:
                await listener.stop(0)

    asyncio.run(main())


async def until(is_so):
    """The time is bounded by the scene."""
    while not is_so():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)


async def answers(channel):
    return await unary(channel, "Echo")(b"x") == b"x"


async def refused(channel):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(channel, "Echo")(b"x")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details()


def shown_by(port, *, version=None, alpn=("h2",), **options):
    """The certificate of whoever serves ``port``, and what was agreed on."""
    context = ssl.create_default_context(cadata=authority().certificate.decode())
    context.set_alpn_protocols(alpn)
    if version is not None:
        context.maximum_version = version
    with (
        socket.create_connection(("localhost", port), timeout=TOLD_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as made,
    ):
        return made.getpeercert(binary_form=True), made.version(), made.selected_alpn_protocol()


def der_of(pair):
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


# --- who gets in ----------------------------------------------------------------------------------


@BOTH
def test_calls_go_through_tls(tmp_path, http):
    async def scene(listener):
        assert listener.uri == f"grpcs://localhost:{listener.port}"
        async with secure_channel(listener.port) as channel:
            big = bytes(range(256)) * 4096
            assert await unary(channel, "Echo")(big) == big
        told = await asyncio.to_thread(shown_by, listener.port)
        assert told[1:] == ("TLSv1.3", "h2")
        told = await asyncio.to_thread(shown_by, listener.port, version=ssl.TLSVersion.TLSv1_2)
        assert told[1:] == ("TLSv1.2", "h2")

    run_on(http, server_tls(tmp_path), scene)


@BOTH
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_older_versions_are_refused(tmp_path, http):
    async def scene(listener):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.options |= ssl.OP_NO_TLSv1_3 | ssl.OP_NO_TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("localhost", listener.port, ssl=context)

    run_on(http, server_tls(tmp_path), scene)


def test_who_does_not_speak_http2_is_closed(tmp_path):
    async def scene(listener):
        context = ssl.create_default_context(cadata=authority().certificate.decode())
        context.set_alpn_protocols(["http/1.1"])
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            reader, writer = await asyncio.open_connection("localhost", listener.port, ssl=context)
            assert await gone(reader) == b""
            writer.close()
        async with secure_channel(listener.port) as channel:
            assert await answers(channel)

    run_on("own", server_tls(tmp_path), scene)


@BOTH
def test_a_client_refuses_what_it_does_not_trust(tmp_path, http):
    async def scene(listener):
        stranger = authority("another").certificate
        async with secure_channel(listener.port, trusted=stranger) as channel:
            assert "CERTIFICATE_VERIFY_FAILED" in await refused(channel)

    run_on(http, server_tls(tmp_path), scene)


@BOTH
@pytest.mark.parametrize("hosts", [("localhost",), ("elsewhere.example",)])
def test_a_client_refuses_the_certificate_of_another_host(tmp_path, http, hosts):
    pair = authority().signs("server", hosts=hosts)

    async def scene(listener):
        async with secure_channel(listener.port) as channel:
            assert await answers(channel) if hosts == ("localhost",) else await refused(channel)

    run_on(http, server_tls(tmp_path, pair=pair), scene)


@BOTH
def test_clients_must_show_a_certificate_of_their_authority(tmp_path, http):
    made, stranger = authority("clients"), authority("another")
    tls = server_tls(tmp_path, client_ca=made.certificate)

    async def scene(listener):
        async with secure_channel(listener.port, pair=made.for_client()) as channel:
            assert await answers(channel)
        wrong = (
            None,
            stranger.for_client(),
            made.for_client(starts=-3 * DAY, ends=-DAY),
            made.for_client(starts=DAY, ends=2 * DAY),
            made.for_localhost(),
        )
        for pair in wrong:
            async with secure_channel(listener.port, pair=pair) as channel:
                await refused(channel)
        async with secure_channel(listener.port, pair=made.for_client()) as channel:
            assert await answers(channel)

    run_on(http, tls, scene)


# --- files that change ----------------------------------------------------------------------------


@BOTH
def test_a_stream_lives_through_a_new_certificate(tmp_path, http):
    tls = server_tls(tmp_path)
    first, second = tls.material.certificate, authority().for_localhost("second")

    async def scene(listener):
        async with secure_channel(listener.port) as channel:
            stream = channel.stream_stream(f"/{SERVICE}/Reversed")()
            await stream.write(b"ab")
            assert await stream.read() == b"ba"
            second.write(tmp_path, "server")
            assert tls.refresh()
            assert not tls.refresh()
            assert (await asyncio.to_thread(shown_by, listener.port))[0] == der_of(second)
            await stream.write(b"cd")
            assert await stream.read() == b"dc"
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
        async with secure_channel(listener.port) as channel:
            assert await answers(channel)

    run_on(http, tls, scene)
    assert first != tls.material.certificate


@BOTH
def test_an_authority_that_was_taken_away_lets_nobody_in(tmp_path, http):
    old, new = authority("clients"), authority("new clients")
    tls = server_tls(tmp_path, client_ca=old.certificate + new.certificate)

    async def scene(listener):
        early = secure_channel(listener.port, pair=old.for_client())
        async with early as kept:
            assert await answers(kept)
            (tmp_path / "client-ca.pem").write_bytes(new.certificate)
            assert tls.refresh()
            assert await answers(kept), "a connection that is there goes on"
            async with secure_channel(listener.port, pair=old.for_client()) as channel:
                await refused(channel)
            async with secure_channel(listener.port, pair=new.for_client()) as channel:
                assert await answers(channel)

    run_on(http, tls, scene)


BROKEN = {
    "no pem": lambda folder: (folder / "server.pem").write_bytes(b"nothing"),
    "empty": lambda folder: (folder / "server.key").write_bytes(b""),
    "gone": lambda folder: (folder / "server.key").unlink(),
    "another key": lambda folder: (folder / "server.key").write_bytes(
        authority().for_localhost().key
    ),
    "no authority": lambda folder: (folder / "client-ca.pem").write_bytes(b"nothing"),
    "no text": lambda folder: (folder / "client-ca.pem").write_bytes(b"\xff\xfe"),
    "a folder": lambda folder: ((folder / "server.pem").unlink(), (folder / "server.pem").mkdir()),
}


@pytest.mark.parametrize("how", BROKEN)
def test_files_of_no_use_change_nothing(tmp_path, how):
    good = authority().for_localhost()
    tls = server_tls(tmp_path, pair=good, client_ca=authority().certificate)
    context, material = tls.context, tls.material
    BROKEN[how](tmp_path)
    with pytest.raises(ConfigError) as caught:
        tls.refresh()
    assert str(tmp_path) in str(caught.value)
    secret = good.key.decode().splitlines()[1]
    assert secret not in f"{caught.value} {tls.material!r} {tls.paths!r}"
    assert tls.context is context
    assert tls.material is material


def test_what_cannot_be_read_leaves_no_descriptor(tmp_path):
    tls = server_tls(tmp_path)
    BROKEN["a folder"](tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(ConfigError):
            tls._read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_of_no_use_are_no_start(tmp_path):
    good = files_in(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere"):
        ServerTLS(TLSPaths(certificate=f"{tmp_path}/nowhere", key=good.key), file_bytes_max=1 << 20)
    with pytest.raises(LimitExceededError, match="the limit is 10 bytes"):
        ServerTLS(good, file_bytes_max=10)


def test_a_key_with_a_password_is_an_error_and_no_question(tmp_path):
    from cryptography.hazmat.primitives import serialization

    pair = authority().for_localhost()
    key = serialization.load_pem_private_key(pair.key, None)
    paths = files_in(tmp_path, pair=pair)
    (tmp_path / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="has no password"):
        ServerTLS(paths, file_bytes_max=1 << 20)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    paths = files_in(tmp_path)
    (tmp_path / "server.key").unlink()
    os.mkfifo(tmp_path / "server.key")
    with pytest.raises(ConfigError, match="not an ordinary file"):
        ServerTLS(paths, file_bytes_max=1 << 20)


def test_files_that_do_not_change_are_not_read_again(tmp_path, monkeypatch):
    tls = server_tls(tmp_path)
    monkeypatch.setattr("barrage.transport.tls.server_tls._SETTLED_NS", 0)
    assert not tls.refresh()
    monkeypatch.setattr(tls, "_read", lambda: pytest.fail("they were read"))
    assert not tls.refresh()


def test_a_change_that_leaves_the_times_is_seen_while_the_files_are_young(tmp_path):
    """A file of the same size, written within what the clock of the file system tells apart."""
    tls = server_tls(tmp_path)
    assert not tls.refresh()
    times = os.stat(tmp_path / "server.pem")
    authority().for_localhost("second").write(tmp_path, "server")
    os.utime(tmp_path / "server.pem", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert tls.refresh()


def test_a_file_that_changes_while_it_is_read_is_not_taken(tmp_path, monkeypatch):
    tls = server_tls(tmp_path)
    read, context = tls._read, tls.context
    authority().for_localhost("second").write(tmp_path, "server")

    def read_and_change():
        found = read()
        authority().for_localhost("third").write(tmp_path, "server")
        return found

    monkeypatch.setattr(tls, "_read", read_and_change)
    with pytest.raises(ConfigError, match="changed while it was read"):
        tls.refresh()
    assert tls.context is context
    monkeypatch.undo()
    assert tls.refresh()


# --- junk -----------------------------------------------------------------------------------------

HELLO = b"\x16\x03\x01"
JUNK = {
    "plain http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "plain http1": b"GET / HTTP/1.1\r\n\r\n",
    "random": os.urandom(4096),
    "zeros": bytes(4096),
    "a record that is too long": HELLO + b"\xff\xff" + bytes(65_535),
    "an endless hello": HELLO + struct.pack(">H", 16_384) + b"\x01\xff\xff\xff" + bytes(16_380),
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
}


@pytest.mark.parametrize("what", JUNK)
def test_junk_ends_its_own_connection(tmp_path, what):
    async def scene(listener):
        async with raw(listener.port) as (reader, writer):
            writer.write(JUNK[what])
            writer.write_eof()
            await gone(reader)
        async with secure_channel(listener.port) as channel:
            assert await answers(channel)
        assert listener.connections_count <= 1

    run_on("own", server_tls(tmp_path), scene, host="127.0.0.1")


def test_who_says_nothing_is_closed(tmp_path):
    async def scene(listener):
        async with raw(listener.port) as (reader, _):
            assert await gone(reader) == b""
        assert listener.handshakes_count == 0

    run_on("own", server_tls(tmp_path), scene, host="127.0.0.1", http2_preface_ns_max=10**8)


def test_who_stops_in_the_middle_is_closed(tmp_path):
    async def scene(listener):
        async with raw(listener.port) as (reader, writer):
            writer.write(HELLO + b"\x02\x00\x01")
            assert await gone(reader) == b""
        assert listener.handshakes_count == 0

    run_on("own", server_tls(tmp_path), scene, host="127.0.0.1", http2_preface_ns_max=10**8)


def test_handshakes_wait_for_their_turn(tmp_path):
    """The first connection says nothing; the second gets its turn when that has gone."""

    async def scene(listener):
        async with raw(listener.port):
            await until(lambda: listener._handshakes.under_way)
            async with secure_channel(listener.port, host="127.0.0.1") as channel:
                call = unary(channel, "Echo")(b"x")
                await until(lambda: listener.handshakes_count == 2)
                assert listener._handshakes.under_way == 1
                assert not call.done()
                async with raw(listener.port) as (reader, _):
                    # No more than these two connections may be there.
                    assert await gone(reader) == b""
                call.cancel()
        await until(lambda: not listener.handshakes_count)
        async with secure_channel(listener.port, host="127.0.0.1") as channel:
            assert await answers(channel)

    limits = {"tls_handshakes_max": 1, "http2_connections_max": 2}
    run_on("own", server_tls(tmp_path), scene, host="127.0.0.1", **limits)


def test_a_connection_that_cannot_be_taken_up_is_closed(tmp_path):
    """Its handshake is done, and nobody else knows of it."""

    async def scene(listener):
        def fails():
            raise ZeroDivisionError

        made, listener._handshakes._made = listener._handshakes._made, fails
        with pytest.raises((ssl.SSLError, ConnectionError, OSError, AssertionError)):
            await asyncio.to_thread(first_word, listener.port)
        listener._handshakes._made = made
        async with secure_channel(listener.port) as channel:
            assert await answers(channel)

    run_on("own", server_tls(tmp_path), scene)


def first_word(port):
    """HTTP/2 begins with one of the server's."""
    context = ssl.create_default_context(cadata=authority().certificate.decode())
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("localhost", port), timeout=TOLD_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as made,
    ):
        assert made.recv(1)


def test_a_listener_that_stops_waits_for_no_handshake(tmp_path):
    async def scene(listener, _):
        async with raw(listener.port) as (reader, _):
            await until(lambda: listener.handshakes_count)
            await listener.stop(0)
            assert listener.handshakes_count == 0
            assert await gone(reader) == b""

    run(scene, tls=server_tls(tmp_path))


def test_what_is_said_with_the_end_of_the_handshake_is_not_lost(tmp_path):
    """The whole of a call in the first write: it comes with the client's last word of TLS."""
    from tests.unit.transport.http2_served import answer_of, greeted

    async def scene(listener):
        context = ssl.create_default_context(cadata=authority().certificate.decode())
        context.set_alpn_protocols(["h2"])
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        made = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with raw(listener.port) as (reader, writer):
            while True:
                try:
                    made.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65_536))

            class Writer:
                write = staticmethod(made.write)

            class Reader:
                async def read(self, size):
                    while True:
                        try:
                            return made.read(size)
                        except ssl.SSLWantReadError:
                            writer.write(outgoing.read())
                            incoming.write(await reader.read(size))

            client = greeted(Writer)
            writer.write(outgoing.read())
            found = await answer_of(client, Reader(), Writer)
            assert found[b"grpc-status"] == b"0"

    run_on("own", server_tls(tmp_path), scene, host="127.0.0.1")


@pytest.mark.parametrize("host", ["unix:///run/never", "inproc://never"])
def test_only_addresses_of_a_network_have_tls(tmp_path, host):
    options = ListenOptions(
        port=0, message_bytes_max=1 << 20, keepalive_ms=0, tls=server_tls(tmp_path)
    )
    with pytest.raises(ConfigError, match="TLS is for addresses of a network"):
        registry.TRANSPORTS.find(registry.scheme_of(host)).listen(host, options)
