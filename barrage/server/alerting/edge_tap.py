"""Where the engine says which keys have come to fulfil a condition, and which do so no more.

A leaf of the graph below ``table.where(condition).last_by(key)``, whose rows are the keys that
fulfil it now: a row it adds is a rising edge, one it removes a falling one. So there are no values
to compare and nothing is done per row; a cycle that changes no key costs nothing here.

It tells of so many keys at a time as it may hold, and of no more edges than are taken from it: keys
for which there is no room are *further* ones, of which it tells the number, and which are let in
when there is room again. So a loop that is busy never holds the engine up, nor what it needs grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.keys.key_map import KeyMap
from barrage.engine.tables.cells import single_chunks
from barrage.engine.tables.table import DerivedTable, TableTraits
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.clock import Clock
    from barrage.engine.keys.key_map import Int64Array
    from barrage.engine.tables.table import Table
    from barrage.errors import BarrageError

_NO_IDS: Int64Array = np.empty(0, dtype=np.int64)


EDGES_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of the rows that are told and not taken, unless it is one row that is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """What one cycle did."""

    ended: Int64Array
    """Numbers of keys that do not fulfil the condition any more."""
    begun: Int64Array
    """Numbers of keys that do since this cycle: none is ever used twice."""
    rows: pa.Table
    """Their rows, in that order."""
    further_count: int
    """How many fulfil it for which there was no room."""
    is_full: bool
    """Whether that is because so many are held as may be."""
    at_ns: int
    """By the monotonic clock, and by the wall clock."""
    wall_ns: int
    is_initial: bool = False
    """They did so when they were looked at for the first time."""

    def split(self, row_count: int, bytes_max: int) -> tuple[Edges, Edges | None]:
        """The first so many of each, one row at least, and the rest if there is one."""
        while row_count > 1 and self.rows.slice(0, row_count).nbytes > bytes_max:
            row_count //= 2
        if max(len(self.begun), len(self.ended)) <= row_count:
            return self, None
        # Keys end first: a later one may have their room.
        ended, begun = len(self.ended[:row_count]), 0
        if len(self.ended) <= row_count:
            begun = row_count
        first = replace(
            self, ended=self.ended[:ended], begun=self.begun[:begun], rows=self.rows.slice(0, begun)
        )
        rest = replace(
            self, ended=self.ended[ended:], begun=self.begun[begun:], rows=self.rows.slice(begun)
        )
        return first, rest


class EdgeTap(DerivedTable):
    """The leaf. It has no rows of its own."""

    def __init__(
        self,
        parent: Table,
        columns: Sequence[int],
        *,
        is_keyed: bool,
        keys_max: int,
        edges_max: int,
        clock: Clock,
    ) -> None:
        """``columns`` are told of each row. Not ``is_keyed``: the one key is whether there are any
        rows. ``edges_max`` bounds the rows that are told and not :meth:`taken`."""
        super().__init__(parent, pa.schema([]), TableTraits())
        self._columns = tuple(sorted(columns))
        self._is_keyed = is_keyed
        self._keys_max = keys_max
        self._edges_max = edges_max
        self._clock = clock
        self._held = RowSet.empty()
        self._id_of = KeyMap()
        self._id_next = 0
        self._told_count = self._told_bytes = 0
        self._taken_count = self._taken_bytes = 0
        self._further_count = 0
        self._had_rows = not is_keyed and bool(parent.size)
        """Whether the parent has had rows ever since the tap was made, and it has not begun."""
        self.tell: Callable[[Edges], None] = lambda _: None
        """Called on the engine thread; it must not raise and take no time."""
        self.tell_failure: Callable[[BarrageError], None] = lambda _: None

    # --- any thread ---

    def taken(self, rows: pa.Table) -> None:
        """These rows, which were told, need no room any more. Called by one thread."""
        # In this order: once no row is left, no bytes are to come.
        self._taken_bytes += rows.nbytes
        self._taken_count += len(rows)

    # --- engine thread ---

    def begin(self) -> None:
        """Tell of the keys that fulfil the condition now. Cycles may have passed since the tap was
        made: keys that have come to fulfil it in them are told already."""
        self._had_rows = False
        self._turn(_NO_IDS, has_lost=True, is_initial=True)

    def refill(self) -> None:
        """Let further keys in if there is room. Between cycles."""
        if self._failure is None and self._further_count:
            self._turn(_NO_IDS, has_lost=True)

    def fail(self, error: BarrageError) -> BarrageError:
        told = super().fail(error)
        self.tell_failure(told)
        return told

    def advance(self, update: TableUpdate) -> TableUpdate:
        ended = self._follow(update) if self._is_keyed else self._follow_any()
        has_lost = self._further_count > 0 or not self._is_keyed
        self._had_rows = self._had_rows and bool(self.parent.size)
        self._turn(
            ended, has_lost=has_lost, added=update.added_keys_post, is_initial=self._had_rows
        )
        return TableUpdate.nothing(step=update.last_step, column_count=0)

    def _follow(self, update: TableUpdate) -> Int64Array:
        """Let go of what the parent has removed; the numbers of it."""
        left = self._held & update.removed_keys_pre
        ended = _NO_IDS
        if not left.is_empty:
            keys = left.to_numpy()
            ended = self._id_of.lookup(keys).copy()
            self._id_of.remove(keys)
            self._held = self._held - left
        self._id_of.shift(update.shifts)
        self._held = update.shifts.apply(self._held)
        return ended

    def _follow_any(self) -> Int64Array:
        if self._held.is_empty or self.parent.size:
            return _NO_IDS
        self._held = RowSet.empty()
        return np.array([self._id_next - 1], dtype=np.int64)

    def _turn(
        self,
        ended: Int64Array,
        *,
        has_lost: bool,
        added: RowSet | None = None,
        is_initial: bool = False,
    ) -> None:
        """Let in what has come, and tell. ``has_lost``: there may be others than ``added`` that
        are not held."""
        if not self._is_keyed:
            waiting = RowSet.empty() if self._held else self._last_row()
        elif has_lost or added is None:
            waiting = self.parent.row_keys - self._held
        else:
            waiting = added
        entered, rows = self._with_room(waiting)
        further = len(waiting) - len(entered)
        if entered.is_empty and not len(ended) and further == self._further_count:
            return
        self._further_count = further
        begun = np.arange(self._id_next, self._id_next + len(entered), dtype=np.int64)
        self._id_next += len(entered)
        self._held = self._held | (entered if self._is_keyed else RowSet.of_span(0, len(entered)))
        if self._is_keyed:
            self._id_of.add(entered.to_numpy(), begun)
        self.tell(
            Edges(
                ended=ended,
                begun=begun,
                rows=rows,
                further_count=further,
                is_full=len(self._held) >= (self._keys_max if self._is_keyed else 1),
                at_ns=self._clock.monotonic_ns(),
                wall_ns=self._clock.wall_ns(),
                is_initial=is_initial,
            )
        )

    def _with_room(self, waiting: RowSet) -> tuple[RowSet, pa.Table]:
        """The first of the keys that there is room for, and their rows."""
        told_count = self._told_count - self._taken_count
        room = min(self._keys_max - len(self._held), self._edges_max - told_count)
        if not told_count:
            # Pieces of rows may have more bytes than the whole.
            self._told_bytes = self._taken_bytes
        bytes_room = EDGES_BYTES_MAX - (self._told_bytes - self._taken_bytes)
        entered = waiting.slice(0, max(0, room if bytes_room > 0 else 0))
        rows = self._rows(entered)
        # One row is let in however long it is, once no other waits.
        while rows.nbytes > bytes_room and len(entered) > (0 if told_count else 1):
            entered = entered.slice(0, len(entered) // 2)
            rows = self._rows(entered)
        self._told_count += len(entered)
        self._told_bytes += rows.nbytes
        return entered, rows

    def _last_row(self) -> RowSet:
        keys = self.parent.row_keys
        return keys.slice(len(keys) - 1, len(keys)) if keys else RowSet.empty()

    def _rows(self, keys: RowSet) -> pa.Table:
        """Without dictionaries, which may be long whatever the rows are."""
        names = [self.parent.schema.names[column] for column in self._columns]
        cells = single_chunks(self.parent.read_cells(keys, self._columns))
        return pa.table([_decoded(array) for array in cells], names=names)


def _decoded(cells: pa.Array) -> pa.Array:
    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
