"""Where messages of sources go, and what is told of how that goes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.connector.source import Source
from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(slots=True)
class DeliveryProgress:
    """Counts since the delivery began."""

    messages_sent: int = 0
    bytes_sent: int = 0
    """Of payloads."""
    messages_rejected: int = 0
    """That could not be decoded here."""
    connections: int = 0
    is_done: bool = False


class SourceDelivery(ABC):
    """One destination. Made for one run."""

    def __init__(self) -> None:
        self.progress = DeliveryProgress()

    @abstractmethod
    async def run(self, sources: Sequence[Source]) -> None:
        """Deliver until all sources have ended and all they gave is safe. Lost connections are made
        anew, for ever; what trying again cannot help is raised."""
        ...


def check_names(sources: Sequence[Source]) -> None:
    """ConfigError when there is none, or two have one name."""
    names = [each.name for each in sources]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"sources need names that differ, and one at least: {names}")


async def run_sources(
    sources: Source | Sequence[Source],
    delivery: SourceDelivery,
    *,
    on_progress: Callable[[DeliveryProgress], None] | None = None,
    progress_seconds: float = 0.5,
) -> DeliveryProgress:
    """Deliver what sources give until they end; how that went. ``on_progress`` is called now and
    then, and when all is done."""
    from_all = [sources] if isinstance(sources, Source) else list(sources)
    check_names(from_all)
    running = asyncio.ensure_future(delivery.run(from_all))
    try:
        while not running.done():
            await asyncio.wait([running], timeout=progress_seconds)
            if on_progress is not None:
                on_progress(delivery.progress)
        await running
    finally:
        running.cancel()
        await asyncio.wait([running])
    delivery.progress.is_done = True
    if on_progress is not None:
        on_progress(delivery.progress)
    return delivery.progress


def run_sources_blocking(
    sources: Source | Sequence[Source],
    delivery: SourceDelivery,
    *,
    on_progress: Callable[[DeliveryProgress], None] | None = None,
) -> DeliveryProgress:
    """The same for programs without an event loop."""
    return asyncio.run(run_sources(sources, delivery, on_progress=on_progress))
