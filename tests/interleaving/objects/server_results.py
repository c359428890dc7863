"""Results that are kept, in the hands of many calls: some wait for all of one, some poll, read,
renew or cancel, some give up, while time runs out for what nobody wants, and the server may stop.

Who waits gets the rows, unless somebody has cancelled them; who comes in time finds them; bytes
stay within their bound, count while they are read, and nothing is left in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa

from barrage.errors import LimitExceededError, TableNotFoundError, TransportError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.flight.result_calls import ResultCalls
from barrage.server.identity.caller import ANYBODY
from barrage.server.results.pinned_results import (
    PinnedResult,
    PinnedResults,
    ResultCancelledError,
    ResultNotFoundError,
)
from barrage.server.results.query_jobs import QueryJobs, ResultOptions
from barrage.transport.flight_messages import Descriptor, FlightInfo, encode_renew_request
from tests.interleaving.seeded_loop import run_seeded

ROWS, EACH = 40, 10
CALLS = 4
LIFE_NS = 60_000_000
LIMITS = replace(
    DEFAULT_LIMITS,
    results_max=6,
    results_per_caller_max=6,
    result_bytes_max=3000,
    result_bytes_per_caller_max=3000,
    result_age_ns_max=LIFE_NS * 10,
    poll_wait_ns=LIFE_NS * 2,
)
OPTIONS = ResultOptions(endpoint_rows=EACH, lifetime_ns=LIFE_NS)
NAMED = Descriptor(path=("t",))


def explore(seed: int) -> None:
    run_seeded(lambda: Scene(random.Random(seed)).run(), seed)


class LoopClock:
    """The loop's time."""

    def wall_ns(self) -> int:
        return int(asyncio.get_running_loop().time() * 1e9)

    monotonic_ns = wall_ns


class Engine:
    """What there is of the server beside results: all of it takes some time."""

    def __init__(self, drawn: random.Random) -> None:
        self._random = drawn

    async def pause(self) -> None:
        await asyncio.sleep(self._random.choice((0, 0.001, 0.01, 0.1)))

    async def source(self, *_: Any, **__: Any) -> object:
        await self.pause()
        if self._random.random() < 0.1:
            raise TableNotFoundError("t")
        return object()

    @asynccontextmanager
    async def held(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await self.pause()
        column = SimpleNamespace(nbytes=10 * EACH)
        rows = (SimpleNamespace(added_columns=[column]),)
        work = SimpleNamespace(row_count=ROWS, step=1, read_rows=lambda *_: rows)
        encoder = SimpleNamespace(schema=pa.schema([("x", pa.int64())]))
        yield SimpleNamespace(encoder=encoder, epoch=None, work=work)

    async def read_beside(self, read: Callable[[], Any]) -> Any:
        await self.pause()
        return read()


class Scene:
    def __init__(self, drawn: random.Random) -> None:
        self.random = drawn
        self.cancelled: set[str] = set()
        self.told: list[FlightInfo] = []
        self.is_closed = False

    async def run(self) -> None:
        clock: Any = LoopClock()
        self.engine = engine = Engine(self.random)
        anything: Any = engine
        self.results = PinnedResults(LIMITS, clock)
        self.jobs = QueryJobs(anything, anything, self.results, limits=LIMITS, clock=clock)
        nothing: Any = None
        self.calls = ResultCalls(
            self.jobs, anything, journals=nothing, limits=LIMITS, location=None
        )
        works = [self.wait, self.wait, self.poll, self.poll, self.read, self.cancel, self.give_up]
        works += [self.stop] if self.random.random() < 0.2 else []
        sweeping = asyncio.create_task(self.sweep())
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(self.repeated(work))
        await asyncio.sleep(LIMITS.result_age_ns_max / 1e9 + 1)
        sweeping.cancel()
        self.jobs.sweep()
        left = (self.jobs.running_count, self.results.count, self.results.byte_count)
        assert left == (0, 0, 0), f"left: {left}"
        assert not self.results._by_owner
        assert not self.results._bytes_by_owner

    async def repeated(self, work: Callable[[], Any]) -> None:
        for _ in range(CALLS):
            await asyncio.sleep(self.random.random() * 0.1)
            try:
                await work()
            except (LimitExceededError, TableNotFoundError):
                pass
            except TransportError:
                assert self.is_closed
            assert self.results.byte_count <= LIMITS.result_bytes_max

    async def sweep(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.jobs.sweep()

    async def stop(self) -> None:
        self.is_closed = True
        self.jobs.close()

    def fact(self, info: FlightInfo) -> str:
        return info.metadata.decode().split('"result": "')[1][:32]

    async def wait(self) -> None:
        try:
            info = await self.calls.kept(b"s/t", NAMED, None, options=OPTIONS)
        except ResultCancelledError as error:
            gone = [each for each in self.cancelled if each in str(error)]
            assert gone or self.is_closed, "nobody has cancelled what was waited for"
            return
        assert len(info.endpoints) == ROWS // EACH
        self.told.append(info)

    async def poll(self) -> None:
        told = await self.calls.begin(b"s/t", NAMED, None, options=OPTIONS)
        self.told.append(told.info)
        while told.descriptor is not None:
            seen, answered_ns = len(told.info.endpoints), self.results._clock.wall_ns()
            await self.engine.pause()
            asked_ns = self.results._clock.wall_ns()
            try:
                told = await self.calls.poll(told.descriptor.command or b"")
            except ResultCancelledError:
                assert self.cancelled or self.is_closed
                return
            except ResultNotFoundError:
                late = asked_ns - answered_ns >= LIFE_NS
                assert late or self.is_closed, "it was asked for in time"
                return
            assert len(told.info.endpoints) >= seen
            self.told.append(told.info)
        assert len(told.info.endpoints) == ROWS // EACH

    async def read(self) -> None:
        for info in self.told[-2:]:
            for end in info.endpoints:
                try:
                    with self.results.reading(end.ticket, ANYBODY) as (_, part):
                        await self.engine.pause()
                        assert self.results.byte_count >= part.byte_count > 0
                        assert part.stop - part.start == EACH
                except ResultCancelledError:
                    continue
                except ResultNotFoundError:
                    continue
                try:
                    await self.calls._renew(encode_renew_request(end))
                except (ResultCancelledError, ResultNotFoundError):
                    continue

    async def cancel(self) -> None:
        for info in self.told[-1:]:
            result_id = self.fact(info)
            self.cancelled.add(result_id)
            try:
                self.jobs.cancel(self.jobs.find(result_id, ANYBODY))
            except ResultNotFoundError:
                return
            assert not self.jobs.find(result_id, ANYBODY).is_under_way

    async def give_up(self) -> None:
        asking = asyncio.create_task(self.wait())
        await self.engine.pause()
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled():
            asking.exception()


# --- canaries -------------------------------------------------------------------------------------


def time_runs_out_for_who_waits() -> AbstractContextManager[object]:
    """Only renewals count."""

    def has_run_out(self: PinnedResults, result: PinnedResult) -> bool:
        return self._clock.wall_ns() >= result.expires_ns

    return mock.patch.object(PinnedResults, "_has_run_out", has_run_out)


def free_what_is_read() -> AbstractContextManager[object]:
    """Rows do not count once their time is up, whoever reads them."""
    honest = PinnedResults._free

    def free(self: PinnedResults, result: PinnedResult) -> None:
        readers, result.reader_count = result.reader_count, 0
        honest(self, result)
        result.reader_count = readers

    return mock.patch.object(PinnedResults, "_free", free)


def forget_that_a_job_is_done() -> AbstractContextManager[object]:
    """It counts as under way for ever."""
    return mock.patch.object(QueryJobs, "_done", return_value=None)


CANARIES = (time_runs_out_for_who_waits, free_what_is_read, forget_that_a_job_is_done)
