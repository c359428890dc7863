"""Aggregations: what is computed for each group, the text that says so, and what types it takes.

    ``count()``         rows of the group
    ``count(c)``        cells that are not null
    ``sum(c)``          of whole numbers and booleans int64, of floats their own type
    ``abs_sum(c)``      the same of absolute values
    ``min(c) max(c)``   of anything with an order; the column's type
    ``avg(c)``          float64
    ``var(c) std(c)``   float64, of a sample (n - 1 below the line); NaN for a single value
    ``first(c) last(c)`` the cell of the first or last row, null included; any type
    ``wavg(c, w)``      sum(c * w) / sum(w) over rows where neither is null; float64
    ``wsum(c, w)``      sum(c * w) over the same rows; float64

Nulls are passed over except by ``count()``, ``first`` and ``last``; where only nulls remain the
result is null. A NaN makes every result it takes part in NaN, ``min`` and ``max`` included. A sum
of whole numbers that does not fit int64 fails the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import ExpressionError, SchemaError, near_miss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

TEXT_LENGTH_MAX = 16_384


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One result column. ``column`` is None for ``count()`` only, ``weight`` is set for weighted
    functions only."""

    name: str
    function: str
    column: str | None = None
    weight: str | None = None

    @property
    def text(self) -> str:
        """``function(column)``, as :func:`parse_aggregation` reads it."""
        columns = (_quoted(name) for name in (self.column, self.weight) if name is not None)
        return f"{self.function}({', '.join(columns)})"


def _is_number(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_floating(data_type))


def _is_addable(data_type: pa.DataType) -> bool:
    return _is_number(data_type) or bool(pa.types.is_boolean(data_type))


def has_order(data_type: pa.DataType) -> bool:
    """Whether cells of this type have a least and a greatest."""
    if pa.types.is_dictionary(data_type):
        return has_order(data_type.value_type)
    kind = pa.types
    return bool(
        _is_addable(data_type)
        or kind.is_string(data_type)
        or kind.is_large_string(data_type)
        or kind.is_binary(data_type)
        or kind.is_large_binary(data_type)
        or (kind.is_temporal(data_type) and not kind.is_interval(data_type))
        or kind.is_decimal(data_type)
    )


def _is_any(_: pa.DataType) -> bool:
    return True


def _sum_type(data_type: pa.DataType) -> pa.DataType:
    return data_type if pa.types.is_floating(data_type) else pa.int64()


def _same_type(data_type: pa.DataType) -> pa.DataType:
    return data_type


def _float_type(_: pa.DataType) -> pa.DataType:
    return pa.float64()


def _count_type(_: pa.DataType) -> pa.DataType:
    return pa.int64()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """What a function takes and gives. ``columns`` is the smallest and the largest number of
    columns it may name."""

    takes: Callable[[pa.DataType], bool]
    gives: Callable[[pa.DataType], pa.DataType]
    columns: tuple[int, int] = (1, 1)
    wanted: str = "numbers"


_ORDERED = "numbers, booleans, texts, dates and times"

FUNCTIONS: Mapping[str, _Function] = {
    "count": _Function(takes=_is_any, gives=_count_type, columns=(0, 1)),
    "sum": _Function(takes=_is_addable, gives=_sum_type, wanted="numbers and booleans"),
    "abs_sum": _Function(takes=_is_addable, gives=_sum_type, wanted="numbers and booleans"),
    "min": _Function(takes=has_order, gives=_same_type, wanted=_ORDERED),
    "max": _Function(takes=has_order, gives=_same_type, wanted=_ORDERED),
    "avg": _Function(takes=_is_number, gives=_float_type),
    "first": _Function(takes=_is_any, gives=_same_type),
    "last": _Function(takes=_is_any, gives=_same_type),
    "var": _Function(takes=_is_number, gives=_float_type),
    "std": _Function(takes=_is_number, gives=_float_type),
    "wavg": _Function(takes=_is_number, gives=_float_type, columns=(2, 2)),
    "wsum": _Function(takes=_is_number, gives=_float_type, columns=(2, 2)),
}
"""All functions by name."""

_CALL = re.compile(r"\s*(\w+)\s*\((.*)\)\s*", re.DOTALL)
_COLUMN = re.compile(r"\s*(?:`([^`]+)`|([^`,()]+?))\s*(?:,|$)")


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[^`,()\s]+", name) else f"`{name}`"


def parse_aggregation(name: str, text: str) -> Aggregation:
    """``function(column)`` as the aggregation called ``name``; names with commas, parentheses or
    blanks at their ends stand between backticks. ExpressionError says what does not fit."""
    if len(text) > TEXT_LENGTH_MAX:
        raise ExpressionError(
            f"aggregation {name!r} has {len(text)} characters, the limit is {TEXT_LENGTH_MAX}"
        )
    call = _CALL.fullmatch(text)
    if call is None:
        raise ExpressionError(
            f"{text!r} is no aggregation; write {name}='sum(column)' or {name}='count()'"
        )
    function, inside = call.groups()
    columns = []
    place = 0
    while inside.strip() and place < len(inside):
        found = _COLUMN.match(inside, place)
        if found is None:
            raise ExpressionError(f"{text!r} does not name a column at position {place + 1}")
        columns.append(found[1] or found[2])
        place = found.end()
    aggregation = Aggregation(name, function, *columns[:2])
    _check_arity(aggregation, len(columns))
    return aggregation


def _function_of(aggregation: Aggregation) -> _Function:
    function = FUNCTIONS.get(aggregation.function)
    if function is None:
        hint = near_miss(aggregation.function, FUNCTIONS) or f"; there are {', '.join(FUNCTIONS)}"
        raise ExpressionError(
            f"unknown aggregation function {aggregation.function!r} for {aggregation.name!r}{hint}"
        )
    return function


def _check_arity(aggregation: Aggregation, count: int) -> None:
    least, most = _function_of(aggregation).columns
    if not least <= count <= most:
        wanted = {0: "no column or one", 1: "one column", 2: "a column and a weight"}[least]
        raise ExpressionError(
            f"{aggregation.function} takes {wanted}, but {aggregation.name!r} names {count}"
        )


def parse_aggregations(
    schema: pa.Schema, by: Sequence[str], aggregations: Mapping[str, str]
) -> tuple[Aggregation, ...]:
    """All aggregations of one table, checked against its schema; ExpressionError or SchemaError."""
    parsed = tuple(parse_aggregation(name, text) for name, text in aggregations.items())
    result_fields(schema, by, parsed)
    return parsed


def result_fields(
    schema: pa.Schema, by: Sequence[str], aggregations: Sequence[Aggregation]
) -> list[pa.Field]:
    """The columns the aggregations give; SchemaError names function, column and type that do not
    fit, or a name that occurs twice."""
    names = set(by)
    fields = []
    for aggregation in aggregations:
        if aggregation.name in names:
            raise SchemaError(f"the result would have two columns {aggregation.name!r}")
        if not aggregation.name:
            raise SchemaError(f"the result of {aggregation.text} needs a name")
        names.add(aggregation.name)
        fields.append(_result_field(schema, aggregation))
    return fields


def _result_field(schema: pa.Schema, aggregation: Aggregation) -> pa.Field:
    function = _function_of(aggregation)
    columns = [name for name in (aggregation.column, aggregation.weight) if name is not None]
    _check_arity(aggregation, len(columns))
    data_type = pa.null()
    # From the weight to the column, whose type decides.
    for name in reversed(columns):
        index = schema.get_field_index(name)
        if index < 0:
            raise SchemaError(
                f"{aggregation.function}: unknown column {name!r}{near_miss(name, schema.names)}"
            )
        data_type = schema.field(index).type
        if not function.takes(data_type):
            raise SchemaError(
                f"{aggregation.function} takes {function.wanted}, "
                f"but column {name!r} is {data_type}"
            )
    return pa.field(aggregation.name, function.gives(data_type))
