"""One message over real sockets, to receivers that do whatever they like."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading

import pytest

from barrage.server.alerting import webhook_post
from barrage.server.alerting.receiver_hosts import ReceiverHosts
from barrage.server.alerting.webhook_post import HEAD_BYTES_MAX, PostAnswer, PostError, WebhookPost
from tests.helpers.alert_receiver import receiver, status
from tests.helpers.certificates import authority

LOOPBACK = "127.0.0.1"
ALLOWED = ReceiverHosts.parse(["127.0.0.0/8"])
HANG_SECONDS = 180


def posted(url, body=b"{}", *, hosts=ALLOWED, timeout_s=HANG_SECONDS, **headers) -> PostAnswer:
    async def run():
        post = WebhookPost(hosts)
        try:
            return await post.post(url, headers, body, timeout_s=timeout_s)
        finally:
            post.close()

    return asyncio.run(run())


def test_a_message_arrives_as_it_is():
    body = b'{"x":"' + b"x" * 300_000 + b'"}'
    with receiver(status(204)) as kept:
        assert posted(kept.url, body, Authorization="Bearer tok") == PostAnswer(204)
    [message] = kept.messages
    assert (message.path, message.body) == ("/hook?a=1", body)
    assert message.headers["Host"] == f"{LOOPBACK}:{kept.port}"
    assert message.headers["Authorization"] == "Bearer tok"


def test_redirects_are_answers_and_are_not_followed():
    with receiver() as other, receiver(status(302, Location="/else")) as kept:
        kept.answer = status(307, Location=other.url, Retry_After="3")
        assert posted(kept.url) == PostAnswer(307, "3")
        assert not other.messages
        assert len(kept.messages) == 1


@contextlib.contextmanager
def raw(behave):
    """A listener whose connections ``behave`` has."""
    listener = socket.create_server((LOOPBACK, 0))
    is_over = threading.Event()

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    behave(connection, is_over)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://{LOOPBACK}:{listener.getsockname()[1]}/"
    finally:
        is_over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def silent(connection, is_over):
    is_over.wait(HANG_SECONDS)


def closing(connection, is_over):
    connection.recv(1)


def garbage(connection, is_over):
    connection.recv(1)
    connection.sendall(b"\x00\xff no http at all\r\n\r\n")
    is_over.wait(HANG_SECONDS)


def long_head(connection, is_over):
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not is_over.is_set():
        connection.sendall(b"X-A: " + b"a" * 1000 + b"\r\n")


def endless_continue(connection, is_over):
    connection.recv(1)
    while not is_over.is_set():
        connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")


def half_head(connection, is_over):
    connection.recv(1)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-")


@pytest.mark.parametrize(
    ("behave", "told"),
    [
        (silent, "no answer within"),
        (closing, "ended before the answer|connection failed|no HTTP"),
        (garbage, "no HTTP"),
        (long_head, "no HTTP"),
        (endless_continue, "ended before the answer"),
        (half_head, "no HTTP|connection failed"),
    ],
)
def test_whatever_a_receiver_does_it_ends_with_an_error(behave, told):
    with raw(behave) as url, pytest.raises(PostError, match=told) as caught:
        posted(url, timeout_s=0.3 if behave is silent else HANG_SECONDS)
    assert url not in str(caught.value)


def test_a_body_that_never_ends_is_not_read():
    def streaming(connection, is_over):
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not is_over.is_set():
            connection.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")

    with raw(streaming) as url:
        assert posted(url) == PostAnswer(200)


def test_a_head_may_be_so_long():
    def answering(connection, is_over):
        connection.recv(1)
        filler = b"X-A: " + b"a" * (HEAD_BYTES_MAX - 100) + b"\r\n"
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + filler + b"\r\n")
        is_over.wait(HANG_SECONDS)

    with raw(answering) as url:
        assert posted(url) == PostAnswer(200)


def test_nobody_listens():
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PostError, match="the connection failed"):
        posted(f"http://{LOOPBACK}:{port}/")


# --- where a connection is made to ---


def test_an_address_that_was_not_named_is_not_connected_to():
    def never(connection, is_over):
        raise AssertionError("somebody has connected")

    with raw(never) as url, pytest.raises(PostError, match="is not public and was not named"):
        posted(url, hosts=ReceiverHosts())


@pytest.fixture
def names(monkeypatch):
    """What names stand for, and how often that was asked."""
    known: dict[str, list[list[str]]] = {}
    asked: list[str] = []

    def look_up(host, port, **_):
        asked.append(host)
        addresses = known[host].pop(0) if len(known[host]) > 1 else known[host][0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(webhook_post.socket, "getaddrinfo", look_up)
    return known, asked


def test_a_name_that_stands_for_another_address_at_the_second_look_is_caught(names):
    known, asked = names
    with receiver() as kept:
        known["hook.example"] = [[LOOPBACK], ["127.0.0.2"]]
        url = kept.url.replace(LOOPBACK, "hook.example")
        hosts = ReceiverHosts.parse(["hook.example", LOOPBACK])
        assert posted(url, hosts=hosts) == PostAnswer(200)
        assert kept.messages[0].headers["Host"] == f"hook.example:{kept.port}"
        assert asked == ["hook.example"], "the connection is made to what was checked"
        with pytest.raises(PostError, match=r"hook\.example stands for an address"):
            posted(url, hosts=hosts)
        assert len(kept.messages) == 1


def test_only_those_addresses_of_a_name_are_tried_that_may_be(names):
    known, _ = names
    with receiver() as kept:
        known["hook.example"] = [["10.0.0.1", "127.0.0.1"]]
        url = kept.url.replace(LOOPBACK, "hook.example")
        assert posted(url, hosts=ReceiverHosts.parse(["hook.example", "127.0.0.1"])).status == 200


def test_a_name_that_stands_for_nothing_is_an_error(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with monkeypatch.context() as patches:
        patches.setattr(webhook_post.socket, "getaddrinfo", unknown)
        with pytest.raises(PostError, match="the connection failed: Name or service not known"):
            posted("http://no-such-name.invalid/")
    with pytest.raises(PostError, match="no host of that name"):
        posted(f"http://{'a' * 64}.invalid/")


# --- TLS ---


@contextlib.contextmanager
def secured(tmp_path, monkeypatch, *, is_trusted):
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", authority().write(tmp_path))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    def answering(connection, is_over):
        with context.wrap_socket(connection, server_side=True) as tls:
            received = b""
            while not received.endswith(b"{}"):  # Unread bytes would reset the connection.
                received += tls.recv(65_536)
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw(answering) as url:
        yield url.replace("http", "https")


def test_a_certificate_is_checked(tmp_path, monkeypatch):
    with secured(tmp_path, monkeypatch, is_trusted=True) as url:
        assert posted(url) == PostAnswer(200)
    with (
        secured(tmp_path, monkeypatch, is_trusted=False) as url,
        monkeypatch.context() as patches,
    ):
        patches.delenv("SSL_CERT_FILE")
        with pytest.raises(PostError, match="TLS failed"):
            posted(url)
