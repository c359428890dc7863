"""The update graph: which tables exist, and one cycle that moves all of them to the next step
together.

A cycle first commits what was staged in the sources, then lets every operator below a changed table
compute its own update from its parents'. Operators run in order of depth, so each runs once, after
all its parents, whatever ways lead to it. A table that fails takes its dependents with it and
nothing else.

What an operator will cost in a cycle is known before it is run
(:class:`~barrage.engine.tables.work.Price`). One of a client that would cost more than it was
admitted for, and pass what all of them may cost in a cycle, fails instead: who wants it has it made
again, beside the engine thread.

Tables are held weakly: a table lives as long as somebody (a user, a dependent table, a producer)
refers to it.
"""

from __future__ import annotations

import itertools
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from barrage.engine.tables.moved_rows import changed_rows
from barrage.engine.tables.table import GRAPH_TIMELINE, LeafTable
from barrage.engine.tables.work import WEIGHT_MAX, weight_below
from barrage.errors import BarrageError, CycleTooLongError, EngineError, TableFailedError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.model.update import TableUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from barrage.engine.tables.table import DerivedTable, Meter, Table


WEIGHED_STEPS = 16
"""What hangs below a source is weighed again after so many cycles: sizes change little in one, and
operators go."""

LOOKED_AT_MAX = 250
"""No source is begun with when the others of a turn took looking at so many parents of operators, a
millisecond; but one always is."""

BELOW_MAX = 1_000
"""So many operators of one source are looked at, those next to it first: as many as clients may
keep where each costs but little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleResult:
    """What one cycle did: only tables that changed, and tables that failed in this very cycle."""

    step: int
    updates: Mapping[Table, TableUpdate]
    failed: Mapping[Table, BarrageError]


class UpdateGraph:
    """Owns the step number and knows the sources. Not thread-safe: one thread runs the engine."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS, first_step: int = 0) -> None:
        """``first_step`` is the number of the last cycle of the graph that this one continues."""
        self.limits = limits
        self._step = first_step
        self._sources: dict[int, weakref.ref[LeafTable]] = {}
        self._serials = itertools.count(1)
        self._weighing = Weighing(limits.cycle_work_max)
        self.meter: Meter | None = None
        """Admits operators before they are made; None admits all."""
        self._cycle: _Cycle | None = None
        """The one that runs."""

    @property
    def step(self) -> int:
        """Number of the last cycle; the graph's ``first_step`` before its first."""
        return self._step

    @property
    def has_pending(self) -> bool:
        """Whether the next cycle has anything to do."""
        return any(source.has_pending for source in self._live_sources())

    def new_serial(self) -> int:
        """A number that tells one table of this graph from all others, dead ones included. Any
        thread."""
        return next(self._serials)

    @contextmanager
    def metered(self, meter: Meter) -> Iterator[None]:
        """Have ``meter`` admit every operator that is made meanwhile."""
        before, self.meter = self.meter, meter
        try:
            yield
        finally:
            self.meter = before

    def add_source(self, source: LeafTable) -> None:
        """Called by a source when it is made."""
        serial = source.serial
        self._sources[serial] = weakref.ref(source, lambda _: self._sources.pop(serial, None))

    def _live_sources(self) -> list[LeafTable]:
        """Sources in the order they were made, so that equal runs give equal results."""
        found = (reference() for reference in list(self._sources.values()))
        return [source for source in found if source is not None]

    def weigh(self, sources: Iterable[LeafTable]) -> None:
        """An operator was made below these."""
        self._weighing.entered(sources)

    def weigh_due(self) -> None:
        """Work out what hangs below some of the sources where that may have changed. Little work;
        cycles do it, and who runs them should do it where none is due."""
        self._weighing.begin_turn()

    def spend(self, table: DerivedTable, work: int) -> None:
        """See :meth:`DerivedTable.spend`."""
        if self._cycle is not None:
            self._cycle.spend(table, work)

    def run_cycle(self, step: int | None = None) -> CycleResult:
        """Commit everything staged and bring every dependent table up to date.

        ``step`` numbers the cycle, when it repeats one of another graph; it must be greater than
        the last.
        """
        if step is None:
            step = self._step + 1
        elif step <= self._step:
            raise EngineError(f"step {step} does not follow step {self._step}")
        self._step = step
        self._cycle = cycle = _Cycle(step, self.limits.cycle_work_once_max)
        for source in self._live_sources():
            if source.has_pending:
                cycle.commit(source)
        cycle.run_operators()
        self._cycle = None
        for table in cycle.updates:
            if isinstance(table, LeafTable):
                self._weighing.changed(table, step)
        self._weighing.begin_turn()
        return CycleResult(step=step, updates=cycle.updates, failed=cycle.failed)


class _Cycle:
    """The working state of one cycle."""

    def __init__(self, step: int, work_max: int) -> None:
        self.step = step
        self._work_max = work_max
        self._work = 0
        """Row operations of the operators of clients that were run."""
        self._own_work = 0
        """Those of the one that runs."""
        self._changed: dict[Table, int] = {}
        """Rows that this cycle changes in the parents of operators that were run."""
        self.updates: dict[Table, TableUpdate] = {}
        self.failed: dict[Table, BarrageError] = {}
        self._steps: dict[int, tuple[int, int]] = {}
        """First and last step of this cycle in timelines other than the graph's."""
        self._waiting: list[dict[DerivedTable, None]] = []
        """Per depth the operators with a parent that changed or failed, in the order they were
        met."""

    def commit(self, source: LeafTable) -> None:
        """Let one source take over what was staged in it."""
        self._settle(source, lambda: source.commit(self.step))

    def run_operators(self) -> None:
        """Bring everything below the committed sources up to date."""
        depth = 0
        # Children are always deeper than their parents, so no level grows once it is reached.
        while depth < len(self._waiting):
            for table in self._waiting[depth]:
                self._run(table)
            depth += 1

    def _run(self, table: DerivedTable) -> None:
        if table.failure is not None:
            return
        if self.failed:
            for parent in table.parents:
                if parent in self.failed:
                    self._fail(table, _dependent_failure(self.failed[parent]))
                    self._wake_children(table)
                    return
        self._settle(table, lambda: self._advanced(table))

    def _advanced(self, table: DerivedTable) -> TableUpdate:
        updates = [self._update_of(parent) for parent in table.parents]
        if table.admitted_work is not None:
            self._own_work = 0
            changed = sum(map(self._rows_changed, table.parents))
            standing = sum(parent.size for parent in table.parents)
            self.spend(table, table.price.of_cycle(changed, standing))
        return table.advance_all(updates)

    def spend(self, table: DerivedTable, work: int) -> None:
        """So much is about to be done for the operator that runs; CycleTooLongError."""
        if table.admitted_work is None:
            return
        own = self._own_work + work
        if own > table.admitted_work and self._work + work > self._work_max:
            changed = sum(map(self._rows_changed, table.parents))
            raise CycleTooLongError(
                f"{changed:,} changed rows are {own:,} row operations; the limit of all in one "
                f"cycle, cycle_work_once_max, is {self._work_max:,}"
            )
        self._own_work = own
        self._work += work

    def _rows_changed(self, parent: Table) -> int:
        if parent not in self._changed:
            update = self.updates.get(parent)
            self._changed[parent] = 0 if update is None else changed_rows(update)
        return self._changed[parent]

    def _update_of(self, parent: Table) -> TableUpdate:
        update = self.updates.get(parent)
        if update is None:
            return TableUpdate.nothing(step=self.step, column_count=len(parent.schema))
        return update

    def _wake_children(self, table: Table) -> None:
        """Have everything run that depends on a table which changed or failed."""
        for child in table.live_children():
            while len(self._waiting) <= child.depth:
                self._waiting.append({})
            self._waiting[child.depth][child] = None

    def _settle(self, table: Table, compute: Callable[[], TableUpdate]) -> None:
        self._advance(table, compute)
        if table in self.updates or table in self.failed:
            self._wake_children(table)

    def _advance(self, table: Table, compute: Callable[[], TableUpdate]) -> None:
        try:
            update = compute()
        except BarrageError as error:
            # The frames would keep the table, which keeps the error.
            self._fail(table, error.with_traceback(None))
        except Exception as error:  # One bad operator must not stop the other tables.
            failure = TableFailedError(f"step {self.step}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(table, failure)
        else:
            if not update.is_empty:
                update = self._stamped(table, update)
                self.updates[table] = update
                is_ours = table.timeline == GRAPH_TIMELINE
                table.changed_step = self.step if is_ours else update.last_step
                for trail in table.trails:
                    trail.append(update)

    def _stamped(self, table: Table, update: TableUpdate) -> TableUpdate:
        """``update`` with the steps of the table's timeline."""
        if table.timeline == table.serial:
            self._steps[table.timeline] = update.first_step, update.last_step
        if not self._steps:
            return update
        first, last = self._steps.get(table.timeline, (self.step, self.step))
        if (update.first_step, update.last_step) == (first, last):
            return update
        return replace(update, first_step=first, last_step=last)

    def _fail(self, table: Table, error: BarrageError) -> None:
        if table.failure is None:
            self.failed[table] = table.fail(error)


def _dependent_failure(error: BarrageError) -> BarrageError:
    """What a dependent of a failed table reports; keeps the first cause instead of nesting it."""
    if isinstance(error, CycleTooLongError):
        return error
    if isinstance(error, TableFailedError) and error.args[0].startswith(_DEPENDENT_PREFIX):
        return error
    failure = TableFailedError(f"{_DEPENDENT_PREFIX}{error}")
    failure.__cause__ = error
    return failure


_DEPENDENT_PREFIX = "a table this one derives from failed: "


class Weighing:
    """Works out ``weight_below`` of the sources of a graph when it may have changed.

    An operator that is made, and every sixteenth cycle of a source, make sources *due*. They are
    weighed in turn, those that have waited longest first, and in one turn only so many as look at
    few operators: who has many sources and many operators upon all of them does not wait for that.
    What is not weighed yet counts for what it did before.

    These are estimates. One that cannot be made is the greatest there is, and nothing else fails.
    """

    def __init__(self, cycle_work_max: int) -> None:
        self._cycle_work_max = cycle_work_max
        self._due: weakref.WeakValueDictionary[int, LeafTable] = weakref.WeakValueDictionary()
        """By serial, in the order they became due."""
        self.looked_at = 0
        """Parents of operators that were looked at in this turn."""

    def begin_turn(self) -> None:
        """There is time again for what is due."""
        self.looked_at = 0
        self._go_on()

    def entered(self, sources: Iterable[LeafTable]) -> None:
        """An operator was made below some sources."""
        for source in sources:
            self._make_due(source)
        self._go_on()

    def changed(self, source: LeafTable, step: int) -> None:
        """A cycle changes a source."""
        if step - source.weighed_step >= WEIGHED_STEPS:
            self._make_due(source)

    def _make_due(self, source: LeafTable) -> None:
        if not source.is_static:
            self._due.setdefault(source.serial, source)

    def _go_on(self) -> None:
        while self.looked_at < LOOKED_AT_MAX:
            source = next(iter(self._due.values()), None)
            if source is None:
                return
            self._due.pop(source.serial, None)
            self._weigh(source)

    def _weigh(self, source: LeafTable) -> None:
        source.weighed_step = source.graph.step
        try:
            source.weight_below = self._weight(source)
        except Exception:  # What is done between two cycles may not fail for a number.
            source.weight_below = WEIGHT_MAX

    def _weight(self, source: LeafTable) -> int:
        """What one row of a source counts for. For one row as many change in an operator as there
        are for one of its parents, except in those of groups at least one; never more than there
        are."""
        changed: dict[int, float] = {source.serial: 1.0}
        per_row, standing, weight = 0.0, 0, 1
        for table in itertools.islice(_below(source), BELOW_MAX):
            self.looked_at += len(table.parents)
            parents = [parent for parent in table.parents if parent.serial in changed]
            coming = sum(changed[parent.serial] for parent in parents)
            price = table.price
            per_row += price.per_changed * coming
            standing += price.of_cycle(0, sum(parent.size for parent in table.parents))
            weight = weight_below(per_row, standing, self._cycle_work_max)
            if weight == WEIGHT_MAX:
                break
            spread = table.size / max(1, sum(parent.size for parent in parents))
            coming *= spread if table.is_summary else max(1.0, spread)
            changed[table.serial] = min(coming, max(1.0, table.size))
        return weight


def _below(source: LeafTable) -> Iterator[DerivedTable]:
    """The operators fed by a source, parents first: children are always deeper than parents."""
    found: set[int] = set()
    waiting: list[tuple[int, int, DerivedTable]] = []
    table: Table = source
    while True:
        for child in table.live_children():
            if child.serial not in found and child.graph is source.graph:
                found.add(child.serial)
                heappush(waiting, (child.depth, child.serial, child))
        if not waiting:
            return
        _, _, child = heappop(waiting)
        yield child
        table = child
