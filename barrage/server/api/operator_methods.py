# Written by scripts/operator_methods.py (make generated); do not edit.
# It follows from barrage/model/operators.py.
"""The operators as methods of a server's tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barrage.server.api.table_handle import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.server.api.table_handle import TableHandle

R = TypeVar("R")


class OperatorMethods(ABC, Generic[R]):
    """Each operator gives an ``R``: a view, or a coroutine that returns one."""

    @abstractmethod
    def _view(self, operator: str, /, *arguments: Any, **named: Any) -> R:
        """What an operator makes of this table."""

    def where(self, condition: str) -> R:
        """The rows for which this is true: ``"Price > 3 and Sym in ('A', 'B')"``."""
        return self._view("where", condition)

    def sort(self, *keys: str | tuple[str, str]) -> R:
        """Rows in order of these columns; ``"-name"`` is descending."""
        return self._view("sort", *keys)

    def select(self, /, *columns: str, **computed: str) -> R:
        """These columns, then ``name="expression"`` ones."""
        return self._view("select", *columns, **computed)

    def drop(self, *columns: str) -> R:
        """All columns but these."""
        return self._view("drop", *columns)

    def head(self, count: int) -> R:
        """The first ``count`` rows."""
        return self._view("head", count)

    def tail(self, count: int) -> R:
        """The last ``count`` rows."""
        return self._view("tail", count)

    def slice(self, start: int, stop: int) -> R:
        """The rows at positions ``start`` to ``stop - 1``; negative ones count from the end, and so
        does a ``stop`` of 0 after a negative ``start``."""
        return self._view("slice", start, stop)

    def last_by(self, *columns: str) -> R:
        """The last row of each combination of values in ``columns``."""
        return self._view("last_by", *columns)

    def agg_by(self, /, *by: str, **aggregations: str) -> R:
        """One row per combination of values in ``by`` (none: one row for the whole table), with
        ``name="function(column)"`` of the rows that have it: ``n="count()", total="sum(Qty)"``.

        Functions: count, sum, abs_sum, min, max, avg, var, std, first, last, and of two columns
        wavg and wsum. Nulls are passed over except by ``count()``, first and last.
        """
        return self._view("agg_by", *by, **aggregations)

    def select_distinct(self, *columns: str) -> R:
        """Each combination of values in ``columns`` (none: all columns) once, in order of first
        appearance."""
        return self._view("select_distinct", *columns)

    def natural_join(
        self, right: TableHandle, on: str | Sequence[str], add: str | Sequence[str] = ()
    ) -> R:
        """Every row, with the columns ``add`` of the one row of the other table that agrees in
        ``on``; null where there is none.

        Where names differ: ``on="mine=theirs"``, ``add="new=theirs"``. Without ``add``, all columns
        of the other table but its keys. Two rows of it with one key fail the result.
        """
        return self._view("natural_join", right._table, names_of(on), names_of(add))

    def merge(self, *others: TableHandle) -> R:
        """The rows of this table, then those of the others, which have the same columns."""
        return self._view("merge", *(other._table for other in others))

    def head_by(self, count: int, *by: str) -> R:
        """The first ``count`` rows of each combination of values in ``by`` (none: of all rows), in
        row order."""
        return self._view("head_by", count, *by)

    def tail_by(self, count: int, *by: str) -> R:
        """The last ``count`` rows of each combination of values in ``by`` (none: of all rows), in
        row order."""
        return self._view("tail_by", count, *by)

    def ungroup(self, *columns: str) -> R:
        """One row for each cell of the lists in ``columns`` (none: all columns of lists), which are
        equally long in each row; other columns are repeated. Null is an empty list."""
        return self._view("ungroup", *columns)

    def update_by(self, /, *by: str, **formulas: str) -> R:
        """All rows and columns, and running values within each combination of values in ``by``
        (none: within the whole table), in row order: ``total="cum_sum(price)"`` and, an exponential
        moving average that decays over ten rows, ``smooth="ema_tick(price, 10)"``.

        Nulls are passed over: such a row shows what the row before it shows.
        """
        return self._view("update_by", *by, **formulas)

    def flatten(self) -> R:
        """The same rows under the row keys 0 to n - 1."""
        return self._view("flatten")
