"""What a subscriber may ask of a table: which views, and with which resume plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.changelog.subscription import Shape, ShapeKind
from barrage.errors import LimitExceededError, RemoteProtocolError, ResumeRefusedError

if TYPE_CHECKING:
    from barrage.engine.propagation.open_plans import OpenPlans, ResumePlan
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits

REVERSE_BLINK_REFUSED = "Reverse viewport is not supported for blink tables"
"""Text of the reference server (barrage-wire.md section 13)."""


def check_shape(shape: Shape, table: Table, limits: Limits) -> None:
    """RemoteProtocolError for a view the table cannot have, LimitExceededError for a large one."""
    if shape.viewport is None:
        return
    if shape.is_reverse and table.is_blink:
        raise RemoteProtocolError(REVERSE_BLINK_REFUSED)
    rows = len(shape.window(table.size))
    if rows > limits.viewport_rows_max:
        raise LimitExceededError(
            "viewport", actual=rows, maximum=limits.viewport_rows_max, unit="rows"
        )


def check_plan(plan: ResumePlan, shape: Shape, table: Table, *, plans: OpenPlans) -> None:
    """ResumeRefusedError for a plan that is not of this table as it is, or not for this shape."""
    if plan.table is not table or not plans.is_usable(plan):
        raise ResumeRefusedError("the table has changed since the way to its rows was found")
    if shape.kind is ShapeKind.KEYED_VIEW:
        raise ResumeRefusedError("a viewport in row keys cannot be resumed")
    if plan.shape is not None and plan.shape != shape:
        raise ResumeRefusedError("the steps were told for another subscription")
