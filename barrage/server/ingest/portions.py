"""Large writes of peers reach the engine in portions, and few of them at a time.

One cycle applies whatever waits for it, and everybody else waits for the cycle. So rows are handed
over in portions, the next ones when those before are applied
(:mod:`barrage.server.tables.write_room`): what comes in between, from others, waits for a portion
or two and not for all the rows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from barrage.model.storage.encoded import with_used_values
from barrage.server.tables.table_service import Change
from barrage.server.tables.write_room import WriteChain

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from barrage.engine.tables.source import SourceTable
    from barrage.server.journaling.producer_positions import ProducerPosition
    from barrage.server.tables.table_service import TableService
    from barrage.server.tables.write_room import TakenRoom

PORTION_ROWS_MAX: Final = 64 * 1024
"""Rows of one portion: at one or two microseconds each in keyed tables of ten million rows, a
quarter of what others may be kept waiting, two portions being under way."""


def portions(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows in portions, at least one; each with those values of its dictionaries that it
    uses."""
    for start in range(0, max(len(rows), 1), PORTION_ROWS_MAX):
        yield with_used_values(rows.slice(start, PORTION_ROWS_MAX))


async def change_in_portions(
    tables: TableService, table: SourceTable, *, operation: str, rows: pa.Table
) -> int:
    """Apply a change of many rows in portions; the step of the last. The errors of
    :meth:`TableService.change`: portions before the one it is of have been applied then. On the
    event loop that serves peers."""
    chain, passed = WriteChain(), []
    for portion in portions(rows):
        taken = await tables.write_room.take(len(portion))
        change = Change(table, operation, (portion,))
        passed.append(pass_on(tables, change, taken, chain=chain))
    return (await asyncio.gather(*passed))[-1]


def pass_on(
    tables: TableService,
    change: Change,
    taken: TakenRoom,
    *,
    chain: WriteChain,
    position: ProducerPosition | None = None,
) -> asyncio.Future[int]:
    """Pass a change, for which there is room, to the engine; the step that commits it, once that is
    safe. The room is free when it is applied, or refused."""
    try:
        committed = tables.change([change], position, chain=chain, on_applied=taken.applied)
    except BaseException:
        taken.give_back()
        raise
    future: asyncio.Future[int] = asyncio.wrap_future(committed)
    future.add_done_callback(lambda _: taken.give_back())
    return future
