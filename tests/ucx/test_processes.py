"""Peers in processes of their own: killed, stopped, flooding, talking nonsense; forks; growth."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise

import psutil
import pyarrow as pa
import pytest

from barrage.errors import ConnectionLostError, TransportError
from barrage.transport.ucx import (
    ErrorMode,
    RegisteredMemory,
    RemoteKey,
    UcxConnection,
    UcxContext,
    UcxLibrary,
    UcxSettings,
)
from barrage.transport.ucx.settings import LIBRARY_VARIABLES
from barrage.transport.ucx.worker import UcxWorker
from tests.ucx.children import (
    Child,
    canary_server,
    child,
    echo_server,
    flooding_client,
    silent_client,
)
from tests.ucx.pair import Inbox, ends, until

MODES = pytest.mark.parametrize("error_mode", list(ErrorMode))
JUNK_SEED = 20_240_817
CONNECTS = int(os.environ.get("BARRAGE_UCX_CONNECTS", "120"))


async def echoed(context: UcxContext, port: int, content: bytes) -> bytes:
    """What comes back of one message on a connection of its own."""
    connection = await UcxConnection.connect(context, "127.0.0.1", port, timeout=30)
    try:
        into = pa.allocate_buffer(len(content))
        coming = connection.receive_posted(5, 2**64 - 1, into)
        connection.send_tagged(5, content)
        await asyncio.wait_for(coming, 30)
        return into.to_pybytes()
    finally:
        await connection.close()


def echoed_now(library: UcxLibrary, port: int, content: bytes) -> bytes:
    """The same, patiently: requests of others may be ahead, and too many are rejected."""

    async def scenario() -> bytes:
        context = UcxContext(library, UcxSettings())
        try:
            async with asyncio.timeout(90):
                while True:
                    try:
                        return await echoed(context, port, content)
                    except TransportError:
                        await asyncio.sleep(0.1)
        finally:
            context.close()

    return asyncio.run(scenario())


# --- a peer that goes -----------------------------------------------------------------------------


@MODES
def test_a_killed_server_is_noticed_and_all_that_waits_for_it_fails(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    async def scenario(server: Child) -> None:
        context = UcxContext(library, UcxSettings())
        try:
            connection = await UcxConnection.connect(
                context, "127.0.0.1", server.ready, timeout=30, error_mode=error_mode
            )
            inbox = Inbox(connection)
            connection.send_tagged(3, b"before")
            await until(lambda: inbox.tagged == [(3, b"before")])
            os.kill(server.pid, signal.SIGSTOP)
            waiting = [
                connection.send_tagged(1, bytes(4_000_000)),
                connection.send_tagged(2, b"x", synchronous=True),
                connection.receive_posted(9, 2**64 - 1, pa.allocate_buffer(8)),
            ]
            server.kill()
            await until(lambda: inbox.lost)
            for future in waiting:
                with pytest.raises(ConnectionLostError):
                    await future
            await asyncio.wait_for(connection.close(), 30)
        finally:
            context.close()

    with child(echo_server) as server:
        asyncio.run(scenario(server))


@MODES
def test_a_killed_client_is_noticed_and_its_worker_goes(
    library: UcxLibrary, error_mode: ErrorMode
) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            with child(silent_client, both.listener.port, error_mode) as client:
                await until(lambda: both.accepted)
                connection = both.accepted[0]
                inbox = Inbox(connection)
                body = connection.send_tagged(1, bytes(4_000_000))
                client.kill()
                await until(lambda: inbox.lost)
                with pytest.raises(ConnectionLostError):
                    await body
                await asyncio.wait_for(connection.close(), 30)
                assert both.listener.connection_count == 0
                assert len(both.context.workers) == 1  # the listener's

    asyncio.run(scenario())


def test_a_stopped_peer_is_seen_by_a_deadline_only_and_may_go_on(library: UcxLibrary) -> None:
    async def scenario(server: Child) -> None:
        context = UcxContext(library, UcxSettings())
        try:
            connection = await UcxConnection.connect(context, "127.0.0.1", server.ready, timeout=30)
            inbox = Inbox(connection)
            os.kill(server.pid, signal.SIGSTOP)
            sent = connection.send_tagged(1, b"x", synchronous=True)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(sent), 0.5)
            assert connection.lost is None
            with pytest.raises(TransportError, match="no answer"):
                await UcxConnection.connect(context, "127.0.0.1", server.ready, timeout=0.5)
            os.kill(server.pid, signal.SIGCONT)
            await asyncio.wait_for(sent, 30)
            await until(lambda: inbox.tagged == [(1, b"x")])
            await connection.close()
        finally:
            context.close()

    with child(echo_server) as server:
        asyncio.run(scenario(server))


def test_closing_does_not_wait_for_a_stopped_peer(library: UcxLibrary) -> None:
    async def scenario(server: Child, error_mode: ErrorMode) -> None:
        context = UcxContext(library, UcxSettings())
        try:
            connection = await UcxConnection.connect(
                context, "127.0.0.1", server.ready, timeout=30, error_mode=error_mode
            )
            os.kill(server.pid, signal.SIGSTOP)
            # More than the sockets take, so that requests wait inside the endpoint as well.
            for _ in range(2_000):
                connection.send_tagged(1, bytes(8_000))
            await asyncio.sleep(0.05)
            await asyncio.wait_for(connection.close(), 30)
        finally:
            context.close()
            os.kill(server.pid, signal.SIGCONT)

    for error_mode in ErrorMode:
        with child(echo_server) as server:
            asyncio.run(scenario(server, error_mode))


# --- a peer that does too much --------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 50_000])
def test_a_flood_on_one_connection_leaves_the_loop_and_the_others_alive(
    library: UcxLibrary, size: int
) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            client, server = await both.connect()
            inbox, flooded = Inbox(server), []
            with child(flooding_client, both.listener.port, size) as flood:
                await until(lambda: len(both.accepted) == 2)
                connection = both.accepted[1]
                connection.on_untagged = lambda _: flooded.append(1)
                connection.on_tagged = lambda: [
                    connection.discard(probed) for probed in iter(connection.probe, None)
                ]
                delays = []
                for _ in range(200):
                    started = time.thread_time()  # other programs are busy, too
                    await asyncio.sleep(0)
                    delays.append(time.thread_time() - started)
                    await asyncio.sleep(0.002)
                client.send_tagged(1, b"through")
                await until(lambda: inbox.tagged)
                assert len(flooded) > 1_000
                assert sorted(delays)[180] < 0.05
                await connection.close()
                assert flood.process.is_alive() or flood.process.exitcode == 0

    asyncio.run(scenario())


def test_a_turn_ends_in_time_however_much_there_is_to_do(library: UcxLibrary) -> None:
    started = time.monotonic()

    class Endless:
        """The library, with events that do not end for a while."""

        def __getattr__(self, name: str) -> object:
            return getattr(library.functions, name)

        def ucp_worker_progress(self, _worker: object) -> int:
            return int(time.monotonic() < started + 3)

    async def scenario() -> None:
        context = UcxContext(library, UcxSettings())
        worker = UcxWorker(context)
        worker._functions = Endless()
        turns = 0
        while time.monotonic() < started + 0.5:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10
        context.close()

    asyncio.run(scenario())


# --- a peer that talks nonsense -------------------------------------------------------------------


def handshake(library: UcxLibrary) -> bytes:
    """What a client says first."""
    with socket.create_server(("127.0.0.1", 0)) as ear:
        ear.setblocking(False)

        async def listen() -> bytes:
            loop = asyncio.get_running_loop()
            context = UcxContext(library, UcxSettings())
            connecting = asyncio.ensure_future(
                UcxConnection.connect(context, "127.0.0.1", ear.getsockname()[1], timeout=0.5)
            )
            heard, _ = await loop.sock_accept(ear)
            said = await loop.sock_recv(heard, 65_536)
            heard.close()
            await asyncio.wait([connecting])
            assert isinstance(connecting.exception(), TransportError)
            context.close()
            return said

        return asyncio.run(listen())


def nonsense(start: bytes, count: int) -> list[bytes]:
    """Random bytes, cut and changed handshakes, large lengths."""
    draw = random.Random(JUNK_SEED)
    made = []
    for number in range(count):
        kind = number % 4
        if kind == 0:
            made.append(draw.randbytes(draw.choice([1, 7, 8, 9, 64, 1_000, 20_000])))
        elif kind == 1:
            made.append(start[: draw.randrange(len(start) + 1)])
        elif kind == 2:
            changed = bytearray(start)
            for _ in range(draw.choice([1, 2, 10])):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            made.append(bytes(changed))
        else:
            at = draw.randrange(0, min(len(start), 64), 4)
            length = draw.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0"])
            made.append(start[:at] + length + start[at + 4 :])
    return made


def send_all(port: int, messages: list[bytes]) -> None:
    """Each on a connection of its own; some stay open for a while."""
    held = []
    for message in messages:
        try:
            peer = socket.create_connection(("127.0.0.1", port), timeout=2)
        except OSError:
            continue
        held.append(peer)
        with contextlib.suppress(OSError):  # it may have gone already
            peer.sendall(message)
        if len(held) > 20:
            held.pop(0).close()
    for peer in held:
        peer.close()


def test_nonsense_on_every_port_does_not_end_the_server(library: UcxLibrary) -> None:
    """UCX 1.13 is known to end the process here; that it is warned of is all that can be asked."""
    messages = nonsense(handshake(library), 400)
    with child(echo_server) as server:
        assert echoed_now(library, server.ready, b"before") == b"before"
        descriptors = server.descriptor_count
        ports = server.ports
        assert server.ready in ports
        assert len(ports) >= 2, "workers have ports for data"
        for port in ports:
            send_all(port, messages)
        if library.is_asserting:
            assert "malformed bytes" in " ".join(library.warnings)
            return
        assert server.process.is_alive()
        for _ in range(3):
            assert echoed_now(library, server.ready, b"after") == b"after"
        deadline = time.monotonic() + 30
        while server.descriptor_count > descriptors + 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.descriptor_count <= descriptors + 20
        while server.ask("connections") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.ask("connections") == 0


def test_a_peer_that_sends_larger_segments_than_usual_does_no_harm(
    library: UcxLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with child(echo_server) as server:
        monkeypatch.setenv("UCX_TCP_TX_SEG_SIZE", "128k")
        for size in (20_000, 120_000, 5_000_000):
            assert echoed_now(library, server.ready, bytes(size)) == bytes(size)
        assert server.process.is_alive()


# --- a peer that reaches for memory ---------------------------------------------------------------

PUT = "void *ucp_put_nbx(void *, const void *, size_t, uint64_t, void *, const void *);"


async def reach_for(library: UcxLibrary, port: int, address: int) -> bytes:
    """Read and write memory of a server with a key made of our own memory; what was read."""
    context = UcxContext(library, UcxSettings(rma=True, put_zcopy=True))
    try:
        client = await UcxConnection.connect(context, "127.0.0.1", port, timeout=30)
        own = RegisteredMemory(context, pa.py_buffer(bytes(4096)))
        key = client.unpack_key(own.packed_key)
        into = pa.py_buffer(bytearray(4096))
        await asyncio.wait([client.get(key, address, into)], timeout=1)
        if client.lost is None:
            put(library, client, key, address, bytes(4096))
            await asyncio.sleep(0.2)
        await client.close()
        return into.to_pybytes()
    finally:
        context.close()


def put(
    library: UcxLibrary, client: UcxConnection, key: RemoteKey, address: int, content: bytes
) -> None:
    """Write to memory of the peer, which the package never does itself."""
    library.ffi.cdef(PUT, override=True)
    worker = client._worker
    operation = worker.begin(worker.send_params, content)
    pointer = library.functions.ucp_put_nbx(
        client._endpoint, content, len(content), address, key.handle, worker.send_params
    )
    worker.posted(operation, pointer)


def test_a_forged_key_reaches_no_memory_of_a_server_without_rma(library: UcxLibrary) -> None:
    with child(canary_server, UcxSettings()) as server:
        port, address = server.ready
        assert asyncio.run(reach_for(library, port, address)) == bytes(4096)
        assert server.ask("canary") == b"c" * 4096
        assert echoed_now(library, port, b"alive") == b"alive"


def test_a_forged_key_reads_any_memory_of_a_server_with_rma(library: UcxLibrary) -> None:
    """Which is why it has a switch of its own, and docs/security.md says so."""
    with child(canary_server, UcxSettings(rma=True)) as server:
        port, address = server.ready
        assert asyncio.run(reach_for(library, port, address)) == b"c" * 4096


# --- growth ---------------------------------------------------------------------------------------


def test_many_connections_one_after_the_other_leave_nothing(library: UcxLibrary) -> None:
    """``BARRAGE_UCX_CONNECTS=1000`` makes it the long run; UCX takes up to 60 ms for each."""
    ours = psutil.Process()

    def sizes(server: Child) -> list[int]:
        gc.collect()
        return [
            ours.num_fds(),
            server.descriptor_count,
            ours.memory_info().rss,
            server.resident_bytes,
        ]

    async def scenario(server: Child) -> None:
        context = UcxContext(library, UcxSettings())
        try:
            seen = []
            for number in range(CONNECTS):
                if number >= CONNECTS // 2 and number % (CONNECTS // 8) == 0:
                    seen.append(sizes(server))
                await echoed(context, server.ready, b"%d" % number)
            await asyncio.sleep(0.2)
            seen.append(sizes(server))
            # What is left behind shows in every part; an allocator takes its memory in one step.
            grown = [
                [after - before for before, after in pairwise(values)]
                for values in zip(*seen, strict=True)
            ]
            assert seen[-1][0] <= seen[0][0] + 4
            assert seen[-1][1] <= seen[0][1] + 8
            assert min(grown[2]) < 512 * 1024, grown[2]
            assert min(grown[3]) < 512 * 1024, grown[3]
            assert server.ask("connections") == 0
        finally:
            context.close()

    with child(echo_server) as server:
        asyncio.run(scenario(server))


def test_an_idle_connection_costs_nothing(library: UcxLibrary) -> None:
    async def scenario() -> None:
        async with ends(library) as both:
            client, server = await both.connect()
            inbox = Inbox(server)
            client.send_tagged(1, b"x")
            await until(lambda: inbox.tagged)
            before = time.process_time()
            await asyncio.sleep(1)
            assert time.process_time() - before < 0.05

    asyncio.run(scenario())


# --- forks, signals, memory functions -------------------------------------------------------------


def run_script(script: str) -> str:
    """Run it in a new interpreter with the same library; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORK = """
import asyncio, os
import pyarrow as pa
from barrage.errors import TransportError
from barrage.transport.ucx import *

def refused(call):
    try:
        call()
    except TransportError as error:
        return "fork" in str(error)
    return False

def in_child(library, context, client):
    tests = [
        refused(lambda: client.send_tagged(1, b"x")),
        refused(lambda: client.send_untagged(b"x")),
        refused(lambda: client.probe()),
        refused(lambda: client.receive_posted(1, 1, pa.allocate_buffer(1))),
        refused(lambda: UcxContext(library, UcxSettings())),
    ]
    context.close()
    os._exit(0 if all(tests) else 1)

async def main():
    library = load_library()
    context = UcxContext(library, UcxSettings())
    accepted = []
    listener = UcxListener(context, "127.0.0.1", 0, on_connection=accepted.append)
    client = await UcxConnection.connect(context, "127.0.0.1", listener.port, timeout=30)
    pid = os.fork()
    if pid == 0:
        in_child(library, context, client)
    assert os.waitpid(pid, 0)[1] == 0, "the child was not refused"
    into = pa.allocate_buffer(2)
    coming = accepted[0].receive_posted(1, 1, into)
    await client.send_tagged(1, b"on")
    await asyncio.wait_for(coming, 30)
    await client.close()
    await accepted[0].close()
    context.close()
    pid = os.fork()
    if pid == 0:
        asyncio.run(fresh(library))
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "a child without contexts behind it may make one"
    print("done", into.to_pybytes())

async def fresh(library):
    UcxContext(library, UcxSettings()).close()

asyncio.run(main())
"""

UNTOUCHED = """
import ctypes, os, pathlib
from barrage.transport.ucx import *

def signals():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return [line for line in lines if line.startswith("SigCgt")]

libc = ctypes.CDLL(None)
def code():
    names = ("mmap", "munmap", "brk", "shmat", "madvise")
    return [ctypes.string_at(ctypes.cast(getattr(libc, n), ctypes.c_void_p).value, 16)
            for n in names]

before = signals(), code()
library = load_library()
context = UcxContext(library, UcxSettings())
assert (signals(), code()) == before
context.close()
print({name: value for name, value in os.environ.items() if name.startswith("UCX_")})
"""


def test_a_context_refuses_everything_in_a_forked_child_and_lives_on_in_its_parent() -> None:
    assert run_script(FORK) == "done b'on'\n"


def test_signals_and_memory_functions_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIBRARY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UCX_LOG_LEVEL", "error")
    assert run_script(UNTOUCHED) == "{'UCX_LOG_LEVEL': 'error'}\n"


def test_a_release_that_can_be_ended_by_a_peer_is_told_by_doctor(library: UcxLibrary) -> None:
    command = [sys.executable, "-c", "from barrage.cli.main import main; main()", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stdout.splitlines() if library.release in line]
    assert lines[0].startswith("warning" if library.warnings else "ok")
    if library.is_asserting:
        assert "malformed bytes" in lines[0]
