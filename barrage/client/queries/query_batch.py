"""Queries as operations of Deephaven's table service.

Expressions go to the server as they are written: they are in its language, not in ours. Messages
and field numbers: deephaven-clients.md appendices A.3, A.5 and A.6.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from barrage.client.connection.export_calls import reference
from barrage.client.connection.table_sources import TableSource
from barrage.errors import ExpressionError, UnsupportedError
from barrage.model.operators import OPERATORS
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from barrage.client.connection.export_calls import DeephavenCalls, ExportedTable
    from barrage.client.queries.query_steps import Step

_AGGREGATION = re.compile(r"\s*(\w+)\s*\(\s*([\w$]*)\s*\)\s*")

_SPECS = {
    "abs_sum": "AbsSum",
    "avg": "Avg",
    "first": "First",
    "last": "Last",
    "max": "Max",
    "min": "Min",
    "std": "Std",
    "sum": "Sum",
    "var": "Var",
}
"""Functions and the ends of their messages' names."""

_ASCENDING, _DESCENDING = 1, -1


async def run_query(
    calls: DeephavenCalls, root: TableSource, steps: Sequence[Step], *, label: str
) -> ExportedTable:
    """Export the result of ``steps`` applied to ``root``. ExpressionError names the operator the
    server refused."""
    source, passing = await root.ticket(), None
    rest = list(steps)
    try:
        while True:
            # All columns can be named only when they are known.
            stop = next((i for i, step in enumerate(rest) if i and _needs_schema(step)), len(rest))
            if _needs_schema(rest[0]):
                schema = (await calls.describe(source, label, None)).schema
                rest[0] = replace(rest[0], arguments=(tuple(schema.names),))
            operations = await _operations(source, rest[:stop])
            result = await calls.batch(operations, label=label, texts=[*map(str, rest[:stop])])
            if passing is not None:
                calls.release_soon(passing)
            source, passing, rest = result.ticket, result, rest[stop:]
            if not rest:
                return result
    except BaseException:
        if passing is not None:
            calls.release_soon(passing)
        raise


def _needs_schema(step: Step) -> bool:
    return step.name == "select_distinct" and not step.arguments[0]


async def _operations(source: bytes, steps: Sequence[Step]) -> list[Any]:
    operations = []
    for number, step in enumerate(steps):
        before = (
            MESSAGES.new("TableReference", batch_offset=number - 1) if number else reference(source)
        )
        arguments = [
            reference(await argument.ticket()) if isinstance(argument, TableSource) else argument
            for argument in step.arguments
        ]
        make = _MAKERS.get(step.name)
        if make is not None:
            operations.append(make(before, *arguments))
            continue
        spec = OPERATORS.get(step.name)
        message = None if spec is None else spec.message
        if message is None:
            raise UnsupportedError(f"a Deephaven server has nothing for {step.name}")
        fields = dict(zip(message.fields, arguments, strict=True))
        fields[message.source] = before
        operations.append(_operation(message.operation, message.request, **fields))
    return operations


def _operation(kind: str, message: str, **fields: Any) -> Any:
    return MESSAGES.new("BatchTableRequest.Operation", **{kind: MESSAGES.new(message, **fields)})


def _where(source: Any, condition: str) -> Any:
    return _operation(
        "unstructured_filter",
        "UnstructuredFilterTableRequest",
        source_id=source,
        filters=[condition],
    )


def _sort(source: Any, columns: Sequence[str]) -> Any:
    sorts = [
        MESSAGES.new(
            "SortDescriptor",
            column_name=column.removeprefix("-"),
            direction=_DESCENDING if column.startswith("-") else _ASCENDING,
        )
        for column in columns
    ]
    return _operation("sort", "SortTableRequest", source_id=source, sorts=sorts)


def _agg_by(source: Any, by: Sequence[str], formulas: Sequence[tuple[str, str]]) -> Any:
    return _operation(
        "aggregate",
        "AggregateRequest",
        source_id=source,
        group_by_columns=by,
        aggregations=[_aggregation(name, text) for name, text in formulas],
    )


def _aggregation(name: str, text: str) -> Any:
    """``sum(price)``; ExpressionError for what is none, UnsupportedError for other functions."""
    match = _AGGREGATION.fullmatch(text)
    if match is None:
        raise ExpressionError(f"{name}: {text!r} is no aggregation; write count() or sum(column)")
    function, column = match.groups()
    if function == "count" and not column:
        count = MESSAGES.new("Aggregation.AggregationCount", column_name=name)
        return MESSAGES.new("Aggregation", count=count)
    if function not in _SPECS:
        known = ", ".join(["count()", *_SPECS])
        raise UnsupportedError(f"{name}: {function!r} is not one of {known}")
    columns = MESSAGES.new(
        "Aggregation.AggregationColumns", spec=_spec(function), match_pairs=[f"{name} = {column}"]
    )
    return MESSAGES.new("Aggregation", columns=columns)


def _spec(function: str) -> Any:
    return MESSAGES.new("AggSpec", **{function: MESSAGES.new(f"AggSpec.AggSpec{_SPECS[function]}")})


def _select(source: Any, columns: Sequence[str], formulas: Sequence[tuple[str, str]]) -> Any:
    specs = [*columns, *(f"{name} = {text}" for name, text in formulas)]
    return _operation("view", "SelectOrUpdateRequest", source_id=source, column_specs=specs)


def _merge(*sources: Any) -> Any:
    return _operation("merge", "MergeTablesRequest", source_ids=sources)


def _last_by(source: Any, columns: Sequence[str]) -> Any:
    return _operation(
        "aggregate_all",
        "AggregateAllRequest",
        source_id=source,
        spec=_spec("last"),
        group_by_columns=columns,
    )


_MAKERS: Mapping[str, Callable[..., Any]] = {
    "where": _where,
    "sort": _sort,
    "agg_by": _agg_by,
    "select": _select,
    "last_by": _last_by,
    "merge": _merge,
}
"""For operators whose arguments are no fields of a message; those of the others are known
(:class:`barrage.model.operators.DeephavenMessage`)."""
