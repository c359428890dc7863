"""Runs queries: what a ``q/`` ticket asks for becomes a derived table. On the engine thread.

Equal queries give the same operators, as everywhere in the engine, so a thousand clients that ask
for one query cost one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from barrage.engine.operators.derive import BUILDERS
from barrage.engine.tables.table import Table
from barrage.errors import (
    CycleTooLongError,
    EngineError,
    ExpressionError,
    RowError,
    SchemaError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.model.operators import OPERATORS
from barrage.model.query import Query
from barrage.server.identity.current_call import current_call

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from barrage.limits import Limits
    from barrage.model.cursor import Cursor
    from barrage.model.query import AppliedOperator
    from barrage.server.policy.access_gate import Tables
    from barrage.server.tables.table_lease import TableLease

__all__ = ["Query", "QueryRun", "apply_query"]


def apply_query(
    catalog: Tables, query: Query | bytes | str, limits: Limits = DEFAULT_LIMITS
) -> Table:
    """The table a query asks for; see :class:`QueryRun`."""
    return QueryRun(catalog, query, limits)()


class QueryProgress:
    """How many of a query's operations have been applied; told by the engine thread, for whoever
    waits on another one."""

    def __init__(self, told: Callable[[float], None]) -> None:
        """``told`` gets the part that is done, from 0 to 1."""
        self._told = told
        self._most = 0

    def applied(self, count: int, total: int) -> None:
        """So many of them are there. A query that is run again tells nothing twice."""
        if count > self._most:
            self._most = count
            self._told(count / total)


class QueryRun:
    """A query that is run, once or, when it is interrupted, again: what was made is not looked for
    anew as long as somebody keeps it.

    Errors of the text: see :meth:`barrage.model.query.Query.parse`. TableNotFoundError and
    TableFailedError name a table; SchemaError, ExpressionError and RowError (a join with two
    partners) name the operation that does not fit the table it is given.
    """

    def __init__(
        self,
        catalog: Tables,
        query: Query | bytes | str,
        limits: Limits,
        *,
        progress: QueryProgress | None = None,
        past: Mapping[tuple[str, Cursor], TableLease] = MappingProxyType({}),
    ) -> None:
        """``past``: the tables of all :func:`~barrage.model.query.past_places` of the query."""
        self._catalog = catalog
        self._progress = progress
        self._query = query
        self._limits = limits
        self._past = past
        self._call = current_call()
        self.names: set[str] = set()
        """Of the tables it has looked at."""
        self._made: WeakValueDictionary[tuple[Hashable, ...], Table] = WeakValueDictionary()

    def __call__(self) -> Table:
        if not isinstance(self._query, Query):
            self._query = Query.parse(self._query, self._limits)
        return self._applied(self._query, ())

    def _applied(self, query: Query, place: tuple[int, ...]) -> Table:
        """Nested queries are bounded by the parser, and so is this recursion. ``place`` tells this
        query from all others."""
        if self._call is not None:
            self._call.note_table(query.table)
        table = self._catalog.live(query.table).table
        self.names.add(query.table)
        if query.at is not None:
            past = self._past[query.table, query.at]
            table = self._catalog.shown(query.table, past.table)
        for number, operation in enumerate(query.operations, start=1):
            arguments = [
                self._applied(argument, (*place, number, index))
                if isinstance(argument, Query)
                else argument
                for index, argument in enumerate(operation.arguments)
            ]
            tables = [table, *(each for each in arguments if isinstance(each, Table))]
            key = (place, number, *(each.serial for each in tables))
            found = self._made.get(key)
            if found is None or found.failure is not None:
                found = self._made[key] = _apply(number, operation, table, arguments=arguments)
            table = found
            if self._progress is not None and not place:
                self._progress.applied(number, len(query.operations))
        return table


def _apply(number: int, operation: AppliedOperator, table: Table, *, arguments: list[Any]) -> Table:
    try:
        placed, named = OPERATORS[operation.name].spread(arguments)
        return BUILDERS[operation.name](table, *placed, **named)
    except CycleTooLongError:
        raise
    except (SchemaError, ExpressionError, RowError, EngineError) as error:
        # What the engine cannot do here is the fault of what was asked for.
        kind = ExpressionError if type(error) is EngineError else type(error)
        raise kind(_located(number, operation, error)) from error


def _located(number: int, operation: AppliedOperator, error: Exception) -> str:
    return f"operation {number} of the query, {operation.name}: {error}"
