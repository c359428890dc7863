"""Whether what a cycle is to change of a table fits in a record, before it is committed.

Small writes to tables that are not large cost a few additions: what was staged in a cycle and what
the table may hold are estimated, and counted only where both together might be too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from barrage.errors import LimitExceededError
from barrage.journal.records import extents
from barrage.journal.records.extents import extent, is_bounded, rough_extent
from barrage.journal.records.record import plain_type
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barrage.engine.tables.source import Rows, SourceTable

_ROWS_AT_ONCE: Final = 1 << 10

_PLAIN_TEXTS: Final = frozenset((pa.string(), pa.binary()))


@dataclass(frozen=True, slots=True)
class _Staged:
    """One write, and the mark of its table behind it."""

    mark: int
    size: int
    rows: Sequence[Rows]


class RecordBound:
    """Of one table with a journal on disk. The engine's thread."""

    __slots__ = ("_columns", "_content", "_counted", "_recount_at", "_size", "_staged", "_table")

    def __init__(self, table: SourceTable) -> None:
        self._table = table
        self._columns = [
            (index, field.name)
            for index, field in enumerate(table.schema)
            if is_bounded(plain_type(field.type))
        ]
        self._content: int | None = None
        """What the rows of the table come to, at most; None before anybody has looked."""
        self._recount_at = 0
        self._staged: list[_Staged] = []
        self._size = 0
        self._counted: list[int] | None = None
        """Per column what the cycle comes to so far, where that had to be counted."""

    def cycle_ended(self) -> None:
        """What was staged is committed, or will never be."""
        if self._content is not None:
            self._content += self._size
        self._staged, self._size, self._counted = [], 0, None

    def take_back(self, mark: int) -> None:
        """What was staged after ``mark`` is not any more."""
        self._staged = [each for each in self._staged if each.mark <= mark]
        self._size = sum(each.size for each in self._staged)
        self._counted = None

    def check(self, rows: Iterable[object], *, name: str, is_whole: bool) -> None:
        """LimitExceededError when what is staged, ``rows`` being the last of it, does not fit in
        one record with the cells that it removes or overwrites; ``is_whole``: with all that are
        there. Then the rows are to be taken back."""
        if not self._columns:
            return
        fresh = [each for each in rows if isinstance(each, pa.Table | pa.RecordBatch)]
        size = sum(
            rough_extent(part) for _, column in self._columns for part in _parts(fresh, column)
        )
        if self._content is None:
            self._content = self._count_content()
        self._staged.append(_Staged(self._table.staged_mark(), size, fresh))
        self._size += size
        if self._size + self._content <= extents.EXTENT_MAX:
            return
        if self._size + self._content >= self._recount_at:
            self._content = self._count_content()
        if self._size + self._content > extents.EXTENT_MAX:
            self._count(name, is_whole=is_whole)

    def _count_content(self) -> int:
        content = sum(self._count_column(index) for index, _ in self._columns)
        self._recount_at = content + extents.EXTENT_MAX // 2
        return content

    def _count_column(self, index: int) -> int:
        """No less than what its cells come to. Texts are not gathered for it: what they take here
        is what they come to, and of large tables that were overwritten a pass takes seconds."""
        table = self._table
        if table.schema.field(index).type in _PLAIN_TEXTS:
            return table.storage.columns[index].nbytes
        (cells,) = table.read_cells(table.row_keys, [index])
        return rough_extent(cells)

    def _count(self, name: str, *, is_whole: bool) -> None:
        if self._counted is not None and not is_whole:
            # Rows that two writes touch count twice here, so that each write is looked at once.
            last = self._sizes(self._staged[-1:], self._table.touched_keys(self._staged[-2].mark))
            sizes = [sum(both) for both in zip(self._counted, last, strict=True)]
            if max(sizes) <= extents.EXTENT_MAX:
                self._counted = sizes
                return
        table = self._table
        touched = table.row_keys if is_whole else table.touched_keys()
        self._counted = self._sizes(self._staged, touched)
        for (_, column), size in zip(self._columns, self._counted, strict=True):
            if size > extents.EXTENT_MAX:
                raise LimitExceededError(
                    f"column {column!r} of what one cycle changes in table {name!r}, written "
                    "out, with the cells that it replaces,",
                    actual=size,
                    maximum=extents.EXTENT_MAX,
                    unit="bytes",
                )

    def _sizes(self, staged: Iterable[_Staged], touched: RowSet) -> list[int]:
        """Per column what rows that come and rows that go come to."""
        rows = [each for write in staged for each in write.rows]
        sizes = []
        for index, column in self._columns:
            fresh = extent(_parts(rows, column))
            sizes.append(fresh + self._extent_of(touched, index, extents.EXTENT_MAX - fresh))
        return sizes

    def _extent_of(self, keys: RowSet, index: int, enough: int) -> int:
        """What the cells of rows come to in one column; no further than it is ``enough``."""
        if keys.is_empty or keys.is_contiguous:
            return 0 if keys.is_empty else extent(self._table.read_cells(keys, [index]))
        total, every = 0, keys.to_numpy()
        for start in range(0, len(every), _ROWS_AT_ONCE):
            some = RowSet.from_sorted_keys(every[start : start + _ROWS_AT_ONCE])
            total += extent(self._table.read_cells(some, [index]))
            if total > enough:
                break
        return total


def _parts(rows: Iterable[Rows], column: str) -> list[pa.Array | pa.ChunkedArray]:
    return [each.column(column) for each in rows if column in each.schema.names]
