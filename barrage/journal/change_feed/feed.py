"""The change feed: entries of a journal as rows with their change type, version and row id.

Cost: rows of an entry that all go out, as with tables that are only appended to, are slices of what
was recorded, without a copy; otherwise one gather of the rows chosen. Batches have about 65,536
rows or 2 MiB; entries smaller than that are joined, and so is what a filter or a stripe leaves.

What a consumer may rely on: applied in order to an empty set of rows, from the beginning of an
epoch, no living row is inserted and no dead one changed; (row id, version, change type) is unique;
the rows left at the end are those of the table. With a filter the same holds of the rows it
chooses, with a stripe of the rows in it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.journal.change_feed.feed_parts import parts_of, table_schema
from barrage.journal.change_feed.feed_rows import as_mask, finished, joined, kept
from barrage.journal.change_feed.feed_schema import (
    CHANGE_TYPES,
    DELETE,
    INSERT,
    POSTIMAGE,
    PREIMAGE,
    STRIPE_IDS,
    STRIPE_IDS_MAX,
    FeedOptions,
    feed_schema,
    is_stripe,
    options_schema,
)
from barrage.journal.change_feed.net_changes import net_rows
from barrage.journal.change_feed.snapshot_rows import id_bounds, next_id_bound, snapshot_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from barrage.journal.change_feed.feed_parts import Part
    from barrage.journal.change_feed.feed_rows import FeedRows
    from barrage.journal.records.record import Entry

__all__ = [
    "CHANGE_TYPES",
    "STRIPE_IDS",
    "STRIPE_IDS_MAX",
    "FeedOptions",
    "change_batches",
    "feed_schema",
    "id_bounds",
    "is_stripe",
    "next_id_bound",
    "options_schema",
    "snapshot_batches",
]


def change_batches(entries: Iterable[Entry], options: FeedOptions) -> Iterator[pa.RecordBatch]:
    """What happened in ``entries``: consecutive ones of one table, oldest first.

    Batches have the schema of :func:`options_schema`; none is empty. KeyError for a column there
    is not; with ``net`` LimitExceededError when there are too many rows for one range.
    """
    remaining = iter(entries)
    first = next(remaining, None)
    if first is None:
        return
    schema = table_schema(first)
    out = options_schema(schema, options)
    entries = chain((first,), remaining)
    del first

    def changes(part: Part) -> FeedRows:
        return _chosen(part, schema, options)

    if options.net:
        rows = net_rows(entries, schema, options, changes=changes)
    else:
        rows = map(changes, parts_of(entries))
    for batch in joined(rows):
        yield finished(batch, out)


def _chosen(part: Part, schema: pa.Schema, options: FeedOptions) -> FeedRows:
    """The wanted rows and columns of a part."""
    wanted = options.indices(schema)
    predicate = options.predicate
    rows = part.feed_rows(
        schema,
        wanted if predicate is None else range(len(schema)),
        row_key=options.row_key,
        modified=wanted if options.modified_columns else None,
    )
    keep = np.ones(len(rows), dtype=np.bool_)
    chooser = options.chooser()
    if chooser is not None:
        keep = chooser(rows.ids.to_numpy())
        if predicate is not None:
            rows = kept(rows, keep)
    if predicate is not None:
        rows, keep = filtered(rows, as_mask(predicate(rows.cells), len(rows)))
        rows = rows.with_columns(wanted)
    if not options.preimage:
        keep &= rows.codes != PREIMAGE
    return kept(rows, keep)


def filtered(rows: FeedRows, matches: np.ndarray) -> tuple[FeedRows, np.ndarray]:
    """What happened seen through a filter that ``matches`` some of the rows: which rows are left,
    an update that enters it as insert, one that leaves it as delete of the old row."""
    codes = rows.codes.copy()
    before = np.flatnonzero(codes == PREIMAGE)
    after = before + 1
    codes[before[matches[before] & ~matches[after]]] = DELETE
    codes[after[matches[after] & ~matches[before]]] = INSERT
    modified = rows.modified
    if modified is not None:
        is_update = (codes == PREIMAGE) | (codes == POSTIMAGE)
        modified = pc.if_else(pa.array(is_update), modified, pa.scalar(None, modified.type))
    return replace(rows, codes=codes, modified=modified), matches.copy()
