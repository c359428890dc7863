"""Queries: operators chained to a remote table, which the server runs when the result is used.

A query is steps (:mod:`barrage.client.queries.query_steps`) until then, so it can be made, kept and
used again. On our own servers it travels as a ticket of its own (``q/`` and JSON) and needs no
session; a subscription to it survives the loss of the connection and of the server. On a Deephaven
server it becomes one batch of operations whose result is exported; after a lost session the batch
is run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.client.connection.table_sources import (
    ExportSource,
    NamedSource,
    TableSource,
    flight_info,
)
from barrage.client.queries.query_batch import run_query
from barrage.client.queries.query_steps import query_ticket
from barrage.errors import UnsupportedError
from barrage.transport.flight_messages import Descriptor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.connection.connection import Connection
    from barrage.client.connection.export_calls import ExportedTable
    from barrage.client.connection.table_info import TableInfo
    from barrage.client.queries.query_steps import Step


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
        return await flight_info(self.connection, descriptor, self.label, timeout=timeout)


class ExportedQuerySource(ExportSource):
    """A query to a Deephaven server: operations that start from ``root``."""

    def __init__(self, connection: Connection, root: TableSource, steps: tuple[Step, ...]) -> None:
        others = tuple(other for step in steps for other in step.others)
        super().__init__(connection, _label(root, steps), export=self._run, needs=(root, *others))
        self.root = root
        self.steps = steps

    async def _run(self) -> ExportedTable:
        return await run_query(self.calls, self.root, self.steps, label=self.label)
