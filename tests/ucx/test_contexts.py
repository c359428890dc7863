"""Contexts, the memory that is registered with them, and the library behind them."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from barrage.errors import (
    ConfigError,
    LocalProtocolError,
    TransportError,
    TransportUnavailableError,
)
from barrage.transport.ucx import (
    ErrorMode,
    RegisteredMemory,
    UcxContext,
    UcxLibrary,
    UcxSettings,
    load_library,
)
from tests.ucx.pair import ends

MODES = pytest.mark.parametrize("error_mode", list(ErrorMode))


# --- memory of the peer ---------------------------------------------------------------------------


@MODES
def test_memory_that_is_offered_can_be_read(library: UcxLibrary, error_mode: ErrorMode) -> None:
    async def scenario() -> None:
        settings = UcxSettings(rma=True)
        async with ends(library, settings) as both:
            client, _ = await both.connect(error_mode)
            offered = pa.py_buffer(bytes(range(256)) * 16_384)
            memory = RegisteredMemory(both.context, offered)
            key = client.unpack_key(memory.packed_key)
            for offset, size in ((0, 10), (256, 100_000), (0, offered.size)):
                into = pa.allocate_buffer(size)
                got = await asyncio.wait_for(client.get(key, memory.address + offset, into), 30)
                assert got.equals(offered.slice(offset, size))
            await client.close()
            memory.close()
            memory.close()

    asyncio.run(scenario())


def test_a_context_takes_its_memory_with_it(library: UcxLibrary) -> None:
    async def scenario() -> None:
        context = UcxContext(library, UcxSettings(rma=True))
        memory = RegisteredMemory(context, pa.allocate_buffer(10))
        assert context.memory == {memory}
        context.close()
        assert not context.memory
        memory.close()

    asyncio.run(scenario())


def test_keys_are_given_back_before_their_endpoint_is_closed(library: UcxLibrary) -> None:
    calls: list[str] = []

    class Recording:
        def __getattr__(self, name: str) -> object:
            calls.append(name)
            return getattr(library.functions, name)

    async def scenario() -> None:
        async with ends(library, UcxSettings(rma=True)) as both:
            client, _ = await both.connect()
            memory = RegisteredMemory(both.context, pa.allocate_buffer(10))
            client.unpack_key(memory.packed_key)
            client._functions = Recording()
            await client.close()
            memory.close()

    asyncio.run(scenario())
    assert calls == ["ucp_rkey_destroy", "ucp_ep_close_nbx"]


def test_memory_is_not_offered_or_read_without_its_switch(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            await both.connect()
            with pytest.raises(LocalProtocolError, match="rma=True"):
                RegisteredMemory(both.context, pa.allocate_buffer(10))

    asyncio.run(scenario())


def test_a_key_is_not_unpacked_before_the_connection_is_set_up(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library, UcxSettings(rma=True)) as both:
            client, server = await both.connect()
            memory = RegisteredMemory(both.context, pa.allocate_buffer(10))
            with pytest.raises(LocalProtocolError, match="flush"):
                server.unpack_key(memory.packed_key)
            await server.flush()
            server.unpack_key(memory.packed_key)
            for size in (0, 4097):
                with pytest.raises(TransportError, match="is not one"):
                    client.unpack_key(bytes(size))
            await client.close()
            await server.close()
            memory.close()

    asyncio.run(scenario())


# --- contexts and the library ---------------------------------------------------------------------


def test_settings_the_machine_cannot_serve_are_refused(library: UcxLibrary) -> None:
    with pytest.raises(TransportUnavailableError, match=r"'tls0'.*UCX"):
        UcxContext(library, UcxSettings(tls="tls0"))


def test_a_process_has_one_library(library: UcxLibrary) -> None:
    assert load_library() is library
    assert load_library(library.path) is library
    with pytest.raises(ConfigError, match="cannot join"):
        load_library("/somewhere/libucp.so.0")
    with pytest.raises(ConfigError, match="unknown UCX library 'whee'"):
        load_library("whee")


def test_the_release_is_known_and_old_ones_are_warned_of(library: UcxLibrary) -> None:
    assert library.release.count(".") == 2
    assert library.is_asserting == (library.version < (1, 16, 0))
    if library.is_asserting:
        assert "malformed bytes" in library.warnings[0]
    if library.version >= (1, 22, 0):
        assert not library.warnings
