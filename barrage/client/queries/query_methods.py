# Written by scripts/operator_methods.py (make generated); do not edit.
# It follows from barrage/model/operators.py.
"""The operators as methods of clients' tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.client.queries.query_steps import QuerySteps, R

if TYPE_CHECKING:
    from collections.abc import Sequence


class QueryMethods(QuerySteps[R]):
    """The operators of a remote table, which give one of type ``R``. Nothing is sent; mistakes are
    told when the result is used."""

    def where(self, *conditions: str) -> R:
        """The rows for which this is true: ``"Price > 3 and Sym in ('A', 'B')"``."""
        return self._each("where", conditions)

    def sort(self, *columns: str) -> R:
        """Rows in order of these columns; ``"-name"`` is descending."""
        return self._operated("sort", columns)

    def select(self, /, *columns: str, **formulas: str) -> R:
        """These columns, then ``name="expression"`` ones."""
        return self._operated("select", columns, formulas)

    def drop(self, *columns: str) -> R:
        """All columns but these."""
        return self._operated("drop", columns)

    def head(self, count: int) -> R:
        """The first ``count`` rows."""
        return self._operated("head", count)

    def tail(self, count: int) -> R:
        """The last ``count`` rows."""
        return self._operated("tail", count)

    def slice(self, start: int, stop: int) -> R:
        """The rows at positions ``start`` to ``stop - 1``; negative ones count from the end, and so
        does a ``stop`` of 0 after a negative ``start``."""
        return self._operated("slice", start, stop)

    def last_by(self, *columns: str) -> R:
        """The last row of each combination of values in ``columns``."""
        return self._operated("last_by", columns)

    def agg_by(self, /, *by: str, **aggregations: str) -> R:
        """One row per combination of values in ``by`` (none: one row for the whole table), with
        ``name="function(column)"`` of the rows that have it: ``n="count()", total="sum(Qty)"``.

        Functions: count, sum, abs_sum, min, max, avg, var, std, first, last, and of two columns
        wavg and wsum. Nulls are passed over except by ``count()``, first and last.
        """
        return self._operated("agg_by", by, aggregations)

    def select_distinct(self, *columns: str) -> R:
        """Each combination of values in ``columns`` (none: all columns) once, in order of first
        appearance."""
        return self._operated("select_distinct", columns)

    def natural_join(
        self, other: QueryMethods[Any], on: str | Sequence[str], add: str | Sequence[str] = ()
    ) -> R:
        """Every row, with the columns ``add`` of the one row of the other table that agrees in
        ``on``; null where there is none.

        Where names differ: ``on="mine=theirs"``, ``add="new=theirs"``. Without ``add``, all columns
        of the other table but its keys. Two rows of it with one key fail the result.
        """
        return self._operated("natural_join", other, on, add)

    def merge(self, *others: QueryMethods[Any]) -> R:
        """The rows of this table, then those of the others, which have the same columns."""
        return self._operated("merge", *others)

    def head_by(self, count: int, *by: str) -> R:
        """The first ``count`` rows of each combination of values in ``by`` (none: of all rows), in
        row order."""
        return self._operated("head_by", count, by)

    def tail_by(self, count: int, *by: str) -> R:
        """The last ``count`` rows of each combination of values in ``by`` (none: of all rows), in
        row order."""
        return self._operated("tail_by", count, by)

    def ungroup(self, *columns: str) -> R:
        """One row for each cell of the lists in ``columns`` (none: all columns of lists), which are
        equally long in each row; other columns are repeated. Null is an empty list."""
        return self._operated("ungroup", columns)

    def update_by(self, /, *by: str, **formulas: str) -> R:
        """All rows and columns, and running values within each combination of values in ``by``
        (none: within the whole table), in row order: ``total="cum_sum(price)"`` and, an exponential
        moving average that decays over ten rows, ``smooth="ema_tick(price, 10)"``.

        Nulls are passed over: such a row shows what the row before it shows.
        """
        return self._operated("update_by", by, formulas)

    def flatten(self) -> R:
        """The same rows under the row keys 0 to n - 1."""
        return self._operated("flatten")
