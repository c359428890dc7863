"""One-shot snapshots read in parts: the server makes the result beside its other work, keeps it at
one step, and its endpoints are read in parallel as they get ready (Arrow Flight RPC,
PollFlightInfo).

A result that is read for long is renewed, and given up as soon as it is read, so that the server
need not keep it until its time is up. Credentials go to the server of the session and nowhere else:
endpoints at other places are asked without any.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.client.connection.table_info import schema_of_message
from barrage.errors import BarrageError, RemoteProtocolError, TransportError, UnsupportedError
from barrage.supervision import Role, WorkerPool, start_awaited, start_task
from barrage.transport import flight_messages
from barrage.transport.flight_messages import FLIGHT, Descriptor, PollInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.client.connection.connection import Connection
    from barrage.transport.arrow_flight import ArrowFlightAnswer
    from barrage.transport.flight_messages import Endpoint, FlightInfo

JOBS_MAX = 32
"""Endpoints one process reads at the same time."""

ACTION_SECONDS = 30.0

RENEW_SECONDS_MIN = 1.0
"""Shortest time between two renewals: the clocks of client and server may differ."""

RENEWER = Role("barrage-renew-result", "the result: its endpoints may run out while they are read")


class ParallelSnapshot:
    """One read. Used on the event loop."""

    def __init__(
        self,
        connection: Connection,
        *,
        table: str,
        jobs: int,
        on_progress: Callable[[int], None] | None,
        on_query: Callable[[float], None] | None,
    ) -> None:
        self._connection = connection
        self._table = table
        self._on_progress = on_progress
        self._on_query = on_query
        self._free = asyncio.Semaphore(jobs)
        self._loop = asyncio.get_running_loop()
        self._bytes = 0
        self._reads: list[asyncio.Task[pa.Table]] = []
        self._answers: set[ArrowFlightAnswer] = set()
        self._info: FlightInfo | None = None

    async def run(self, ticket: bytes) -> pa.Table | None:
        """The rows in order; None when the server does not keep results."""
        try:
            polled = await self._poll(Descriptor(command=ticket))
        except UnsupportedError:
            return None
        renewing = start_task(RENEWER, self._renew(), on_death=lambda _: None)
        try:
            while True:
                self._take(polled)
                if polled.descriptor is None:
                    break
                polled = await self._while_reading(polled.descriptor)
            parts = [await read for read in self._reads]
        finally:
            renewing.cancel()
            await self._give_up()
        if not polled.info.is_ordered and len(parts) > 1:
            raise RemoteProtocolError(f"the endpoints of {self._table!r} have no order")
        if parts:
            return pa.concat_tables(parts)
        return schema_of_message(polled.info.schema_message).empty_table()

    # --- the query ---

    async def _poll(self, descriptor: Descriptor) -> PollInfo:
        answer = await self._connection.channel.unary(
            FLIGHT + "PollFlightInfo", descriptor.encode(), timeout=None, table=self._table
        )
        return PollInfo.decode(answer)

    async def _while_reading(self, descriptor: Descriptor) -> PollInfo:
        """What the server tells next; a read that fails before ends the wait."""
        polling = asyncio.ensure_future(self._poll(descriptor))
        try:
            while not polling.done():
                reads = [read for read in self._reads if not read.done()]
                await asyncio.wait([polling, *reads], return_when=asyncio.FIRST_COMPLETED)
                for read in self._reads:
                    if read.done():
                        read.result()
            return polling.result()
        finally:
            polling.cancel()

    def _take(self, polled: PollInfo) -> None:
        """Begin to read the endpoints that are new."""
        self._info = polled.info
        if self._on_query is not None and polled.progress is not None:
            self._on_query(polled.progress)
        for endpoint in polled.info.endpoints[len(self._reads) :]:
            self._reads.append(start_awaited(self._read(endpoint)))

    async def _renew(self) -> None:
        """Put the end of the result off for as long as it is read."""
        while True:
            info = self._info
            ends = [end.expires_ns for end in info.endpoints if end.expires_ns] if info else []
            left = (min(ends) - time.time_ns()) / 1e9 if ends else ACTION_SECONDS
            await asyncio.sleep(max(left / 2, RENEW_SECONDS_MIN))
            if ends and info is not None:
                body = flight_messages.encode_renew_request(info.endpoints[0])
                with contextlib.suppress(BarrageError):
                    # What is read already is read to its end.
                    [answer] = await self._connection.act(
                        flight_messages.RENEW, body, ACTION_SECONDS
                    )
                    renewed = flight_messages.Endpoint.decode(answer)
                    self._info = _with_end(info, renewed.expires_ns)

    async def _give_up(self) -> None:
        """Let the server free the result, whatever has become of the read. A reader that has not
        noticed yet tells nobody how far it has got."""
        self._on_progress = None
        for read in self._reads:
            read.cancel()
        for answer in list(self._answers):
            answer.cancel()
        await asyncio.gather(*self._reads, return_exceptions=True)
        if self._info is None or self._connection.is_closed:
            return
        body = flight_messages.encode_cancel_request(self._info)
        with contextlib.suppress(BarrageError, TimeoutError):
            # It goes by itself when its time is up.
            await self._connection.act(flight_messages.CANCEL, body, ACTION_SECONDS)

    # --- the rows ---

    async def _read(self, endpoint: Endpoint) -> pa.Table:
        async with self._free:
            work = self._loop.run_in_executor(_readers(), self._fetch, endpoint)
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            return await asyncio.shield(work)

    def _fetch(self, endpoint: Endpoint) -> pa.Table:
        """A reader's thread: the rows of one endpoint, from the first of its locations that
        answers."""
        errors: list[BarrageError] = []
        for location in endpoint.locations or ("",):
            try:
                client, headers = self._connection.client_at(location)
                answer = client.get(endpoint.ticket, headers=headers, table=self._table)
                return self._collected(answer)
            except TransportError as error:
                errors.append(error)
        raise errors[-1]

    def _collected(self, answer: ArrowFlightAnswer) -> pa.Table:
        self._answers.add(answer)
        try:
            batches = []
            for batch, _metadata in answer.batches():
                batches.append(batch)
                self._loop.call_soon_threadsafe(self._got, batch.nbytes)
            return pa.Table.from_batches(batches, schema=answer.schema())
        finally:
            self._answers.discard(answer)
            answer.close()

    def _got(self, size: int) -> None:
        self._bytes += size
        if self._on_progress is not None:
            self._on_progress(self._bytes)


def _with_end(info: FlightInfo, expires_ns: int | None) -> FlightInfo:
    endpoints = tuple(replace(each, expires_ns=expires_ns) for each in info.endpoints)
    return replace(info, endpoints=endpoints)


@cache
def _readers() -> WorkerPool:
    """The threads that read, kept for the life of the process as those of
    :mod:`barrage.client.tables.bulk_snapshot` are."""
    return WorkerPool(JOBS_MAX, thread_name_prefix="parallel snapshot")
