"""One operator of a query to a remote table, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from barrage.client.table_sources import TableSource


@dataclass(frozen=True, slots=True)
class Step:
    """One operator and its arguments: texts, numbers, tuples of texts, pairs of texts, and for a
    join the source of the other table."""

    name: str
    arguments: tuple[Any, ...]

    @property
    def others(self) -> tuple[TableSource, ...]:
        return tuple(value for value in self.arguments if isinstance(value, TableSource))

    def __str__(self) -> str:
        words = [word for value in self.arguments for word in _words(value)]
        return f"{self.name}({', '.join(words)})"


def _words(value: Any) -> list[str]:
    """An argument as it is written in code; texts in a row are written one after another."""
    if isinstance(value, TableSource):
        return [value.label]
    if isinstance(value, tuple):
        return [
            f"{part[0]}={part[1]!r}" if isinstance(part, tuple) else repr(part) for part in value
        ]
    return [repr(value)]
