"""Every row of the left table with columns of the one right row that has the same key.

State, no values but the keys: each combination of key values has a number; every left and every
right row has the number of its key, and every number has at most one right row. The result has the
left table's keys; its right columns are read through these maps.

A cycle costs a few vector operations over the changed rows. When right rows changed, one pass over
the numbers of the left rows (about a millisecond per million) finds those that show them. Cells
that show another right row than before are compared, so that only those that changed are told as
modified; where the row that was shown is gone or was modified itself, its old cell is unknown and
the cell counts as changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.aggregation.grouping import GroupMoves
from barrage.engine.keys.ascending import distinct
from barrage.engine.keys.key_map import KeyMap
from barrage.engine.keys.key_numbers import KeyNumbers
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.cells import EVALUATED_ROWS
from barrage.engine.tables.moved_rows import merged_keys, union_of
from barrage.engine.tables.table import DerivedTable
from barrage.errors import RowError, SchemaError, near_miss
from barrage.model.storage import cells_differ
from barrage.model.storage.equality import may_be_long
from barrage.model.storage.growth import lengthened
from barrage.model.storage.hashing import is_hashable
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.rowset import RowSetShiftData
    from barrage.rowset.arrays import Int64Array

    BoolArray = npt.NDArray[np.bool_]

NO_ROW = -1
"""In place of a right row: there is none with that key."""
GONE = -2
"""In place of a right row of before: it was removed in this cycle."""

FREE_NUMBERS_MIN = 4096

PACKED_TOGETHER = 1 << 17
"""Numbers that one cycle looks at to find out which no row has any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What is joined, by column index. ``added`` is (new name, right column); equal joins are
    equal."""

    left_keys: tuple[int, ...]
    right_keys: tuple[int, ...]
    added: tuple[tuple[str, int], ...]

    @property
    def identity(self) -> tuple[object, ...]:
        return self.left_keys, self.right_keys, self.added


def parse_join(
    left: pa.Schema, right: pa.Schema, *, on: str | Sequence[str], add: str | Sequence[str]
) -> Join:
    """Check the column names of a join; SchemaError says what does not fit.

    No ``on`` joins every left row with the only right row.
    """
    matches = [_parse_pair(text) for text in ((on,) if isinstance(on, str) else on)]
    left_keys = tuple(_key_column(left, name, "left") for name, _ in matches)
    right_keys = tuple(_key_column(right, name, "right") for _, name in matches)
    for left_key, right_key in zip(left_keys, right_keys, strict=True):
        _check_types(left.field(left_key), right.field(right_key))
    wanted = [_parse_pair(text) for text in ((add,) if isinstance(add, str) else add)]
    if not wanted:
        keys = set(right_keys)
        wanted = [(name, name) for i, name in enumerate(right.names) if i not in keys]
    names = set(left.names)
    for name, _ in wanted:
        if name in names:
            raise SchemaError(
                f"the joined table would have two columns {name!r}; rename one: 'new={name}'"
            )
        names.add(name)
    added = tuple((name, _index_of(right, source, "right")) for name, source in wanted)
    return Join(left_keys=left_keys, right_keys=right_keys, added=added)


def _parse_pair(text: str) -> tuple[str, str]:
    """``"a"`` or ``"a=b"`` (also ``"a==b"``) as two names."""
    first, sign, second = text.partition("=")
    return (first.strip(), second.removeprefix("=").strip()) if sign else (text, text)


def _index_of(schema: pa.Schema, name: str, side: str) -> int:
    index = int(schema.get_field_index(name))
    if index < 0:
        raise SchemaError(f"the {side} table has no column {name!r}{near_miss(name, schema.names)}")
    return index


def _key_column(schema: pa.Schema, name: str, side: str) -> int:
    index = _index_of(schema, name, side)
    data_type = schema.field(index).type
    if not is_hashable(data_type):
        raise SchemaError(f"column {name!r} of type {data_type} cannot be a key of a join")
    return index


def _check_types(left: pa.Field, right: pa.Field) -> None:
    if _plain_type(left.type) != _plain_type(right.type):
        raise SchemaError(
            f"a join cannot match {left.name!r} of type {left.type} with {right.name!r} of type "
            f"{right.type}; convert one of them"
        )


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values, however they are encoded."""
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def _key_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """How a key is given numbers whose values are the same on both sides: texts that either side
    has in a dictionary are not written out, for many rows may have a long one."""
    plain = _plain_type(left)
    is_encoded = pa.types.is_dictionary(left) or pa.types.is_dictionary(right)
    return pa.dictionary(pa.int32(), plain) if is_encoded and may_be_long(plain) else plain


@dataclass(frozen=True, slots=True)
class _RightChange:
    """What a cycle did on the right. ``was`` is the right row of every number before the cycle, in
    keys after it, or ``GONE``; ``touched`` are the numbers whose right row may be another now."""

    was: Int64Array
    touched: Int64Array


@dataclass(frozen=True, slots=True)
class _LeftMoves:
    """Left rows whose key changed (ascending), and their numbers before and now."""

    rows: Int64Array
    before: Int64Array
    now: Int64Array


class NaturalJoinTable(DerivedTable):
    """The left table's rows, keys and columns, then the added columns."""

    def __init__(self, left: Table, right: Table, join: Join) -> None:
        fields = [
            right.schema.field(source).with_name(name).with_nullable(True)
            for name, source in join.added
        ]
        schema = pa.schema([*left.schema, *fields], metadata=left.schema.metadata)
        traits = left.traits.changed(
            is_static=left.is_static and right.is_static,
            is_append_only=left.is_append_only and right.is_static,
        )
        super().__init__(left, schema, traits, others=(right,))
        self.right = right
        self._join = join
        self._left_width = len(left.schema)
        self._key_types = [
            _key_type(left.schema.field(one).type, right.schema.field(other).type)
            for one, other in zip(join.left_keys, join.right_keys, strict=True)
        ]
        self._numbers = KeyNumbers(self._key_types or [pa.int8()])
        self._left_number = KeyMap()
        self._right_number = KeyMap()
        self._looked_upto = self._packed_upto = 0
        self._right_row: Int64Array = np.empty(0, dtype=np.int64)
        """Right row of each number; longer than there are numbers, so that it rarely grows."""
        rows = right.row_keys.to_numpy()
        numbers = self._numbers_of_all(right, join.right_keys)
        self._enter(rows, numbers)
        if not right.is_static:
            self._right_number.add(rows, numbers)
        numbers = self._numbers_of_all(left, join.left_keys)
        self._left_number.add(left.row_keys.to_numpy(), numbers)
        self._count_before = self._numbers.count
        self._row_keys = left.row_keys

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return NaturalJoinTable(parents[0], parents[1], self._join)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self.right = parents[1]

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        self.right = self.parents[1]
        self._left_number = self._left_number.pinned()
        self._right_row = self._right_row.copy()

    def _numbers_of_all(self, table: Table, columns: Sequence[int]) -> Int64Array:
        """The numbers of all rows of a parent, with bounded temporaries."""
        rows = table.row_keys.to_numpy()
        parts = [
            self._numbers_of(table, columns, rows[start : start + EVALUATED_ROWS])
            for start in range(0, max(1, len(rows)), EVALUATED_ROWS)
        ]
        return np.concatenate(parts)

    def _numbers_of(self, table: Table, columns: Sequence[int], rows: Int64Array) -> Int64Array:
        """The numbers of the keys of some rows of a parent; makes room for new ones."""
        wanted = sorted(set(columns))
        cells = dict(zip(wanted, table.take_cells(rows, wanted), strict=True))
        keys = [
            _as_type(cells[column], data_type)
            for column, data_type in zip(columns, self._key_types, strict=True)
        ]
        numbers = self._numbers.of(keys or [pa.nulls(len(rows), pa.int8())])
        self._right_row = lengthened(self._right_row, self._numbers.count, NO_ROW)
        return numbers

    def _enter(self, rows: Int64Array, numbers: Int64Array) -> None:
        """Give the numbers their right rows; RowError when one has two."""
        is_taken = self._right_row[numbers] != NO_ROW
        self._right_row[numbers] = rows
        is_taken |= self._right_row[numbers] != rows
        if not is_taken.any():
            return
        if not self._join.right_keys:
            raise RowError("a natural join without keys wants at most one row on the right")
        cells = self._numbers.cells(numbers[np.flatnonzero(is_taken)[:1]])
        key = ", ".join(repr(column[0].as_py()) for column in cells)
        names = [self.right.schema.names[column] for column in self._join.right_keys]
        raise RowError(
            f"key {key} occurs twice on the right side of a natural join", column=", ".join(names)
        )

    def advance_all(self, updates: Sequence[TableUpdate]) -> TableUpdate:
        left, right = updates
        change = self._follow_right(right)
        moves = self._follow_left(left)
        # New numbers of left keys had no right row before, and were unknown to the right side.
        was = lengthened(change.was, len(self._right_row), NO_ROW)
        modified = self._modified(left, right, _RightChange(was, change.touched), moves=moves)
        self._row_keys = self.parent.row_keys
        self._collect()
        return TableUpdate(
            first_step=left.first_step,
            last_step=left.last_step,
            removed_keys_pre=left.removed_keys_pre,
            shifts=left.shifts,
            added_keys_post=left.added_keys_post,
            modified_keys_post=(*left.modified_keys_post, *modified),
        )

    def _follow_right(self, update: TableUpdate) -> _RightChange:
        """Bring the right rows up to date."""
        rekeyed = union_of(update.modified_keys_post[c] for c in self._join.right_keys).to_numpy()
        removed, added = update.removed_keys_pre.to_numpy(), update.added_keys_post.to_numpy()
        bereft = self._right_number.lookup(removed)
        self._right_number.remove(removed)
        self._right_row[bereft] = NO_ROW
        if not update.shifts.is_empty:
            self._right_number.shift(update.shifts)
            self._right_row = _shifted(self._right_row, update.shifts)
        if not len(removed) + len(rekeyed) + len(added):
            return _RightChange(self._right_row, np.empty(0, dtype=np.int64))
        left_behind = self._right_number.lookup(rekeyed)
        entering = np.concatenate((rekeyed, added))
        numbers = self._numbers_of(self.right, self._join.right_keys, entering)
        was = self._right_row.copy()
        was[bereft] = GONE
        self._right_row[left_behind] = NO_ROW
        self._enter(entering, numbers)
        self._right_number.assign(rekeyed, numbers[: len(rekeyed)])
        self._right_number.add(added, numbers[len(rekeyed) :])
        return _RightChange(was, np.concatenate((bereft, left_behind, numbers)))

    def _follow_left(self, update: TableUpdate) -> _LeftMoves:
        """Bring the numbers of the left rows up to date."""
        keys = self._join.left_keys
        self._left_number.remove(update.removed_keys_pre.to_numpy())
        self._left_number.shift(update.shifts)
        rows = union_of(update.modified_keys_post[column] for column in keys).to_numpy()
        before = self._left_number.lookup(rows)
        now = before
        if len(rows):
            now = self._numbers_of(self.parent, keys, rows)
            self._left_number.assign(rows, now)
        added = update.added_keys_post.to_numpy()
        if len(added):
            self._left_number.add(added, self._numbers_of(self.parent, keys, added))
        is_moved = before != now
        return _LeftMoves(rows[is_moved], before[is_moved], now[is_moved])

    def _modified(
        self, left: TableUpdate, right: TableUpdate, change: _RightChange, *, moves: _LeftMoves
    ) -> list[RowSet]:
        """Per added column the rows that stayed and show another cell now."""
        sources = [source for _, source in self._join.added]
        if not sources:
            return []
        rewritten = union_of(right.modified_keys_post[source] for source in sources).to_numpy()
        numbers = distinct(np.concatenate((change.touched, self._right_number.lookup(rewritten))))
        was, now = change.was, self._right_row
        differs = [self._differs(right, c, was=was[numbers], now=now[numbers]) for c in sources]
        is_changed = np.logical_or.reduce(differs)
        rows, places = self._rows_showing(left, numbers[is_changed], moves)
        modified: list[RowSet] = []
        for source, differ in zip(sources, differs, strict=True):
            changed = rows[differ[is_changed][places]]
            if len(moves.rows):
                moved = self._differs(right, source, was=was[moves.before], now=now[moves.now])
                changed = merged_keys(changed, moves.rows[moved])
            modified.append(_shared(RowSet.from_sorted_keys(changed), modified))
        return modified

    def _differs(
        self, right: TableUpdate, column: int, *, was: Int64Array, now: Int64Array
    ) -> BoolArray:
        """Where a cell that showed right row ``was`` and shows ``now`` may hold another value."""
        written = right.modified_keys_post[column]
        differ: BoolArray = was == GONE
        if not written.is_empty:
            differ |= written.contains_many(was)
        switched = np.flatnonzero(~differ & (was != now))
        if len(switched):
            (old,) = self._right_cells(was[switched], [column])
            (new,) = self._right_cells(now[switched], [column])
            differ[switched] = cells_differ(old, new)
        return differ

    def _rows_showing(
        self, left: TableUpdate, numbers: Int64Array, moves: _LeftMoves
    ) -> tuple[Int64Array, Int64Array]:
        """Left rows, ascending, that had one of the ascending ``numbers`` before the cycle and
        still have it, and where in ``numbers`` it is."""
        if len(numbers) == 0:
            return numbers, numbers
        is_wanted = np.zeros(len(self._right_row), dtype=np.bool_)
        is_wanted[numbers] = True
        rows, found = self._left_number.items_with(is_wanted)
        self.spend(work.TOLD * len(rows))
        stayed = ~left.added_keys_post.contains_many(rows)
        if len(moves.rows):
            stayed &= ~RowSet.from_sorted_keys(moves.rows).contains_many(rows)
        return rows[stayed], np.searchsorted(numbers, found[stayed])

    def _collect(self) -> None:
        """Once more than half of the numbers may be without any row, look at all of them, so many
        in a cycle: forget those that are, and move the others to lower numbers."""
        count = self._numbers.count
        came, self._count_before = count - self._count_before, count
        most = 2 * (self.parent.size + self.right.size) + FREE_NUMBERS_MIN
        if not self._looked_upto and count <= most:
            return
        # As many more as came, or new numbers might always stay ahead.
        start = self._looked_upto
        stop = min(start + PACKED_TOGETHER + came, count)
        is_live = self._right_row[start:stop] != NO_ROW
        is_wanted = np.zeros(len(self._right_row), dtype=np.bool_)
        is_wanted[start:stop] = True
        found = [(rows, *rows.items_with(is_wanted)) for rows in self._maps]
        for _, _, numbers in found:
            is_live[numbers - start] = True
        places = self._packed_upto + np.cumsum(is_live) - 1
        for rows, keys, numbers in found:
            rows.assign(keys, places[numbers - start])
        self._numbers.forget(start + np.flatnonzero(~is_live))
        self._move(start + np.flatnonzero(is_live), places[is_live], is_end=stop == count)
        self._looked_upto = 0 if stop == count else stop

    def _move(self, numbers: Int64Array, to: Int64Array, *, is_end: bool) -> None:
        """Give numbers that are lived in to others; at the end no others are handed out."""
        self._packed_upto += len(numbers)
        is_moved = numbers != to
        moves = GroupMoves(
            groups=numbers[is_moved], to=to[is_moved], count=self._packed_upto if is_end else None
        )
        moves.apply(self._right_row, NO_ROW)
        self._numbers.move(moves.groups, moves.to)
        if is_end:
            self._numbers.truncate(self._packed_upto)
            self._count_before, self._packed_upto = self._packed_upto, 0

    @property
    def _maps(self) -> tuple[KeyMap, KeyMap]:
        return self._left_number, self._right_number

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        own, joined = self._split(columns)
        cells = self.parent.read_cells(keys, own) if own else ()
        if joined:
            cells += self._joined_cells(keys.to_numpy(), joined)
        return cells

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        own, joined = self._split(columns)
        cells = self.parent.take_cells(keys, own) if own else ()
        if joined:
            cells += self._joined_cells(keys, joined)
        return cells

    def _split(self, columns: Sequence[int]) -> tuple[list[int], list[int]]:
        """Left columns, and right columns by their index in the right table."""
        width = self._left_width
        own = [column for column in columns if column < width]
        return own, [self._join.added[c - width][1] for c in columns if c >= width]

    def _joined_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self._right_cells(self._right_row[self._left_number.lookup(keys)], columns)

    def _right_cells(self, rows: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        """Cells of right rows, null for ``NO_ROW``."""
        is_missing = rows == NO_ROW
        if not is_missing.any():
            return self.right.take_cells(rows, columns)
        cells = self.right.take_cells(rows[~is_missing], columns)
        picks = pa.array(np.cumsum(~is_missing) - 1, mask=is_missing)
        return tuple(_with_nulls(column, picks) for column in cells)


def _as_type(cells: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Cells of a key as they are given numbers."""
    if not pa.types.is_dictionary(data_type):
        return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
    if not pa.types.is_dictionary(cells.type):
        return cells.dictionary_encode()
    codes = cells.indices.cast(data_type.index_type)
    return pa.DictionaryArray.from_arrays(codes, cells.dictionary, safe=False)


def _with_nulls(cells: pa.Array, picks: pa.Array) -> pa.Array:
    """The picked cells, null where a pick is null."""
    if pa.types.is_null(cells.type):
        return pa.nulls(len(picks))
    if pa.types.is_run_end_encoded(cells.type):
        plain = pc.run_end_decode(cells).take(picks)
        return pc.run_end_encode(plain, run_end_type=cells.type.run_end_type)
    return cells.take(picks)


def _shifted(rows: Int64Array, shifts: RowSetShiftData) -> Int64Array:
    """Right rows after the shifts; numbers without one keep that mark."""
    present = np.flatnonzero(rows != NO_ROW)
    moved = rows.copy()
    moved[present] = shifts.apply_keys(rows[present])
    return moved


def _shared(rows: RowSet, known: Sequence[RowSet]) -> RowSet:
    """An equal set of a column before, which spares the readers of the update work."""
    return known[-1] if known and known[-1] == rows else rows


def natural_join(  # noqa: PLR0917  (a query's arguments, in order)
    table: Table, right: Table, on: str | Sequence[str], add: str | Sequence[str] = ()
) -> Table:
    """Every row, with columns of the one row of ``right`` that has the same key; null where there
    is none.

    ``on`` names the key columns as ``"name"`` or ``"left=right"``, ``add`` the columns wanted as
    ``"name"`` or ``"new=right"`` (none: all of ``right`` but its key columns). Two rows of
    ``right`` with one key are an error.
    """
    join = parse_join(table.schema, right.schema, on=on, add=add)
    return derived(
        (table, right),
        ("natural_join", join.identity),
        lambda left, partner: NaturalJoinTable(left, partner, join),
        price=work.of_groups(len(join.left_keys)),
    )
