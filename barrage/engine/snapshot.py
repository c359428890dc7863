"""Snapshots: answers to one-off requests and first states of subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barrage.engine.table import Table
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport


def snapshot_messages(
    table: Table,
    columns: ColumnSet | None,
    viewport: Viewport | None,
    *,
    step: int,
    is_reverse_echo: bool = False,
) -> list[FullUpdate]:
    """Answer one snapshot request at a cycle boundary: one message, or none when a static table has nothing to send.

    ``step`` is the graph's step; a static table is numbered -1 instead (barrage-wire.md section 7.3).
    """
    raise NotImplementedError
