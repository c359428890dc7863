"""What can be told of one state of a table: the present one, or a pinned one, which stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.changelog.key_messages import key_delta, key_resync, key_snapshot
from barrage.engine.changelog.reader import Stamp, TableReader
from barrage.engine.changelog.subscription import ShapeKind
from barrage.engine.changelog.view_messages import (
    is_usable,
    quiet_view,
    view_message,
    view_resync,
    view_snapshot,
)
from barrage.engine.changelog.viewport_plan import PositionDelta
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.engine.changelog.changelog import Known, Message
    from barrage.engine.changelog.subscription import Shape
    from barrage.engine.tables.table import Table
    from barrage.model.update import TableUpdate

VIEWS = (ShapeKind.SPAN, ShapeKind.SCATTERED)


class Present:
    """A state of a table, and the step and time of its last change. Of a pinned table all of it may
    be used on any thread."""

    def __init__(self, table: Table, *, step: int, source_time_ns: int | None) -> None:
        self.table = table
        self.reader = TableReader(table)
        self.step = step
        self.source_time_ns = source_time_ns

    def pinned(self) -> Present:
        """The same, which stays as it is. On the engine thread."""
        return Present(self.table.pinned(), step=self.step, source_time_ns=self.source_time_ns)

    def stamp(self, first_step: int) -> Stamp:
        return Stamp(
            first_step=first_step,
            last_step=self.step,
            table_size=self.table.size,
            source_time_ns=self.source_time_ns,
        )

    def snapshot(self, shape: Shape, old: Shape | None) -> Message:
        """This state for ``shape``; ``old`` is the shape whose rows the client holds."""
        stamp = self.stamp(self.step)
        if shape.kind in VIEWS:
            return view_snapshot(self.reader, shape, old, stamp=stamp)
        held = RowSet.empty()
        if old is not None and is_usable(old, shape):
            keys = self.table.row_keys
            held = keys.keys_at(old.window(len(keys)))
        return key_snapshot(self.reader, shape, held, stamp=stamp)

    def jump(self, shape: Shape, old: Shape, size_known: int) -> Message:
        """This state for ``shape``, for a client that holds the rows of ``old`` as they were when
        the table had so many: none of them stays."""
        stamp = self.stamp(self.step)
        return view_snapshot(self.reader, shape, old, stamp=stamp, size_known=size_known)

    def resync(self, shape: Shape, known: Known) -> Message:
        """One delta from what was known to this state."""
        stamp = self.stamp(known.first_step)
        if shape.kind in VIEWS:
            return view_resync(self.reader, shape, known.size, stamp=stamp)
        assert known.keys is not None
        return key_resync(self.reader, shape, known.keys.rows(), stamp=stamp)

    def delta(self, shape: Shape, update: TableUpdate, before: RowSet | None) -> Message:
        """What ``update``, which leads to this state, means for one shape."""
        delta = PositionDelta(update, before, self.table.row_keys)
        stamp = self.stamp(update.first_step)
        if shape.kind not in VIEWS:
            return key_delta(self.reader, update, delta, shape=shape, stamp=stamp)
        message = view_message(self.reader, delta, shape, stamp=stamp)
        if message is None:
            return quiet_view(self.reader, stamp, is_reverse=shape.is_reverse)
        return message
