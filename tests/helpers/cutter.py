"""A TCP relay whose connections can be cut, and whose port can be closed for a while."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future


class Cutter:
    """Relays ``127.0.0.1:port`` to ``target`` on a thread of its own."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._is_open = True
        self._stop = asyncio.Event()
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="cutter")
        self._thread.start()
        self.port = started.result(60)
        self.cuts = 0

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection that is open now."""
        self.cuts += 1
        self._do(self._abort)

    def close(self) -> None:
        """Break every connection and accept none until :meth:`open`."""
        self.cuts += 1
        self._do(self._shut)

    def open(self) -> None:
        """Accept connections again."""
        self._do(self._unshut)

    def aim(self, target: str) -> None:
        """Relay new connections to another address."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def __enter__(self) -> Cutter:
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop.set)
        self._thread.join()

    def _do(self, work) -> None:
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(work()))
        done.result(60)

    def _run(self, started: Future[int]) -> None:
        self._loop.run_until_complete(self._serve(started))
        self._loop.close()

    async def _serve(self, started: Future[int]) -> None:
        server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        started.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        self._abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def _shut(self) -> None:
        self._is_open = False
        self._abort()

    def _unshut(self) -> None:
        self._is_open = True

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_open:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        if not self._is_open or self._stop.is_set():
            self._abort()
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        self._writers -= {writer, far_writer}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.transport.abort()
