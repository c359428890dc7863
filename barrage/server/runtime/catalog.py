"""The published tables by name. Belongs to the engine thread.

Whoever wants to know when the set of names changes registers a callback. It is told *that*
something changed, not what: it reads :meth:`Catalog.listing` when it has time and compares. So a
thousand changes cost a slow listener nothing but the last look.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.engine.tables.source import SourceTable, operators_of
from barrage.errors import TableExistsError, TableFailedError, TableNotFoundError
from barrage.server.runtime.failure import without_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from barrage.engine import Table
    from barrage.errors import BarrageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One published table."""

    name: str
    table: Table
    kind: str
    """``static``, ``append_only``, ``keyed``, ``list``, ``ring``, ``blink``, or ``view`` for a
    derived table."""
    is_read_only: bool = False
    """Whether peers may only read it, although it is a source."""

    @property
    def input_target(self) -> SourceTable | None:
        """The table peers may write under this name; None for one they may only read."""
        return None if self.is_read_only else writable_source(self.table)


def writable_source(table: Table) -> SourceTable | None:
    """``table`` if rows can be written to it; None for derived and for static tables."""
    return table if isinstance(table, SourceTable) and not table.is_static else None


class Catalog:
    """Names and what they stand for."""

    def __init__(self) -> None:
        self.suggests_names = True
        """Whether who asks for a name there is not is told of one like it; not where some names
        are hidden from some."""
        self._publications: dict[str, Publication] = {}
        self._serials: dict[str, int] = {}
        self._serial_next = itertools.count(1)
        self._listeners: dict[int, Callable[[], None]] = {}
        self._blocked: dict[str, BarrageError] = {}
        self.absence: Callable[[str], BarrageError | None] = lambda _name: None
        """Why a name stands for no table yet, where it may stand for one soon; None where it is not
        known at all. Asked on any thread."""

    def __iter__(self) -> Iterator[Publication]:
        return iter(sorted(self._publications.values(), key=lambda p: p.name))

    def add(self, publication: Publication) -> None:
        """TableExistsError when the name is taken."""
        self.check_free(publication.name)
        self.put(publication)

    def put(self, publication: Publication) -> None:
        """Let a name stand for this table from now on. Who reads the table it stood for before
        keeps reading that one. The server keeps what has a name: who asks for it by that could not
        make it again, so what a client derived is not ended any more."""
        for operator in operators_of(publication.table):
            operator.never_end()
        self._publications[publication.name] = publication
        self._serials[publication.name] = next(self._serial_next)
        self._tell_listeners()

    def check_free(self, name: str) -> None:
        """TableExistsError when the name is taken."""
        self.check_usable(name)
        if name in self._publications:
            raise TableExistsError(name)

    def check_usable(self, name: str) -> None:
        """The reason when a name must not be used."""
        if name in self._blocked:
            raise without_frames(self._blocked[name])

    def block(self, name: str, error: BarrageError) -> None:
        """A name that must not be used: its table exists and cannot be had, for this reason."""
        self._blocked[name] = error

    @property
    def blocked(self) -> Mapping[str, BarrageError]:
        """Names of tables that cannot be had, and why."""
        return self._blocked

    def find(self, name: str) -> Publication | None:
        """What a name stands for, if anything."""
        return self._publications.get(name)

    def get(self, name: str) -> Publication:
        """TableNotFoundError when there is none; the reason when there is one that cannot be
        had; what :attr:`absence` says."""
        publication = self._publications.get(name)
        if publication is None:
            self.check_usable(name)
            known = self._publications if self.suggests_names else ()
            raise self.absence(name) or TableNotFoundError(name, known=known)
        return publication

    def live(self, name: str) -> Publication:
        """Like :meth:`get`, and TableFailedError when the table has failed."""
        publication = self.get(name)
        if publication.table.failure is not None:
            raise TableFailedError(f"table {name!r} has failed: {publication.table.failure}")
        return publication

    def shown(self, _name: str, table: Table) -> Table:
        """What is shown of ``table``: where there are no rules, all of it."""
        return table

    def remove(self, name: str) -> Publication:
        """Forget a name; TableNotFoundError when there is none."""
        publication = self.get(name)
        del self._publications[name], self._serials[name]
        self._tell_listeners()
        return publication

    def is_published(self, table: Table) -> bool:
        """Whether any name still stands for ``table``."""
        return any(p.table is table for p in self._publications.values())

    def listing(self) -> Mapping[str, int]:
        """Every name with a number that is another one once the name stands for another table. A
        copy."""
        return dict(self._serials)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` on the engine thread after every change of the names; the function
        returned ends that. It must not raise and must cost nothing worth mentioning."""
        number = next(self._serial_next)
        self._listeners[number] = listener

        def end() -> None:
            self._listeners.pop(number, None)

        return end

    def _tell_listeners(self) -> None:
        for listener in list(self._listeners.values()):
            listener()
