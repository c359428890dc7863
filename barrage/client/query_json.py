"""Queries as tickets of our own servers: ``q/`` and canonical JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from barrage.client.sources import NamedSource, TableSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.query import Step

QUERY_ROUTE = b"q/"


def query_ticket(name: str, steps: Sequence[Step]) -> bytes:
    """The ticket of the operators ``steps`` applied to the published table ``name``."""
    text = json.dumps(_query(name, steps), separators=(",", ":"), ensure_ascii=False)
    return QUERY_ROUTE + text.encode()


def _query(name: str, steps: Sequence[Step]) -> dict[str, Any]:
    return {
        "table": name,
        "ops": [[step.name, *(_argument(value) for value in step.arguments)] for step in steps],
    }


def _argument(value: Any) -> Any:
    """Pairs of texts are an object, in their order; a table is a query of its own."""
    if isinstance(value, TableSource):
        if isinstance(value, NamedSource):
            return _query(value.name, ())
        return _query(value.name, value.steps)  # type: ignore[attr-defined]
    if isinstance(value, tuple):
        return dict(value) if value and isinstance(value[0], tuple) else list(value)
    return value
