"""One row for each cell of the lists in some columns; the other columns are repeated.

The lists of one row are equally long; null is an empty list, and a row of empty lists has no rows
here. Row keys are 0 to size-1.

Example: the rows ``x [1, 2]``, ``y []`` and ``z [3]`` become ``x 1``, ``x 2`` and ``z 3``.

State: where the rows of each parent row begin, one number per parent row; cells are read from the
parent. A cycle reads the lengths of lists that are new or changed; rows that only come at the end
cost nothing else, after others the numbers are copied and added up anew (some milliseconds per
million rows). What moves is told as a few shifts, read off the removed and the added positions. A
list that grew or shrank has rows added or removed at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.cells import EVALUATED_ROWS
from barrage.engine.tables.moved_rows import closing_shifts, each_once, union_of
from barrage.engine.tables.table import DerivedTable
from barrage.errors import LimitExceededError, RowError, SchemaError, near_miss
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.rowset.arrays import Int64Array


def is_list(data_type: pa.DataType) -> bool:
    """Whether cells of this type can be ungrouped."""
    kinds = pa.types
    return bool(
        kinds.is_list(data_type)
        or kinds.is_large_list(data_type)
        or kinds.is_fixed_size_list(data_type)
    )


def parse_lists(schema: pa.Schema, columns: Sequence[str]) -> tuple[int, ...]:
    """The indices of the columns, or of all columns of lists; SchemaError when there are none, or
    one is unknown, named twice or of another type."""
    if not columns:
        found = tuple(i for i, data_type in enumerate(schema.types) if is_list(data_type))
        if not found:
            raise SchemaError("the table has no column of lists to ungroup")
        return found
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise SchemaError(f"unknown column {name!r}{near_miss(name, schema.names)}")
        if not is_list(schema.field(index).type):
            raise SchemaError(f"column {name!r} of type {schema.field(index).type} has no lists")
    if len(set(columns)) < len(columns):
        raise SchemaError("a column to ungroup is named twice")
    return tuple(sorted(schema.get_field_index(name) for name in columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resized:
    """Rows that stayed and whose lists may have another length: their places among the parent's
    rows before and after a cycle, and the lengths."""

    before: Int64Array
    after: Int64Array
    old: Int64Array
    new: Int64Array


class UngroupTable(DerivedTable):
    """The cells of lists as rows. RowError, also in later cycles: the lists of a row differ in
    length. LimitExceededError: there are more than ``ungrouped_rows_max`` rows."""

    def __init__(self, parent: Table, lists: tuple[int, ...]) -> None:
        fields = [
            field.with_type(field.type.value_type).with_nullable(True) if index in lists else field
            for index, field in enumerate(parent.schema)
        ]
        traits = parent.traits.changed(is_flat=True, key_columns=())
        super().__init__(parent, pa.schema(fields, metadata=parent.schema.metadata), traits)
        self._lists = lists
        self._parent_keys = parent.row_keys
        self._starts: Int64Array = np.zeros(1, dtype=np.int64)
        """Where the rows of each parent row begin, by its position; then the number of rows."""
        self._buffer = self._starts
        parts = [
            self._lengths(self._parent_keys.slice(start, start + EVALUATED_ROWS).to_numpy())
            for start in range(0, parent.size, EVALUATED_ROWS)
        ]
        self._append(np.concatenate((self._starts[:0], *parts)))
        self._row_keys = RowSet.of_span(0, int(self._starts[-1]))

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return UngroupTable(parents[0], self._lists)

    def _lengths(self, rows: Int64Array) -> Int64Array:
        """How long the lists of parent rows are."""
        cells = self.parent.take_cells(rows, self._lists)
        lengths = [pc.fill_null(pc.list_value_length(column), 0) for column in cells]
        first: Int64Array = np.asarray(lengths[0], dtype=np.int64)
        for index, other in zip(self._lists[1:], lengths[1:], strict=True):
            differing = np.flatnonzero(first != np.asarray(other))
            if len(differing):
                row = int(differing[0])
                names = self.schema.names
                raise RowError(
                    f"the lists of a row differ in length: {first[row]} cells in "
                    f"{names[self._lists[0]]!r}, {other[row].as_py()} here",
                    column=names[index],
                    row=self.parent.row_keys.rank(int(rows[row])),
                )
        return first

    def _append(self, lengths: Int64Array) -> None:
        """Take in rows after the last one."""
        count = len(self._starts)
        if count + len(lengths) > len(self._buffer):
            # Not in place: readers have views of it.
            buffer = np.empty((count + len(lengths)) * 9 // 8, dtype=np.int64)
            buffer[:count] = self._starts
            self._buffer = buffer
        self._buffer[count : count + len(lengths)] = self._starts[-1] + np.cumsum(lengths)
        self._set_starts(self._buffer[: count + len(lengths)])

    def _set_starts(self, starts: Int64Array) -> None:
        maximum = self.graph.limits.ungrouped_rows_max
        if starts[-1] > maximum:
            raise LimitExceededError(
                "ungrouped table", actual=int(starts[-1]), maximum=maximum, unit="rows"
            )
        self._starts = starts

    def advance(self, update: TableUpdate) -> TableUpdate:
        before, after, starts = self._parent_keys, self.parent.row_keys, self._starts
        removed = before.positions_of(update.removed_keys_pre).to_numpy()
        added = after.positions_of(update.added_keys_post).to_numpy()
        rewritten = union_of(update.modified_keys_post[column] for column in self._lists)
        resized = self._resized(removed, added, rewritten)
        self._parent_keys = after
        added_lengths = self._lengths(update.added_keys_post.to_numpy())
        if (
            not len(removed)
            and not len(resized.after)
            and (not len(added) or added[0] == len(before))
        ):
            self._append(added_lengths)
        else:
            lengths = np.diff(starts)
            if len(removed):
                lengths = np.delete(lengths, removed)
            if len(added):
                lengths = np.insert(lengths, added - np.arange(len(added)), added_lengths)
            lengths[resized.after] = resized.new
            self._buffer = np.concatenate(([0], np.cumsum(lengths)))
            self._set_starts(self._buffer)
        return self._told(update, starts, removed=removed, added=added, resized=resized)

    def _resized(self, removed: Int64Array, added: Int64Array, rewritten: RowSet) -> _Resized:
        """The rows whose lists were written, with their lengths."""
        positions = self.parent.row_keys.positions_of(rewritten).to_numpy()
        # The rows that stayed keep their order, so the n-th of before is the n-th of after.
        order = positions - np.searchsorted(added, positions)
        gaps = removed - np.arange(len(removed))
        before = order + np.searchsorted(gaps, order, side="right")
        old = self._starts[before + 1] - self._starts[before]
        new = self._lengths(rewritten.to_numpy())
        changed = old != new
        return _Resized(
            before=before[changed], after=positions[changed], old=old[changed], new=new[changed]
        )

    def _told(
        self,
        update: TableUpdate,
        starts: Int64Array,
        *,
        removed: Int64Array,
        added: Int64Array,
        resized: _Resized,
    ) -> TableUpdate:
        """The update of this table, whose rows began at ``starts`` before."""
        now = self._starts
        shrunk, grown = resized.new < resized.old, resized.new > resized.old
        gone = _spans(starts[removed], starts[removed + 1]) | _spans(
            (starts[resized.before] + resized.new)[shrunk], starts[resized.before + 1][shrunk]
        )
        new = _spans(now[added], now[added + 1]) | _spans(
            (now[resized.after] + resized.old)[grown], now[resized.after + 1][grown]
        )
        before, after = self._row_keys, RowSet.of_span(0, int(now[-1]))
        self._row_keys = after

        def rows_of(keys: RowSet) -> RowSet:
            rows = self._parent_keys.positions_of(keys).to_numpy()
            return _spans(now[rows], now[rows + 1]) - new

        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=gone,
            shifts=closing_shifts(before - gone, after - new),
            added_keys_post=new,
            modified_keys_post=each_once(update.modified_keys_post, rows_of),
        )

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.take_cells(keys.to_numpy(), columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        positions = np.searchsorted(self._starts, keys, side="right") - 1
        is_next = np.ones(len(keys), dtype=np.bool_)
        is_next[1:] = positions[1:] != positions[:-1]
        # Neighbours mostly come from one parent row, which is read once for them.
        rows = positions[is_next]
        picks = np.cumsum(is_next) - 1
        places = keys - self._starts[positions]
        cells = self.parent.take_cells(self._parent_keys.select_many(rows), columns)
        return tuple(
            _cells_at(column, picks, places)
            if index in self._lists
            else column.take(pa.array(picks))
            for index, column in zip(columns, cells, strict=True)
        )


def _cells_at(lists: pa.Array, rows: Int64Array, places: Int64Array) -> pa.Array:
    """The cells at places in the lists of rows."""
    if pa.types.is_fixed_size_list(lists.type):
        starts = (lists.offset + rows) * lists.type.list_size
    else:
        starts = np.asarray(lists.offsets, dtype=np.int64)[rows]
    return lists.values.take(pa.array(starts + places))


def _spans(starts: Int64Array, stops: Int64Array) -> RowSet:
    """The rows from each start to its stop (exclusive); spans ascend and may be empty."""
    is_any = starts < stops
    return RowSet.from_ranges(starts[is_any], stops[is_any] - 1)


def ungroup(table: Table, *columns: str) -> Table:
    """One row for each cell of the lists in ``columns`` (none: all columns of lists), which are
    equally long in each row; other columns are repeated. Null is an empty list."""
    lists = parse_lists(table.schema, columns)
    return derived(
        (table,),
        ("ungroup", lists),
        lambda parent: UngroupTable(parent, lists),
        price=work.of_lists(len(lists)),
    )
