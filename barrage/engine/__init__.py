"""The streaming-table engine: sources, operators, and the update graph that moves them from step to
step."""

from barrage.engine.resume.restore import restore_source
from barrage.engine.tables.coercion import coerce_rows
from barrage.engine.tables.graph import CycleResult, UpdateGraph
from barrage.engine.tables.keyed import KeyedTable
from barrage.engine.tables.list_table import ListTable
from barrage.engine.tables.ring import BlinkTable, RingTable
from barrage.engine.tables.source import AppendOnlyTable, SourceTable, StaticTable
from barrage.engine.tables.table import DerivedTable, Table

__all__ = [
    "AppendOnlyTable",
    "BlinkTable",
    "CycleResult",
    "DerivedTable",
    "KeyedTable",
    "ListTable",
    "RingTable",
    "SourceTable",
    "StaticTable",
    "Table",
    "UpdateGraph",
    "coerce_rows",
    "restore_source",
]
