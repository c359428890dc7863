"""What somebody may see of a table: some rows, some columns, some of these with other cells.

One operator for all three, made to tell nothing of what it leaves out:

* its rows are densely numbered, so that gaps between keys do not tell how many are missing;
* a row that changed only in columns that are not shown, or shown as a constant, has not changed;
* dictionaries have the entries of its own rows and no others;
* when it fails, or what it reads from, it says so and nothing else: errors may quote cells.

State: the keys of the parent's rows that are shown. Cells are read from the parent and masked when
they are read.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.operators.flatten import densely
from barrage.engine.operators.where import WhereTable
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.table import DerivedTable
from barrage.errors import BarrageError, CycleTooLongError, TableFailedError
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from barrage.engine.operators.where import RowCondition
    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.rowset.arrays import Int64Array

UNSHOWN = "the rules for this table cannot be computed any more; ask whoever keeps the server"
"""All that is told of a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMask:
    """What one column shows instead of its cells. ``apply`` takes an array and returns one as long,
    of the column's type in the result. ``is_constant``: it does so whatever the cells are."""

    apply: Callable[[pa.Array], pa.Array]
    is_constant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Restricted:
    """What is shown of tables of one schema."""

    condition: RowCondition | None
    """Which rows; None for all of them."""
    columns: tuple[int, ...]
    """The parent's column of each column that is shown."""
    schema: pa.Schema
    """Of what is shown."""
    masks: Mapping[int, CellMask]
    """By the parent's column."""
    identity: Hashable
    """Equal for what shows the same, in every process."""


@contextmanager
def _saying_nothing() -> Iterator[None]:
    """An error of the condition or of the masks, whose text may quote cells, is told as none."""
    try:
        yield
    except (BarrageError, pa.ArrowException) as error:
        raise TableFailedError(UNSHOWN) from error


class RestrictTable(DerivedTable):
    """The operator."""

    def __init__(self, parent: Table, shown: Restricted) -> None:
        is_whole = shown.condition is None
        traits = parent.traits if is_whole else parent.traits.changed(is_flat=True)
        unmasked = {parent.schema.names[each] for each in shown.columns if each not in shown.masks}
        if not set(traits.key_columns) <= unmasked:
            traits = traits.changed(key_columns=())
        super().__init__(parent, shown.schema, traits)
        self._shown = shown
        self.reading += work.of_conversions(len(shown.masks)).per_row
        self._rows: WhereTable | None = None
        if shown.condition is not None:
            with _saying_nothing():
                self._rows = WhereTable(parent, shown.condition)
        self._row_keys = self._numbered()

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return RestrictTable(parents[0], self._shown)

    def told_failure(self, error: BarrageError) -> BarrageError:
        is_too_long = isinstance(error, CycleTooLongError)
        told = CycleTooLongError() if is_too_long else TableFailedError(UNSHOWN)
        told.__cause__ = error
        return told

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        if self._rows is not None:
            self._rows.stand_upon(parents)

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        if self._rows is not None:
            rows = self._rows.pinned(known)
            assert isinstance(rows, WhereTable)
            self._rows = rows

    def _numbered(self) -> RowSet:
        """The keys of what is shown."""
        if self._rows is None:
            return self.parent.row_keys
        return RowSet.of_span(0, self._rows.size)

    def advance(self, update: TableUpdate) -> TableUpdate:
        if self._rows is not None:
            before = self._rows.row_keys
            with _saying_nothing():
                chosen = self._rows.advance(update)
            update = densely(chosen, before, self._rows.row_keys)
        self._row_keys = self._numbered()
        shown = self._shown
        unmoved = RowSet.empty()
        modified = tuple(
            unmoved
            if column in shown.masks and shown.masks[column].is_constant
            else update.modified_keys_post[column]
            for column in shown.columns
        )
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=update.removed_keys_pre,
            shifts=update.shifts,
            added_keys_post=update.added_keys_post,
            modified_keys_post=modified,
        )

    # --- cells ---

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        if self._rows is not None:
            keys = self._rows.row_keys.keys_at(keys)
        wanted = [self._shown.columns[column] for column in columns]
        return self._masked(wanted, self._of_parent(wanted, keys))

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        if self._rows is not None:
            keys = self._rows.row_keys.select_many(keys)
        wanted = [self._shown.columns[column] for column in columns]
        cells = self.parent.take_cells(keys, wanted)
        return tuple(
            self._masked_array(column, array) for column, array in zip(wanted, cells, strict=True)
        )

    def _of_parent(self, wanted: Sequence[int], keys: RowSet) -> tuple[Cells, ...]:
        """Operators give cells in ascending order of columns."""
        ascending = sorted(wanted)
        if ascending == list(wanted):
            return self.parent.read_cells(keys, wanted)
        cells = dict(zip(ascending, self.parent.read_cells(keys, ascending), strict=True))
        return tuple(cells[column] for column in wanted)

    def _masked(self, wanted: Sequence[int], cells: tuple[Cells, ...]) -> tuple[Cells, ...]:
        return tuple(
            self._masked_cells(column, each) for column, each in zip(wanted, cells, strict=True)
        )

    def _masked_cells(self, column: int, cells: Cells) -> Cells:
        if isinstance(cells, pa.ChunkedArray):
            field = self.schema.field(self._shown.columns.index(column))
            chunks = [self._masked_array(column, chunk) for chunk in cells.chunks]
            return pa.chunked_array(chunks, type=field.type)
        return self._masked_array(column, cells)

    def _masked_array(self, column: int, cells: pa.Array) -> pa.Array:
        mask = self._shown.masks.get(column)
        if mask is not None:
            with _saying_nothing():
                return mask.apply(cells)
        return of_used_entries(cells) if pa.types.is_dictionary(cells.type) else cells


def of_used_entries(cells: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same cells with a dictionary of the entries they have, in that order."""
    used = cells.indices.dictionary_encode()
    kept = used.dictionary
    if len(kept) == len(cells.dictionary):
        return cells
    return pa.DictionaryArray.from_arrays(
        used.indices.cast(cells.type.index_type),
        cells.dictionary.take(kept),
        ordered=cells.type.ordered,
    )


def rests_on_part(table: Table) -> bool:
    """Whether it is made of a part of another table."""
    waiting, seen = [table], set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, RestrictTable):
            return True
        if isinstance(each, DerivedTable) and each.serial not in seen:
            seen.add(each.serial)
            waiting.extend(each.parents)
    return False


def restrict(table: Table, shown: Restricted) -> Table:
    """What is shown of ``table``. TableFailedError, which tells nothing, when it cannot be
    computed, besides what :func:`derived` raises for the work."""
    price = work.of_conversions(0)
    if shown.condition is not None:
        price = work.of_terms(shown.condition.row_operations)
    return derived(
        (table,),
        ("restrict", shown.identity),
        lambda parent: RestrictTable(parent, shown),
        price=price,
    )
