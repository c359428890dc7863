"""SeekRow: the next row with a value, for clients that scroll to it.

As a real server does it: the search begins behind the starting row, goes round once and comes to
the starting row last. -1 is no such row. It looks at the table as it is now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.server.deephaven.operations.operations import OperationError

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_FOUND = -1

_T = pa.types


def find_row(cells: pa.ChunkedArray, request: Any) -> int:
    """The position of the row a SeekRowRequest looks for in its column. OperationError when the
    value is none of the column's."""
    mask = _matches(cells, request)
    found = np.flatnonzero(np.asarray(pc.fill_null(mask, False)))
    if not len(found):
        return NOT_FOUND
    start = request.starting_row
    if request.is_backward:
        return int(found[np.searchsorted(found, start, "left") - 1])
    place = np.searchsorted(found, start, "right")
    return int(found[place % len(found)])


def _matches(cells: pa.ChunkedArray, request: Any) -> pa.ChunkedArray:
    kind = request.seek_value.WhichOneof("value")
    match = _MATCHERS.get(kind)
    mask = None if match is None else match(cells, request)
    if mask is None:
        raise OperationError(f"seek_row: no {kind or 'value'} can be in a column of {cells.type}")
    return mask


def _match_text(cells: pa.ChunkedArray, request: Any) -> pa.ChunkedArray | None:
    wanted = request.seek_value.string_value
    if _T.is_uint16(cells.type):
        if len(wanted) != 1 or request.contains:
            return None
        codes = {ord(each) for each in _cases(wanted, request) if len(each) == 1}
        codes = {code for code in codes if code < 2**16}
        return pc.is_in(cells, value_set=pa.array(sorted(codes), pa.uint16()))
    if not _T.is_string(cells.type):
        return None
    if request.contains:
        return pc.match_substring(cells, wanted, ignore_case=request.insensitive)
    if request.insensitive:
        return pc.equal(pc.utf8_lower(cells), pc.utf8_lower(pa.scalar(wanted)))
    return pc.equal(cells, wanted)


def _cases(wanted: str, request: Any) -> tuple[str, ...]:
    return (wanted.lower(), wanted.upper()) if request.insensitive else (wanted,)


def _match_number(cells: pa.ChunkedArray, request: Any) -> pa.ChunkedArray | None:
    if not (_T.is_signed_integer(cells.type) or _T.is_floating(cells.type)):
        return None
    value = request.seek_value
    is_whole = value.WhichOneof("value") == "long_value"
    if _T.is_floating(cells.type):
        # A float column holds the nearest float of the number that was typed.
        typed = float(value.long_value) if is_whole else value.double_value
        return pc.equal(cells, pa.scalar(typed).cast(cells.type))
    if is_whole:
        return pc.equal(cells, pa.scalar(value.long_value, pa.int64()))
    if not value.double_value.is_integer() or not -(2.0**63) <= value.double_value < 2.0**63:
        return pc.is_in(cells, value_set=pa.array([], cells.type))
    return pc.equal(cells, pa.scalar(int(value.double_value), pa.int64()))


def _match_bool(cells: pa.ChunkedArray, request: Any) -> pa.ChunkedArray | None:
    if not _T.is_boolean(cells.type):
        return None
    return pc.equal(cells, request.seek_value.bool_value)


def _match_time(cells: pa.ChunkedArray, request: Any) -> pa.ChunkedArray | None:
    if not _T.is_timestamp(cells.type):
        return None
    nanos = pa.scalar(request.seek_value.nano_time_value, pa.int64())
    return pc.equal(cells.cast(pa.int64()), nanos)


_MATCHERS: dict[str | None, Callable[[pa.ChunkedArray, Any], pa.ChunkedArray | None]] = {
    "string_value": _match_text,
    "double_value": _match_number,
    "long_value": _match_number,
    "bool_value": _match_bool,
    "nano_time_value": _match_time,
}
"""By member of Literal.value: where a column has it; None when it cannot."""
