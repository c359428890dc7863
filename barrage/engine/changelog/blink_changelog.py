"""The changes of a blink table: rows live for one cycle, so values are kept until everybody has had
them.

Source: barrage-wire.md section 11.1. A message lays the rows of all cycles since the last one end
to end as keys 0 … n-1 and removes the rows of the previous message, 0 … m-1. After a message with
rows, and a cycle without any, comes one that only removes. Snapshots are always empty. Shifts and
modifications do not occur.

A point here is a pair: the cycles a subscriber has had, and the m rows it still shows.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.changelog.changelog import NOTHING, Known, Message, Messages
from barrage.engine.changelog.reader import Column, Stamp, TableReader, span
from barrage.engine.changelog.subscription import Shape, ShapeBook, ShapeKind
from barrage.engine.changelog.view_messages import view_update
from barrage.model.update import STATIC_STEP, FullUpdate, TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.engine.changelog.changelog import PinnedMoment
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.model.view_updates import ViewUpdates
    from barrage.rowset.arrays import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cycle:
    """The rows of one cycle, possibly none; ``serial`` counts recorded cycles."""

    serial: int
    step: int
    row_count: int
    columns: tuple[Column, ...]


@dataclass(slots=True)
class _Place:
    """Subscribers that have had all cycles up to ``serial`` and show ``visible`` rows."""

    serial: int
    visible: int
    count: int = 0


class BlinkChangelog:
    """Changelog of a blink table."""

    def __init__(self, table: Table, limits: Limits, *, step: int) -> None:
        self._table = table
        self._limits = limits
        self._reader = TableReader(table)
        self._step = step
        self._source_time_ns: int | None = None
        self._serial = 0
        self._cycles: deque[_Cycle] = deque()
        self._rows_kept = 0
        self._places: dict[int, _Place] = {}
        self._points: dict[tuple[int, int], int] = {}
        self._points_made = 0

    @property
    def reader_count(self) -> int:
        return sum(readers.count for readers in self._places.values())

    def record(self, update: TableUpdate, wall_ns: int) -> None:
        """Rows are read now, since the next cycle takes them away; nobody there, nothing kept."""
        added = update.added_keys_post
        self._serial += 1
        self._step = update.last_step
        self._source_time_ns = wall_ns
        if not self._places:
            return
        cycle = _Cycle(
            serial=self._serial,
            step=update.last_step,
            row_count=len(added),
            columns=self._reader.columns_of(added, self._reader.all_columns),
        )
        self._cycles.append(cycle)
        self._rows_kept += cycle.row_count
        while self._rows_kept > self._limits.blink_rows_max and len(self._cycles) > 1:
            self._rows_kept -= self._cycles.popleft().row_count

    # --- readers ---------------------------------------------------------------------------------

    def join(self, count: int) -> int:
        return self._stand(count, visible=0)

    def _stand(self, count: int, *, visible: int) -> int:
        place = (self._serial, visible)
        point = self._points.get(place)
        if point is None:
            point = self._points[place] = self._points_made
            self._points_made += 1
            self._places[point] = _Place(*place)
        self._places[point].count += count
        return point

    def branch(self, keys: RowSet, update: TableUpdate) -> int:
        raise NotImplementedError("blink subscribers are never resumed")

    def join_branch(self, point: int, count: int) -> None:
        raise NotImplementedError("blink subscribers are never resumed")

    def leave(self, point: int, count: int) -> None:
        readers = self._places[point]
        if readers.count < count:
            raise ValueError(f"{count} subscribers leave point {point}, where {readers.count} are")
        readers.count -= count
        if readers.count:
            return
        del self._places[point]
        del self._points[readers.serial, readers.visible]
        oldest = min((other.serial for other in self._places.values()), default=self._serial)
        while self._cycles and self._cycles[0].serial <= oldest:
            self._rows_kept -= self._cycles.popleft().row_count

    def advance(self, point: int, count: int) -> int:
        following = self._stand(count, visible=self._rows_since(self._places[point].serial))
        self.leave(point, count)
        return following

    def has_news(self, point: int) -> bool:
        readers = self._places[point]
        return readers.serial != self._serial or (readers.visible > 0 and self._table.size == 0)

    def crowded_points(self) -> list[int]:
        return []

    def waiting_points(self) -> list[int]:
        return []

    @property
    def nbytes(self) -> int:
        """No row sets; rows are counted by ``blink_rows_max``."""
        return 0

    def fold(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def known(self, point: int, *, with_keys: bool) -> Known:
        raise NotImplementedError("blink subscribers are never resynchronised")

    def resync(self, shape: Shape, known: Known) -> Message:
        raise NotImplementedError("blink subscribers are never resynchronised")

    @property
    def present(self) -> BlinkChangelog:
        """Its snapshots are empty, and its rows were read when they came: nothing takes long."""
        return self

    def first_states(self, shapes: list[Shape]) -> ViewUpdates | None:
        return None

    def jumps(
        self, shapes: list[Shape], olds: list[Shape], sizes_known: list[int]
    ) -> ViewUpdates | None:
        return None

    def snapshot_work(self, shape: Shape) -> int:
        return 0

    def resync_work(self, shape: Shape, known: Known) -> int:
        return 0

    def view_work(self, point: int) -> int:
        return 0

    def merged_bytes(self, point: int) -> int:
        return 0

    def delta_work(self, point: int, numbers: Int64Array, shapes: ShapeBook) -> None:
        return None

    def message_later(self, point: int, shape: Shape) -> Callable[[PinnedMoment], Message]:
        raise NotImplementedError("blink subscribers are told at once")

    def pinned(self) -> PinnedMoment:
        raise NotImplementedError("blink subscribers are told at once")

    # --- messages ---------------------------------------------------------------------------------

    def _since(self, serial: int) -> list[_Cycle]:
        return [cycle for cycle in self._cycles if cycle.serial > serial]

    def _rows_since(self, serial: int) -> int:
        return sum(cycle.row_count for cycle in self._since(serial))

    def messages(self, point: int, numbers: Int64Array, shapes: ShapeBook) -> Messages:
        readers = self._places[point]
        cycles = self._since(readers.serial)
        row_count = sum(cycle.row_count for cycle in cycles)
        answer = Messages(which=np.full(len(numbers), NOTHING, dtype=np.int64))
        if row_count == 0 and readers.visible == 0:
            return answer
        columns = self._laid_end_to_end(cycles)
        stamp = Stamp(
            first_step=cycles[0].step if cycles else STATIC_STEP,
            last_step=cycles[-1].step if cycles else STATIC_STEP,
            table_size=row_count,
            source_time_ns=self._source_time_ns,
        )
        for i, number in enumerate(numbers.tolist()):
            answer.which[i] = answer.append(
                self._message(shapes[number], readers.visible, columns, stamp=stamp)
            )
        return answer

    def _laid_end_to_end(self, cycles: list[_Cycle]) -> tuple[Column, ...]:
        """Each column of all cycles as one; the cycles stay chunks, nothing is copied."""
        with_rows = [cycle for cycle in cycles if cycle.row_count]
        if not with_rows:
            return self._reader.no_values
        if len(with_rows) == 1:
            return with_rows[0].columns
        return tuple(
            pa.chunked_array([chunk for part in parts for chunk in _chunks(part)])
            for parts in zip(*(cycle.columns for cycle in with_rows), strict=True)
        )

    def _message(
        self, shape: Shape, visible: int, columns: tuple[Column, ...], *, stamp: Stamp
    ) -> Message:
        row_count = stamp.table_size
        if shape.kind in (ShapeKind.SPAN, ShapeKind.SCATTERED):
            window = shape.window(row_count)
            return view_update(
                stamp,
                is_reverse=shape.is_reverse,
                removed=span(0, len(shape.window(visible))),
                added=span(0, len(window)),
                added_columns=self._pick(columns, window, shape),
                modified=self._reader.no_rows,
                modified_columns=self._reader.no_values,
            )
        is_full = shape.kind is ShapeKind.FULL
        window = span(0, row_count) if is_full else shape.window(row_count)
        return FullUpdate(
            first_step=stamp.first_step,
            last_step=stamp.last_step,
            is_snapshot=False,
            effective_viewport=None,
            is_effective_reverse=shape.is_reverse,
            effective_columns=None,
            table_size=row_count,
            added_columns=self._pick(columns, window, shape),
            modified_columns=self._reader.no_values,
            source_time_ns=stamp.source_time_ns,
            removed_keys_pre=span(0, visible),
            shifts=RowSetShiftData.empty(),
            added_keys_post=span(0, row_count),
            included_keys_post=None if is_full else window,
            modified_keys_post=self._reader.no_rows,
        )

    def _pick(
        self, columns: tuple[Column, ...], window: RowSet, shape: Shape
    ) -> tuple[Column, ...]:
        """The rows of ``window`` in the columns of ``shape``."""
        if window.is_empty:
            return self._reader.no_values
        wanted = [columns[index] for index in shape.column_indices]
        if all(len(column) == len(window) for column in wanted):
            picked = wanted
        elif window.is_contiguous:
            picked = [column.slice(window.first, len(window)) for column in wanted]
        else:
            rows = window.to_numpy()
            picked = [column.take(pa.array(rows)) for column in wanted]
        return self._reader.spread(tuple(picked), shape.column_indices)

    def clearing(self, point: int, shape: Shape) -> Message | None:
        """Rows still shown go before a snapshot, in a message no step stands for."""
        visible = self._places[point].visible
        if not visible:
            return None
        stamp = Stamp(
            first_step=STATIC_STEP,
            last_step=STATIC_STEP,
            table_size=0,
            source_time_ns=self._source_time_ns,
        )
        return self._message(shape, visible, self._reader.no_values, stamp=stamp)

    def jump(self, shape: Shape, old: Shape, size_known: int) -> Message:
        raise ValueError("views of a blink table do not jump")

    def snapshot(self, shape: Shape, old: Shape | None) -> Message:
        stamp = Stamp(
            first_step=self._step,
            last_step=self._step,
            table_size=0,
            source_time_ns=self._source_time_ns,
        )
        blank = self._message(shape, 0, self._reader.no_values, stamp=stamp)
        if isinstance(blank, FullUpdate):
            blank = replace(blank, included_keys_post=RowSet.empty())
        return replace(
            blank,
            is_snapshot=True,
            effective_viewport=None if shape.viewport is None else shape.viewport.positions,
            effective_columns=self._reader.all_columns if shape.columns is None else shape.columns,
        )

    def validate(self) -> None:
        assert self._rows_kept == sum(cycle.row_count for cycle in self._cycles)
        assert all(readers.count > 0 for readers in self._places.values())
        assert len(self._points) == len(self._places)
        serials = [cycle.serial for cycle in self._cycles]
        assert serials == sorted(serials)


def _chunks(column: Column) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]
