"""Updates: what changed in a table (engine side) and what one subscriber is told (wire side).

The order of application is fixed everywhere: **remove (pre-shift keys), shift, add (post-shift),
modify (post-shift)**. Full subscriptions speak row keys, viewport subscriptions speak positions in
the subscriber's view; the two are different types here so that they cannot be mixed up
(barrage-wire.md sections 8 and 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.model.viewport import ColumnSet

STATIC_STEP = -1
"""Step number of everything that does not tick (barrage-wire.md section 8.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUpdate:
    """What changed in one table between two steps, in row keys, without values.

    ``removed_keys_pre`` is in the key space before ``first_step``; everything else in the space
    after ``last_step``. ``added_keys_post`` and ``removed_keys_pre`` may name the same key: a row
    removed and another added under it. ``modified_keys_post`` has one row set per schema column,
    disjoint from the added keys.
    """

    first_step: int
    last_step: int
    removed_keys_pre: RowSet
    shifts: RowSetShiftData
    added_keys_post: RowSet
    modified_keys_post: tuple[RowSet, ...]

    @property
    def is_empty(self) -> bool:
        return (
            self.removed_keys_pre.is_empty
            and self.shifts.is_empty
            and self.added_keys_post.is_empty
            and all(keys.is_empty for keys in self.modified_keys_post)
        )

    def keys_after(self, keys_pre: RowSet) -> RowSet:
        """The row keys of a table with ``keys_pre`` after this update."""
        return self.shifts.apply(keys_pre - self.removed_keys_pre) | self.added_keys_post

    def keys_before(self, keys_post: RowSet) -> RowSet:
        """The row keys before this update of a table that has ``keys_post`` after it."""
        kept_post = keys_post - self.added_keys_post
        return self.shifts.unapply(kept_post) | self.removed_keys_pre

    def resident_bytes(self) -> int:
        """What its row sets cost in memory; columns that share one count once."""
        modified = {id(rows): rows for rows in self.modified_keys_post}
        sets = (self.removed_keys_pre, self.added_keys_post, *modified.values())
        return self.shifts.nbytes + sum(rows.bytes_max for rows in sets)

    @classmethod
    def nothing(cls, *, step: int, column_count: int) -> TableUpdate:
        """The update that changes nothing."""
        empty = RowSet.empty()
        return cls(
            first_step=step,
            last_step=step,
            removed_keys_pre=empty,
            shifts=RowSetShiftData.empty(),
            added_keys_post=empty,
            modified_keys_post=(empty,) * column_count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMessage:
    """Common part of what one subscriber is told: one metadata block plus its column values.

    ``added_columns`` and ``modified_columns`` have one entry per schema column (plain Arrow type,
    a ``pa.Array`` or ``pa.ChunkedArray``) in row order. Columns not subscribed have length 0. Row
    counts: ``added_columns`` follow the included rows, ``modified_columns[c]`` follows column c's
    modified rows.
    """

    first_step: int
    last_step: int
    is_snapshot: bool
    effective_viewport: RowSet | None
    """Echo of the requested positions, unclamped; None on deltas and on a full subscription's
    snapshot."""
    is_effective_reverse: bool
    effective_columns: ColumnSet | None
    """Echo of the requested columns on snapshots; None when absent."""
    table_size: int | None
    """Rows of the whole table after this update; None only in answers to snapshot requests."""
    added_columns: tuple[pa.Array | pa.ChunkedArray, ...]
    modified_columns: tuple[pa.Array | pa.ChunkedArray, ...]
    source_time_ns: int | None = None
    """Wall time at which the newest cycle in this update was committed; our extension, sent on
    request only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullUpdate(UpdateMessage):
    """An update in row keys: full subscriptions, answers to snapshot requests, and the 2020
    draft's viewports."""

    removed_keys_pre: RowSet | None
    """None (absent on the wire) only in answers to snapshot requests."""
    shifts: RowSetShiftData
    added_keys_post: RowSet
    included_keys_post: RowSet | None
    """Keys whose values travel, when that is not exactly ``added_keys_post``."""
    modified_keys_post: tuple[RowSet, ...] | None

    @property
    def data_keys_post(self) -> RowSet:
        """Keys of the rows in ``added_columns``."""
        return self.added_keys_post if self.included_keys_post is None else self.included_keys_post


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewUpdate(UpdateMessage):
    """An update in positions of the subscriber's own view: removed are indices into the old view,
    the others into the new one (barrage-wire.md section 9)."""

    removed_positions: RowSet
    added_positions: RowSet
    modified_positions: tuple[RowSet, ...]
