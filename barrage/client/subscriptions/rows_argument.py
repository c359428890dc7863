"""What users write for rows and columns, as viewports and column indices."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from barrage.errors import ConfigError, SchemaError
from barrage.limits import ROW_KEY_MAX
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.model.viewport import ColumnSet

RowsArgument = tuple[int, int | None] | range | slice | RowSet | Viewport | None
"""Half-open spans of positions, a row set of positions, or None for all rows."""


def viewport_of(rows: RowsArgument, *, reverse: bool = False) -> Viewport | None:
    """The viewport for ``rows``; positions count from the end with ``reverse``.

    ``(-50, None)`` is the last fifty rows. Without an end, other spans are refused: a viewport is
    finite.
    """
    if rows is None:
        if reverse:
            raise ConfigError("reverse needs rows: which ones, counted from the end?")
        return None
    if isinstance(rows, Viewport):
        return Viewport(positions=rows.positions, is_reverse=rows.is_reverse or reverse)
    if isinstance(rows, RowSet):
        return Viewport(positions=rows, is_reverse=reverse)
    start, stop = _span(rows)
    if start < 0 and stop is None and not reverse:
        return Viewport.of(0, -start, is_reverse=True)
    if stop is None or start < 0 or stop < start or stop > ROW_KEY_MAX:
        raise ConfigError(
            f"rows {rows!r} is not a span of positions; use (start, stop) with 0 <= start <= stop "
            "<= 2**63 - 1, or (-n, None) for the last n"
        )
    return Viewport.of(start, stop, is_reverse=reverse)


def _span(rows: tuple[int, int | None] | range | slice) -> tuple[int, int | None]:
    if isinstance(rows, range | slice):
        if rows.step not in (None, 1):
            raise ConfigError(f"rows {rows!r} may not skip rows")
        start, stop = rows.start or 0, rows.stop
    elif not isinstance(rows, tuple) or len(rows) != 2:
        raise ConfigError(f"rows {rows!r} must have two ends: (start, stop)")
    else:
        start, stop = rows
    try:
        return operator.index(start), None if stop is None else operator.index(stop)
    except TypeError as error:
        raise ConfigError(f"the ends of rows {rows!r} must be whole numbers") from error


def column_names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names as a tuple; None for all columns. SchemaError for what is no list of names."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise SchemaError(f"columns is a list of names, not the text {columns!r}")
    names = tuple(columns)
    if not all(isinstance(name, str) for name in names):
        raise SchemaError(f"columns is a list of names, not {list(names)}")
    return names


def column_indices(schema: pa.Schema, names: Sequence[str] | None) -> ColumnSet | None:
    """Ascending indices of the named columns; None for all. SchemaError for a name the schema does
    not have."""
    if names is None:
        return None
    names = column_names(names) or ()
    if len(set(names)) != len(names):
        raise SchemaError(f"a column is named twice in {list(names)}")
    return tuple(sorted(_index_of(schema, name) for name in names))


def _index_of(schema: pa.Schema, name: str) -> int:
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        known = ", ".join(schema.names)
        raise SchemaError(f"the table has {len(found)} columns named {name!r}; it has {known}")
    return int(found[0])
