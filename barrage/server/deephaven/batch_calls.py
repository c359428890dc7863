"""TableService/Batch: several operations in one call, each with one answer.

Source: deephaven-clients.md sections 2.5, 4.3, 4.4 and A.6, and trials against a real server. An
operation may use another one's result by its place in the batch or by its ticket, also that of one
further down. They are done in their order as far as that allows. One that fails takes those with
it that use its result and nothing else; all have their answers, and the call then ends with the
status of the first failure. Operations without a result ticket live as long as what uses them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from barrage.errors import BarrageError, RemoteProtocolError, UnsupportedError
from barrage.server.deephaven.operations.creation_response import (
    creation_response,
    failure_response,
    look_at,
    offset_reference,
    ticket_reference,
)
from barrage.server.deephaven.operations.operation_table import OPERATIONS
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    OperationError,
    as_failure,
    check_count,
    on_engine,
)
from barrage.server.runtime.failure import without_frames
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barrage.limits import Limits
    from barrage.server.access.exports import Export
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession
    from barrage.server.deephaven.operations.operations import TableOperation
    from barrage.server.deephaven.operations.time_tables import TimeTables
    from barrage.server.tables.table_lease import TableLease
    from barrage.server.tables.table_service import TableService


@dataclass(slots=True, kw_only=True)
class _Step:
    """One operation of a batch. ``lease`` is set when it is done, ``error`` when it has failed."""

    index: int
    name: str
    operation: TableOperation | None
    request: Any
    ticket: bytes
    """Where the result is wanted; no bytes when it is not."""
    error: BarrageError | None = None
    lease: TableLease | None = None
    export: Export | None = None
    sources: list[_Step | bytes] = field(default_factory=list)
    """Other steps, and the tickets of tables from elsewhere."""

    @property
    def reference(self) -> Any:
        return ticket_reference(self.ticket) if self.ticket else offset_reference(self.index)

    def fail(self, error: BarrageError) -> None:
        self.error = error
        if self.export is not None:
            self.export.fail(error)


class BatchCalls:
    """The behavior."""

    def __init__(
        self,
        resolver: TicketResolver,
        tables: TableService,
        time_tables: TimeTables,
        *,
        limits: Limits,
    ) -> None:
        self._resolver = resolver
        self._tables = tables
        self._time_tables = time_tables
        self._limits = limits

    async def batch(self, request: bytes, context: Any, session: ClientSession) -> None:
        """Do all operations of a batch."""
        message = MESSAGES.decode("BatchTableRequest", request)
        check_count("batch", len(message.ops), self._limits.operations_max, unit="operations")
        steps = [_step(index, each) for index, each in enumerate(message.ops)]
        if not steps:
            raise OperationError("a batch must have at least one operation")
        _link(steps, self._limits)
        ordered = _in_order(steps)
        failure: BarrageError | None = None
        try:
            self._define(steps, session)
            for step in ordered:
                answer = await self._do(step, session)
                failure = failure or step.error
                await context.write(answer)
        except BaseException as error:
            _give_up(steps, error)
            raise
        if failure is not None:
            raise failure

    def _define(self, steps: Iterable[_Step], session: ClientSession) -> None:
        """All results are promised before any work is done."""
        for step in steps:
            if step.ticket:
                step.export = self._resolver.result_export(step.ticket, session)

    async def _do(self, step: _Step, session: ClientSession) -> bytes:
        """Do one operation whose sources are done; its answer."""
        try:
            leases = [await self._lease(source, session) for source in step.sources]
            if step.error is not None:
                raise step.error
            assert step.operation is not None
            context = OperationContext(
                tables=self._tables,
                time_tables=self._time_tables,
                limits=self._limits,
                types=session.types,
                owner=session,
            )
            lease = await step.operation.perform(step.request, leases, context)
            created = await on_engine(self._tables, partial(look_at, lease, session.types))
        except BarrageError as error:
            step.fail(without_frames(error))
            return failure_response(step.reference, error)
        step.lease = lease
        if step.export is not None:
            step.export.fulfil(lease)
        return creation_response(step.reference, created)

    async def _lease(self, source: _Step | bytes, session: ClientSession) -> TableLease:
        if isinstance(source, bytes):
            return await self._resolver.resolve(source, session)
        if source.error is not None:
            raise source.error
        assert source.lease is not None
        return source.lease


def _step(index: int, message: Any) -> _Step:
    name = message.WhichOneof("op")
    if name is None:
        raise RemoteProtocolError(f"operation {index} of the batch is unknown to this server")
    request = getattr(message, name)
    operation = OPERATIONS.get(name)
    error = None
    if operation is None:
        error = UnsupportedError(f"the operation {name} is not supported")
        request = _result_of(request)
    ticket = bytes(request.result_id.ticket)
    return _Step(
        index=index, name=name, operation=operation, request=request, ticket=ticket, error=error
    )


def _result_of(request: Any) -> Any:
    """What can be read of any request: all of them begin with the ticket of the result."""
    if isinstance(request, bytes):
        return MESSAGES.decode("EmptyTableRequest", request)
    return request


def _link(steps: Sequence[_Step], limits: Limits) -> None:
    """Find the source of every step. RemoteProtocolError, OperationError, LimitExceededError."""
    by_ticket: dict[bytes, _Step] = {}
    for step in steps:
        if step.ticket and by_ticket.setdefault(step.ticket, step) is not step:
            raise RemoteProtocolError("two operations of the batch have one result ticket")
    for step in steps:
        if step.operation is None:
            continue
        references = step.operation.references(step.request)
        check_count(step.name, len(references), limits.operations_max, unit="tables")
        for reference in references:
            step.sources.append(_source(reference, steps, by_ticket))


def _source(reference: Any, steps: Sequence[_Step], by_ticket: dict[bytes, _Step]) -> _Step | bytes:
    kind = reference.WhichOneof("ref")
    if kind is None:
        raise RemoteProtocolError("an operation of the batch does not say which table it is of")
    if kind == "ticket":
        ticket = bytes(reference.ticket.ticket)
        return by_ticket.get(ticket, ticket)
    offset: int = reference.batch_offset
    if not 0 <= offset < len(steps):
        raise RemoteProtocolError(f"there is no operation {offset} in a batch of {len(steps)}")
    return steps[offset]


def _in_order(steps: Sequence[_Step]) -> list[_Step]:
    """Every step behind those it uses, else as they stand. OperationError for a circle."""
    waiting = [sum(isinstance(source, _Step) for source in step.sources) for step in steps]
    users: list[list[int]] = [[] for _ in steps]
    for step in steps:
        for source in step.sources:
            if isinstance(source, _Step):
                users[source.index].append(step.index)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    ordered = []
    while ready:
        index = heapq.heappop(ready)
        ordered.append(steps[index])
        for user in users[index]:
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, user)
    if len(ordered) < len(steps):
        raise OperationError("operations of the batch use each other's results in a circle")
    return ordered


def _give_up(steps: Iterable[_Step], error: BaseException) -> None:
    """Fail what was promised and is not there."""
    for step in steps:
        if step.lease is None:
            step.fail(step.error or as_failure(error))
