"""All actions that pages have beside those of every client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.server.pages.board_calls import BoardCalls
from barrage.server.pages.board_store import BoardStore
from barrage.server.pages.row_edits import RowEditCalls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.clock import Clock
    from barrage.server.access.method_table import Action
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.settings.config import ServerConfig
    from barrage.server.tables.table_service import TableService


def page_actions(
    config: ServerConfig,
    catalog: Catalog,
    tables: TableService,
    *,
    gate: AccessGate,
    clock: Clock,
) -> Mapping[str, Action]:
    """Those of one server."""
    limits = config.limits
    return {
        **BoardCalls(BoardStore(config.data, limits), limits, clock).actions,
        **RowEditCalls(catalog, tables, gate=gate, limits=limits).actions,
    }
