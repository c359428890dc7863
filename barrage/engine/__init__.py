"""The streaming-table engine: sources, operators, and the update graph that moves them from step to
step."""

from barrage.engine.coercion import coerce_rows
from barrage.engine.graph import CycleResult, UpdateGraph
from barrage.engine.keyed import KeyedTable
from barrage.engine.list_table import ListTable
from barrage.engine.restore import restore_source
from barrage.engine.ring import BlinkTable, RingTable
from barrage.engine.source import AppendOnlyTable, SourceTable, StaticTable
from barrage.engine.table import DerivedTable, Table

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
