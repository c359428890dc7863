"""Results that are kept for a while: PollFlightInfo, endpoints with an end, and the actions that
cancel and renew them.

What a job is asked for by is the command ``p/<result>/<version>``: any version it has had will do,
and an old one is answered at once.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from barrage.errors import (
    RemoteProtocolError,
    SlowConsumerError,
    StatusCode,
    TicketError,
)
from barrage.json_text import JsonTextError, read_json
from barrage.server.access.frame_writing import write_frames
from barrage.server.access.method_table import Action
from barrage.server.bodies.body_frames import write_whole
from barrage.server.history.journal_tickets import is_journal_request
from barrage.server.identity.current_call import current_caller
from barrage.server.results.pinned_results import is_result_ticket, place_of
from barrage.transport.flight_messages import (
    CANCEL,
    RENEW,
    CancelStatus,
    Descriptor,
    Endpoint,
    FlightInfo,
    PollInfo,
    decode_cancel_request,
    decode_renew_request,
    encode_cancel_result,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.limits import Limits
    from barrage.server.access.session_store import ClientSession
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.server.flight.journal_calls import JournalCalls
    from barrage.server.results.query_jobs import QueryJob, QueryJobs, ResultOptions
    from barrage.transport.base import CallContext

POLL_ROUTE = b"p/"
"""What the commands begin with by which jobs are asked for."""

UNKNOWN = -1
"""A total nobody knows yet."""

FIRST_WAIT_SECONDS = 0.05
"""How long the first answer waits for a query that is done soon."""


class NotKeptError(TicketError):
    """An endpoint whose ticket is no result's: it has no end, and nothing is kept for it."""

    status_code = StatusCode.INVALID_ARGUMENT


def is_poll_command(command: bytes | None) -> bool:
    return command is not None and command.startswith(POLL_ROUTE)


class ResultCalls:
    """The behaviors. On the event loop."""

    def __init__(
        self,
        jobs: QueryJobs,
        hub: ExchangeHub,
        *,
        journals: JournalCalls,
        limits: Limits,
        location: str | None,
    ) -> None:
        """``location`` is where this server is to be had; None says nothing of that."""
        self.jobs = jobs
        self._journals = journals
        self._hub = hub
        self._limits = limits
        self._locations = () if location is None else (location,)

    def actions(self) -> Mapping[str, Action]:
        return {
            CANCEL: Action(
                "Cancel a query and free its result, or hold the version of a read group no "
                "longer. Body: CancelFlightInfoRequest with the FlightInfo. Result: "
                "CancelFlightInfoResult.",
                self._cancel,
            ),
            RENEW: Action(
                "Keep a result for longer. Body: RenewFlightEndpointRequest with one of its "
                "endpoints. Result: FlightEndpoint with the new end.",
                self._renew,
            ),
        }

    # --- queries ---

    async def begin(
        self,
        ticket: bytes,
        descriptor: Descriptor,
        session: ClientSession | None,
        *,
        options: ResultOptions,
    ) -> PollInfo:
        """Begin a query, as the call that is being served; what there is of it."""
        job = self._begin(ticket, descriptor, session, options=options)
        try:
            assert job.task is not None
            with self.jobs.results.awaited(job.result):
                await asyncio.wait([job.task], timeout=FIRST_WAIT_SECONDS)
            self._renew_unfinished(job)
            job.check()
        except BaseException:
            self.jobs.give_up(job)
            raise
        return self._told(job)

    async def kept(
        self,
        ticket: bytes,
        descriptor: Descriptor,
        session: ClientSession | None,
        *,
        options: ResultOptions,
    ) -> FlightInfo:
        """The whole result of a query, once it is there. LimitExceededError, or whatever is wrong
        with the query."""
        job = self._begin(ticket, descriptor, session, options=options)
        try:
            assert job.task is not None
            with self.jobs.results.awaited(job.result):
                await asyncio.wait([job.task])
            job.check()
        except BaseException:
            self.jobs.give_up(job)
            raise
        return self._info(job)

    async def poll(self, command: bytes) -> PollInfo:
        """What there is of a query that was begun, as soon as it is more than the command knows
        of."""
        job_id, version = place_of(command)
        caller = current_caller()
        job = self.jobs.find(job_id, caller)
        if job.is_under_way:
            with self.jobs.results.awaited(job.result):
                await job.news(version, self._limits.poll_wait_ns)
        self._renew_unfinished(job)
        job.check()
        self.jobs.find(job_id, caller)
        return self._told(job)

    def _begin(
        self,
        ticket: bytes,
        descriptor: Descriptor,
        session: ClientSession | None,
        *,
        options: ResultOptions,
    ) -> QueryJob:
        return self.jobs.begin(
            ticket, descriptor, session, caller=current_caller(), options=options
        )

    def _renew_unfinished(self, job: QueryJob) -> None:
        """Who is told of a query that goes on has all of its time to ask again."""
        if job.is_under_way:
            self.jobs.results.renew(job.result)

    def _told(self, job: QueryJob) -> PollInfo:
        following = None
        if job.is_under_way:
            following = Descriptor(command=POLL_ROUTE + f"{job.result.id}/{job.version}".encode())
        return PollInfo(
            info=self._info(job),
            descriptor=following,
            progress=job.progress,
            expires_ns=job.result.expires_ns,
        )

    def _info(self, job: QueryJob) -> FlightInfo:
        result, shape = job.result, job.result.shape
        is_whole = not job.is_under_way
        facts: dict[str, object] = {"result": result.id}
        schema = b""
        if shape is not None:
            facts["step"] = shape.step
            if shape.epoch is not None:
                facts["epoch"] = shape.epoch
            schema = shape.encoder.schema.serialize().to_pybytes()
        return FlightInfo(
            schema_message=schema,
            descriptor=job.descriptor,
            endpoints=tuple(self._endpoint(job, index) for index in range(len(result.parts))),
            total_records=UNKNOWN if shape is None else shape.row_count,
            total_bytes=result.byte_count if is_whole else UNKNOWN,
            metadata=json.dumps(facts).encode(),
            is_ordered=True,
        )

    def _endpoint(self, job: QueryJob, index: int) -> Endpoint:
        part, shape = job.result.parts[index], job.result.shape
        assert shape is not None
        told = {"rows": [part.start, part.stop], "bytes": part.byte_count, "step": shape.step}
        return Endpoint(
            ticket=job.result.ticket(index),
            locations=self._locations,
            expires_ns=job.result.expires_ns,
            metadata=json.dumps(told).encode(),
        )

    # --- reading ---

    async def do_get(self, ticket: bytes, context: CallContext) -> None:
        """Serve the rows of one ticket. SlowConsumerError for a reader that takes nothing for too
        long: what it reads is kept for it."""

        async def write(frame: Frame) -> None:
            stall = self._limits.stall_ns_max
            try:
                async with asyncio.timeout(stall / 1e9):
                    await write_whole(context, frame)
            except TimeoutError:
                raise SlowConsumerError(stalled_ns=stall, stall_ns_max=stall) from None

        with self.jobs.results.reading(ticket, current_caller()) as (shape, part):
            plans = await self._hub.plans(shape.encoder, part.updates)
            await write(shape.encoder.schema_frame())
            for plan in plans:
                await write_frames(write, plan.frames())

    # --- actions ---

    async def _cancel(self, body: bytes) -> bytes:
        info = decode_cancel_request(body)
        result_id = _result_of(info)
        if result_id is None:
            is_held = any(self._gives_up(endpoint.ticket) for endpoint in info.endpoints[:1])
            status = CancelStatus.CANCELLED if is_held else CancelStatus.NOT_CANCELLABLE
            return encode_cancel_result(status)
        self.jobs.cancel(self.jobs.find(result_id, current_caller()))
        return encode_cancel_result(CancelStatus.CANCELLED)

    def _gives_up(self, ticket: bytes) -> bool:
        """Whether the ticket is of a read group of a journal, whose version is held no longer."""
        return is_journal_request(ticket) and self._journals.given_up(ticket)

    async def _renew(self, body: bytes) -> bytes:
        endpoint = decode_renew_request(body)
        if is_journal_request(endpoint.ticket):
            held = self._journals.renewed(endpoint.ticket)
            if held is not None:
                return held.encode()
        if not is_result_ticket(endpoint.ticket):
            raise NotKeptError(
                "the endpoint has no end to be put off: only tickets f/<result>/<part>, of "
                "PollFlightInfo and of large tables, and those of a journal's read group have one"
            )
        result_id, index = place_of(endpoint.ticket)
        job = self.jobs.find(result_id, current_caller())
        job.check()
        if index >= len(job.result.parts):
            raise RemoteProtocolError(
                f"result {result_id} has {len(job.result.parts)} endpoints, there is no {index}"
            )
        self.jobs.results.renew(job.result)
        return self._endpoint(job, index).encode()


def _result_of(info: FlightInfo) -> str | None:
    """The result that an information is about; None when it is about none."""
    for endpoint in info.endpoints:
        if is_result_ticket(endpoint.ticket):
            return place_of(endpoint.ticket)[0]
    try:
        facts = read_json(info.metadata) if info.metadata else {}
    except JsonTextError:
        return None
    found = facts.get("result") if isinstance(facts, dict) else None
    return found if isinstance(found, str) else None
