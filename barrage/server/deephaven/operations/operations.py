"""What an operation of TableService is, for calls that do one and for Batch, which does several.

An operation turns a request and the tables it names into one table. Most of them only apply an
operator: they are plain functions that run on the engine thread (:func:`derived`). The few that
make a source or wait for something are coroutines on the event loop.

Source: deephaven-clients.md sections 4.1, 4.4 and A.0 to A.6, and trials against a real server.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from barrage.engine.tables.work import NotHereError
from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    LimitExceededError,
    RemoteProtocolError,
    StatusCode,
)
from barrage.server.presentation.presentation import lease_of
from barrage.server.runtime.failure import unexpected_failure, without_frames
from barrage.server.tables.table_lease import TableLease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.deephaven.operations.time_tables import TimeTables
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.server.tables.table_service import TableService

    Perform: TypeAlias = Callable[
        [Any, Sequence[TableLease], "OperationContext"], Awaitable[TableLease]
    ]
    Derive: TypeAlias = Callable[[Any, Sequence[Table], "OperationContext"], Table]

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class OperationError(BarrageError):
    """A request whose parts do not fit together; names the operation."""

    status_code = StatusCode.INVALID_ARGUMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """What operations need besides their request and its tables."""

    tables: TableService
    time_tables: TimeTables
    limits: Limits
    types: SessionTypes
    """What the session is shown; decides what its clients call the types of columns."""
    owner: Hashable = None
    """Stands for the client where clients take turns."""


def source_only(request: Any) -> Sequence[Any]:
    """The one table most requests name."""
    return (request.source_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOperation:
    """One operation: its member in the ``op`` of a batch's operation, the call that does it alone,
    the request of both, and the tables a request names."""

    name: str
    method: str
    request: str
    perform: Perform
    references: Callable[[Any], Sequence[Any]] = source_only


def derived(derive: Derive) -> Perform:
    """The operation that applies ``derive`` on the engine thread.

    It gets tables, which are alive, and returns one, which may be one of them.
    """

    async def perform(
        request: Any, sources: Sequence[TableLease], context: OperationContext
    ) -> TableLease:
        work = partial(_derive, derive, request, sources, context=context)
        return await derive_on_engine(context, work)

    return perform


def _derive(
    derive: Derive, request: Any, sources: Sequence[TableLease], *, context: OperationContext
) -> TableLease:
    tables = [lease_of(lease).table for lease in sources]
    return checked_lease(derive(request, tables, context), context)


def checked_lease(table: Table, context: OperationContext) -> TableLease:
    """Engine thread: a lease on a result. LimitExceededError when it has too many columns."""
    check_count("number of columns", len(table.schema), context.limits.columns_max, unit="columns")
    return TableLease(context.tables, table)


async def on_engine(tables: TableService, work: Callable[[], Result]) -> Result:
    """What ``work`` returns on the engine thread. Errors come without their tracebacks, whose
    frames refer to tables, which must be freed there."""
    return await asyncio.wrap_future(tables.run(partial(_contained, work)))


async def derive_on_engine(context: OperationContext, work: Callable[[], Result]) -> Result:
    """Like :func:`on_engine`, for what applies operators: heavy ones are made beside the engine
    thread, and ``work`` is begun again afterwards."""
    derived = context.tables.derive(partial(_contained, work), context.owner)
    return await asyncio.wrap_future(derived)


def _contained(work: Callable[[], Result]) -> Result:
    try:
        return work()
    except NotHereError:
        raise
    except BarrageError as error:
        failure: BarrageError = error
    except Exception:
        failure = unexpected_failure(log, "an operation failed")
    raise without_frames(failure)


def as_failure(error: BaseException) -> BarrageError:
    """What an export says that failed because of ``error``."""
    if isinstance(error, BarrageError):
        return error
    return ConnectionLostError("the call that makes the export was given up")


def check_count(what: str, actual: int, maximum: int, *, unit: str) -> None:
    """LimitExceededError past the maximum."""
    if actual > maximum:
        raise LimitExceededError(what, actual=actual, maximum=maximum, unit=unit)


def check_not_negative(what: str, count: int) -> None:
    """RemoteProtocolError for a count below 0."""
    if count < 0:
        raise RemoteProtocolError(f"{what} must be 0 or more, not {count}")


def check_texts(what: str, texts: Sequence[str], limits: Limits) -> None:
    """LimitExceededError when a request lists too much."""
    check_count(f"list of {what}", len(texts), limits.columns_max, unit="entries")
    size = sum(len(text) for text in texts)
    check_count(f"list of {what}", size, limits.expression_bytes_max, unit="characters")


def name_pair(text: str) -> tuple[str, str]:
    """``New=Old`` (also ``New==Old``), or one name for both."""
    first, sign, second = text.partition("=")
    first = first.strip()
    return (first, second.removeprefix("=").strip()) if sign else (first, first)
