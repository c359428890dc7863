"""Queries: operators chained to a remote table, which the server runs when the result is used.

A query is values until then, so it can be made, kept and used again. On our own servers it travels
as a ticket of its own (``q/`` and JSON) and needs no session; a subscription to it survives the
loss of the connection and of the server. On a Deephaven server it becomes one batch of operations
whose result is exported; after a lost session the batch is run again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barrage.client.deephaven.query_batch import run_query
from barrage.client.query_json import query_ticket
from barrage.client.query_step import Step
from barrage.client.table_sources import ExportSource, NamedSource, TableSource, flight_info
from barrage.errors import ConfigError, ExpressionError, UnsupportedError
from barrage.transport.flight_messages import Descriptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.connection import Connection
    from barrage.client.deephaven.export_calls import ExportedTable
    from barrage.client.table_info import TableInfo


R = TypeVar("R")


class QueryMethods(ABC, Generic[R]):
    """The operators of a remote table, which give one of type ``R``. Nothing is sent; mistakes are
    told when the result is used."""

    @abstractmethod
    def _with_steps(self, steps: Sequence[Step]) -> R:
        """A table that is this one with more operators."""

    @abstractmethod
    def _query_source(self) -> TableSource:
        """The source of this table."""

    def where(self, *conditions: str) -> R:
        """Rows for which all conditions hold, such as ``"price > 3"``."""
        texts = _texts("where", conditions, least=1)
        return self._with_steps([Step("where", (text,)) for text in texts])

    def sort(self, *columns: str) -> R:
        """Rows in order of the columns; ``"-price"`` is descending."""
        return self._with_steps([Step("sort", (_texts("sort", columns, least=1),))])

    def agg_by(self, *by: str, **aggregations: str) -> R:
        """One row per combination of the ``by`` columns, with ``total="sum(price)"``,
        ``n="count()"``; functions: count sum abs_sum min max avg first last var std."""
        names = _texts("agg_by", by)
        formulas = _formulas("agg_by", aggregations)
        if not formulas:
            raise ExpressionError("agg_by wants at least one aggregation, such as n='count()'")
        return self._with_steps([Step("agg_by", (names, formulas))])

    def select(self, *columns: str, **formulas: str) -> R:
        """These columns, and new ones: ``select("symbol", value="price * size")``."""
        names = _texts("select", columns)
        pairs = _formulas("select", formulas)
        if not names and not pairs:
            raise ExpressionError("select wants at least one column")
        return self._with_steps([Step("select", (names, pairs))])

    def drop(self, *columns: str) -> R:
        """All columns but these."""
        return self._with_steps([Step("drop", (_texts("drop", columns, least=1),))])

    def head(self, count: int) -> R:
        """The first rows."""
        return self._with_steps([Step("head", (_count("head", count),))])

    def tail(self, count: int) -> R:
        """The last rows."""
        return self._with_steps([Step("tail", (_count("tail", count),))])

    def slice(self, start: int, stop: int) -> R:
        """Rows by position, ``stop`` not included; negative positions count from the end."""
        span = (_position("slice", start), _position("slice", stop))
        return self._with_steps([Step("slice", span)])

    def last_by(self, *columns: str) -> R:
        """The last row of every combination of the columns."""
        return self._with_steps([Step("last_by", (_texts("last_by", columns, least=1),))])

    def select_distinct(self, *columns: str) -> R:
        """Every combination of the columns once; without columns, of all columns."""
        return self._with_steps([Step("select_distinct", (_texts("select_distinct", columns),))])

    def natural_join(
        self,
        other: QueryMethods[Any],
        on: Sequence[str] | str,
        add: Sequence[str] | str = (),
    ) -> R:
        """All rows, each with the columns ``add`` (by default all but ``on``) of the one row of
        ``other`` that agrees in ``on``; null where there is none. ``"left=right"`` and
        ``"new=right"`` where names differ."""
        if not isinstance(other, QueryMethods):
            raise ConfigError(f"natural_join wants a remote table, not {type(other).__name__}")
        names = _texts("natural_join", (on,) if isinstance(on, str) else on, least=1)
        added = _texts("natural_join", (add,) if isinstance(add, str) else add)
        return self._with_steps([Step("natural_join", (other._query_source(), names, added))])

    def merge(self, *others: QueryMethods[Any]) -> R:
        """The rows of all tables, one table after another; their columns must agree."""
        for other in others:
            if not isinstance(other, QueryMethods):
                raise ConfigError(f"merge wants remote tables, not {type(other).__name__}")
        if not others:
            raise ExpressionError("merge wants at least one other table")
        return self._with_steps([Step("merge", tuple(o._query_source() for o in others))])

    def flatten(self) -> R:
        """The same rows with keys 0 to n-1."""
        return self._with_steps([Step("flatten", ())])


def _texts(name: str, values: Sequence[Any], *, least: int = 0) -> tuple[str, ...]:
    texts = tuple(values)
    if len(texts) < least or not all(isinstance(text, str) and text for text in texts):
        wanted = "at least one text" if least else "texts"
        raise ExpressionError(f"{name} wants {wanted}, not {', '.join(map(repr, texts)) or 'none'}")
    return texts


def _formulas(name: str, formulas: dict[str, str]) -> tuple[tuple[str, str], ...]:
    _texts(name, tuple(formulas.values()))
    return tuple(formulas.items())


def _count(name: str, count: int) -> int:
    if not isinstance(count, int) or not 0 <= count < 2**63:
        raise ExpressionError(f"{name} wants a number of rows, not {count!r}")
    return count


def _position(name: str, position: int) -> int:
    if not isinstance(position, int) or not -(2**63) < position < 2**63:
        raise ExpressionError(f"{name} wants positions of rows, not {position!r}")
    return position


# --- sources ------------------------------------------------------------------------------------


def with_steps(source: TableSource, steps: Sequence[Step]) -> TableSource:
    """The source of a table with more operators; UnsupportedError when the tables of a join have
    nothing in common."""
    for step in steps:
        source = _with_step(source, step)
    return source


def _with_step(source: TableSource, step: Step) -> TableSource:
    if isinstance(source, ExportedQuerySource):
        return ExportedQuerySource(source.connection, source.root, (*source.steps, step))
    if _is_stateless(source) and all(_is_stateless(other) for other in step.others):
        if isinstance(source, QuerySource):
            return QuerySource(source.connection, source.name, (*source.steps, step))
        assert isinstance(source, NamedSource)
        return QuerySource(source.connection, source.name, (step,))
    for candidate in (source, *step.others):
        if candidate.connection.calls is not None:
            return ExportedQuerySource(candidate.connection, source, (step,))
    raise UnsupportedError(f"{step} needs a table known by name, not by {source.label}")


def _is_stateless(source: TableSource) -> bool:
    """Whether a server of ours can be asked for it without a session."""
    return not source.connection.address.is_deephaven and isinstance(
        source, NamedSource | QuerySource
    )


def _label(root: TableSource, steps: Sequence[Step]) -> str:
    return ".".join([root.label, *map(str, steps)])


class QuerySource(TableSource):
    """A query to one of our servers: its ticket says everything."""

    def __init__(self, connection: Connection, name: str, steps: tuple[Step, ...]) -> None:
        super().__init__(connection, ".".join([name, *map(str, steps)]))
        self.name = name
        self.steps = steps

    async def ticket(self) -> bytes:
        return query_ticket(self.name, self.steps)

    async def info(self, timeout: float | None) -> TableInfo:
        descriptor = Descriptor(command=await self.ticket())
        return await flight_info(self.connection, descriptor, self.label, timeout)


class ExportedQuerySource(ExportSource):
    """A query to a Deephaven server: operations that start from ``root``."""

    def __init__(self, connection: Connection, root: TableSource, steps: tuple[Step, ...]) -> None:
        others = tuple(other for step in steps for other in step.others)
        super().__init__(connection, _label(root, steps), export=self._run, needs=(root, *others))
        self.root = root
        self.steps = steps

    async def _run(self) -> ExportedTable:
        return await run_query(self.calls, self.root, self.steps, label=self.label)
