"""The account of a request: what it may make here and now, and what elsewhere or later.

A :class:`WorkMeter` is asked before each operator is made. It ends the attempt where the work is
too much for one turn of the engine thread (:class:`TurnSpentError`: go on in the next), or for the
server (LimitExceededError), and says where it is too much for the engine thread at all: then the
operator is made beside (:mod:`barrage.engine.planning.derivation`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barrage.engine.planning.cycle_work import check_cycle
from barrage.engine.tables.work import (
    TEXT_BYTE,
    TEXT_BYTES_FREE,
    TEXT_BYTES_HERE,
    NotHereError,
    check_work,
)
from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from barrage.engine.planning.cycle_work import CycleWork
    from barrage.engine.tables.table import DerivedTable
    from barrage.engine.tables.work import Estimate
    from barrage.limits import Limits

Result = TypeVar("Result")


class TurnSpentError(NotHereError):
    """Enough was done for one turn of the engine thread; what was made is kept."""


@dataclass(slots=True, eq=False)
class Preparation(Generic[Result]):
    """What follows from the texts of a request and a schema, and from nothing else."""

    key: Hashable
    prepare: Callable[[], Result]
    result: Result | None = None

    def make(self) -> None:
        """Any thread."""
        self.result = self.prepare()

    def begin(self) -> None:
        """Nothing is pinned: no table is looked at."""

    def follow(self) -> None:
        """There is nothing that changes meanwhile."""

    def give_up(self) -> None:
        """It takes seconds at most."""

    def close(self) -> None:
        """Nothing was pinned."""


class HeavyPreparationError(NotHereError):
    """The texts of a request are too long to be read on the engine thread."""

    def __init__(self, preparation: Preparation[Any]) -> None:
        super().__init__("long texts")
        self.preparation = preparation


class TurnBudget:
    """Row operations that requests have spent in the present turn of the engine thread."""

    def __init__(self) -> None:
        self.spent = 0


class WorkMeter:
    """The account of one request. Its operators live as long as it does, so that an attempt that
    was ended finds them when it is made again."""

    def __init__(
        self,
        limits: Limits,
        budget: TurnBudget,
        accounts: CycleWork | None = None,
        *,
        owner: Hashable = None,
    ) -> None:
        """What is made counts in ``accounts`` for ``owner`` as long as it lives; without it, for
        nobody."""
        self._limits = limits
        self._budget = budget
        self._accounts = accounts
        self._owner = owner
        self._to_enter: dict[Hashable, int] = {}
        self._largest = 0
        self._kept: dict[int, DerivedTable] = {}
        self._refused: dict[Hashable, BaseException] = {}
        self._prepared: dict[Hashable, Any] = {}
        self.total = 0
        """Row operations admitted so far, those of operators made beside included."""

    def admit(self, key: Hashable, estimate: Estimate) -> bool:
        """Whether the operator of that key may be made here and now; False when it is to be made
        beside the engine thread. Raises why it may not be made, or only later."""
        refusal = self._refused.get(key)
        if refusal is not None:
            raise refusal
        work, limits = estimate.making, self._limits
        check_work(self.total + work, limits)
        self._admit_cycle_work(key, estimate.per_cycle)
        if work > limits.turn_work_max:
            if estimate.is_of_blink:
                raise LimitExceededError(
                    "query of a blink table, whose rows are new in every cycle",
                    actual=work,
                    maximum=limits.turn_work_max,
                    unit="row operations",
                )
            return False
        spent = self._budget.spent
        if spent and spent + work > limits.turn_work_max:
            raise TurnSpentError
        self._budget.spent += work + estimate.binding
        self.total += work
        return True

    def _admit_cycle_work(self, key: Hashable, per_cycle: int) -> None:
        if self._accounts is not None and per_cycle:
            check_cycle(per_cycle, self._limits)
            self._accounts.check(self._owner, spared=self._largest)
            self._to_enter[key] = per_cycle
            self._largest = max(self._largest, per_cycle)

    def prepared(self, key: Hashable, byte_count: int, prepare: Callable[[], Result]) -> Result:
        """What ``prepare`` makes of texts of so many bytes: once, here and now, or not here."""
        refusal = self._refused.get(key)
        if refusal is not None:
            raise refusal
        if key in self._prepared:
            known: Result = self._prepared[key]
            return known
        if byte_count > TEXT_BYTES_HERE:
            raise HeavyPreparationError(Preparation(key, prepare))
        work = max(0, byte_count - TEXT_BYTES_FREE) * TEXT_BYTE
        spent = self._budget.spent
        if work and spent and spent + work > self._limits.turn_work_max:
            raise TurnSpentError
        self._budget.spent += work
        made = self._prepared[key] = prepare()
        return made

    def know(self, preparation: Preparation[Any]) -> None:
        """Something has been prepared beside."""
        self._prepared[preparation.key] = preparation.result

    def made_beside(self, work: int) -> None:
        """Count so many row operations of making an operator that was not made here."""
        self.total += work

    def refuse(self, key: Hashable, error: BaseException) -> None:
        """An operator could not be made beside: tell why when it is asked for again."""
        self._refused[key] = error

    def keep(self, key: Hashable, table: DerivedTable) -> None:
        """Let the operator of that key live as long as this account."""
        self._kept[table.serial] = table
        per_cycle = self._to_enter.pop(key, 0)
        if self._accounts is None:
            # Whatever client made it: the program that runs the server wants it as well.
            table.never_end()
        elif per_cycle:
            self._accounts.enter(table, self._owner, per_cycle)

    def close(self) -> None:
        """Let go of all tables. On the engine thread."""
        self._kept.clear()
        self._refused.clear()
        self._prepared.clear()
        self._to_enter.clear()
