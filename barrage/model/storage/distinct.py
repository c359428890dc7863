"""Numbers for distinct rows, handed out in order of first appearance.

Rows are compared once, by their cells, and from then on by their numbers. Cells are equal when
their bits are; null is a value like others. Finding the numbers of a batch costs what the batch is,
however many rows are known.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from barrage.model.storage.hashing import hash_rows
from barrage.model.storage.key_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from barrage.model.storage.growth import Int64Array
    from barrage.model.storage.hashing import UInt64Array


class Cells(Protocol):
    """What one column of the rows is kept in."""

    @property
    def nbytes(self) -> int: ...
    def append(self, values: pa.Array) -> None: ...
    def take(self, slots: Int64Array) -> pa.Array: ...
    def pinned(self) -> Self: ...


Kept = TypeVar("Kept", bound=Cells)


class DistinctRows(Generic[Kept]):
    """A number 0.. for every row seen. The cells of each are kept, once."""

    def __init__(self, cells: Sequence[Kept]) -> None:
        """``cells``: what to keep them in, for each column an empty one of its type."""
        self._cells = list(cells)
        self._index = KeyIndex(lambda: self._cells)
        self.count = 0
        """Numbers handed out: all are below."""

    @property
    def nbytes(self) -> int:
        """Bytes held, those of the index included."""
        return self._index.nbytes + sum(store.nbytes for store in self._cells)

    def pinned(self) -> Self:
        """The rows there are now, for :meth:`cells` only."""
        copied = copy.copy(self)
        copied._cells = [store.pinned() for store in self._cells]
        return copied

    def cells(self, numbers: Int64Array) -> list[pa.Array]:
        """The rows with these numbers, one array per column."""
        return [store.take(numbers) for store in self._cells]

    def of(self, rows: Sequence[pa.Array]) -> Int64Array:
        """The number of each row of the columns; rows that are new get new ones."""
        hashes = hash_rows(rows)
        numbers = self._index.lookup(rows, hashes)
        missing = np.flatnonzero(numbers < 0)
        while len(missing):
            # One row per hash is surely a new one; rows that only share its hash are still missing
            # afterwards and go into the next round.
            _, first = np.unique(hashes[missing], return_index=True)
            first.sort()
            new, missing = missing[first], np.delete(missing, first)
            numbers[new] = self._added([column.take(pa.array(new)) for column in rows], hashes[new])
            if len(missing):
                alike = [column.take(pa.array(missing)) for column in rows]
                numbers[missing] = self._index.lookup(alike, hashes[missing])
                missing = missing[numbers[missing] < 0]
        return numbers

    def _added(self, rows: Sequence[pa.Array], hashes: UInt64Array) -> Int64Array:
        for store, column in zip(self._cells, rows, strict=True):
            store.append(column)
        numbers = np.arange(self.count, self.count + len(hashes), dtype=np.int64)
        self._index.add(hashes, numbers)
        self.count += len(hashes)
        return numbers

    def forget(self, numbers: Int64Array) -> None:
        """Let these rows be new ones when they come again; their numbers are not reused."""
        if len(numbers):
            self._index.remove(hash_rows(self.cells(numbers)), numbers)

    def moved(self, cells: Sequence[Kept]) -> None:
        """Keep the same rows in these cells from here on."""
        self._cells = list(cells)

    def restart(self, cells: Sequence[Kept], count: int) -> None:
        """Know these rows, ``count`` distinct ones, numbered from 0 on, and no others."""
        self._cells = list(cells)
        self.count = count
        self._index.rebuild(np.arange(count, dtype=np.int64))
