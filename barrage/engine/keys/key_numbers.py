"""Numbers for combinations of key values, handed out in order of first appearance.

What a table's key is to a keyed table, a number is to operators that bring rows with equal keys
together: rows are compared once, by their cells, and from then on by their numbers. Null is a key
value like others; 0.0 and -0.0 are one value, and so are all NaNs, as in Deephaven.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.keys.hashing import hash_rows
from barrage.engine.keys.key_index import KeyIndex
from barrage.model.storage import ColumnStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.keys.hashing import Int64Array, UInt64Array


class KeyNumbers:
    """A number 0.. for every combination seen. The cells of each are kept, once."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._cells = [ColumnStore(data_type) for data_type in types]
        self._index = KeyIndex(lambda: self._cells)
        self.count = 0
        """Numbers handed out: all are below."""

    def pinned(self) -> KeyNumbers:
        """The combinations there are now, for :meth:`cells` only."""
        copied = copy.copy(self)
        copied._cells = [store.pinned() for store in self._cells]
        return copied

    def cells(self, numbers: Int64Array) -> list[pa.Array]:
        """The combinations with these numbers, one array per key column."""
        return [store.take(numbers) for store in self._cells]

    def of(self, keys: Sequence[pa.Array]) -> Int64Array:
        """The number of each row of the key columns; combinations that are new get new ones."""
        keys = [_canonical(column) for column in keys]
        hashes = hash_rows(keys)
        numbers = self._index.lookup(keys, hashes)
        missing = np.flatnonzero(numbers < 0)
        while len(missing):
            # One row per hash is surely a new combination of its own; rows that only share its hash
            # are still missing afterwards and go into the next round.
            _, first = np.unique(hashes[missing], return_index=True)
            self._add(keys, hashes, missing[np.sort(first)])
            picked = pa.array(missing)
            numbers[missing] = self._index.lookup(
                [column.take(picked) for column in keys], hashes[missing]
            )
            missing = missing[numbers[missing] < 0]
        return numbers

    def _add(self, keys: Sequence[pa.Array], hashes: UInt64Array, rows: Int64Array) -> None:
        picked = pa.array(rows)
        for store, column in zip(self._cells, keys, strict=True):
            store.append(column.take(picked))
        start, self.count = self.count, self.count + len(rows)
        self._index.add(hashes[rows], np.arange(start, self.count, dtype=np.int64))

    def forget(self, numbers: Int64Array) -> None:
        """Let these combinations be new ones when they come again; their numbers are not reused."""
        if len(numbers):
            self._index.remove(hash_rows(self.cells(numbers)), numbers)

    def keep(self, numbers: Int64Array) -> None:
        """Forget all combinations but these and number them anew: 0 for the first given, and so
        on."""
        self._cells = [store.compacted(numbers) for store in self._cells]
        self.count = len(numbers)
        self._index.rebuild(np.arange(self.count, dtype=np.int64))


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
