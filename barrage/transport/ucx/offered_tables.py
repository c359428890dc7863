"""Snapshots of tables over UCX for any client of Arrow's Dissociated IPC Protocol.

Offers are made on the listener that bodies of our own streams use; the rows are read when the
ticket is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import UnsupportedError
from barrage.transport.bodies import TableOffer
from barrage.transport.ucx.caller_hosts import hosts_of
from barrage.transport.ucx.lenders import RemoteMemory
from barrage.transport.ucx.table_streams import BodyPlace, TableStreams, encode_messages

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.bodies import TakeSnapshot
    from barrage.transport.shared_memory import Arena
    from barrage.transport.ucx.context import UcxContext
    from barrage.transport.ucx.sender import SentBodies
    from barrage.transport.ucx.stream_server import StreamServer
    from barrage.transport.ucx.table_streams import Messages


class UcxTables:
    """The offers of one serving instance. On the event loop."""

    def __init__(
        self,
        context: UcxContext,
        server: StreamServer,
        *,
        limits: Limits,
        clock: Clock,
        arena: Arena | None,
    ) -> None:
        self._context = context
        self._limits = limits
        self._memory: RemoteMemory | None = None
        self._server = server
        self._streams = TableStreams(server, limits, clock, arena=arena)
        self._has_arena = arena is not None

    @property
    def running_count(self) -> int:
        """Streams under way."""
        return self._streams.running_count

    @property
    def sent(self) -> SentBodies:
        """What became of the bodies of all streams."""
        return self._streams.sent

    def offer(
        self, take_snapshot: TakeSnapshot, place: str, peer: str, *, is_one_location: bool = False
    ) -> TableOffer:
        """Locations and a ticket for one reading of a table by the caller ``peer``;
        ``take_snapshot`` gets the rows. UnsupportedError when there is no such place for bodies
        here, LimitExceededError."""
        left_at = BodyPlace(place)
        self._prepare(left_at)

        async def messages() -> Messages:
            schema, updates = await take_snapshot()
            pieces = [(list(each.added_columns), each.data_keys_post.size) for each in updates]
            return encode_messages(schema, pieces, self._limits)

        hosts = hosts_of(peer, self._server.host)
        offered = self._streams.offer(
            messages, place=left_at, hosts=hosts, is_one_location=is_one_location
        )
        assert offered.metadata is not None
        assert offered.bodies is not None
        both = (offered.metadata.encode(), offered.bodies.encode())
        return TableOffer(both[:1] if is_one_location else both, offered.ticket)

    def _prepare(self, place: BodyPlace) -> None:
        if place is BodyPlace.SHM and not self._has_arena:
            raise UnsupportedError(
                "bodies in shared memory are not switched on; start the server with "
                "--bodies shm,ucx"
            )
        if place is not BodyPlace.RMA or self._memory is not None:
            return
        if not self._context.settings.rma:
            raise UnsupportedError(
                "clients may not read this server's memory; that needs ucx_rma = true, and a "
                "network you trust"
            )
        self._memory = RemoteMemory(
            self._context, max(self._limits.body_segment_bytes, self._limits.body_window_bytes)
        )
        self._streams.memory = self._memory

    async def close(self) -> None:
        """End what is under way, and take back the memory clients read, which no connection may
        outlive. Idempotent."""
        await self._streams.close()
        if self._memory is not None:
            self._memory.close()
