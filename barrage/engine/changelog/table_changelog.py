"""The changes of an ordinary table: row sets in a delta log, values read from the table when they
are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.changelog.changelog import Known, Message, Messages
from barrage.engine.changelog.delta_log import DeltaLog
from barrage.engine.changelog.key_messages import key_delta
from barrage.engine.changelog.making import PATIENCE
from barrage.engine.changelog.present import Present
from barrage.engine.changelog.span_updates import first_views, span_updates, window_sizes
from barrage.engine.changelog.subscription import Shape, ShapeBook, ShapeKind
from barrage.engine.changelog.together import distinct
from barrage.engine.changelog.view_messages import quiet_view, view_message
from barrage.engine.changelog.viewport_plan import PositionDelta, SpanPlan, Spans
from barrage.engine.tables.source import copied_nbytes
from barrage.engine.tables.work import COPIED_BYTES, MERGED_BYTES, of_placing, of_reading
from barrage.errors import LimitExceededError
from barrage.model.coalesce import coalesce_all
from barrage.model.update import STATIC_STEP, TableUpdate

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.engine.changelog.changelog import PinnedMoment
    from barrage.engine.changelog.reader import Stamp, TableReader
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.model.view_updates import ViewUpdates
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import BoolArray, Int64Array


VIEWS_TOGETHER_MIN = 6
"""Views of one kind from which on they are told together: below it costs more than one by one."""

RANGE_BYTES = 8
"""Bytes of a range in a row set, at least."""


class TableChangelog:
    """Changelog of a static or ticking table that is not a blink table."""

    def __init__(self, table: Table, limits: Limits, *, step: int) -> None:
        self._table = table
        self._limits = limits
        self._present = Present(
            table, step=STATIC_STEP if table.is_static else step, source_time_ns=None
        )
        self._log = DeltaLog(table.row_keys)
        self._deltas: dict[int, tuple[TableUpdate, PositionDelta]] = {}
        self._later: dict[int, _Later] = {}

    @property
    def reader_count(self) -> int:
        return self._log.reader_count

    def record(self, update: TableUpdate, wall_ns: int) -> None:
        self._deltas.clear()
        self._later.clear()
        self._log.record(update, self._table.row_keys)
        self._present.step = update.last_step
        self._present.source_time_ns = wall_ns

    def join(self, count: int) -> int:
        return self._log.join(count)

    def branch(self, keys: RowSet, update: TableUpdate) -> int:
        return self._log.branch(keys, update)

    def join_branch(self, point: int, count: int) -> None:
        self._log.join_branch(point, count)

    def leave(self, point: int, count: int) -> None:
        self._log.leave(point, count)

    def advance(self, point: int, count: int) -> int:
        self._log.leave(point, count)
        return self._log.join(count)

    def has_news(self, point: int) -> bool:
        return point != self._log.head

    def clearing(self, point: int, shape: Shape) -> Message | None:
        return None

    @property
    def present(self) -> Present:
        return self._present

    def first_states(self, shapes: list[Shape]) -> ViewUpdates | None:
        if len(shapes) < VIEWS_TOGETHER_MIN:
            return None
        present = self._present
        return first_views(present.reader, shapes, stamp=present.stamp(present.step))

    def jumps(
        self, shapes: list[Shape], olds: list[Shape], sizes_known: list[int]
    ) -> ViewUpdates | None:
        if len(shapes) < VIEWS_TOGETHER_MIN:
            return None
        present = self._present
        return first_views(
            present.reader,
            shapes,
            stamp=present.stamp(present.step),
            held_sizes=window_sizes(olds, sizes_known),
        )

    def snapshot_work(self, shape: Shape) -> int:
        return self._reading_work(shape, self._table.size)

    def resync_work(self, shape: Shape, known: Known) -> int:
        return self._reading_work(shape, self._table.size) + known.range_count

    def view_work(self, point: int) -> int:
        led, merged = self._log.since_nbytes(point)
        is_undone = self._log.recent_keys(point) is None
        placing = of_placing(self._table, changed=led // RANGE_BYTES, is_undone=is_undone)
        return merged // MERGED_BYTES + placing

    def delta_work(self, point: int, numbers: Int64Array, shapes: ShapeBook) -> Int64Array | None:
        merging = self._log.since_nbytes(point)[1] // MERGED_BYTES
        if merging > PATIENCE * self._limits.turn_work_max:
            return np.full(len(numbers), merging, dtype=np.int64)
        update, _ = self._delta(point)
        sets = {id(rows): rows for rows in (update.added_keys_post, *update.modified_keys_post)}
        rows = sum(map(len, sets.values()))
        ranges = update.removed_keys_pre.range_count
        ranges += sum(each.range_count for each in sets.values())
        width = len(self._table.schema)
        reading = of_reading(self._table, rows=rows, columns=width, ranges=ranges)
        views = np.flatnonzero(shapes.kind[numbers] != ShapeKind.FULL).tolist()
        placing = self.view_work(point) if views else 0
        most = reading + placing
        if (
            most <= self._limits.turn_work_max
            or most <= copied_nbytes([self._table]) // COPIED_BYTES
        ):
            return None
        work = np.full(len(numbers), reading, dtype=np.int64)
        for i in views:
            shape = shapes[int(numbers[i])]
            shown = len(shape.window(self._table.size))
            if shown > self._limits.viewport_rows_max:
                work[i] = 0  # Nothing is read: it is refused.
            elif 2 * shown < rows:
                work[i] = self._reading_work(shape, shown) + placing
            else:
                work[i] = most
        return work

    def message_later(self, point: int, shape: Shape) -> Callable[[PinnedMoment], Message]:
        later = self._later.get(point)
        if later is None:
            later = self._later[point] = _Later(self._log.updates_since(point))
        before = self._log.recent_keys(point)
        return lambda present: present.delta(shape, later.merged(), before)

    def merged_bytes(self, point: int) -> int:
        found = self._deltas.get(point)
        return 0 if found is None else found[0].resident_bytes()

    def _reading_work(self, shape: Shape, rows: int) -> int:
        """Row operations of reading and encoding so many rows, or those in the window."""
        keys = self._table.row_keys
        ranges = keys.range_count
        if shape.viewport is not None:
            rows = min(rows, len(shape.window(len(keys))))
            if shape.kind is not ShapeKind.KEYED_VIEW:
                ranges = min(ranges, rows)
        return of_reading(self._table, rows=rows, columns=len(shape.column_indices), ranges=ranges)

    def crowded_points(self) -> list[int]:
        """Every occupied point is a segment; the head has none yet."""
        surplus = self._log.point_count - 1 - self._limits.delta_segments_max
        return self._log.points()[:-1] if surplus > 0 else []

    def waiting_points(self) -> list[int]:
        return self._log.points()[:-1]

    @property
    def nbytes(self) -> int:
        return self._log.nbytes

    def fold(self) -> None:
        self._log.fold()

    def settle(self) -> None:
        self._deltas.clear()
        self._later.clear()
        self._log.settle()

    def known(self, point: int, *, with_keys: bool) -> Known:
        return Known(
            size=self._log.size_at(point),
            first_step=self._present.step if point == self._log.head else self._log.step_at(point),
            keys=self._log.resting_keys_at(point) if with_keys else None,
        )

    def validate(self) -> None:
        self._log.validate()

    def messages(self, point: int, numbers: Int64Array, shapes: ShapeBook) -> Messages:
        """Contiguous views are computed together, everything else one shape at a time."""
        update, delta = self._delta(point)
        stamp = self._present.stamp(update.first_step)
        answer = Messages(which=np.empty(len(numbers), dtype=np.int64))
        quiet = _QuietViews(self._present.reader, stamp, answer)
        kinds = shapes.kind[numbers]
        spans = np.flatnonzero(kinds == ShapeKind.SPAN)
        if len(spans):
            self._answer_spans(
                delta, spans, numbers[spans], shapes=shapes, stamp=stamp, answer=answer, quiet=quiet
            )
        for i in np.flatnonzero(kinds != ShapeKind.SPAN).tolist():
            shape = shapes[int(numbers[i])]
            if shape.kind is not ShapeKind.SCATTERED:
                answer.which[i] = answer.append(
                    self._checked(
                        key_delta(self._present.reader, update, delta, shape=shape, stamp=stamp),
                        shape,
                    )
                )
                continue
            message = view_message(self._present.reader, delta, shape, stamp=stamp)
            if message is None:
                answer.which[i] = quiet.index(is_reverse=shape.is_reverse)
            else:
                answer.which[i] = answer.append(self._checked(message, shape))
        answer.work_bytes = update.resident_bytes()
        if (kinds != ShapeKind.FULL).any() and not update.removed_keys_pre.is_empty:
            # Positions are looked up in the row keys of both ends.
            answer.work_bytes += 2 * self._table.row_keys.bytes_max
        return answer

    def _answer_spans(
        self,
        delta: PositionDelta,
        places: Int64Array,
        numbers: Int64Array,
        *,
        shapes: ShapeBook,
        stamp: Stamp,
        answer: Messages,
        quiet: _QuietViews,
    ) -> None:
        """Fill in the answers of contiguous views; ``places`` and ``numbers`` are parallel."""
        is_reverse = shapes.is_reverse[numbers].astype(np.bool_)
        spans = Spans(start=shapes.start[numbers], stop=shapes.stop[numbers], is_reverse=is_reverse)
        plan = SpanPlan.of(delta, spans)
        is_over = plan.new_stop - plan.new_start > self._limits.viewport_rows_max
        is_changed = (plan.is_moved | _is_modified(delta, plan, numbers, shapes=shapes)) & ~is_over
        for direction in (False, True):
            still = places[~is_changed & ~is_over & (is_reverse == direction)]
            if len(still):
                answer.which[still] = quiet.index(is_reverse=direction)
        for i in np.flatnonzero(is_over).tolist():
            rows = int(plan.new_stop[i] - plan.new_start[i])
            answer.which[places[i]] = answer.append(self._too_large(rows))
        self._answer_changed(
            delta,
            plan,
            np.flatnonzero(is_changed),
            places=places,
            numbers=numbers,
            shapes=shapes,
            stamp=stamp,
            answer=answer,
        )

    def _answer_changed(
        self,
        delta: PositionDelta,
        plan: SpanPlan,
        changed: Int64Array,
        *,
        places: Int64Array,
        numbers: Int64Array,
        shapes: ShapeBook,
        stamp: Stamp,
        answer: Messages,
    ) -> None:
        """Those among them that are told anything: views of one kind together where they are
        many."""
        kinds = (2 * shapes.column_set[numbers] + shapes.is_reverse[numbers])[changed]
        for kind in distinct(kinds).tolist():
            alike = changed[kinds == kind]
            updates = span_updates(
                self._present.reader,
                delta,
                plan.pick(alike),
                columns=shapes.columns(kind >> 1),
                is_reverse=bool(kind & 1),
                stamp=stamp,
            )
            if len(alike) < VIEWS_TOGETHER_MIN:
                which = [answer.append(updates.view(index)) for index in range(len(alike))]
                answer.which[places[alike]] = which
            else:
                answer.which[places[alike]] = answer.append_views(updates)

    def _checked(self, message: Message, shape: Shape) -> Message | LimitExceededError:
        if shape.viewport is not None:
            rows = len(shape.window(self._table.size))
            if rows > self._limits.viewport_rows_max:
                return self._too_large(rows)
        return message

    def _too_large(self, rows: int) -> LimitExceededError:
        return LimitExceededError(
            "viewport", actual=rows, maximum=self._limits.viewport_rows_max, unit="rows"
        )

    def _delta(self, point: int) -> tuple[TableUpdate, PositionDelta]:
        found = self._deltas.get(point)
        if found is None:
            update = self._log.since(point)
            if update is None:
                raise ValueError("there is nothing to tell at the present")
            before = self._log.recent_keys(point)
            found = update, PositionDelta(update, before, self._table.row_keys)
            self._deltas[point] = found
        return found


def _is_modified(
    delta: PositionDelta, plan: SpanPlan, numbers: Int64Array, *, shapes: ShapeBook
) -> BoolArray:
    """Whether any row in each window was modified in a column its shape has."""
    is_hit = np.zeros(len(numbers), dtype=np.bool_)
    column_sets = shapes.column_set[numbers]
    hits: dict[RowSet, BoolArray] = {}
    for column_set in distinct(column_sets).tolist():
        has_set = column_sets == column_set
        for rows, _ in delta.modified_groups(shapes.columns(column_set)):
            if rows not in hits:
                hits[rows] = plan.has_any(rows)
            is_hit |= hits[rows] & has_set
    return is_hit


class _QuietViews:
    """The one message for all views in which nothing changes, per direction, made when first
    needed."""

    def __init__(self, reader: TableReader, stamp: Stamp, answer: Messages) -> None:
        self._reader = reader
        self._stamp = stamp
        self._answer = answer
        self._indices: dict[bool, int] = {}

    def index(self, *, is_reverse: bool) -> int:
        """Index of the message in the answer."""
        found = self._indices.get(is_reverse)
        if found is None:
            found = self._answer.append(
                quiet_view(self._reader, self._stamp, is_reverse=is_reverse)
            )
            self._indices[is_reverse] = found
        return found


class _Later:
    """What leads from a point to the present, merged by whoever needs it first; one thread makes
    all messages that are not made at once."""

    def __init__(self, updates: list[TableUpdate]) -> None:
        self._updates = updates

    def merged(self) -> TableUpdate:
        self._updates = [coalesce_all(self._updates)]
        return self._updates[0]
