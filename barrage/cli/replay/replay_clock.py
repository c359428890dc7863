"""When each row of a recorded table is due if it is played back at a speed.

The rows are put into time order first (stable: rows of the same time keep the order of the file).
Row i is due ``(time[i] - time[0]) / speed`` after the start. Of rows with one key that are due
together only the last can be seen.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.cli.cells import column_texts
from barrage.cli.command_errors import CommandError, usage_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NANOS = 1_000_000_000
_SECONDS_MAX = 9_000_000_000


class ReplaySchedule:
    """Rows in time order and the moments they are due. ``speed`` may be infinite: everything is due
    at once. ``key_columns``: those of the table that they are for.
    """

    def __init__(
        self,
        table: pa.Table,
        *,
        time_column: str,
        speed: float,
        key_columns: Sequence[str] | None = None,
    ) -> None:
        if math.isnan(speed) or speed <= 0:
            raise usage_error(
                f"--speed {speed}: must be greater than 0; inf sends as fast as possible"
            )
        times_ns = _times_ns(table.column(time_column), time_column)
        if len(times_ns) and bool((times_ns[1:] < times_ns[:-1]).any()):
            order = np.argsort(times_ns, kind="stable")
            table, times_ns = table.take(pa.array(order)), times_ns[order]
        self.rows = table
        self._key_columns = tuple(key_columns or ())
        self._times = table.column(time_column)
        self._offsets_ns = times_ns - times_ns[0] if len(times_ns) else times_ns
        self._speed = speed

    @property
    def row_count(self) -> int:
        return len(self._offsets_ns)

    def due_count(self, elapsed_ns: int) -> int:
        """How many rows are due so long after the start."""
        if math.isinf(self._speed):
            return self.row_count
        return int(np.searchsorted(self._offsets_ns, elapsed_ns * self._speed, side="right"))

    def due_ns(self, row: int) -> int:
        """How long after the start ``row`` is due, rounded up."""
        if math.isinf(self._speed):
            return 0
        return math.ceil(int(self._offsets_ns[row]) / self._speed)

    def between(self, start: int, stop: int) -> pa.Table:
        """The rows from ``start`` up to ``stop``: of those with one key the last, in their order.
        A batch with a key twice would be refused."""
        rows = self.rows.slice(start, stop - start)
        if not self._key_columns or rows.num_rows < 2:
            return rows
        names = [f"key{at}" for at in range(len(self._key_columns))]
        keys = pa.table([_values(rows.column(name)) for name in self._key_columns], names)
        keys = keys.append_column("row", pa.array(np.arange(rows.num_rows)))
        lasts = keys.group_by(names, use_threads=False).aggregate([("row", "max")])
        return rows.take(lasts["row_max"].sort())

    def time_text(self, row: int) -> str:
        """The recorded time of ``row`` as text."""
        return column_texts(self._times.slice(row, 1))[0] or ""


def _values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same without a dictionary, each chunk of which may have one of its own."""
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _times_ns(column: pa.ChunkedArray, name: str) -> NDArray[np.int64]:
    """Times in nanoseconds; numbers are seconds. Nulls are an error that names the first row."""
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise CommandError(
            f"column {name!r} has {column.null_count} null times, the first in row {row}; "
            "remove those rows first, a row without a time has no place in a replay"
        )
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _int64(column.cast(pa.timestamp("ns", kind.tz)))
    if pa.types.is_date(kind):
        return _int64(column.cast(pa.timestamp("ns")))
    if pa.types.is_integer(kind):
        seconds = _int64(column)
        if len(seconds) and int(seconds.max()) - int(seconds.min()) > _SECONDS_MAX:
            raise usage_error(
                f"--time {name}: whole numbers are taken as seconds and these span more than "
                f"{_SECONDS_MAX:,} of them; store them as a timestamp column"
            )
        offsets: NDArray[np.int64] = (seconds - seconds.min(initial=2**62)) * _NANOS
        return offsets
    if pa.types.is_floating(kind):
        floats = column.cast(pa.float64()).to_numpy()
        if not np.isfinite(floats).all():
            raise CommandError(
                f"column {name!r} holds NaN or infinity, which are no times; remove those rows"
            )
        rounded: NDArray[np.int64] = np.rint(
            (floats - floats.min(initial=math.inf)) * _NANOS
        ).astype(np.int64)
        return rounded
    raise usage_error(
        f"--time {name}: {kind} is not a time; use a timestamp, date or number-of-seconds column"
    )


def _int64(column: pa.ChunkedArray) -> NDArray[np.int64]:
    values: NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return values
