"""Operations that compute one row per key: aggregate, aggregate_all and the older combo_aggregate.

What each function gives, here and there: :mod:`barrage.engine.aggregation.aggregation`. Functions
the engine does not have are refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.engine.aggregation.aggregation import Aggregation
from barrage.engine.operators.agg_by import aggregated
from barrage.errors import UnsupportedError
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    OperationError,
    TableOperation,
    check_count,
    check_texts,
    derived,
    name_pair,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.table import Table

_FUNCTIONS = {
    "abs_sum": "abs_sum",
    "avg": "avg",
    "first": "first",
    "last": "last",
    "max": "max",
    "min": "min",
    "std": "std",
    "sum": "sum",
    "var": "var",
    "weighted_avg": "wavg",
    "weighted_sum": "wsum",
}
"""The engine's function for a member of AggSpec."""

_COMBO_FUNCTIONS = {
    "SUM": "sum",
    "ABS_SUM": "abs_sum",
    "AVG": "avg",
    "FIRST": "first",
    "LAST": "last",
    "MIN": "min",
    "MAX": "max",
    "STD": "std",
    "VAR": "var",
    "WEIGHTED_AVG": "wavg",
}
"""The engine's function for a ComboAggregateRequest.AggType; COUNT has no column."""


def aggregate(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """One row per combination of values in the key columns: these, then every aggregation."""
    [source] = sources
    if request.preserve_empty or request.HasField("initial_groups_id"):
        raise UnsupportedError("aggregate: preserve_empty and initial groups are not supported")
    if not request.aggregations:
        raise OperationError("aggregate: needs at least one aggregation")
    check_count(
        "aggregate", len(request.aggregations), context.limits.columns_max, unit="aggregations"
    )
    found: list[Aggregation] = []
    for message in request.aggregations:
        found += _aggregations(message, source, context)
    return _aggregated(source, request.group_by_columns, found, context=context)


def _aggregations(message: Any, source: Table, context: OperationContext) -> list[Aggregation]:
    kind = message.WhichOneof("type")
    if kind == "count":
        return [Aggregation(message.count.column_name, "count")]
    if kind != "columns":
        raise UnsupportedError(f"aggregate: the aggregation {kind} is not supported")
    check_texts("columns", message.columns.match_pairs, context.limits)
    pairs = [name_pair(text) for text in message.columns.match_pairs]
    return [_of_spec(message.columns.spec, name, column, source=source) for name, column in pairs]


def _of_spec(spec: Any, name: str, column: str, *, source: Table) -> Aggregation:
    kind = spec.WhichOneof("type")
    function = _FUNCTIONS.get(kind)
    if function is None:
        raise UnsupportedError(f"aggregate: the function {kind} is not supported")
    if function not in ("wavg", "wsum"):
        return Aggregation(name, function, column)
    weight = getattr(spec, kind).weight_column
    if function == "wsum":
        _check_weighted_sum(source, column, weight)
    return Aggregation(name, function, column, weight)


def _check_weighted_sum(source: Table, column: str, weight: str) -> None:
    """Deephaven sums whole numbers times whole numbers to a whole number; the engine only knows
    floats, which would not be the same column."""
    if _is_whole(source, column) and _is_whole(source, weight):
        raise UnsupportedError("aggregate: weighted_sum of whole numbers is not supported")


def _is_whole(source: Table, name: str) -> bool:
    index = source.schema.get_field_index(name)
    return index >= 0 and bool(pa.types.is_integer(source.schema.field(index).type))


def aggregate_all(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """One function over every column that is no key, under its own name."""
    [source] = sources
    if request.spec.WhichOneof("type") is None:
        raise OperationError("aggregate_all: needs a function")
    columns = _others(source, request.group_by_columns, request.spec)
    if not columns:
        raise OperationError("aggregate_all: there is no column to aggregate")
    found = [_of_spec(request.spec, name, name, source=source) for name in columns]
    return _aggregated(source, request.group_by_columns, found, context=context)


def _others(source: Table, by: Sequence[str], spec: Any) -> list[str]:
    kind = spec.WhichOneof("type")
    weights = {spec.weighted_avg.weight_column} if kind == "weighted_avg" else set()
    weights |= {spec.weighted_sum.weight_column} if kind == "weighted_sum" else set()
    taken = {*by, *weights}
    return [name for name in source.schema.names if name not in taken]


def combo_aggregate(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """The older form of :func:`aggregate`; without match pairs a function takes all columns."""
    [source] = sources
    if not request.aggregates:
        raise OperationError("combo_aggregate: needs at least one aggregation")
    limits = context.limits
    check_count("combo_aggregate", len(request.aggregates), limits.columns_max, unit="aggregations")
    found: list[Aggregation] = []
    for message in request.aggregates:
        kind = _combo_kind(message)
        if kind == "COUNT":
            found.append(Aggregation(message.column_name, "count"))
            continue
        function = _COMBO_FUNCTIONS.get(kind)
        if function is None:
            raise UnsupportedError(f"combo_aggregate: the function {kind} is not supported")
        check_texts("columns", message.match_pairs, limits)
        weight = message.column_name if function == "wavg" else None
        taken = {*request.group_by_columns, weight}
        texts = message.match_pairs or [n for n in source.schema.names if n not in taken]
        found += [Aggregation(*_renamed(text, function), weight) for text in texts]
    return _aggregated(source, request.group_by_columns, found, context=context)


def _combo_kind(message: Any) -> str:
    numbers = message.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number
    known = numbers.get(message.type)
    return str(message.type) if known is None else str(known.name)


def _renamed(text: str, function: str) -> tuple[str, str, str]:
    name, column = name_pair(text)
    return name, function, column


def _aggregated(
    source: Table, by: Sequence[str], found: list[Aggregation], *, context: OperationContext
) -> Table:
    check_texts("key columns", by, context.limits)
    check_count("aggregate", len(found), context.limits.columns_max, unit="aggregations")
    return aggregated(source, list(dict.fromkeys(by)), found)


OPERATIONS = (
    TableOperation(
        name="aggregate",
        method="Aggregate",
        request="AggregateRequest",
        perform=derived(aggregate),
    ),
    TableOperation(
        name="aggregate_all",
        method="AggregateAll",
        request="AggregateAllRequest",
        perform=derived(aggregate_all),
    ),
    TableOperation(
        name="combo_aggregate",
        method="ComboAggregate",
        request="ComboAggregateRequest",
        perform=derived(combo_aggregate),
    ),
)
