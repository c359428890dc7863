"""An operator made beside the engine thread: upon a pinned state of its parents, which change
meanwhile.

    begin   engine thread   pins the parents; from here on their updates are kept: row sets
    make    any thread      makes the operator upon the pinned rows: the work that takes long
    meet    engine thread   little has changed since: the operator goes through it and joins the
                            graph, done. Otherwise pins the parents again, and
    follow  any thread      lets the operator go through what has changed up to there; then ``meet``
                            again

The operator reads its parents through *stand-ins*, which are turned from one pinned state to the
next together with the update that leads there; when it joins, it is set upon the parents. From then
on it cannot be told from one that was made on the engine thread.

Cost on the engine thread: pinning shares all cells, of which later writes save what they overwrite,
and copies those of small columns and of columns that are pinned in many states already (bounded by
``query_copied_bytes_max``); one cycle's worth of changes when joining. Every round has
less to go through than the one before it, unless the tables change faster than the operator can
follow; then it is given up (``query_rounds_max``), as it would hold up every cycle of the engine.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from barrage.engine.tables.moved_rows import changed_rows
from barrage.engine.tables.source import copied_nbytes
from barrage.engine.tables.table import DerivedTable, Table
from barrage.errors import BarrageError, EngineError, LimitExceededError
from barrage.model.coalesce import coalesce_all
from barrage.model.update import TableUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.planning.operator_plan import OperatorPlan
    from barrage.engine.tables.cells import Cells
    from barrage.limits import Limits
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array

UPDATES_AT_ONCE = 64
"""Most updates that are merged on the engine thread when an operator joins the graph."""


class DerivationGivenUpError(BarrageError):
    """Nobody wants the operator any more."""


class StandIn(Table):
    """A parent as it was when it was last pinned. Its serial is that of the parent, so that
    operators are told apart upon both alike."""

    def __init__(self, parent: Table) -> None:
        self.graph = parent.graph
        self.serial = parent.serial
        self.schema = parent.schema
        self.traits = parent.traits
        self.timeline = parent.timeline
        self.depth, self.ways, self.reading = parent.depth, parent.ways, parent.reading
        self.trails = []
        self.is_given_up = False
        self._failure = None
        self._children = weakref.WeakValueDictionary()
        self.turn(parent)

    def turn(self, target: Table) -> None:
        """Show the rows of ``target`` from now on."""
        self._target = target
        self._row_keys = target.row_keys
        self.changed_step = target.changed_step

    @property
    def order_is_reproducible(self) -> bool:
        return self._target.order_is_reproducible

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        self._check_wanted()
        return self._target.read_cells(keys, columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        self._check_wanted()
        return self._target.take_cells(keys, columns)

    def _check_wanted(self) -> None:
        """Operators read large tables piece by piece, so this ends them soon."""
        if self.is_given_up:
            raise DerivationGivenUpError("nobody waits for the operator any more")


class Derivation:
    """One operator in the making. The methods say on which thread they run, and never run at the
    same time."""

    def __init__(self, plan: OperatorPlan, limits: Limits) -> None:
        """Engine thread."""
        self.plan = plan
        self._limits = limits
        self._stand_ins: list[StandIn] = []
        self._trails: dict[Table, list[TableUpdate]] = {}
        self._pins: list[Table] = []
        self._updates: list[list[TableUpdate]] = []
        self._made: DerivedTable | None = None
        self._rounds = 0
        self._is_given_up = False

    def begin(self) -> None:
        """Engine thread: pin the parents. TableFailedError, LimitExceededError."""
        for parent in self.plan.parents:
            parent.check_alive()
        check_copies(self.plan.parents, self._limits)
        for parent in self.plan.parents:
            if parent not in self._trails:
                trail: list[TableUpdate] = []
                self._trails[parent] = trail
                parent.trails.append(trail)
        by_serial = {parent.serial: StandIn(parent) for parent in self.plan.parents}
        self._stand_ins = [by_serial[parent.serial] for parent in self.plan.parents]
        self._pin()
        self._turn()
        if self._is_given_up:
            self.give_up()

    def make(self) -> None:
        """Any thread: make the operator. Raises what it raises upon these rows."""
        self._made = self.plan.make(*self._stand_ins)

    def follow(self) -> None:
        """Any thread: go through what had changed when ``meet`` was called last."""
        made = self._made
        assert made is not None
        updates = [merged(found) for found in self._updates]
        self._turn()
        made.advance_all(self._aligned(updates))

    def meet(self) -> DerivedTable | None:
        """Engine thread, between cycles: join the graph if little is left to be done, else pin the
        parents anew and return None.

        TableFailedError when a parent has failed, EngineError when the parents change too fast, and
        what the operator raises for their rows.
        """
        for parent in self.plan.parents:
            parent.check_alive()
        existing = self.plan.existing()
        if existing is not None:
            return existing
        if self._is_little():
            return self._join()
        self._rounds += 1
        if self._rounds > self._limits.query_rounds_max:
            raise EngineError(
                "the tables of the query change faster than it can be derived "
                f"({self._rounds - 1} rounds, limit query_rounds_max)"
            )
        check_copies(self.plan.parents, self._limits)
        self._updates = [list(self._trails[parent]) for parent in self.plan.parents]
        for trail in self._trails.values():
            trail.clear()
        self._pin()
        return None

    def give_up(self) -> None:
        """Any thread: end :meth:`make` or :meth:`follow` soon, with DerivationGivenUpError."""
        self._is_given_up = True
        for stand_in in self._stand_ins:
            stand_in.is_given_up = True

    def close(self) -> None:
        """Engine thread: let go of everything."""
        for parent, trail in self._trails.items():
            parent.trails[:] = [other for other in parent.trails if other is not trail]
        self._trails.clear()
        self._stand_ins.clear()
        self._pins.clear()
        self._updates.clear()
        self._made = None

    def _pin(self) -> None:
        known: dict[int, Table] = {}
        self._pins = [parent.pinned(known) for parent in self.plan.parents]

    def _turn(self) -> None:
        for stand_in, pin in zip(self._stand_ins, self._pins, strict=True):
            stand_in.turn(pin)

    def _is_little(self) -> bool:
        """Whether the rest may be done on the engine thread, in one turn."""
        updates = [self._trails[parent] for parent in self.plan.parents]
        if sum(map(len, updates)) > UPDATES_AT_ONCE:
            return False
        rest = sum(
            self.plan.work_on(parent, sum(map(changed_rows, found)))
            for parent, found in zip(self.plan.parents, updates, strict=True)
        )
        return rest <= self._limits.turn_work_max

    def _join(self) -> DerivedTable:
        made = self._made
        assert made is not None
        parents = self.plan.parents
        updates = [merged(self._trails[parent]) for parent in parents]
        for stand_in, parent in zip(self._stand_ins, parents, strict=True):
            stand_in.turn(parent)
        if any(update is not None for update in updates):
            made.advance_all(self._aligned(updates))
        made.stand_upon(parents)
        self.plan.enter(made)
        return made

    def _aligned(self, updates: Sequence[TableUpdate | None]) -> list[TableUpdate]:
        """One update per parent, that of nothing for those that have not changed."""
        steps = [update.last_step for update in updates if update is not None]
        last = max(steps, default=self.plan.parents[0].graph.step)
        return [
            TableUpdate.nothing(step=last, column_count=len(parent.schema))
            if update is None
            else update
            for update, parent in zip(updates, self.plan.parents, strict=True)
        ]


def merged(updates: Sequence[TableUpdate]) -> TableUpdate | None:
    """Consecutive updates as one, None for none."""
    return coalesce_all(updates) if updates else None


def check_copies(tables: Sequence[Table], limits: Limits) -> None:
    """LimitExceededError when pinning the tables would copy too much at a time."""
    copied = copied_nbytes(tables)
    if copied > limits.query_copied_bytes_max:
        raise LimitExceededError(
            "cells to be copied for a query",
            actual=copied,
            maximum=limits.query_copied_bytes_max,
            unit="bytes",
        )
