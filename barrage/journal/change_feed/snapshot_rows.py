"""All rows of a table at a version, as inserts of the feed, whole or by ranges of row ids.

Nobody who reads them needs the order of the table, so it is not made: the rows of the nearest kept
state that nothing happened to since, as they lie there, then the newest cells of the others, as
they were recorded. A range of ids costs one look at the ids since that state, and its own cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.journal.change_feed.feed_parts import HISTORY_COLUMNS, parts_of
from barrage.journal.change_feed.feed_rows import (
    BATCH_BYTES,
    BATCH_ROWS,
    FeedRows,
    as_mask,
    finished,
    joined,
    kept,
)
from barrage.journal.change_feed.feed_schema import INSERT, MODIFIED_COLUMNS_TYPE, options_schema
from barrage.journal.change_feed.net_changes import ChangeEnds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage.journal.change_feed.feed_schema import FeedOptions
    from barrage.journal.records.table_state import TableState
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.model.row_ids import RowIdMap
    from barrage.rowset.arrays import BoolArray, Int64Array

_NANOS_PER_MICRO = 1000


def snapshot_batches(
    journal: TableJournal,
    version: int,
    options: FeedOptions,
    *,
    ids: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows at ``version`` with ids in the half-open range, each once, in any order, as inserts
    of that version.

    HistoryLostError, and while iterating JournalCorruptError; KeyError for a column there is not.
    """
    if journal.identity.is_blink:
        # A blink table's older rows are gone without anybody having recorded it.
        base, entries = journal.state_at(version), []
    else:
        base = journal.base_state(version)
        upto = min(version, journal.latest_version)
        entries = list(journal.entries(base.version, upto))
    schema = base.rows.schema
    wall_ns = entries[-1].wall_ns if entries else base.wall_ns
    stamp = _Stamp(version, wall_ns // _NANOS_PER_MICRO, options)
    if options.row_key:
        stamp.keys_by_id = _keys_by_id(journal.row_ids_at(version))
    chooser = options.chooser(ids)
    parts = list(parts_of(entries))
    ends = ChangeEnds.of(parts, chooser)

    def rows() -> Iterator[FeedRows]:
        yield from _untouched(base, ends, chooser, stamp=stamp)
        places = ends.lasts[ends.lives]
        if not bool((places[1:] > places[:-1]).all()):
            places = np.sort(places)
        start = 0
        for part in parts:
            low, high = np.searchsorted(places, (start, start + len(part)))
            if low < high:
                keep = np.zeros(len(part), dtype=np.bool_)
                keep[places[low:high] - start] = True
                history = part.rows(range(len(schema)))
                cells = history.select(range(HISTORY_COLUMNS, history.num_columns))
                yield from stamp.inserts(cells, history.column(1), keep)
            start += len(part)

    return (finished(batch, options_schema(schema, options)) for batch in joined(rows()))


def _untouched(
    base: TableState,
    ends: ChangeEnds,
    chooser: Callable[[Int64Array], BoolArray] | None,
    *,
    stamp: _Stamp,
) -> Iterator[FeedRows]:
    """Rows of the kept state that are still the same."""
    ids = base.row_ids
    start = 0
    for cells in base.rows.to_batches(max_chunksize=_rows_per_batch(base)):
        part = ids[start : start + len(cells)]
        start += len(cells)
        keep = ~ends.known(part)[1]
        if chooser is not None:
            keep &= chooser(part)
        yield from stamp.inserts(cells, pa.array(part), keep)


def _rows_per_batch(state: TableState) -> int:
    width: int = max(1, state.rows.nbytes // max(1, state.rows.num_rows))
    return max(1, min(BATCH_ROWS, BATCH_BYTES // width))


class _Stamp:
    """Makes feed rows of cells: the version, time and form are the same for all."""

    def __init__(self, version: int, micros: int, options: FeedOptions) -> None:
        self._version = version
        self._micros = micros
        self._options = options
        self.keys_by_id: tuple[Int64Array, Int64Array] | None = None

    def inserts(self, cells: pa.RecordBatch, ids: pa.Array, keep: BoolArray) -> Iterator[FeedRows]:
        """The rows to ``keep`` that pass the filter; ``cells`` has all columns."""
        options = self._options
        count = len(ids)
        rows = FeedRows(
            codes=np.full(count, INSERT, dtype=np.int8),
            versions=np.full(count, self._version, dtype=np.int64),
            micros=np.full(count, self._micros, dtype=np.int64),
            ids=ids,
            keys=self._keys(ids.to_numpy()),
            modified=pa.nulls(count, MODIFIED_COLUMNS_TYPE) if options.modified_columns else None,
            cells=cells if options.predicate else cells.select(options.indices(cells.schema)),
        )
        rows = kept(rows, keep)
        if options.predicate is not None and len(rows):
            rows = kept(rows, as_mask(options.predicate(rows.cells), len(rows)))
            rows = rows.with_columns(options.indices(cells.schema))
        if len(rows):
            yield rows

    def _keys(self, ids: Int64Array) -> Int64Array | None:
        if self.keys_by_id is None:
            return None
        known, keys = self.keys_by_id
        if len(keys) == 0:
            # None of these rows is left, so none of them is kept.
            return np.zeros(len(ids), dtype=np.int64)
        at = np.searchsorted(known, ids)
        return keys[np.minimum(at, len(keys) - 1)]


def _keys_by_id(rows: RowIdMap) -> tuple[Int64Array, Int64Array]:
    """Ids, ascending, and the key of each."""
    ids = rows.ids
    order = np.argsort(ids, kind="stable")
    return ids[order], rows.keys.to_numpy()[order]


def id_bounds(rows: RowIdMap, parts: int) -> list[tuple[int, int]]:
    """At most ``parts`` half-open ranges of ids that hold the rows in about equal numbers, all of
    them; none of them is empty unless there are no rows."""
    ids = np.sort(rows.ids)
    if len(ids) == 0:
        return [(0, 0)]
    count = max(1, min(parts, len(ids)))
    firsts = ids[np.arange(count) * len(ids) // count].tolist()
    return list(zip(firsts, [*firsts[1:], int(ids[-1]) + 1], strict=True))


def next_id_bound(rows: RowIdMap, start: int, rows_max: int) -> int:
    """The end of the range of ids from ``start`` on that holds ``rows_max`` rows, or all that are
    left; ``start`` itself when there are none."""
    ids = rows.ids
    ids = np.sort(ids[ids >= start])
    return int(ids[min(max(1, rows_max), len(ids)) - 1]) + 1 if len(ids) else start
