"""What the grid needs from a live table, and the one that gets it from a subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.cli.watch.scroller import RowWindow
    from barrage.client import BodyStats, BodyStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One consistent picture of the subscribed rows."""

    version: int
    """Grows with every update applied; two frames with the same version are equal."""
    rows: pa.Table
    first_row: int
    """Position from the top of the table of ``rows``' first row."""
    table_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """State of the connection and of the subscription."""

    state: str
    is_live: bool
    updates_per_second: float
    lag_ms: float | None
    """Age of the newest data shown; None when the server does not send its clock."""
    resumption: str | None = None
    """How the latest connection went on from the one before; None as long as there was one."""
    bodies: BodyStatus | None = None
    """The way of record batches' bodies; None where there is no connection."""
    body_stats: BodyStats | None = None
    """What came by which way."""
    failure: Exception | None = None
    """Why the subscription ended for good."""

    @property
    def label(self) -> str:
        """The state, and after a reconnect what became of the time in between."""
        is_told = self.is_live and self.resumption is not None
        return f"{self.state}, {self.resumption}" if is_told else self.state

    @property
    def ways(self) -> list[str]:
        """The way of the bodies, if there is one to tell, for the status line."""
        return [] if self.bodies is None else [f"bodies {self.bodies.way.value}"]


class WindowSource(Protocol):
    """A live table of which only a window is loaded."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that name a row wherever it moves; empty when there are none."""
        ...

    def request(self, window: RowWindow) -> None:
        """Subscribe to another window; never blocks. Frames of the old one may still come."""
        ...

    def frame(self) -> Frame | None:
        """The newest picture; None before the first one."""
        ...

    def status(self) -> SourceStatus: ...
