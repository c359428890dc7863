"""All operations of TableService by their names, and those it only knows by name."""

from __future__ import annotations

from barrage.server.deephaven.operations import (
    aggregate_operations,
    column_operations,
    described_operations,
    join_operations,
    plain_operations,
    row_operations,
    source_operations,
)

OPERATIONS = {
    operation.name: operation
    for module in (
        source_operations,
        column_operations,
        plain_operations,
        row_operations,
        join_operations,
        aggregate_operations,
        described_operations,
    )
    for operation in module.OPERATIONS
}
"""By the member of BatchTableRequest.Operation's ``op``."""

REFUSED = {
    "update_by": "UpdateBy",
    "cross_join": "CrossJoinTables",
    "exact_join": "ExactJoinTables",
    "left_join": "LeftJoinTables",
    "as_of_join": "AsOfJoinTables",
    "aj": "AjTables",
    "raj": "RajTables",
    "multi_join": "MultiJoinTables",
    "range_join": "RangeJoinTables",
    "snapshot_when": "SnapshotWhen",
    "run_chart_downsample": "RunChartDownsample",
}
"""Operations this engine does not have, by member of ``op``, with the call that does them alone."""
