"""Rows without columns: for columns that are computed from nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.tables.source import SourceTable
from barrage.engine.tables.table import TableTraits
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.engine.tables.table import Graph


class BlankTable(SourceTable):
    """A static table of ``size`` rows and no columns. Costs the same for any size."""

    kind = "static"

    def __init__(self, graph: Graph, size: int) -> None:
        super().__init__(graph, pa.schema([]), TableTraits(is_static=True, is_flat=True))
        self._row_keys = RowSet.of_span(0, size)
