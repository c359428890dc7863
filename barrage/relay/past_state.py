"""A table as it was a moment ago, out of the upstream server's journal: a relay that begins with
it, and with every step since, has a history from the start."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from barrage.client.tables.history import ChangeOptions
from barrage.errors import BarrageError, ConnectionLostError, HistoryLostError
from barrage.model.cursor import Cursor

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.client.session import AsyncSession
    from barrage.rowset import RowSet

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastState:
    """The rows at a cursor, in the table's order, and their keys."""

    cursor: Cursor
    keys: RowSet
    rows: pa.Table


async def past_state(
    session: AsyncSession, name: str, *, seconds: float, steps_max: int
) -> PastState | None:
    """The state of so long ago, or so many steps, whichever is later, or the oldest there is; None
    where no journal has one, as for views. ConnectionLostError."""
    history = session.table(name).history()
    try:
        facts = await history.facts()
        try:
            cursor = await history.cursor_of(datetime.now(UTC) - timedelta(seconds=seconds))
        except HistoryLostError:
            cursor = Cursor(facts.epoch, facts.earliest)
        latest_start = facts.version - steps_max
        if cursor.epoch == facts.epoch and cursor.version < latest_start:
            cursor = Cursor(facts.epoch, latest_start)
        keys, rows = await history.state(cursor, facts, ChangeOptions())
    except ConnectionLostError:
        raise
    except BarrageError as error:
        log.debug("table %s: no past state: %s", name, error)
        return None
    return PastState(cursor=cursor, keys=keys, rows=rows)
