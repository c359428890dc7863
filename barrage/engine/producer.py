"""Turns the updates of one table into what each of its subscribers is told.

One producer per table. The engine calls :meth:`Producer.record` once per cycle that changed the table and
:meth:`Producer.propagate` at cycle boundaries; nothing here reads a clock or does IO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from collections.abc import Hashable

    from barrage.engine.subscription import SubscriptionSpec
    from barrage.engine.table import Table
    from barrage.errors import BarrageError
    from barrage.model.update import FullUpdate, TableUpdate, ViewUpdate
    from barrage.model.viewport import ColumnSet, Viewport


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message for all ``subscription_ids``, which all use ``encoding``."""

    message: FullUpdate | ViewUpdate
    subscription_ids: tuple[int, ...]
    encoding: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """The subscription has ended with ``error``; the producer has forgotten it already."""

    subscription_id: int
    error: BarrageError


class Producer:
    """The subscriptions of one table.

    ``step`` is the graph's step at construction; it numbers snapshots sent before the table changes.
    """

    def __init__(self, table: Table, limits: Limits = DEFAULT_LIMITS, *, step: int = 0) -> None:
        raise NotImplementedError

    @property
    def subscription_count(self) -> int:
        """Subscriptions that are neither removed nor disconnected."""
        raise NotImplementedError

    def add(self, subscription_id: int, spec: SubscriptionSpec, now_ns: int) -> None:
        """Take a subscription; its snapshot comes with the next :meth:`propagate`.

        Raises RemoteProtocolError, LimitExceededError or TableFailedError if it cannot be served.
        """
        raise NotImplementedError

    def change(
        self, subscription_id: int, columns: ColumnSet | None, viewport: Viewport | None, now_ns: int
    ) -> None:
        """Ask for another viewport or other columns; several requests before :meth:`propagate` count as the last.

        Raises RemoteProtocolError when the change is not allowed; the subscription then still stands.
        """
        raise NotImplementedError

    def remove(self, subscription_id: int) -> None:
        """Forget a subscription; unknown ids are fine, since a disconnect may have crossed the removal."""
        raise NotImplementedError

    def record(self, update: TableUpdate, wall_ns: int) -> None:
        """Note what a cycle changed; ``wall_ns`` is its commit time."""
        raise NotImplementedError

    def next_due_ns(self) -> int | None:
        """When :meth:`propagate` will next have something to do, or None. May lie in the past."""
        raise NotImplementedError

    def hold(self, subscription_id: int, now_ns: int | None = None) -> None:
        """Send nothing to this subscription until released; its changes coalesce.

        Without ``now_ns`` the stall limit counts from the next :meth:`propagate`.
        """
        raise NotImplementedError

    def release(self, subscription_id: int) -> None:
        """Send again: what was missed comes as one update with the next :meth:`propagate`."""
        raise NotImplementedError

    def propagate(self, now_ns: int) -> list[Delivery | Disconnect]:
        """Everything due now. Call only between cycles, after the last cycle's update was recorded.

        The order matters: messages of one subscription are to be sent in list order.
        """
        raise NotImplementedError

    def fail(self, error: BarrageError) -> list[Disconnect]:
        """The table failed: every subscription ends, between two updates."""
        raise NotImplementedError
