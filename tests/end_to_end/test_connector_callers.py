"""Sources of the connector protocol are callers: what their cookie proves, which rules hold, and
what ends them."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.flight as flight
import pytest

import barrage
from barrage import Operation, Policy, Rule
from barrage.errors import RequestRefusedError
from barrage.limits import Limits
from barrage.proto.connector.source_session import SourceEvent, WorkerFailed
from barrage.server import ServerConfig
from barrage.server.identity.users_file import changing_users
from barrage.server.ingest.connector.connector_worker import BAD_COOKIE
from tests.helpers.certificates import authority
from tests.helpers.connector_source import SocketSource, source
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until
from tests.helpers.users import ALICE_PASSWORD, users_file

ALICE, BOB = f"alice:{ALICE_PASSWORD}", f"bob:{ALICE_PASSWORD}"
KEY = "the:key"
RULES = Policy.of(
    Rule(tables=("*", "_*"), roles=("writer",), allow=frozenset({Operation.ADMIN})),
    Rule(tables=("made_*",), users=("bob",), allow=frozenset({Operation.CREATE})),
    Rule(tables=("written",), users=("bob",), allow=frozenset({Operation.WRITE})),
    Rule(tables=("read",), users=("bob",), allow=frozenset({Operation.READ})),
    Rule(tables=("*",), users=("key",), allow=frozenset({Operation.WRITE, Operation.CREATE})),
)


@contextmanager
def serving(
    directory: Path, *, policy: Policy | None = None, **settings
) -> Iterator[barrage.Server]:
    users = users_file(directory / "users")
    config = ServerConfig(
        connector="127.0.0.1:0", users=str(users), audit=str(directory / "audit.log"), **settings
    )
    with barrage.Server(config=config, policy=policy) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[barrage.Server]:
    with serving(tmp_path_factory.mktemp("sources"), policy=RULES, token=KEY) as made:
        yield made


def token_of(server: barrage.Server, user: str) -> str:
    with flight.connect(server.uri) as client:
        _, header = client.authenticate_basic_token(user, ALICE_PASSWORD)
    return header.decode().removeprefix("Bearer ")


class _Watching(SocketSource):
    """Remembers what it was told."""

    seen: list[SourceEvent]

    def receive(self) -> list[SourceEvent]:
        events = super().receive()
        self.seen.extend(events)
        return events


def told(port: int, program: str, cookie: str) -> str:
    """The ERROR a source gets, or nothing for an end without one."""
    watching = type("Watching", (_Watching,), {"seen": []})
    with pytest.raises((EOFError, ConnectionError)):
        watching(port, program, cookie=cookie).close()
    return "".join(event.message for event in watching.seen if isinstance(event, WorkerFailed))


def test_a_cookie_is_a_key_a_password_or_a_token(server) -> None:
    for cookie in (KEY, ALICE, token_of(server, "alice")):
        with source(server.connector_port, "any", cookie=cookie) as s:
            s.announce(1)
            s.send(1, (s.opened[1] or 0) + 1)
            s.wait_safe(1, (s.opened[1] or 0) + 1)
    assert len(server.table("any").to_arrow()) == 3
    wait_until(lambda: not server._app._connectors.connection_count, HANG_SECONDS)
    assert not any(c.name == "alice" for c in server._app._authenticator.calls.callers())


@pytest.mark.parametrize(
    "cookie",
    ["", "nope", "alice:nope", "nobody:x", f"carol:{ALICE_PASSWORD}", "bt_" + "A" * 43, ":", "a:"],
)
def test_any_other_cookie_is_told_so_and_leaves_nothing(server, cookie) -> None:
    before = len(server._app._authenticator.calls)
    assert told(server.connector_port, "wrong", cookie) == BAD_COOKIE
    assert "wrong" not in server._parts.catalog.listing()
    assert len(server._app._authenticator.calls) == before


@pytest.mark.parametrize(
    ("program", "operation"),
    [("read", "write"), ("hidden", "create"), ("nothing", "create")],
)
def test_rules_are_asked_for_the_table_of_a_program(server, program, operation) -> None:
    if program != "nothing" and program not in server._parts.catalog.listing():
        with source(server.connector_port, program, cookie=ALICE) as s:
            s.announce(1)
    # Whether there is such a table or not: the same words.
    error = told(server.connector_port, program, BOB)
    assert error.startswith(f"unknown program: you may not {operation} table '{program}'")


def test_who_may_only_create_makes_no_table_it_could_not_write_to(server) -> None:
    error = told(server.connector_port, "made_by_bob", BOB)
    assert "you may not write table 'made_by_bob'" in error
    assert "made_by_bob" not in server._parts.catalog.listing()


def test_one_that_may_not_does_not_stop_one_that_may(server) -> None:
    runs = [told(server.connector_port, "shared", BOB) for _ in range(3)]
    assert all("you may not create" in text for text in runs)
    with source(server.connector_port, "shared", cookie=ALICE) as s:
        s.announce(1)
        assert "you may not create" in told(server.connector_port, "shared", BOB)
        s.send(1, 1)
        s.wait_safe(1, 1)


def test_a_table_is_not_made_for_who_has_gone_or_may_not_any_more(tmp_path) -> None:
    """While the engine is busy many wait for the table of a program; then the first ones have
    other rules, and the one behind them makes it."""
    policy = tmp_path / "policy.toml"
    both = '[[rule]]\nusers = ["{}"]\ntables = ["*"]\nallow = ["write", "create"]\n'
    policy.write_text(both.format("alice") + both.format("bob"))
    users = users_file(tmp_path / "users")
    config = ServerConfig(connector="127.0.0.1:0", users=str(users), policy=str(policy))
    with barrage.Server(config=config) as server, contextlib.ExitStack() as stack:
        goes_on = threading.Event()
        stack.callback(goes_on.set)
        server._parts.runtime.post(lambda: goes_on.wait(HANG_SECONDS))
        worker = server._app._connectors

        def come(cookie: str, count: int) -> list[socket.socket]:
            made = [
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", server.connector_port), HANG_SECONDS)
                )
                for _ in range(count)
            ]
            for each in made:
                each.sendall(hello("feed", cookie))
            return made

        his = come(BOB, 3)
        wait_until(lambda: waiting_for(worker, "feed") == 3, HANG_SECONDS)
        hers = come(ALICE, 2)
        wait_until(lambda: waiting_for(worker, "feed") == 5, HANG_SECONDS)
        policy.write_text(both.format("alice"))
        wait_until(lambda: worker.connection_count == 2, HANG_SECONDS)
        goes_on.set()
        for each in hers:
            assert each.recv(1), "welcomed"
        assert all(not all_of(each) for each in his)
        assert "feed" in server._parts.catalog.listing()


def waiting_for(worker, program: str) -> int:
    return sum(len(p.waiting) for p in worker._programs.values() if p.target.table == program)


def test_who_is_a_user_no_more_is_cut_off_and_nobody_else(tmp_path) -> None:
    with serving(tmp_path) as server:
        port = server.connector_port
        with source(port, "a", cookie=ALICE) as s, source(port, "b", cookie=BOB) as other:
            s.announce(1)
            other.announce(1)
            s.send(1, 1)
            s.wait_safe(1, 1)
            with changing_users(tmp_path / "users") as users:
                del users["alice"]
            event = s.until(WorkerFailed)
            assert event.message == BAD_COOKIE
            assert told(port, "a", ALICE) == BAD_COOKIE
            other.send(1, 1)
            other.wait_safe(1, 1)
        wait_until(lambda: not server._app._connectors.connection_count, HANG_SECONDS)
    lines = map(json.loads, (tmp_path / "audit.log").read_text().splitlines())
    seen = [each for each in lines if each["method"] == "connector"]
    assert {(each.get("user"), *each["tables"], each["outcome"]) for each in seen} == {
        ("alice", "a", "UNAUTHENTICATED"),
        (None, "a", "UNAUTHENTICATED"),
        ("bob", "b", "OK"),
    }
    assert ALICE_PASSWORD not in (tmp_path / "audit.log").read_text()


def test_other_rules_send_a_source_away_to_come_again_under_them(tmp_path) -> None:
    path = tmp_path / "policy.toml"

    def put(*operations: str) -> None:
        path.write_text(f'[[rule]]\ntables = ["a"]\nallow = {json.dumps(operations)}\n')

    put("write", "create")
    config = ServerConfig(connector="127.0.0.1:0", policy=str(path))
    with barrage.Server(config=config) as server, source(server.connector_port, "a") as s:
        s.announce(1)
        s.send(1, 1)
        s.wait_safe(1, 1)
        put("read")
        with pytest.raises((EOFError, ConnectionError)):
            s.until(WorkerFailed)
        assert "you may not write table 'a'" in told(server.connector_port, "a", "")


def test_a_peer_that_was_wrong_too_often_waits_here_too(tmp_path) -> None:
    with serving(tmp_path, limits=Limits(login_failures_max=2)) as server:
        port = server.connector_port
        assert told(port, "a", "alice:nope") == BAD_COOKIE
        assert told(port, "a", "alice:nope") == BAD_COOKIE
        # No ERROR, which sources take for the end: it passes.
        assert told(port, "a", "alice:nope") == ""
        auth = barrage.Basic("alice", "nope")
        with (
            pytest.raises(RequestRefusedError, match="too many failed logins"),
            barrage.connect(server.uri, auth=auth) as session,
        ):
            session.tables()


@pytest.mark.held_up("by the test, for guesses to come together")
def test_a_flood_of_guesses_waits_for_nobody_else_and_ends_nothing(tmp_path) -> None:
    """Those past the limit are sent away without a word; many reset their connection while their
    cookie is looked at."""
    limits = Limits(login_failures_max=10_000, password_checks_waiting_max=1)
    with serving(tmp_path, limits=limits) as server:
        port, worker = server.connector_port, server._app._connectors
        with source(port, "feed", cookie=ALICE) as s:
            s.announce(1)
            for number in range(40):
                with socket.create_connection(("127.0.0.1", port)) as guess:
                    if number % 2:
                        # It is reset at once; else when the answer comes.
                        linger = struct.pack("ii", 1, 0)
                        guess.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    guess.sendall(hello("feed", f"alice:{number}"))
                s.send(1, number + 1)
                s.wait_safe(1, number + 1)
            waiting = [
                socket.create_connection(("127.0.0.1", port), HANG_SECONDS) for _ in range(8)
            ]
            # They are looked at together, since all have come while the loop was held up.
            goes_on = threading.Event()
            server._loop.call_soon_threadsafe(goes_on.wait, HANG_SECONDS)
            for number, guess in enumerate(waiting):
                guess.sendall(hello("feed", f"alice:other {number}"))
            goes_on.set()
            ends = [all_of(guess) for guess in waiting]
            assert any(b"bad cookie" in end for end in ends)
            assert b"" in ends
            s.send(1, 41)
            s.wait_safe(1, 41)
        wait_until(lambda: not worker.connection_count, HANG_SECONDS)
        assert not worker._admitting
        assert server._app._telling is None, "the server is healthy"
        assert "feed" in server._parts.catalog.listing()


def all_of(s: socket.socket) -> bytes:
    with s, contextlib.suppress(ConnectionError):
        return b"".join(iter(lambda: s.recv(65_536), b""))
    return b""


@pytest.mark.parametrize(
    "cookie", ["a\0b:c", "alice:" + "x" * 60_000, "x\ny:z", ":" * 1_000, "\u202e:x", "eyJ.eyJ.x"]
)
def test_cookies_of_any_text_are_wrong_and_nothing_else(server, cookie) -> None:
    with socket.create_connection(("127.0.0.1", server.connector_port), HANG_SECONDS) as s:
        s.sendall(hello("p", cookie))
        assert b"bad cookie" in all_of(s)


def test_who_sends_much_before_it_is_known_is_not_read(tmp_path) -> None:
    with (
        serving(tmp_path) as server,
        socket.create_connection(("127.0.0.1", server.connector_port), HANG_SECONDS) as s,
    ):
        s.sendall(hello("p", "alice:wrong"))
        with contextlib.suppress(OSError):
            for _ in range(100):
                s.sendall(bytes(65_536))
        wait_until(lambda: not server._app._connectors._admitting, HANG_SECONDS)
        assert server._app._telling is None


# --- TLS ---


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory) -> Iterator[barrage.Server]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = authority().for_localhost().write(folder, "server")
    with serving(
        folder, tls_cert=cert, tls_key=key, limits=Limits(http2_preface_ns_max=2_000_000_000)
    ) as made:
        yield made


def trusting(*name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority(*name).certificate.decode())
    return context


def test_beside_a_certificate_sources_speak_tls(tls_server) -> None:
    with source(tls_server.connector_port, "safe", cookie=ALICE, tls=trusting()) as s:
        s.announce(1)
        s.send(1, *range(1, 2_000))
        s.wait_safe(1, 1_999)
    assert len(tls_server.table("safe").to_arrow()) == 1_999


def test_an_error_reaches_a_source_through_tls(tls_server) -> None:
    with pytest.raises((EOFError, ConnectionError, ssl.SSLError)):
        SocketSource(tls_server.connector_port, "safe", cookie="no", tls=trusting())
    s = socket.create_connection(("127.0.0.1", tls_server.connector_port), timeout=HANG_SECONDS)
    with trusting().wrap_socket(s, server_hostname="localhost") as secured:
        secured.sendall(hello("p", "no"))
        assert b"bad cookie" in secured.recv(65_536)


def hello(program: str, cookie: str) -> bytes:
    texts = b"".join(
        len(raw).to_bytes(2, "big") + raw for raw in map(str.encode, ("0.0.1", cookie, program, ""))
    )
    return (len(texts) + 1).to_bytes(4, "big") + b"\0" + texts


def test_nobody_comes_in_the_clear_or_trusts_a_stranger(tls_server) -> None:
    port = tls_server.connector_port
    with pytest.raises((EOFError, OSError)):
        SocketSource(port, "safe", cookie=ALICE)
    with pytest.raises(ssl.SSLCertVerificationError):
        SocketSource(port, "safe", cookie=ALICE, tls=trusting("another"))


def test_who_says_nothing_is_cut(tls_server) -> None:
    with socket.create_connection(("127.0.0.1", tls_server.connector_port)) as silent:
        silent.settimeout(HANG_SECONDS)
        assert silent.recv(1) == b""


def test_a_client_certificate_is_enough_and_names_the_source(tmp_path) -> None:
    cert, key = authority().for_localhost().write(tmp_path, "server")
    files = {"tls_cert": cert, "tls_key": key, "tls_client_ca": authority().write(tmp_path)}
    rules = Policy.of(
        Rule(tables=("a",), users=("feed",), allow=frozenset({Operation.CREATE, Operation.WRITE}))
    )
    with serving(tmp_path, policy=rules, **files) as server:
        context = trusting()
        context.load_cert_chain(*authority().for_client("feed").write(tmp_path, "feed"))
        with source(server.connector_port, "a", tls=context) as s:
            s.announce(1)
            s.send(1, 1)
            s.wait_safe(1, 1)
        with pytest.raises((EOFError, OSError)):
            SocketSource(server.connector_port, "a", tls=trusting())
