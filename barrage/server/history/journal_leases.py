"""Who reads which journal, how far they are, and for how long history waits for them.

A consumer has a cursor in a table (what it has finished) and a lease. While the lease lives, the
journal keeps what lies after the cursor, within its hard cap. The lease is kept alive by a watch
stream, or by moving the cursor; a consumer that is gone loses it by time. A *read group* is a name
under which several readers find one version: the one that was current when the first of them came.

Both are in memory: after a restart consumers come back and say where they are. Belongs to the event
loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from barrage.errors import LimitExceededError
from barrage.server.identity.current_call import current_caller

if TYPE_CHECKING:
    from barrage.clock import Clock
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.limits import Limits
    from barrage.server.identity.caller import Owner

LEASE_NS_DEFAULT = 60 * 1_000_000_000
"""Lease of a consumer that asks for none."""

KEPT_SHARE = 0.75
"""Share of a lease that is left when a watch begins to renew it."""

GROUP_LEASE_NS = 10 * 60 * 1_000_000_000
"""How long a read group is remembered after its last reader came."""

_GROUP_PREFIX = "\t"
"""Before the name of a read group's hold: no consumer's name begins with it."""


@dataclass(slots=True, kw_only=True)
class Consumer:
    """One consumer of one table. ``expires_ns`` is monotonic time."""

    table: str
    name: str
    journal: TableJournal
    version: int
    lease_ns: int
    expires_ns: int = 0
    watch_count: int = 0


@dataclass(slots=True, kw_only=True)
class ReadGroup:
    """A version that several readers agree on."""

    table: str
    name: str
    journal: TableJournal
    version: int
    owner: Owner
    """Who came first: others read under its name, and do not end it."""
    expires_ns: int = 0
    expires_wall_ns: int = 0


Holder = TypeVar("Holder", Consumer, ReadGroup)


class JournalLeases:
    """All consumers and read groups of one server."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._consumers: dict[tuple[str, str], Consumer] = {}
        self._groups: dict[tuple[str, str], ReadGroup] = {}

    @property
    def consumers(self) -> list[Consumer]:
        """Those whose lease lives."""
        self.sweep()
        return list(self._consumers.values())

    def renew(
        self,
        journal: TableJournal,
        name: str,
        *,
        lease_ns: int | None = None,
        version: int | None = None,
    ) -> Consumer:
        """A consumer is alive: its lease begins anew, its cursor moves to ``version``. Without a
        version a new consumer stands at what is durable now, a known one stays. LimitExceededError
        when there are too many."""
        self.sweep()
        table = journal.identity.name
        consumer = self._current(self._consumers, journal, name)
        if consumer is None:
            self._check_room()
            consumer = Consumer(
                table=table,
                name=name,
                journal=journal,
                version=journal.durable_version,
                lease_ns=LEASE_NS_DEFAULT,
            )
        held = consumer.version if version is None else version
        lease_ns = consumer.lease_ns if lease_ns is None else lease_ns
        journal.hold(name, held, self._clock.wall_ns() + lease_ns)
        consumer.version, consumer.lease_ns = held, lease_ns
        consumer.expires_ns = self._clock.monotonic_ns() + lease_ns
        self._consumers[table, name] = consumer
        return consumer

    def keep(self, consumer: Consumer) -> None:
        """A watch stream is alive, and so is its consumer's lease: unless it was released, or the
        name stands for another history now. Called with every batch, so it does nothing while most
        of the lease is left."""
        left_ns = consumer.expires_ns - self._clock.monotonic_ns()
        if left_ns > consumer.lease_ns * KEPT_SHARE:
            return
        if self._consumers.get((consumer.table, consumer.name)) is consumer:
            self.renew(consumer.journal, consumer.name)

    def release(self, table: str, name: str) -> bool:
        """A consumer needs nothing any more; whether it was known."""
        consumer = self._consumers.pop((table, name), None)
        if consumer is not None:
            consumer.journal.release(name)
        return consumer is not None

    def pinned(self, journal: TableJournal, group: str) -> ReadGroup | None:
        """The read group of that name; None when none is held."""
        self.sweep()
        return self._current(self._groups, journal, group)

    def pin(self, journal: TableJournal, group: str, *, version: int | None = None) -> ReadGroup:
        """Hold the version of a read group for longer. That of a new one is ``version``, or the
        durable one, and its owner the caller."""
        self.sweep()
        table = journal.identity.name
        found = self._current(self._groups, journal, group)
        if found is None:
            self._check_room()
            found = ReadGroup(
                table=table,
                name=group,
                journal=journal,
                version=journal.durable_version if version is None else version,
                owner=current_caller().owner,
            )
        found.expires_wall_ns = self._clock.wall_ns() + GROUP_LEASE_NS
        journal.hold(_GROUP_PREFIX + group, found.version, found.expires_wall_ns)
        found.expires_ns = self._clock.monotonic_ns() + GROUP_LEASE_NS
        self._groups[table, group] = found
        return found

    def give_up(self, journal: TableJournal, group: str) -> None:
        """Nobody needs the version of a read group any more. Idempotent."""
        if self._current(self._groups, journal, group) is not None:
            del self._groups[journal.identity.name, group]
            journal.release(_GROUP_PREFIX + group)

    def sweep(self) -> None:
        """Forget whose time is up."""
        now_ns = self._clock.monotonic_ns()
        for place, consumer in list(self._consumers.items()):
            if consumer.expires_ns <= now_ns:
                del self._consumers[place]
                consumer.journal.release(consumer.name)
        for place, group in list(self._groups.items()):
            if group.expires_ns <= now_ns:
                del self._groups[place]
                group.journal.release(_GROUP_PREFIX + group.name)

    def _current(
        self, holders: dict[tuple[str, str], Holder], journal: TableJournal, name: str
    ) -> Holder | None:
        """The holder of that name, if it is one of this history and not of one before it."""
        found = holders.get((journal.identity.name, name))
        return found if found is not None and found.journal is journal else None

    def _check_room(self) -> None:
        count = len(self._consumers) + len(self._groups)
        if count >= self._limits.journal_consumers_max:
            raise LimitExceededError(
                "number of consumers and read groups",
                actual=count + 1,
                maximum=self._limits.journal_consumers_max,
                unit="consumers",
            )
