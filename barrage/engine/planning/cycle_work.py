"""What the operators that clients keep cost in every cycle that changes their tables.

What *making* an operator costs is known and bounded (:mod:`barrage.engine.tables.work`). As long
as anybody holds it, it is also run in each cycle that changes its parents, and all others wait for
it. So every operator has an estimate of that, too, in the same unit, which counts from when it is
made, or begun beside the engine thread, until nobody holds it any more: for the client who made it,
and for all together. Equal operators are one and count once. Operators upon static tables cost
nothing.

Once a bound is reached nothing more is made. So what is kept may pass it by one operator, unless
that alone passes what a cycle may cost once.

It is an estimate for a cycle of few rows. What a cycle really brings is known when it runs: then an
operator is not run that would cost more (:mod:`barrage.engine.tables.graph`).

Everything belongs to the engine thread, where tables are freed.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from barrage.engine.tables.table import DerivedTable
    from barrage.limits import Limits


class CycleWork:
    """The account of all clients of one server."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of_clients: Counter[Hashable] = Counter()
        self._entered: dict[int, tuple[weakref.ref[DerivedTable], Hashable, int]] = {}
        self._reserved: dict[Hashable, tuple[Hashable, int]] = {}
        self.total = 0
        """Row operations of all operators that count."""

    def of_client(self, owner: Hashable) -> int:
        """Row operations of what one client has made."""
        return self._of_clients[owner]

    def check(self, owner: Hashable, spared: int = 0) -> None:
        """LimitExceededError when nothing more may be made, by this client or by anybody. Clients
        that cannot be told apart, who are None, have the bound of all only. ``spared`` is the
        largest operator of the same request, which may pass the bound: what is made of its rows
        then must be let in as well."""
        limits = self._limits
        if owner is not None:
            mine = self.of_client(owner) - spared
            _check("this client keeps", mine, limits.cycle_work_per_client_max)
        _check("all clients keep", self.total - spared, limits.cycle_work_max)

    def reserve(self, key: Hashable, owner: Hashable, work: int) -> None:
        """An operator is being made."""
        self._reserved[key] = owner, work
        self._add(owner, work)

    def release(self, key: Hashable) -> None:
        """It has been made, and entered, or will not be."""
        found = self._reserved.pop(key, None)
        if found is not None:
            self._add(found[0], -found[1])

    def enter(self, table: DerivedTable, owner: Hashable, work: int) -> None:
        """Count an operator for as long as it lives."""
        serial = table.serial
        if serial not in self._entered:
            table.admit(work)
            reference = weakref.ref(table, lambda _: self._leave(serial))
            self._entered[serial] = reference, owner, work
            self._add(owner, work)

    def _leave(self, serial: int) -> None:
        _, owner, work = self._entered.pop(serial)
        self._add(owner, -work)

    def _add(self, owner: Hashable, work: int) -> None:
        self.total += work
        self._of_clients[owner] += work
        if not self._of_clients[owner]:
            del self._of_clients[owner]


def check_cycle(work: int, limits: Limits) -> None:
    """LimitExceededError for one operator that costs more in each cycle than one may cost once."""
    if work > limits.cycle_work_once_max:
        raise LimitExceededError(
            "work in each cycle of a derived table (derive it of a snapshot, which does not "
            "change, or have the program that runs the server derive it)",
            actual=work,
            maximum=limits.cycle_work_once_max,
            unit="row operations",
        )


def _check(who: str, work: int, maximum: int) -> None:
    if work >= maximum:
        raise LimitExceededError(
            f"work in each cycle of the derived tables that {who} (release some of them, or ask "
            "for the same ones)",
            actual=work,
            maximum=maximum,
            unit="row operations",
        )
