"""Where the bodies of one stream come in: mapped shared memory, or a connection of its own.

Shared memory is lent out as it is, without a copy, and given back when the last Arrow array on it
is gone. What somebody keeps must not hold up the stream: once half of its window is lent, bodies
are copied out and given back at once.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from barrage.client.bodies.body_releases import ReleasedBodies
from barrage.errors import BodyChannelError, RemoteProtocolError
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    import pyarrow as pa

    from barrage.transport.bodies import BodyConnection, MappedMemory
    from barrage.wire.dissociated.lending import Lending, Window

    Write = Callable[[bytes], Awaitable[None]]


class SharedMemoryReceiver:
    """Bodies of one stream in a mapping that its streams share. ``lending`` counts what is lent
    from it, whoever borrowed it."""

    way = BodyWay.SHM

    def __init__(
        self,
        mapping: MappedMemory,
        lending: Lending,
        *,
        window: Window,
        write: Write,
        on_close: Callable[[], None],
    ) -> None:
        self._mapping = mapping
        self._lending = lending
        self._window = window
        self._on_close = on_close
        self._is_closed = False
        self._released = ReleasedBodies(write, window=window, on_back=self._take_back)
        self._loans: dict[int, tuple[BodyReference, int]] = {}
        """What is lent: where it is in the arena, and where here."""
        self._numbers = itertools.count()

    def resolve(self, sequence: int, reference: bytes, *, is_kept: bool = False) -> pa.Buffer:
        """The body, lent or copied; BodyChannelError."""
        try:
            place = BodyReference.decode(reference)
        except RemoteProtocolError as error:
            raise BodyChannelError(f"message {sequence}: {error}") from error
        self._released.collect()
        is_lent = self._window.can_lend(self._lending, place.length)
        if is_kept or not is_lent:
            body = self._mapping.copy(place)
            self._released.release(place.address, place.length)
            return body
        loan = next(self._numbers)
        body = self._mapping.borrow(place, partial(_give_back, self._released, loan))
        self._loans[loan] = (place, body.address)
        self._lending.lend(place.length)
        return body

    def _take_back(self, loan: int) -> tuple[int, int]:
        place, _ = self._loans.pop(loan)
        self._lending.take_back(place.length)
        return place.address, place.length

    @property
    def lent_count(self) -> int:
        self._released.collect()
        return len(self._loans)

    def lent_ranges(self) -> list[tuple[int, int]]:
        # One call that nothing interrupts: the loop may change the loans meanwhile.
        loans = list(self._loans.values())
        return [(address, address + place.length) for place, address in loans]

    async def receive(self) -> tuple[int, pa.Buffer]:
        """No body comes by itself."""
        raise BodyChannelError("bodies in shared memory are fetched, none comes by itself")

    def taken(self, sequence: int, size: int) -> None:
        """Bodies are given back by address."""

    def finish_taking(self) -> None:
        """The mapping belongs to others as well."""

    async def finish_writing(self) -> None:
        """Write nothing more on the stream."""
        await self._released.finish()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._released.close()
            self._on_close()


def _give_back(released: ReleasedBodies, loan: int, _address: int) -> None:
    """Not a method of the receiver: a body somebody keeps must not keep the stream."""
    released.give_back(loan)


class ConnectedReceiver:
    """Bodies of one stream that come over a connection of its own, under their numbers."""

    def __init__(
        self,
        way: BodyWay,
        connection: BodyConnection,
        *,
        window: Window,
        write: Write,
        close_soon: Callable[[BodyConnection], asyncio.Task[None]],
    ) -> None:
        self.way = way
        self._connection = connection
        self._close_soon = close_soon
        self._is_connected = True
        self._released = ReleasedBodies(write, window=window, on_back=_no_loans)

    def resolve(self, sequence: int, reference: bytes, *, is_kept: bool = False) -> None:
        """The body comes by itself."""

    async def receive(self) -> tuple[int, pa.Buffer]:
        return await self._connection.receive()

    def taken(self, sequence: int, size: int) -> None:
        self._released.release(sequence, size)

    def finish_taking(self) -> None:
        """The connection has nothing more to give."""
        if self._is_connected:
            self._is_connected = False
            self._close_soon(self._connection)

    @property
    def lent_count(self) -> int:
        """What is received is ours."""
        return 0

    def lent_ranges(self) -> list[tuple[int, int]]:
        return []

    async def finish_writing(self) -> None:
        """Write nothing more on the stream."""
        await self._released.finish()

    def close(self) -> None:
        self._released.close()
        self.finish_taking()


def _no_loans(loan: int) -> tuple[int, int]:
    raise AssertionError("nothing is lent")
