"""The action that tells a relay what there is to be followed here."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from barrage.server.access.method_table import Action
from barrage.server.tables.table_service import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService

RELAY: Final = "barrage.relay"

RELAY_FORMAT: Final = 1
"""Raised when a relay of before could not follow this server."""

RELAY_DESCRIPTION: Final = (
    'What a relay follows. No body. Result: JSON object with format, server (its id), "via" (ids '
    "of the servers its tables come through) and tables: a list of objects with name, kind, key, "
    'attributes (of "static", "append_only", "blink", "flat") and serial, another one once the '
    "name stands for another table."
)


class RelayCalls:
    """The action, on the event loop."""

    def __init__(self, tables: TableService, catalog: Catalog, gate: AccessGate) -> None:
        self._gate = gate
        self._tables = tables
        self._catalog = catalog
        self.actions: Mapping[str, Action] = {RELAY: Action(RELAY_DESCRIPTION, self._tell)}

    async def _tell(self, _body: bytes) -> bytes:
        listed = await asyncio.wrap_future(self._tables.run(self._listed))
        # A relay follows whole tables only: a part of one is for those whom it is shown.
        allowed = [table for table in listed if self._is_whole(str(table["name"]))]
        identity = self._tables.identity
        told = {
            "format": RELAY_FORMAT,
            "server": identity.id,
            "via": list(identity.via),
            "tables": allowed,
        }
        return json.dumps(told).encode()

    def _is_whole(self, name: str) -> bool:
        decision = self._gate.decision(name)
        return decision.may_read and decision.restriction is None

    def _listed(self) -> list[dict[str, object]]:
        """Engine thread. A table that has failed cannot be followed."""
        serials = self._catalog.listing()
        return [
            {
                "name": publication.name,
                "kind": kind_of(publication.table),
                "key": list(publication.table.key_columns),
                "attributes": [
                    name
                    for name in ("static", "append_only", "blink", "flat")
                    if getattr(publication.table.traits, f"is_{name}")
                ],
                "serial": serials[publication.name],
            }
            for publication in self._catalog
            if publication.table.failure is None
        ]
