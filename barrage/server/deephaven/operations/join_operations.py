"""Operations that look rows up in another table: natural_join, where_in.

Both are the engine's natural join. Of several right rows with one key FIRST_MATCH and LAST_MATCH
take one before joining; where_in joins with the distinct keys and looks which rows found one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.engine.aggregation.aggregation import Aggregation
from barrage.engine.expressions.expression import Expression
from barrage.engine.expressions.expression_text import Call, Column, Literal
from barrage.engine.operators import derive
from barrage.engine.operators.agg_by import aggregated
from barrage.errors import SchemaError, UnsupportedError
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    OperationError,
    TableOperation,
    check_texts,
    derived,
    name_pair,
)
from barrage.server.deephaven.operations.row_operations import SCOPE, free_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.engine.tables.table import Table


def natural_join(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """Every left row with columns of the right row of the same key, null where there is none."""
    left, right = sources
    check_texts("columns to match", request.columns_to_match, context.limits)
    check_texts("columns to add", request.columns_to_add, context.limits)
    pairs = [name_pair(text) for text in request.columns_to_match]
    for _, name in pairs:
        _check_column(right, name, "natural_join")
    added = [name_pair(text) for text in request.columns_to_add]
    if not added:
        # A key column is left out only where the result has its values under that very name.
        matched = {name for name, _ in pairs}
        added = [(name, name) for name in right.schema.names if name not in matched]
    if not added:
        return left
    chosen = _one_row_per_key(request.join_type, right, [name for _, name in pairs], added=added)
    return derive.natural_join(left, chosen, *_as_texts(pairs, added))


def _as_texts(
    pairs: Sequence[tuple[str, str]], added: Sequence[tuple[str, str]]
) -> tuple[list[str], list[str]]:
    return [f"{a}={b}" for a, b in pairs], [f"{a}={b}" for a, b in added]


def _check_column(table: Table, name: str, operation: str) -> None:
    if table.schema.get_field_index(name) < 0:
        raise SchemaError(f"{operation}: the right table has no column {name!r}")


def _one_row_per_key(
    join_type: int, right: Table, keys: list[str], *, added: Sequence[tuple[str, str]]
) -> Table:
    """``right`` or, where the request says which of several rows counts, that row of each key."""
    choose = _CHOICES.get(join_type)
    if choose is None:
        raise UnsupportedError(
            "natural_join: only ERROR_ON_DUPLICATE, FIRST_MATCH and LAST_MATCH are supported"
        )
    if join_type in _AS_THEY_ARE or not keys:
        return right
    for _, name in added:
        _check_column(right, name, "natural_join")
    wanted = dict.fromkeys(name for _, name in added if name not in keys)
    return choose(right, list(dict.fromkeys(keys)), list(wanted))


def _all_rows(right: Table, _keys: list[str], _wanted: list[str]) -> Table:
    return right


def _first_rows(right: Table, keys: list[str], wanted: list[str]) -> Table:
    return aggregated(right, keys, [Aggregation(name, "first", name) for name in wanted])


def _last_rows(right: Table, keys: list[str], wanted: list[str]) -> Table:
    return aggregated(right, keys, [Aggregation(name, "last", name) for name in wanted])


_CHOICES: dict[int, Callable[[Table, list[str], list[str]], Table]] = {
    0: _all_rows,
    1: _all_rows,
    2: _first_rows,
    3: _last_rows,
}
"""By number of NaturalJoinTablesRequest.JoinType; 4, EXACTLY_ONE_MATCH, is not supported."""

_AS_THEY_ARE = (0, 1)
"""Types under which two right rows with one key are an error."""


def where_in(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """The left rows whose values occur together in a row of the right table; inverted, those whose
    do not. Null is a value like any other."""
    left, right = sources
    check_texts("columns to match", request.columns_to_match, context.limits)
    pairs = [name_pair(text) for text in request.columns_to_match]
    if not pairs:
        raise OperationError("where_in: needs at least one column to match")
    for _, name in pairs:
        _check_column(right, name, "where_in")
    keys = list(dict.fromkeys(name for _, name in pairs))
    mark = free_name(left.schema, free_name(right.schema, "found"))
    present = Expression("true", Literal(0, True), SCOPE)
    marked = derive.select(derive.select_distinct(right, *keys), *keys, **{mark: present})
    joined = derive.natural_join(left, marked, *_as_texts(pairs, [(mark, mark)]))
    test = "isnull" if request.inverted else "isnotnull"
    condition = Expression(f"{test} {mark}", Call(0, test, (Column(0, mark),)), SCOPE)
    return derive.select(derive.where(joined, condition), *left.schema.names)


def left_and_right(request: Any) -> Sequence[Any]:
    """The two tables of a join."""
    return request.left_id, request.right_id


OPERATIONS = (
    TableOperation(
        name="natural_join",
        method="NaturalJoinTables",
        request="NaturalJoinTablesRequest",
        perform=derived(natural_join),
        references=left_and_right,
    ),
    TableOperation(
        name="where_in",
        method="WhereIn",
        request="WhereInRequest",
        perform=derived(where_in),
        references=left_and_right,
    ),
)
