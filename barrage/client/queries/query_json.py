"""Queries as tickets of our own servers: ``q/`` and canonical JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.client.connection.table_sources import NamedSource, TableSource
from barrage.model.query import Operation, Query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.queries.query_steps import Step

QUERY_ROUTE = b"q/"


def query_ticket(name: str, steps: Sequence[Step]) -> bytes:
    """The ticket of the operators ``steps`` applied to the published table ``name``."""
    return QUERY_ROUTE + _query(name, steps).to_json().encode()


def _query(name: str, steps: Sequence[Step]) -> Query:
    return Query(
        name, tuple(Operation(step.name, tuple(map(_argument, step.arguments))) for step in steps)
    )


def _argument(value: Any) -> Any:
    """A table is a query of its own."""
    if not isinstance(value, TableSource):
        return value
    return _query(value.label, ()) if isinstance(value, NamedSource) else _nested(value)


def _nested(source: Any) -> Query:
    """The query of a source that is one."""
    return _query(source.name, source.steps)
