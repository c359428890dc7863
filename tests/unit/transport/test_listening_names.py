"""A host that is a name of several addresses: a listener has all of them, at one port, or none."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator

import pytest

from barrage.errors import ConfigError
from barrage.transport.base import Listener, ListenOptions
from barrage.transport.over_grpc.grpc_transport import GRPC
from barrage.transport.sockets import listening_sockets
from tests.unit.transport.tls_scene import server_tls


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


NAME = "localhost"
ADDRESSES = ("::1" if _has_ipv6() else "127.0.0.2", "127.0.0.1")
BOTH = pytest.mark.parametrize("http", ["own", "grpcio"])


@pytest.fixture(autouse=True)
def _name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system knows two addresses of it, as many do; gRPC always does."""
    original = socket.getaddrinfo

    def found(host, port, *arguments, **named):
        if host != NAME:
            return original(host, port, *arguments, **named)
        each = [original(address, port, *arguments, **named) for address in ADDRESSES]
        return [entry for entries in each for entry in entries]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.fixture
def other() -> Iterator[int]:
    """The port of somebody who has the second of the addresses only."""
    with socket.create_server((ADDRESSES[1], 0)) as held:
        yield held.getsockname()[1]


def listening(http: str, port: int = 0, **options) -> Listener:
    return listening_on(NAME, http=http, port=port, **options)


def listening_on(host: str, **options) -> Listener:
    told = {"port": 0, "message_bytes_max": 1 << 20, "keepalive_ms": 10_000}
    return GRPC.listen(host, ListenOptions(**(told | options)))


def is_taken(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


@BOTH
@pytest.mark.parametrize("is_tls", [False, True])
def test_all_addresses_are_taken_at_one_port(http, is_tls, tmp_path) -> None:
    async def test() -> None:
        listener = listening(http, tls=server_tls(tmp_path) if is_tls else None)
        listener.bind()
        assert [is_taken(address, listener.port) for address in ADDRESSES] == [True, True]
        assert listener.address == f"{NAME}:{listener.port}"
        await listener.start()
        await listener.stop(0)
        assert [is_taken(address, listener.port) for address in ADDRESSES] == [False, False]

    asyncio.run(test())


@BOTH
def test_a_port_that_somebody_has_at_one_of_them_is_taken(http, other) -> None:
    async def test() -> None:
        listener = listening(http, other)
        with pytest.raises(ConfigError, match=rf"cannot listen on {NAME}:{other}: .*in use"):
            listener.bind()
        await listener.stop(0)
        assert not is_taken(ADDRESSES[0], other)

    asyncio.run(test())


@BOTH
def test_a_port_that_the_system_chooses_is_free_at_all_of_them(http, other, monkeypatch) -> None:
    """The first choice is somebody's at the second address: then another one is made."""
    original, chosen = listening_sockets._listening, []

    def choosing(family, address):
        if address[1] == 0:
            chosen.append(address)
            if len(chosen) == 1:
                address = (address[0], other)
        return original(family, address)

    async def test() -> None:
        monkeypatch.setattr(listening_sockets, "_listening", choosing)
        listener = listening(http)
        listener.bind()
        assert len(chosen) == 2
        assert listener.port not in (0, other)
        assert [is_taken(address, listener.port) for address in ADDRESSES] == [True, True]
        await listener.stop(0)

    asyncio.run(test())


@BOTH
def test_a_choice_that_is_never_free_is_given_up(http, other, monkeypatch) -> None:
    original, chosen = listening_sockets._listening, []

    def choosing(family, address):
        if address[1] == 0:
            chosen.append(address)
            address = (address[0], other)
        return original(family, address)

    async def test() -> None:
        monkeypatch.setattr(listening_sockets, "_listening", choosing)
        listener = listening(http)
        with pytest.raises(ConfigError, match=f"cannot listen on {NAME}:0: .*in use"):
            listener.bind()
        await listener.stop(0)
        assert len(chosen) == listening_sockets._PORT_TRIES

    asyncio.run(test())


@BOTH
@pytest.mark.parametrize("host", ["no such host", "203.0.113.7"])
def test_a_host_that_is_not_here_is_a_wrong_setting(http, host) -> None:
    async def test() -> None:
        listener = listening_on(host, http=http)
        with pytest.raises(ConfigError, match="cannot listen on"):
            listener.bind()
        await listener.stop(0)

    asyncio.run(test())
