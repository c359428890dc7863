"""The published tables by name. Belongs to the engine thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import TableExistsError, TableFailedError, TableNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage.engine import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One published table."""

    name: str
    table: Table
    kind: str
    """``static``, ``append_only``, ``keyed``, ``list``, ``ring``, ``blink``, or ``view`` for a
    derived table."""


class Catalog:
    """Names and what they stand for."""

    def __init__(self) -> None:
        self._publications: dict[str, Publication] = {}

    def __iter__(self) -> Iterator[Publication]:
        return iter(sorted(self._publications.values(), key=lambda p: p.name))

    def add(self, publication: Publication) -> None:
        """TableExistsError when the name is taken."""
        self.check_free(publication.name)
        self._publications[publication.name] = publication

    def check_free(self, name: str) -> None:
        """TableExistsError when the name is taken."""
        if name in self._publications:
            raise TableExistsError(name)

    def get(self, name: str) -> Publication:
        """TableNotFoundError when there is none."""
        publication = self._publications.get(name)
        if publication is None:
            raise TableNotFoundError(name, known=self._publications)
        return publication

    def live(self, name: str) -> Publication:
        """Like :meth:`get`, and TableFailedError when the table has failed."""
        publication = self.get(name)
        if publication.table.failure is not None:
            raise TableFailedError(f"table {name!r} has failed: {publication.table.failure}")
        return publication

    def remove(self, name: str) -> Publication:
        """Forget a name; TableNotFoundError when there is none."""
        publication = self.get(name)
        del self._publications[name]
        return publication

    def is_published(self, table: Table) -> bool:
        """Whether any name still stands for ``table``."""
        return any(p.table is table for p in self._publications.values())
