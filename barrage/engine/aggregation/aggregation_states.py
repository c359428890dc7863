"""Everything one table keeps per group for its aggregations, shared where several need the same.

What an aggregation rests on, by function: ``count()`` on the sizes of the groups; ``min``, ``max``,
``first`` and ``last`` on a picked row; all others on sums of one or two terms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.aggregation.aggregation_picks import GroupPicks
from barrage.engine.aggregation.aggregation_results import result_of_sums
from barrage.engine.aggregation.aggregation_sums import FloatSums, GroupSums, Term, sums_of
from barrage.engine.aggregation.grouping import in_groups
from barrage.engine.keys.ascending import distinct, is_among
from barrage.engine.tables.moved_rows import union_of
from barrage.engine.tables.row_memory import RowMemory
from barrage.engine.tables.work import LOOKED_THROUGH
from barrage.errors import EngineError
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from barrage.engine.aggregation.aggregation import Aggregation
    from barrage.engine.aggregation.grouping import GroupChange, GroupMoves, RowGroups
    from barrage.engine.tables.table import Table
    from barrage.model.storage.hashing import Int64Array
    from barrage.model.update import TableUpdate

    BoolArray = npt.NDArray[np.bool_]

_PICKS = ("min", "max", "first", "last")
_TERMS = {
    "count": ("present",),
    "sum": ("value",),
    "abs_sum": ("abs",),
    "avg": ("value",),
    "var": ("float", "square"),
    "std": ("float", "square"),
    "wavg": ("product", "weight"),
    "wsum": ("product",),
}


class AggregationStates:
    """The states of all aggregations of one table."""

    def __init__(
        self, parent: Table, groups: RowGroups, aggregations: Sequence[Aggregation]
    ) -> None:
        self._aggregations = aggregations
        self._groups = groups
        self._sums = _Sums(parent, groups)
        self._picks = _Picks(parent, groups)
        for index, aggregation in enumerate(aggregations):
            if aggregation.function in _PICKS:
                self._picks.add(index, aggregation)
            elif aggregation.column is not None:
                self._sums.add(self._terms(parent.schema, aggregation))
        self._sums.start()
        self._schema = parent.schema
        self.columns = tuple(sorted({*self._sums.columns, *self._picks.columns}))
        """Columns whose modification may change a result."""

    @staticmethod
    def _terms(schema: pa.Schema, aggregation: Aggregation) -> list[Term]:
        names = [name for name in (aggregation.column, aggregation.weight) if name is not None]
        columns = tuple(int(schema.get_field_index(name)) for name in names)
        terms = [Term(kind, columns) for kind in _TERMS[aggregation.function]]
        if terms[0].kind == "float" and pa.types.is_floating(schema.field(columns[0]).type):
            terms[0] = Term("value", columns)
        return terms

    def stand_upon(self, parent: Table) -> None:
        """Read from another table from now on."""
        self._groups.parent = self._sums.parent = self._picks.parent = parent
        for pick in self._picks.each():
            pick.parent = parent

    def enter(self, rows: Int64Array, groups: Int64Array) -> None:
        """Take in rows of a parent that is seen for the first time."""
        self._sums.enter(rows, groups)
        self._picks.enter(rows, groups)

    def advance(
        self,
        update: TableUpdate,
        change: GroupChange,
        shown: Callable[[int, Int64Array], pa.Array],
        *,
        spend: Callable[[int], None],
    ) -> None:
        """Follow the parent; ``shown(i, groups)`` gives what aggregation i showed before. ``spend``
        is told how many row operations it takes to look at all rows of groups before that is
        done."""
        self._sums.advance(update, change, spend)
        self._picks.advance(update, change, shown, spend=spend)

    def move(self, moves: GroupMoves) -> None:
        """Move groups to other numbers."""
        self._sums.move(moves)
        self._picks.move(moves)

    def results(self, groups: Int64Array) -> list[pa.Array]:
        """What the groups show now, one array per aggregation. EngineError when a sum does not fit
        its type."""
        return [self._result(aggregation, groups) for aggregation in self._aggregations]

    def _result(self, aggregation: Aggregation, groups: Int64Array) -> pa.Array:
        if aggregation.column is None:
            return pa.array(self._groups.sizes(groups))
        if aggregation.function in _PICKS:
            return self._picks.cells(aggregation, groups)
        terms = self._terms(self._schema, aggregation)
        sums = self._sums.of(terms)
        for state in sums:
            if aggregation.function in ("sum", "abs_sum"):
                self._check_fit(aggregation, state, groups)
        data_type = self._schema.field(terms[0].columns[0]).type
        return result_of_sums(aggregation.function, data_type, sums, groups=groups)

    def _check_fit(self, aggregation: Aggregation, state: GroupSums, groups: Int64Array) -> None:
        fits = state.fits(groups)
        if fits.all():
            return
        cells = self._groups.key_cells(groups[~fits][:1])
        where = ", ".join(repr(column[0].as_py()) for column in cells)
        raise EngineError(
            f"{aggregation.name}={aggregation.text} is too large for int64"
            + (f" in the group {where}" if where else "")
        )


class _Sums:
    """The sums, and the memory of what each row contributed to them."""

    def __init__(self, parent: Table, groups: RowGroups) -> None:
        self.parent = parent
        self._groups = groups
        self._states: dict[Term, GroupSums] = {}
        self._memory: RowMemory | None = None
        self.columns: list[int] = []
        """Columns that are added up or counted, ascending; the order of all cells here."""

    def add(self, terms: Sequence[Term]) -> None:
        """Have these terms added up."""
        for term in terms:
            types = [self.parent.schema.field(column).type for column in term.columns]
            self._states.setdefault(term, sums_of(term, types))
        plain, squares = self._states[terms[0]], self._states[terms[-1]]
        if terms[-1].kind == "square":
            assert isinstance(plain, FloatSums)
            assert isinstance(squares, FloatSums)
            plain.squares = squares

    def start(self) -> None:
        """All terms were added."""
        self.columns = sorted({column for term in self._states for column in term.columns})
        if self.columns and not (self.parent.is_append_only or self.parent.is_static):
            self._memory = RowMemory([self._remembered_type(column) for column in self.columns])

    def of(self, terms: Sequence[Term]) -> list[GroupSums]:
        return [self._states[term] for term in terms]

    def move(self, moves: GroupMoves) -> None:
        for state in self._states.values():
            state.move(moves)

    def _remembered_type(self, column: int) -> pa.DataType:
        if self._is_only_counted(column):
            return pa.bool_()
        return self.parent.schema.field(column).type

    def _is_only_counted(self, column: int) -> bool:
        """Whether it matters only which of the column's cells are null."""
        return all(term.kind == "present" for term in self._states if column in term.columns)

    def _cells_now(self, rows: Int64Array) -> list[pa.Array]:
        """The cells of rows as they are remembered."""
        cells = self.parent.take_cells(rows, self.columns)
        return [
            _presence(values) if self._is_only_counted(column) else values
            for column, values in zip(self.columns, cells, strict=True)
        ]

    def _cells_of(self, term: Term, cells: Sequence[pa.Array]) -> list[pa.Array]:
        return [cells[self.columns.index(column)] for column in term.columns]

    def enter(self, rows: Int64Array, groups: Int64Array) -> None:
        if not self._states or len(rows) == 0:
            return
        cells = self._cells_now(rows)
        if self._memory is not None:
            self._memory.add(rows, cells)
        nobody = np.zeros(len(groups), dtype=np.bool_)
        for term, state in self._states.items():
            state.grow(self._groups.count)
            state.change(groups, self._cells_of(term, cells), nobody)

    def advance(
        self, update: TableUpdate, change: GroupChange, spend: Callable[[int], None]
    ) -> None:
        if not self._states:
            return
        for state in self._states.values():
            state.grow(self._groups.count)
            state.reset(change.drained)
        left = None
        if self._memory is not None:
            left = self._take_back(update, change, self._memory)
        self.enter(change.added_rows, change.added_groups)
        if left is not None:
            self._add_up_anew(left, spend)

    def _take_back(self, update: TableUpdate, change: GroupChange, memory: RowMemory) -> Int64Array:
        """Subtract what rows contributed that left or changed, and add what they do now. The
        groups rows were subtracted from."""
        is_left = ~is_among(change.removed_groups, change.drained)
        gone_groups = change.removed_groups[is_left]
        gone_cells = _filtered(memory.remove(change.removed_rows_pre), is_left)
        memory.shift(update.shifts)
        moved = RowSet.from_sorted_keys(change.moved_rows)
        changed = {column: update.modified_keys_post[column] | moved for column in self.columns}
        rows = union_of(changed.values()).to_numpy()
        now = self._groups.groups_of(rows)
        before = now.copy()
        before[np.searchsorted(rows, change.moved_rows)] = change.moved_from
        old_cells, new_cells = memory.take(rows), self._cells_now(rows)
        stood = ~is_among(before, change.drained)
        for term, state in self._states.items():
            concerned = union_of(changed[column] for column in term.columns).contains_many(rows)
            leaving = concerned & stood
            parts = (
                (gone_groups, gone_cells),
                (before[leaving], _filtered(old_cells, leaving)),
                (now[concerned], _filtered(new_cells, concerned)),
            )
            cells = [self._cells_of(term, part) for _, part in parts]
            is_leaving = np.ones(sum(len(groups) for groups, _ in parts), dtype=np.bool_)
            is_leaving[len(is_leaving) - int(concerned.sum()) :] = False
            state.change(
                np.concatenate([groups for groups, _ in parts]),
                [pa.concat_arrays(column) for column in zip(*cells, strict=True)],
                is_leaving,
            )
        memory.write(rows, new_cells)
        return distinct(np.concatenate((gone_groups, before[stood])))

    def _add_up_anew(self, groups: Int64Array, spend: Callable[[int], None]) -> None:
        """Add up the rows of groups whose sums lost too many digits when rows left."""
        imprecise = {
            term: groups[state.is_imprecise(groups)] for term, state in self._states.items()
        }
        concerned = distinct(np.concatenate(list(imprecise.values())))
        if len(concerned) == 0:
            return
        spend(LOOKED_THROUGH * int(self._groups.sizes(concerned).sum()))
        rows, where = self._groups.rows_in(concerned)
        cells = self._cells_now(rows)
        for term, chosen in imprecise.items():
            if len(chosen) == 0:
                continue
            state = self._states[term]
            is_chosen = is_among(where, chosen)
            state.reset(chosen)
            state.change(
                where[is_chosen],
                _filtered(self._cells_of(term, cells), is_chosen),
                np.zeros(int(is_chosen.sum()), dtype=np.bool_),
            )


class _Picks:
    """The picked rows."""

    def __init__(self, parent: Table, groups: RowGroups) -> None:
        self.parent = parent
        self._groups = groups
        self._picks: dict[tuple[str, int], GroupPicks] = {}
        self._outputs: dict[tuple[str, int], int] = {}
        """An aggregation that shows the cells of the picked rows."""

    @property
    def columns(self) -> list[int]:
        return [pick.column for pick in self._picks.values()]

    def each(self) -> Iterable[GroupPicks]:
        return self._picks.values()

    def _key(self, aggregation: Aggregation) -> tuple[str, int]:
        column = int(self.parent.schema.get_field_index(aggregation.column))
        return aggregation.function, column

    def add(self, index: int, aggregation: Aggregation) -> None:
        """Have rows picked for aggregation number ``index``."""
        key = self._key(aggregation)
        if key not in self._picks:
            self._picks[key] = GroupPicks(self.parent, *key)
            self._outputs[key] = index

    def cells(self, aggregation: Aggregation, groups: Int64Array) -> pa.Array:
        return self._picks[self._key(aggregation)].cells(groups)

    def move(self, moves: GroupMoves) -> None:
        for pick in self._picks.values():
            pick.move(moves)

    def enter(self, rows: Int64Array, groups: Int64Array) -> None:
        for pick in self._picks.values():
            pick.grow(self._groups.count)
            pick.offer(rows, groups)

    def advance(
        self,
        update: TableUpdate,
        change: GroupChange,
        shown: Callable[[int, Int64Array], pa.Array],
        *,
        spend: Callable[[int], None],
    ) -> None:
        offers: list[tuple[Int64Array, Int64Array]] = []
        bereft = [np.empty(0, dtype=np.int64)]
        for key, pick in self._picks.items():
            pick.grow(self._groups.count)
            lost = pick.lose(change, update.shifts)
            # All rows of a group that drained are among those that entered.
            bereft.append(lost[~is_among(lost, change.drained)])
            rows = np.concatenate((change.moved_rows, change.added_rows))
            groups = np.concatenate((change.moved_to, change.added_groups))
            modified = in_groups(update, change, pick.column)
            if pick.is_by_cell and len(modified):
                where = self._groups.groups_of(modified)
                picked = np.flatnonzero(pick.is_picked(modified, where))
                old = shown(self._outputs[key], where[picked])
                bereft.append(pick.weakened(modified[picked], where[picked], old))
                rows, groups = np.concatenate((rows, modified)), np.concatenate((groups, where))
            offers.append((rows, groups))
        wanted = distinct(np.concatenate(bereft))
        spend(LOOKED_THROUGH * int(self._groups.sizes(wanted).sum()))
        found = self._groups.rows_in(wanted) if len(wanted) else (wanted, wanted)
        for pick, (rows, groups) in zip(self._picks.values(), offers, strict=True):
            pick.offer(np.concatenate((rows, found[0])), np.concatenate((groups, found[1])))


def _presence(cells: pa.Array) -> pa.Array:
    """True for every cell that is not null, null for the others."""
    return pa.array(np.ones(len(cells), dtype=np.bool_), mask=~_is_valid(cells))


def _is_valid(cells: pa.Array) -> BoolArray:
    return np.asarray(cells.is_valid().to_numpy(zero_copy_only=False))


def _filtered(cells: Sequence[pa.Array], is_kept: BoolArray) -> list[pa.Array]:
    if is_kept.all():
        return list(cells)
    picked = pa.array(np.flatnonzero(is_kept))
    return [column.take(picked) for column in cells]
