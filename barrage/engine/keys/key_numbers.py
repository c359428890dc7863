"""Numbers for combinations of key values, handed out in order of first appearance.

What a table's key is to a keyed table, a number is to operators that bring rows with equal keys
together: rows are compared once, by their cells, and from then on by their numbers. Null is a key
value like others; 0.0 and -0.0 are one value, and so are all NaNs, as in Deephaven.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.model.storage import ColumnStore
from barrage.model.storage.distinct import DistinctRows
from barrage.model.storage.hashing import hash_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.model.storage.hashing import Int64Array


class KeyNumbers(DistinctRows[ColumnStore]):
    """A number 0.. for every combination seen. The cells of each are kept, once."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        super().__init__([ColumnStore(data_type) for data_type in types])

    def of(self, rows: Sequence[pa.Array]) -> Int64Array:
        """The number of each row of the key columns; combinations that are new get new ones."""
        return super().of([_canonical(column) for column in rows])

    def move(self, numbers: Int64Array, to: Int64Array) -> None:
        """Give some combinations other numbers, which are theirs or nobody's."""
        if len(numbers) == 0:
            return
        cells = self.cells(numbers)
        self._index.moved(hash_rows(cells), numbers, to)
        for store, column in zip(self._cells, cells, strict=True):
            store.write(to, column)

    def truncate(self, count: int) -> None:
        """Hand out numbers from ``count`` on next; nobody has one that is not below."""
        for store in self._cells:
            store.truncate(count)
            store.give_up_unused()
        self.count = count
        self._index.give_up_spare()


def _canonical(column: pa.Array) -> pa.Array:
    """The column with one zero and one NaN; cells are hashed and compared by their bits."""
    if pa.types.is_dictionary(column.type):
        values = column.dictionary
        canonical = _canonical(values)
        if canonical is values:
            return column
        return pa.DictionaryArray.from_arrays(
            column.indices, canonical, ordered=column.type.ordered, safe=False
        )
    if not (pa.types.is_float32(column.type) or pa.types.is_float64(column.type)):
        return column
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
