"""The names of the catalog as seen from the event loop, for calls that follow them.

The engine thread says only that something has changed, at most once until the loop has taken that
in. A follower then asks for a listing, which all followers share, and compares it with what it has
told its client. One that is busy writing misses nothing and delays nobody: it compares with the
latest listing when it is done. Nothing runs while nobody follows.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from barrage.server.tables.table_service import TableService

LOOK_INTERVAL_S = 0.05
"""Shortest time between two looks of one follower: a burst of changes becomes one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogChanges:
    """How the names differ from what a follower knew; each sorted."""

    created: tuple[str, ...]
    updated: tuple[str, ...]
    """Names that stand for another table now."""
    removed: tuple[str, ...]

    @classmethod
    def between(cls, before: Mapping[str, int], after: Mapping[str, int]) -> CatalogChanges:
        """The way from one listing to another (see ``Catalog.listing``)."""
        kept = before.keys() & after.keys()
        return cls(
            created=tuple(sorted(after.keys() - before.keys())),
            updated=tuple(sorted(name for name in kept if before[name] != after[name])),
            removed=tuple(sorted(before.keys() - after.keys())),
        )

    def of_names(self, chosen: Callable[[Iterable[str]], Iterable[str]]) -> CatalogChanges:
        """These changes without all names but those that ``chosen`` returns."""
        return CatalogChanges(
            created=tuple(chosen(self.created)),
            updated=tuple(chosen(self.updated)),
            removed=tuple(chosen(self.removed)),
        )

    @property
    def is_empty(self) -> bool:
        return not (self.created or self.updated or self.removed)


class CatalogWatch:
    """Tells followers of changes. Made anywhere, used on one event loop."""

    def __init__(self, tables: TableService) -> None:
        self._tables = tables
        self._version = 0
        self._changed = asyncio.Event()
        self._listing: tuple[int, asyncio.Future[Mapping[str, int]]] | None = None
        self._follower_count = 0
        self._end_listening: Callable[[], None] | None = None
        self._is_told = False

    @property
    def follower_count(self) -> int:
        """How many follow the names."""
        return self._follower_count

    @contextlib.contextmanager
    def follower(self) -> Iterator[CatalogFollower]:
        """Somebody who wants to know of changes, for as long as the block runs."""
        self._follower_count += 1
        if self._end_listening is None:
            self._listen()
        try:
            yield CatalogFollower(self)
        finally:
            self._follower_count -= 1
            if self._follower_count == 0 and self._end_listening is not None:
                self._end_listening()
                self._end_listening = None
                self._listing = None

    def _listen(self) -> None:
        """Registering and every later listing pass through one queue, so no change falls between
        them."""
        loop = asyncio.get_running_loop()

        def tell() -> None:
            """Engine thread: wake the loop unless it has been woken and has not looked yet."""
            if not self._is_told:
                self._is_told = True
                with contextlib.suppress(RuntimeError):  # The loop has ended.
                    loop.call_soon_threadsafe(self._wake)

        self._is_told = False
        self._end_listening = self._tables.on_catalog_change(tell)

    def _wake(self) -> None:
        # First the flag, then the listing: a change after this line wakes the loop again.
        self._is_told = False
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def listing(self) -> tuple[int, Mapping[str, int]]:
        """The version of the names and a listing not older than it; asked for once per version."""
        version = self._version
        if self._listing is None or self._listing[0] != version:
            self._listing = version, asyncio.wrap_future(self._tables.listing())
        return version, await asyncio.shield(self._listing[1])

    async def wait_past(self, version: int) -> None:
        """Until the names have changed since ``version``."""
        while self._version == version:
            await self._changed.wait()


class CatalogFollower:
    """One follower and what it knows."""

    def __init__(self, watch: CatalogWatch) -> None:
        self._watch = watch
        self._known: Mapping[str, int] = {}
        self._version: int | None = None

    async def changes(self) -> CatalogChanges:
        """All names when asked for the first time; later what has changed since, once something
        has."""
        is_first = self._version is None
        while True:
            if self._version is not None:
                await asyncio.sleep(LOOK_INTERVAL_S)
                await self._watch.wait_past(self._version)
            self._version, listing = await self._watch.listing()
            changes = CatalogChanges.between(self._known, listing)
            self._known = listing
            if is_first or not changes.is_empty:
                return changes
