"""Collecting ranges and keys in any order into one RowSet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.limits import ROW_KEY_MAX
from barrage.rowset.row_set import RowSet

if TYPE_CHECKING:
    import numpy.typing as npt


class RowSetBuilder:
    """Mutable counterpart of `RowSet`. Keys and ranges cost a list entry each until `build`."""

    __slots__ = ("_firsts", "_lasts", "_parts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._parts: list[RowSet] = []

    def add_key(self, key: int) -> None:
        """One key; ValueError outside 0 .. 2^63 - 1."""
        self.add_range(key, key)

    def add_range(self, first: int, last: int) -> None:
        """A closed range; it may overlap others."""
        if not 0 <= first <= last <= ROW_KEY_MAX:
            raise ValueError(f"not a range of row keys: {first}..{last}")
        self._firsts.append(first)
        self._lasts.append(last)

    def add_keys(self, keys: npt.ArrayLike) -> None:
        """Keys in any order."""
        self._parts.append(RowSet.from_keys(keys))

    def add_row_set(self, rows: RowSet) -> None:
        """All members of another set."""
        self._parts.append(rows)

    def build(self) -> RowSet:
        """Everything added so far. The builder may be used on; later sets contain the earlier
        members.
        """
        if self._firsts:
            firsts = np.array(self._firsts, dtype=np.int64)
            order = np.argsort(firsts, kind="stable")
            self._parts.append(
                RowSet.from_overlapping(firsts[order], np.array(self._lasts, dtype=np.int64)[order])
            )
            self._firsts, self._lasts = [], []
        while len(self._parts) > 1:  # pairwise, so that n parts cost n log n
            pairs = zip(self._parts[::2], self._parts[1::2], strict=False)
            odd = self._parts[-1:] if len(self._parts) % 2 else []
            self._parts = [a | b for a, b in pairs] + odd
        return self._parts[0] if self._parts else RowSet.empty()
