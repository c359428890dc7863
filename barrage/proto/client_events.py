"""What a :class:`barrage.proto.client_exchange.ClientExchange` tells its driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.errors import BarrageError
    from barrage.model.update import FullUpdate, ViewUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaArrived:
    """The table's schema, unwrapped when lists were asked for; always the first event."""

    schema: pa.Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateArrived:
    """One complete update."""

    message: FullUpdate | ViewUpdate
    is_consistent: bool
    """After this update the rows are all rows of some setting that was asked for. False while the
    server hands out a state in parts."""
    is_current: bool
    """The same for the setting asked for last. Implies ``is_consistent``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeEnded:
    """No more events follow. ``error`` is None when the end was asked for or completes a one-shot
    snapshot."""

    error: BarrageError | None


ClientEvent = SchemaArrived | UpdateArrived | ExchangeEnded
