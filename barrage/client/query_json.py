"""Queries as tickets of our own servers: ``q/`` and canonical JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from barrage.client.sources import NamedSource, TableSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.query import Step

QUERY_ROUTE = b"q/"

_WITH_FORMULAS = ("agg_by", "select")
"""Operators with new columns, an object in the order of the columns."""


def query_ticket(name: str, steps: Sequence[Step]) -> bytes:
    """The ticket of the operators ``steps`` applied to the published table ``name``."""
    text = json.dumps(_query(name, steps), separators=(",", ":"), ensure_ascii=False)
    return QUERY_ROUTE + text.encode()


def _query(name: str, steps: Sequence[Step]) -> dict[str, Any]:
    return {"table": name, "ops": [_operation(step) for step in steps]}


def _operation(step: Step) -> list[Any]:
    if step.name in _WITH_FORMULAS:
        columns, formulas = step.arguments
        return [step.name, list(columns), dict(formulas)]
    return [step.name, *map(_argument, step.arguments)]


def _argument(value: Any) -> Any:
    """A table is a query of its own."""
    if isinstance(value, TableSource):
        if isinstance(value, NamedSource):
            return _query(value.name, ())
        return _query(value.name, value.steps)  # type: ignore[attr-defined]
    return list(value) if isinstance(value, tuple) else value
