"""How a table is derived from others: what all operators have in common before they are made.

The function of an operator checks its arguments and calls :func:`derived`, which gives the operator
that is there already, or has a new one admitted (:class:`~barrage.engine.tables.table.Meter`) and
makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from barrage.engine.tables.source import sources_of
from barrage.engine.tables.work import (
    BINDING,
    FREE,
    OPERATOR,
    Estimate,
    NotHereError,
    Price,
)
from barrage.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from barrage.engine.tables.table import DerivedTable, Table

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPlan:
    """An operator that is to be made: of which tables, how, and at what price."""

    parents: tuple[Table, ...]
    description: Hashable
    make: Callable[..., DerivedTable]
    price: Price

    @property
    def identity(self) -> Hashable:
        """Tells the operators upon the first parent apart."""
        others = self.parents[1:]
        if not others:
            return self.description
        return self.description, tuple(other.serial for other in others)

    @property
    def key(self) -> Hashable:
        """Tells the operators of a graph apart."""
        return self.parents[0].serial, self.identity

    @property
    def work(self) -> int:
        """Row operations of making it: a number that is known before anything is done."""
        return sum(self.work_on(parent, parent.size) for parent in self.parents) + sum(
            parent.row_keys.range_count for parent in self.parents
        )

    def work_on(self, parent: Table, rows: int) -> int:
        """Row operations for some rows of one parent."""
        per_row = self.price.per_row
        return rows * (per_row + parent.reading) if per_row else 0

    @property
    def cycle_work(self) -> int:
        """Row operations of a cycle that changes the parents. Static ones never change."""
        if all(parent.is_static for parent in self.parents):
            return 0
        return self.price.admitted(sum(parent.size for parent in self.parents))

    @property
    def estimate(self) -> Estimate:
        """What is asked of a meter."""
        return Estimate(
            making=self.work,
            binding=OPERATOR + self.price.per_row * BINDING,
            per_cycle=self.cycle_work,
            is_of_blink=any(parent.is_blink for parent in self.parents),
        )

    def existing(self) -> DerivedTable | None:
        """The operator, if somebody uses it."""
        child = self.parents[0].child(self.identity)
        return None if child is None or child.failure is not None else child

    def made(self) -> DerivedTable:
        """The operator, made here and now."""
        child = self.make(*self.parents)
        self.enter(child)
        return child

    def enter(self, child: DerivedTable) -> None:
        """Let the parents know the operator."""
        first, identity = self.parents[0], self.identity
        child.description, child.price = self.description, self.price
        first.know(identity, child)
        for other in self.parents[1:]:
            if other is not first:
                other.know(("fed by", first.serial, identity), child)
        first.graph.weigh(sources_of(*self.parents))


class HeavyOperatorError(NotHereError):
    """An operator is too much work for the engine thread: it is to be made beside
    (:mod:`barrage.engine.planning.derivation`)."""

    def __init__(self, plan: OperatorPlan) -> None:
        super().__init__(f"{plan.work} row operations")
        self.plan = plan


def derived(
    parents: tuple[Table, ...],
    identity: Hashable,
    make: Callable[..., DerivedTable],
    *,
    price: Price = FREE,
) -> Table:
    """The operator of that identity: the existing one while somebody uses it, else a new one.

    Every parent learns about it. ``make`` gets all of them. TableFailedError, HeavyOperatorError,
    what the meter of the graph raises, and what ``make`` raises for the rows of the parents.
    """
    for parent in parents:
        parent.check_alive()
    plan = OperatorPlan(parents=parents, description=identity, make=make, price=price)
    child = plan.existing()
    meter = parents[0].graph.meter
    if child is None:
        if meter is not None and not meter.admit(plan.key, plan.estimate):
            raise HeavyOperatorError(plan)
        child = plan.made()
    if meter is not None:
        meter.keep(plan.key, child)
    else:
        child.never_end()
    return child


def prepared(table: Table, *texts: Hashable, prepare: Callable[[], Result]) -> Result:
    """What ``prepare`` makes of texts and the schema of ``table``, and of nothing else. In a
    request it is made once, and beside the engine thread where the texts are long."""
    meter = table.graph.meter
    if meter is None:
        return prepare()
    key = table.serial, _meaning(texts)
    return meter.prepared(key, sum(map(_length, texts)), prepare)


def _meaning(text: Any) -> Hashable:
    """What tells texts and expressions apart; the tree of an expression nests too deep for that."""
    if isinstance(text, tuple):
        return tuple(map(_meaning, text))
    return (text.scope, text.text) if hasattr(text, "scope") else text


def _length(text: object) -> int:
    """Characters or bytes of a text, of an expression that has one, or of several."""
    if isinstance(text, tuple):
        return sum(map(_length, text))
    return len(text) if isinstance(text, str | bytes) else len(getattr(text, "text", ""))


def check_count(count: int) -> None:
    """EngineError unless ``count`` is a possible number of rows."""
    if count < 0:
        raise EngineError(f"a table cannot show {count} rows; ask for 0 or more")
