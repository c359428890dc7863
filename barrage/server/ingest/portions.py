"""Large writes of peers reach the engine in portions, and few of them at a time.

One cycle applies whatever waits for it, and everybody else waits for the cycle. So rows are handed
over in portions, the next ones when those before are applied
(:mod:`barrage.server.tables.write_room`): what comes in between, from others, waits for a portion
or two and not for all the rows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from barrage.model.storage.encoded import with_used_values
from barrage.model.storage.row_weight import row_weight
from barrage.server.tables.table_service import Change
from barrage.server.tables.write_room import WriteChain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    import pyarrow as pa

    from barrage.engine.tables.source import SourceTable
    from barrage.server.journaling.producer_positions import ProducerPosition
    from barrage.server.tables.table_service import TableService
    from barrage.server.tables.write_room import TakenRoom

PORTION_ROWS_MAX: Final = 64 * 1024
"""Rows of one portion, those of many columns counted by their weight: at one or two microseconds
each in keyed tables of ten million rows, a quarter of what others may be kept waiting, two portions
being under way."""


def weight_in(table: SourceTable, rows: pa.Table | pa.RecordBatch) -> int:
    """For how many rows each of these counts that come into a table in portions: more when they are
    wide, and when much hangs below the table."""
    return row_weight(rows, has_key=bool(table.key_columns)) * table.weight_below


def portions(rows: pa.Table, weight: int) -> Iterator[pa.Table]:
    """The rows, each of which counts for ``weight``, in portions, at least one; each with those
    values of its dictionaries that it uses."""
    size = max(PORTION_ROWS_MAX // weight, 1)
    for start in range(0, max(len(rows), 1), size):
        yield with_used_values(rows.slice(start, size))


async def change_in_portions(
    tables: TableService, table: SourceTable, *, operation: str, rows: pa.Table
) -> int:
    """Apply a change of many rows in portions; the step of the last. The errors of
    :meth:`TableService.change`: portions before the one it is of have been applied then. On the
    event loop that serves peers."""
    chain, passed = WriteChain(), []
    weight = weight_in(table, rows)
    for portion in portions(rows, weight):
        taken = await tables.write_room.take(weight * len(portion))
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
    begin = partial(tables.change, [change], position, chain=chain, on_applied=taken.applied)
    return handed_over(begin, taken)


def handed_over(begin: Callable[[], Future[int]], taken: TakenRoom) -> asyncio.Future[int]:
    """``begin`` a write, for which there is room and which tells ``taken`` when it is applied; the
    step that commits it, once that is safe."""
    try:
        committed = begin()
    except BaseException:
        taken.give_back()
        raise
    future: asyncio.Future[int] = asyncio.wrap_future(committed)

    def ended(future: asyncio.Future[int]) -> None:
        taken.give_back()
        if not future.cancelled():
            # Seen, even when nobody waits for it: the first refusal of several ends the call.
            future.exception()

    future.add_done_callback(ended)
    return future
