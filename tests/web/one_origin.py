"""Deephaven's web files and a server of ours behind one origin, as a proxy in front of both has it:
paths of the files are answered here, WebSockets go to the server."""

from __future__ import annotations

import asyncio
import contextlib
import mimetypes
import threading
from pathlib import Path

HEAD_BYTES_MAX = 64 * 1024
FILES = ("/iframe/", "/jsapi/", "/ide/")
PLUGINS = b'{"plugins": []}'


class OneOrigin:
    """Runs on a loop and a thread of its own until it is closed."""

    def __init__(self, files: Path) -> None:
        self._files = files
        self._web: tuple[str, int] | None = None
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(60)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lead_to(self, host: str, port: int) -> None:
        """Where WebSockets go."""
        self._web = host, port

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader, writer) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"\nupgrade: websocket" in head.lower():
                await self._splice(head, reader, writer)
            else:
                self._answer(head.split(b" ", 2)[1].decode(), writer)
                await writer.drain()
        writer.close()

    def _answer(self, target: str, writer) -> None:
        path = target.partition("?")[0]
        body, kind = None, "application/json"
        if path == "/js-plugins/manifest.json":
            body = PLUGINS
        elif path.startswith(FILES):
            file = self._files / path.lstrip("/")
            file = file / "index.html" if path.endswith("/") else file
            if file.is_file() and file.resolve().is_relative_to(self._files.resolve()):
                body = file.read_bytes()
                kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        status = "404 Not Found" if body is None else "200 OK"
        body = body or b""
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n".encode()
            + body
        )

    async def _splice(self, head, reader, writer) -> None:
        assert self._web is not None
        far_reader, far_writer = await asyncio.open_connection(*self._web)
        far_writer.write(head)
        ways = [
            asyncio.create_task(_copy(reader, far_writer)),
            asyncio.create_task(_copy(far_reader, writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        far_writer.close()


async def _copy(reader, writer) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(HEAD_BYTES_MAX):
            writer.write(data)
            await writer.drain()
