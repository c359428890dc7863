"""What a server tells about itself at one moment, read from its tables."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from barrage.cli.command_errors import CommandError
from barrage.errors import TableNotFoundError

if TYPE_CHECKING:
    from barrage.client import AsyncSession

SERVER, SUBSCRIPTIONS, CALLERS = "_server", "_subscriptions", "_callers"
CONNECTORS, STREAMS = "_connectors", "_streams"
ALERTS = "_alerts"

_QUANTILES = ("p50", "p90", "p99", "longest")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPicture:
    """One moment of a server. What its rules hide, or it does not have, is empty."""

    values: dict[str, dict[str, float]] = field(default_factory=dict)
    """Measures by name and label."""
    rates: dict[str, float] = field(default_factory=dict)
    """How fast counters grow, in a second, all labels together."""
    durations: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Of what is measured in seconds: how often, and how long half, most and all took."""
    subscriptions: list[dict[str, Any]] = field(default_factory=list)
    callers: list[dict[str, Any]] = field(default_factory=list)
    connectors: list[dict[str, Any]] = field(default_factory=list)
    """Connections of external sources; and their streams."""
    streams: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)

    def value(self, name: str) -> float:
        """A measure, all labels together."""
        return sum(self.values.get(name, {}).values())

    def facts(self) -> dict[str, Any]:
        """For scripts: measures without labels as numbers, the others as objects."""
        measures = {
            name: labels[""] if list(labels) == [""] else labels
            for name, labels in self.values.items()
        }
        return {
            "measures": measures,
            "per_second": self.rates,
            "durations": self.durations,
            "subscriptions": self.subscriptions,
            "callers": self.callers,
            "connectors": self.connectors,
            "streams": self.streams,
            "alerts": self.alerts,
        }


async def take_picture(session: AsyncSession) -> ServerPicture:
    """Read what there is now. CommandError when the server tells nothing about itself to us."""
    names = (SERVER, SUBSCRIPTIONS, CALLERS, CONNECTORS, STREAMS, ALERTS)
    server, subscriptions, callers, connectors, streams, alerts = await asyncio.gather(
        *(_rows(session, name) for name in names)
    )
    if server is None and subscriptions is None:
        raise CommandError(
            f"{session.address} has neither {SERVER} nor {SUBSCRIPTIONS}: it is older than this "
            "command, or of another kind, or its rules do not show them to you"
        )
    values: dict[str, dict[str, float]] = {}
    rates: dict[str, float] = {}
    durations: dict[str, dict[str, float | None]] = {}
    for row in server or []:
        name = row["measure"]
        values.setdefault(name, {})[row["label"]] = row["value"]
        if row.get("per_second") is not None:
            rates[name] = rates.get(name, 0.0) + row["per_second"]
        if row["kind"] == "histogram":
            durations[name] = {"count": row["value"], **{each: row[each] for each in _QUANTILES}}
    return ServerPicture(
        values=values,
        rates=rates,
        durations=durations,
        subscriptions=subscriptions or [],
        callers=callers or [],
        connectors=connectors or [],
        streams=streams or [],
        alerts=alerts or [],
    )


async def _rows(session: AsyncSession, name: str) -> list[dict[str, Any]] | None:
    try:
        rows: list[dict[str, Any]] = (await session.table(name).snapshot()).to_pylist()
    except TableNotFoundError:
        return None
    return rows
