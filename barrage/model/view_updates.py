"""Updates of many views at once, as arrays: what a tick means for thousands of viewports.

One object says what :class:`barrage.model.update.ViewUpdate` says for each of its views. Values are
gathered once for all of them; a view's rows are a slice of the gathered ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from barrage.model.update import ViewUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.model.viewport import ColumnSet
    from barrage.rowset.arrays import Int64Array
    from barrage.rowset.many_sets import ManyRowSets

Column: TypeAlias = pa.Array | pa.ChunkedArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRows:
    """Rows of many views that are told the same columns: ``rows[i]`` are view indices of view i,
    and its values are the ``sizes[i]`` rows of ``values`` from ``low[i]`` on."""

    columns: ColumnSet
    rows: ManyRowSets
    sizes: Int64Array
    low: Int64Array
    values: tuple[Column, ...]
    """One entry for each of ``columns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewUpdates:
    """What each of many views of one table is told at one moment: ``count`` views of equal columns
    and one direction."""

    first_step: int
    last_step: int
    count: int
    is_snapshot: bool
    is_effective_reverse: bool
    effective_columns: ColumnSet | None
    effective_viewports: ManyRowSets | None
    """The requested positions; None on deltas."""
    table_size: int
    source_time_ns: int | None
    no_values: tuple[pa.Array, ...]
    """For each schema column the array without rows."""
    removed: ManyRowSets | None
    """Old view indices of the rows that leave; None where none leaves any view."""
    added: ViewRows | None
    """The rows that come; None where none comes to any view."""
    modified: tuple[ViewRows, ...]
    """Groups of columns that were modified in the same rows."""
    modified_rows: ManyRowSets | None
    """Of each view the rows that were modified in any column; None where none was."""

    def __len__(self) -> int:
        return self.count

    def view(self, index: int) -> ViewUpdate:
        """The update of one view by itself."""
        modified = [RowSet.empty()] * len(self.no_values)
        modified_columns: list[Column] = list(self.no_values)
        for group in self.modified:
            rows = group.rows[index]
            for column, values in zip(group.columns, _cut(group, index), strict=True):
                modified[column], modified_columns[column] = rows, values
        added_columns: list[Column] = list(self.no_values)
        if self.added is not None:
            for column, values in zip(self.added.columns, _cut(self.added, index), strict=True):
                added_columns[column] = values
        viewports = self.effective_viewports
        return ViewUpdate(
            first_step=self.first_step,
            last_step=self.last_step,
            is_snapshot=self.is_snapshot,
            effective_viewport=None if viewports is None else viewports[index],
            is_effective_reverse=self.is_effective_reverse,
            effective_columns=self.effective_columns,
            table_size=self.table_size,
            added_columns=tuple(added_columns),
            modified_columns=tuple(modified_columns),
            source_time_ns=self.source_time_ns,
            removed_positions=RowSet.empty() if self.removed is None else self.removed[index],
            added_positions=RowSet.empty() if self.added is None else self.added.rows[index],
            modified_positions=tuple(modified),
        )


def _cut(group: ViewRows, index: int) -> list[Column]:
    low, size = int(group.low[index]), int(group.sizes[index])
    return [values.slice(low, size) for values in group.values]
