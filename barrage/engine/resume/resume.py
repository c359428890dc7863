"""What a subscriber missed, when it comes back with the rows of an older version.

A plan (:class:`~barrage.engine.propagation.open_plans.ResumePlan`) leads from a table as it was at
some version to the table as it is: the subscriber gets updates instead of a snapshot. It is made of
values (the rows of the sources at that version and their recorded cycles since), so it does not
matter where they come from.

**How the subscriber must relabel.** It need not know the row keys its rows have, or had, on the
server: a full subscription numbers its rows 0 to n-1, in row order, before the first update. The
first update removes and shifts rows under these numbers, and names all rows by the server's keys
afterwards. A viewport subscription speaks positions of its view all the time and changes nothing.
At least one update comes, even when nothing was missed: then it tells the keys, or nothing at all.
None of them is flagged as a snapshot.

*Coalesced*, everything comes as one update. *Stepwise*, one update comes for each cycle that
changed the table (its ``update_count``); before the last one they name the rows of a
full subscription by position.

How the update is found:

* a source: its recorded updates are merged; no row of the old state is looked at;
* anything else: the same operators are put upon the old rows of the sources, in an update graph of
  their own (:mod:`barrage.engine.resume.replay`). That gives the view the subscriber saw.
  Coalesced, the old sources then go through all recorded cycles at once, and the update the copy
  of the view tells is the answer. Stepwise, they go through one after the other.

The copy has other row keys than the view, so rows are matched by position, which is right where the
rows and their order follow from those of the sources alone
(:attr:`~barrage.engine.tables.table.Table.order_is_reproducible`). Other views are refused, and so
are blink tables.

Cost: the operators over all old rows and one cycle with all changes, off the engine's thread if
one likes (:class:`ResumeBuilder`); there row sets are merged with those of the updates that came
meanwhile, or the last few cycles are repeated. Then as much as any other update.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from barrage.engine.changelog.making import PATIENCE
from barrage.engine.propagation.open_plans import ResumePlan
from barrage.engine.resume.resume_strategies import (
    CoalescedStrategy,
    PresentRows,
    SourceStrategy,
    StepwiseStrategy,
    past_rows,
)
from barrage.engine.tables.source import SourceTable, operators_of, sources_of
from barrage.errors import MuchMissedError, ResumeRefusedError
from barrage.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from barrage.engine.changelog.subscription import SubscriptionSpec
    from barrage.engine.resume.replay import RecordedEntry, SourceState
    from barrage.engine.resume.resume_strategies import Strategy
    from barrage.engine.tables.table import Table
    from barrage.model.update import TableUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHistory:
    """One source since the version resumed from."""

    state: SourceState | None
    """Its rows at that version. May be missing if the table subscribed to is the source itself and
    the plan is not stepwise."""
    entries: Sequence[RecordedEntry]
    """Its cycles since then, oldest first. Coalesced plans look at their updates only."""


def refusal_of(table: Table) -> str | None:
    """Why subscriptions of ``table`` can never be resumed; None when they can."""
    for source in sources_of(table):
        if source.is_blink:
            return "rows of a blink table live for one cycle only"
    for operator in operators_of(table):
        if not operator.order_is_reproducible:
            return "the table has groups, whose order depends on more than the rows there are"
    return None


def changing_sources(table: Table) -> list[SourceTable]:
    """The sources a plan needs the histories of."""
    return [source for source in sources_of(table) if not source.is_static]


def plan_resume(
    table: Table,
    version: int,
    histories: Mapping[SourceTable, SourceHistory],
    *,
    steps_for: SubscriptionSpec | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ResumePlan:
    """The whole of a :class:`ResumeBuilder`'s work at once, on the engine's thread."""
    return ResumeBuilder(table, version, histories, steps_for=steps_for, limits=limits).plan()


class ResumeBuilder:
    """Makes a plan. One call at a time; on any thread, but for those that say the engine's, which
    run between cycles.

    ``present`` are the rows the histories lead to, noted on the engine's thread: then everything
    that takes long is done here, and in :meth:`follow`. Without it :meth:`plan` does all, once the
    histories lead up to the present.

    ``steps_for`` makes the plan stepwise, for subscriptions of that shape. Everything raises
    ResumeRefusedError when the subscription cannot be resumed; a snapshot is due then.
    """

    def __init__(
        self,
        table: Table,
        version: int,
        histories: Mapping[SourceTable, SourceHistory],
        *,
        steps_for: SubscriptionSpec | None = None,
        present: PresentRows | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        reason = refusal_of(table)
        if reason is not None:
            raise ResumeRefusedError(reason)
        self._table = table
        self._version = version
        self._limits = limits
        self._is_stepwise = steps_for is not None
        self._present = present
        self._updates: list[TableUpdate] = []
        self._sources = changing_sources(table)
        for source in self._sources:
            if source not in histories:
                raise ResumeRefusedError(f"the {source.kind} table has no history")
        self._reached = dict.fromkeys(self._sources, version)
        self._steps: set[int] = set()
        states = {source: histories[source].state for source in self._sources}
        self._strategy: Strategy
        if steps_for is not None:
            self._strategy = StepwiseStrategy(
                table, version, past_rows(states, limits), spec=steps_for, limits=limits
            )
        elif isinstance(table, SourceTable):
            self._strategy = SourceStrategy(table)
        else:
            self._strategy = CoalescedStrategy(table, version, past_rows(states, limits))
        self.extend({source: histories[source].entries for source in self._sources})
        if present is not None:
            self._reach(present)

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        """The cycles after those given before, oldest first. Of other sources they are ignored."""
        entries = {source: entries[source] for source in self._sources if source in entries}
        for source, found in entries.items():
            for entry in found:
                step = entry.update.last_step
                if step <= self._reached[source]:
                    raise ResumeRefusedError(f"step {step} of a history comes out of order")
                self._reached[source] = step
                self._steps.add(step)
        self._strategy.extend(entries)

    def is_near(self) -> bool:
        """The engine's thread: whether little has come since."""
        assert self._present is not None
        return self._strategy.lag(self._present) <= self._limits.turn_work_max

    def take(self) -> None:
        """The engine's thread: let :meth:`follow` go up to the rows of now."""
        assert self._present is not None
        if self._is_stepwise:
            self._present.renew()
        else:
            self._updates = self._present.taken()

    def follow(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        """Go up to the rows that were taken; ``entries`` lead there, in a stepwise plan."""
        assert self._present is not None
        if self._is_stepwise:
            self.extend(entries)
            self._reach(self._present)
        else:
            self._strategy.follow(self._updates)
            self._updates = []

    def check_rest(self) -> None:
        """The engine's thread: ResumeRefusedError when too much is left for :meth:`plan`."""
        assert self._present is not None
        self._present.check_kept()
        most = PATIENCE * self._limits.turn_work_max
        rest = self._strategy.rest(self._present)
        if rest > most:
            raise MuchMissedError(
                f"the table changes faster than what was missed can be found: {rest} row "
                f"operations are left, at most {most} may be ({PATIENCE} times turn_work_max)"
            )

    def _reach(self, present: PresentRows) -> None:
        for source, reached in self._reached.items():
            now = present.source_steps[source]
            if now > reached:
                raise ResumeRefusedError(
                    f"the history ends at step {reached}, the table is at {now}"
                )
        self._strategy.reach(present)

    def plan(self) -> ResumePlan:
        """The engine's thread: the plan, after which the builder is of no further use. The history
        of a stepwise plan must lead up to the present."""
        self._table.check_alive()
        present = self._present
        if present is None:
            present = PresentRows(self._table, self._sources, self._limits)
            present.close()
            self._reach(present)
        elif self._is_stepwise and (present.since or present.source_updates):
            present.renew()
            self._reach(present)
        found = self._strategy.finish(present)
        present.taken()
        steps = self._steps | present.steps
        now, update = self._table.changed_step, found.update
        if found.is_of_all_steps:
            update = replace(update, first_step=min([now, *steps]), last_step=now)
        return ResumePlan(
            table=self._table,
            version=self._version,
            step=now,
            missed_steps=len(steps),
            size_before=found.size_before,
            update=update,
            shape=found.shape,
            earlier=found.earlier,
        )
