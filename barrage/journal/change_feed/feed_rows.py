"""Rows on their way into the feed: some chosen, small batches joined, system columns put in front.

A :class:`FeedRows` holds the history columns of some rows beside their cells. Until
:func:`finished` makes a record batch of it, nothing is copied that is not chosen from; rows that
stay together keep the buffers they were recorded in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from barrage.journal.change_feed.feed_schema import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ROW_ID,
    TIMESTAMP_TYPE,
    change_type_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from barrage.rowset.arrays import BoolArray, Int64Array

BATCH_ROWS: Final = 1 << 16
"""About so many rows a batch."""

BATCH_BYTES: Final = 2 << 20
"""Or about so many bytes."""

_SMALL: Final = 2
"""A batch below this fraction of a full one waits for the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRows:
    """Some rows of the feed, as columns of equal length."""

    codes: npt.NDArray[np.int8]
    versions: Int64Array
    micros: Int64Array
    ids: pa.Array
    keys: Int64Array | None
    modified: pa.ListArray | None
    cells: pa.RecordBatch
    """The wanted columns. A batch without columns knows its length, too."""

    def __len__(self) -> int:
        return len(self.codes)

    def taken(self, places: Int64Array) -> FeedRows:
        """The rows at ``places``."""
        at = pa.array(places)
        return FeedRows(
            codes=self.codes[places],
            versions=self.versions[places],
            micros=self.micros[places],
            ids=self.ids.take(at),
            keys=None if self.keys is None else self.keys[places],
            modified=None if self.modified is None else self.modified.take(at),
            cells=self.cells.take(at),
        )

    def with_columns(self, indices: list[int]) -> FeedRows:
        """The same rows with these of their columns."""
        return replace(self, cells=self.cells.select(indices))

    def sliced(self, start: int, stop: int) -> FeedRows:
        """The rows from ``start`` up to ``stop``, as views."""
        return FeedRows(
            codes=self.codes[start:stop],
            versions=self.versions[start:stop],
            micros=self.micros[start:stop],
            ids=self.ids[start:stop],
            keys=None if self.keys is None else self.keys[start:stop],
            modified=None if self.modified is None else self.modified[start:stop],
            cells=self.cells.slice(start, stop - start),
        )


def kept(rows: FeedRows, keep: BoolArray) -> FeedRows:
    """The rows for which ``keep`` is true; without a copy when they are neighbours."""
    count = int(np.count_nonzero(keep))
    if count == len(rows):
        return rows
    first = int(keep.argmax())
    if keep[first : first + count].all():
        return rows.sliced(first, first + count)
    return rows.taken(np.flatnonzero(keep))


def as_mask(answer: Any, row_count: int) -> BoolArray:
    """What a predicate answered as numpy booleans; null is false."""
    if isinstance(answer, pa.ChunkedArray):
        answer = answer.combine_chunks()
    if isinstance(answer, pa.Array):
        if answer.null_count:
            answer = answer.fill_null(False)
        answer = answer.to_numpy(zero_copy_only=False)
    mask = np.asarray(answer, dtype=np.bool_)
    if mask.shape != (row_count,):
        raise ValueError(f"a filter answered {mask.shape} for {row_count} rows")
    return mask


def rows_per_batch(rows: pa.RecordBatch) -> int:
    """How many rows of this width make a full batch."""
    width: int = max(1, rows.nbytes // max(1, len(rows)))
    return max(1, min(BATCH_ROWS, BATCH_BYTES // width))


def joined(parts: Iterable[FeedRows]) -> Iterator[FeedRows]:
    """The same rows, small neighbours together in one batch."""
    waiting: list[FeedRows] = []
    row_count = byte_count = 0
    for part in parts:
        if len(part) == 0:
            continue
        size = part.cells.nbytes
        is_small = len(part) < BATCH_ROWS // _SMALL and size < BATCH_BYTES // _SMALL
        if waiting and (
            not is_small or row_count + len(part) > BATCH_ROWS or byte_count + size > BATCH_BYTES
        ):
            yield _together(waiting)
            waiting, row_count, byte_count = [], 0, 0
        if is_small:
            waiting.append(part)
            row_count, byte_count = row_count + len(part), byte_count + size
        else:
            yield part
    if waiting:
        yield _together(waiting)


def _together(parts: list[FeedRows]) -> FeedRows:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return FeedRows(
        codes=np.concatenate([part.codes for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        micros=np.concatenate([part.micros for part in parts]),
        ids=pa.concat_arrays([part.ids for part in parts]),
        keys=None if first.keys is None else np.concatenate([_keys(part) for part in parts]),
        modified=None
        if first.modified is None
        else pa.concat_arrays([part.modified for part in parts]),
        cells=pa.concat_batches([part.cells for part in parts]),
    )


def _keys(part: FeedRows) -> Int64Array:
    assert part.keys is not None
    return part.keys


def finished(rows: FeedRows, schema: pa.Schema) -> pa.RecordBatch:
    """The rows as a batch of the feed; ``schema`` as of ``options_schema``."""
    makers: dict[str, Callable[[], pa.Array]] = {
        CHANGE_TYPE: lambda: change_type_array(pa.array(rows.codes)),
        COMMIT_VERSION: lambda: pa.array(rows.versions),
        COMMIT_TIMESTAMP: lambda: pa.array(rows.micros).view(TIMESTAMP_TYPE),
        ROW_ID: lambda: rows.ids,
    }
    # They come first, and a table's own column can have such a name.
    count = len(schema) - rows.cells.num_columns
    system = [makers[name]() for name in schema.names[:count] if name in makers]
    if rows.keys is not None:
        system.append(pa.array(rows.keys))
    if rows.modified is not None:
        system.append(rows.modified)
    return pa.RecordBatch.from_arrays([*system, *rows.cells.columns], schema=schema)
