"""What one subscriber asked for, as the producer sees it.

Not here: options that only matter to the encoder. They travel as one opaque hashable ``encoding``; two
subscribers with equal encodings share the encoded bytes of every message they both get.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from barrage.model.viewport import ColumnSet, Viewport


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSpec:
    """One subscription: what to send (columns, viewport), how often, in which space and for which encoding."""

    columns: ColumnSet | None
    """Columns as requested, echoed unclamped; None means all."""
    viewport: Viewport | None
    """None for a full subscription."""
    interval_ns: int
    """Shortest time between two updates; 0 or less means the server's default."""
    is_key_space: bool
    """True for full subscriptions and for the 2020 draft's viewports; False for view positions (1.0.0 viewports)."""
    encoding: Hashable
    """Equal encodings get equal bytes."""
    is_reverse_echo: bool = False
    """Direction to echo when there is no viewport: such a request may name one, it has no other effect
    (barrage-wire.md section 7.1)."""
