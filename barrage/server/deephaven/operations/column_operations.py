"""Operations that choose and compute columns: view, update_view, select, update, lazy_update,
drop_columns, select_distinct.

Deephaven computes the columns of select and update once and those of view and update_view when they
are read; the values are the same. Here all of them are computed when they are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.engine.operators import derive
from barrage.errors import SchemaError
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    TableOperation,
    check_texts,
    derived,
)
from barrage.server.deephaven.operations.row_variables import read_texts
from barrage.server.deephaven.text.selection_text import parse_selection, parse_update

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.table import Table


def view(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """The columns the texts describe; without texts all columns there are."""
    [source] = sources
    texts = tuple(request.column_specs)
    if not texts:
        return source
    numbered, selection = read_texts(source, texts, parse_selection, limits=context.limits)
    return derive.select(numbered, **dict(selection))


def update_view(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """All columns; those the texts describe are replaced where they are, or come last."""
    [source] = sources
    texts = tuple(request.column_specs)
    if not texts:
        return source
    numbered, selection = read_texts(source, texts, parse_update, limits=context.limits)
    hidden = numbered.schema.names[len(source.schema.names) :]
    return derive.select(numbered, **{name: each for name, each in selection if name not in hidden})


def drop_columns(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """All columns but the named ones. SchemaError when one does not exist."""
    [source] = sources
    check_texts("columns", request.column_names, context.limits)
    return derive.drop(source, *request.column_names)


def select_distinct(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """Each combination of values once; without names of all columns."""
    [source] = sources
    names = list(request.column_names)
    check_texts("columns", names, context.limits)
    if not source.schema.names:
        raise SchemaError("a table without columns has no distinct rows")
    return derive.select_distinct(source, *dict.fromkeys(names))


def _operation(name: str, method: str, derive: Any) -> TableOperation:
    return TableOperation(
        name=name, method=method, request="SelectOrUpdateRequest", perform=derived(derive)
    )


OPERATIONS = (
    _operation("view", "View", view),
    _operation("select", "Select", view),
    _operation("update", "Update", update_view),
    _operation("lazy_update", "LazyUpdate", update_view),
    _operation("update_view", "UpdateView", update_view),
    TableOperation(
        name="drop_columns",
        method="DropColumns",
        request="DropColumnsRequest",
        perform=derived(drop_columns),
    ),
    TableOperation(
        name="select_distinct",
        method="SelectDistinct",
        request="SelectDistinctRequest",
        perform=derived(select_distinct),
    ),
)
