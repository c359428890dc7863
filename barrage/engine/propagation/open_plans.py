"""Resume plans (:mod:`barrage.engine.resume.resume` makes them) and those in use at one producer,
so that many who come back with one version share one message.

A plan leads to the rows of the moment it was made. As long as it is open, the delta log keeps what
happened since then, and further subscribers may join at the same branch; they get the plan's update
and everything after it as one. Plans close by themselves: what is kept costs row sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import ResumeRefusedError
from barrage.limits import NANOS_PER_MS
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.engine.changelog.changelog import Changelog, Message
    from barrage.engine.changelog.subscription import Shape
    from barrage.engine.tables.table import Table
    from barrage.model.update import TableUpdate

OPEN_NS = 5000 * NANOS_PER_MS
"""How long a plan stays open: after a cut, clients come back within seconds."""

OPEN_PLANS_MAX = 64
"""Most open plans; the oldest closes to make room."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResumePlan:
    """From ``version`` of ``table`` to its rows now. Plans are equal when they are one object:
    subscribers that get the same plan share what is sent."""

    table: Table
    version: int
    step: int
    """``changed_step`` of the table where the plan ends."""
    missed_steps: int
    """Cycles since the version that changed a source."""
    size_before: int
    """Rows before ``update``; their keys there are 0 to size-1."""
    update: TableUpdate
    """The last update, or the only one."""
    shape: Shape | None = None
    """Whom ``earlier`` is for; None when there is none of it."""
    earlier: tuple[Message, ...] = ()
    """The updates before the last one."""

    @property
    def update_count(self) -> int:
        """Updates after which the subscriber has what it missed."""
        return len(self.earlier) + 1


class OpenPlans:
    """The open plans of one table and their branches of its delta log, in which each of them stands
    like one subscriber."""

    def __init__(self, changelog: Changelog) -> None:
        self._changelog = changelog
        self._open: dict[ResumePlan, tuple[int, int]] = {}
        """Branch, and when the plan closes."""

    def __len__(self) -> int:
        return len(self._open)

    def plans(self) -> list[ResumePlan]:
        """The open plans, oldest first."""
        return list(self._open)

    def is_usable(self, plan: ResumePlan) -> bool:
        """Whether the plan is open, or still leads to the present."""
        return plan in self._open or plan.step == plan.table.changed_step

    def stand(self, plan: ResumePlan, now_ns: int) -> int:
        """Let one subscriber stand where the plan begins; returns the point. ResumeRefusedError
        when the plan has closed."""
        if not self.is_usable(plan):
            raise ResumeRefusedError("the table has changed since the way to its rows was found")
        if plan in self._open:
            point, _ = self._open[plan]
            self._changelog.join_branch(point, 1)
            return point
        if len(self._open) >= OPEN_PLANS_MAX:
            self.close_oldest()
        point = self._changelog.branch(RowSet.of_span(0, plan.size_before), plan.update)
        self._changelog.join_branch(point, 1)
        self._open[plan] = point, now_ns + OPEN_NS
        return point

    def close_due(self, now_ns: int) -> None:
        """Close the plans whose time is over."""
        for plan in [plan for plan, (_, due_ns) in self._open.items() if due_ns <= now_ns]:
            self._close(plan)

    def close_oldest(self) -> bool:
        """Close the oldest plan, to make room; False when none is open."""
        if not self._open:
            return False
        self._close(next(iter(self._open)))
        return True

    def _close(self, plan: ResumePlan) -> None:
        point, _ = self._open.pop(plan)
        self._changelog.leave(point, 1)
