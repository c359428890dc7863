"""What a subscription is opened with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from barrage.client.connection.reconnect import Backoff
from barrage.proto.resumption import ResumeMode

if TYPE_CHECKING:
    from barrage.client.connection.table_sources import TableSource
    from barrage.client.subscriptions.resume import KeptState
    from barrage.model.viewport import Viewport
    from barrage.wire.messages import SubscriptionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSettings:
    """What was asked for when the subscription was opened."""

    source: TableSource
    columns: tuple[str, ...] | None
    viewport: Viewport | None
    options: SubscriptionOptions
    reconnects: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    resume: ResumeMode = ResumeMode.COALESCED
    kept: KeptState | None = None
    """Rows to go on from instead of a first snapshot."""
