"""A worker in the process of a test: it takes streams as the server's does, and keeps them in
memory."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from barrage.limits import DEFAULT_LIMITS
from barrage.proto.connector.session_states import WorkerState
from barrage.proto.connector.stream_desk import StreamDesk
from barrage.proto.connector.worker_session import WorkerSession

if TYPE_CHECKING:
    from barrage.limits import Limits


class LocalWorker:
    """Listens on loopback while it is entered. ``messages`` is what is safe of each stream, by its
    name: pairs of id and payload."""

    def __init__(self, *, cookie: str = "", limits: Limits = DEFAULT_LIMITS) -> None:
        self._cookie = cookie
        self._limits = limits
        self._desk = StreamDesk("test", {}, limits=limits)
        self._server: asyncio.Server | None = None
        self._sessions: dict[asyncio.StreamWriter, WorkerSession] = {}
        self._positions: dict[int, int] = {}
        self.messages: dict[str, list[tuple[int, bytes]]] = {}
        self.is_holding = False
        """While it is set nothing becomes safe, so sources run out of credits."""

    async def __aenter__(self) -> LocalWorker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    @property
    def address(self) -> str:
        """What a :class:`~barrage.connector.worker_delivery.WorkerDelivery` wants."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def cut(self) -> None:
        """End all connections as a crash does: what was not safe is lost."""
        sessions, self._sessions = self._sessions, {}
        for writer, session in sessions.items():
            session.close()
            writer.transport.abort()
        self._desk = StreamDesk("test", self._positions, limits=self._limits)

    def restart(self, address: str = "") -> None:
        """Ask all sources to connect again, there or here."""
        for writer, session in tuple(self._sessions.items()):
            session.restart(address)
            writer.write(session.data_to_send())

    def settle(self) -> None:
        """Make safe what has come, and say so."""
        while (batch := self._desk.take_batch()) is not None:
            messages = batch.messages()
            if messages is not None:
                for name, number, payload in zip(
                    messages.streams.to_pylist(),
                    messages.ids.to_pylist(),
                    messages.payloads.to_pylist(),
                    strict=True,
                ):
                    self.messages.setdefault(name, []).append((number, payload))
            self._positions |= {stream: last for stream, (_, last) in batch.positions.items()}
            self._desk.settle(batch)
        for writer, session in self._sessions.items():
            writer.write(session.data_to_send())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = WorkerSession(limits=self._limits, cookie=self._cookie)
        self._sessions[writer] = session
        try:
            while data := await reader.read(65_536):
                session.receive_data(data)
                if session.state is WorkerState.GREETED:
                    session.welcome(self._desk)
                if not self.is_holding:
                    self.settle()
                writer.write(session.data_to_send())
                if session.state in (WorkerState.FAILING, WorkerState.CLOSED):
                    break
        except ConnectionError:
            return
        finally:
            if self._sessions.pop(writer, None) is not None:
                session.close()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
