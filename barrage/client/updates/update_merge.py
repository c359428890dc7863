"""Merging updates that wait for a slow consumer, cells included.

Row sets follow the rules of :mod:`barrage.model.coalesce`. Of the cells, those of a row that is
added and kept come from the earlier update unless the later one modifies them; removed rows keep
the last values their consumer can have seen. Rows of a blink table live for one update, so theirs
are laid end to end instead.

Cost: that of the cells which are in the result; none is copied where rows were only appended.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.updates.update import Update

    Column: TypeAlias = "pa.Array | pa.ChunkedArray"
    Layer: TypeAlias = "tuple[RowSet, Column]"
    """Rows and their cells, in order."""

_BLINK = b"deephaven:attribute.BlinkTable"

EMPTY = RowSet.empty()


def is_mergeable(updates: Sequence[Update]) -> bool:
    """Whether they can become one: relative ones of a full subscription, with the same columns.
    Positions of a view cannot be followed through an update without the size of the view."""
    first = updates[0]
    return not any(
        update.is_replacement or update.is_view or update.schema != first.schema
        for update in updates
    )


def merged(updates: Sequence[Update]) -> Update:
    """One update with the effect of all; for those that :func:`is_mergeable`. ArrowException for
    columns of a type that Arrow cannot take apart."""
    pending = list(updates)
    merge = _laid_end_to_end if is_of_blink_table(pending[0]) else _merged_pair
    while len(pending) > 1:
        # In pairs, so that a cell is moved as often as the number of updates can be halved.
        pairs = [pending[at : at + 2] for at in range(0, len(pending), 2)]
        pending = [merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return pending[0]


def is_of_blink_table(update: Update) -> bool:
    """Whether rows live for one update only."""
    return (update.schema.metadata or {}).get(_BLINK) == b"true"


def _merged_pair(first: Update, second: Update) -> Update:
    """Mid: the row keys between the two."""
    removed_mid, shifts = second.removed_rows, second.shifts
    removed_late_mid = removed_mid - first.added_rows
    removed_late_pre = first.shifts.unapply(removed_late_mid)
    kept_mid = first.added_rows - removed_mid
    kept = shifts.apply(kept_mid)
    added = kept | second.added_rows
    modified_rows: dict[str, RowSet] = {}
    modified: dict[str, Column] = {}
    early: dict[str, Layer] = {}
    for name in dict.fromkeys((*first.modified_rows, *second.modified_rows)):
        early_mid = first.modified_rows.get(name, EMPTY)
        early_kept = early_mid - removed_mid
        layers: list[Layer] = []
        if not early_kept.is_empty:
            cells = _picked(early_mid, first.modified[name], early_kept)
            layers.append((shifts.apply(early_kept), cells))
        if name in second.modified_rows:
            layers.append((second.modified_rows[name], second.modified[name]))
            early[name] = layers[-1]
        rows = EMPTY
        for layer_rows, _ in layers:
            rows |= layer_rows
        rows -= added
        if not rows.is_empty:
            modified_rows[name] = rows
            modified[name] = _overlaid(rows, layers)
    columns = []
    for name, one, other in zip(
        first.schema.names, first.added.columns, second.added.columns, strict=True
    ):
        layers = [(kept, _picked(first.added_rows, one, kept_mid)), (second.added_rows, other)]
        if name in early:
            layers.append(early[name])
        columns.append(_overlaid(added, layers))
    removed = [
        _overlaid(
            first.removed_rows | removed_late_pre,
            [
                (removed_late_pre, _picked(removed_mid, late, removed_late_mid)),
                (first.removed_rows, one),
            ],
        )
        for one, late in zip(_removed(first), _removed(second), strict=True)
    ]
    return replace(
        second,
        first_step=first.first_step,
        added_rows=added,
        removed_rows=first.removed_rows | removed_late_pre,
        shifts=first.shifts.then(shifts),
        modified_rows=modified_rows,
        source_time_ns=second.source_time_ns or first.source_time_ns,
        _added=columns,
        _modified=modified,
        _removed=removed,
    )


def _removed(update: Update) -> list[Column]:
    """The cells of removed rows by column; no rows where they were not kept."""
    return list(update.removed.columns)


def _laid_end_to_end(first: Update, second: Update) -> Update:
    count = len(first.added_rows) + len(second.added_rows)
    table = pa.concat_tables([first.added, second.added])
    return replace(
        second,
        first_step=first.first_step,
        added_rows=RowSet.of_span(0, count),
        removed_rows=first.removed_rows,
        shifts=RowSetShiftData.empty(),
        source_time_ns=second.source_time_ns or first.source_time_ns,
        _added=table,
        _removed=_removed(first),
    )


def _picked(rows: RowSet, cells: Column, wanted: RowSet) -> Column:
    """The cells of ``wanted``, which are among ``rows``."""
    if wanted == rows or not len(cells):
        return cells
    return cells.take(pa.array(rows.positions_of(wanted).to_numpy()))


def _overlaid(rows: RowSet, layers: list[Layer]) -> Column:
    """The cells of ``rows``, each from the last layer that has it."""
    layers = [layer for layer in layers if len(layer[1])]
    chunks = [chunk for _, cells in layers for chunk in _chunks(cells)]
    if not chunks:
        return layers[0][1] if layers else pa.chunked_array([], pa.null())
    together = pa.chunked_array(chunks)
    lasts = [layer_rows.last for layer_rows, _ in layers]
    firsts = [layer_rows.first for layer_rows, _ in layers]
    is_in_order = all(last < first for last, first in zip(lasts, firsts[1:], strict=False))
    if is_in_order and len(rows) == len(together):
        return together
    if pa.types.is_dictionary(together.type):
        together = together.unify_dictionaries()
    places = np.empty(len(rows), dtype=np.int64)
    starts = accumulate((len(cells) for _, cells in layers), initial=0)
    for (layer_rows, _), start in zip(layers, starts, strict=False):
        common = layer_rows & rows
        source = layer_rows.positions_of(common).to_numpy() + start
        places[rows.positions_of(common).to_numpy()] = source
    return together.take(pa.array(places))


def _chunks(cells: Column) -> list[pa.Array]:
    return list(cells.chunks) if isinstance(cells, pa.ChunkedArray) else [cells]
