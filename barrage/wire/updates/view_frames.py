"""The messages of many views, laid out together.

One view's update is a metadata block, a batch header and a few hundred bytes of body. Made one by
one that is a hundred Python objects each; here nothing is done per view and column:

* bodies: every column is gathered once for all views and scattered into one buffer, in which the
  bodies of the views follow each other (:mod:`barrage.wire.columns.sliced_columns`);
* headers: one template, whose numbers are written as columns of a matrix;
* metadata: views whose row sets have equal lengths have equal layouts, so each such group is one
  template as well, over which the row sets are written.

What is left for each view is one concatenation of two slices.

The bytes are those of :class:`barrage.wire.updates.update_codec.UpdateEncoder`, but for row sets
that happen to be equal in one view: it shares those. What is not known here (nested types,
dictionaries, large views, bodies outside the stream, the 2020 draft) is left to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from barrage.wire.bitset import encode_bit_set
from barrage.wire.columns.sliced_columns import Slices
from barrage.wire.flight_data import TAG_BODY, TAG_HEADER, TAG_METADATA, encode_varint
from barrage.wire.ipc import record_header_longs
from barrage.wire.row_sets.many_sets_writer import ManyEncoded, encode_many
from barrage.wire.update_metadata import (
    EMPTY_ROW_SET,
    EncodedMetadata,
    update_template,
)
from barrage.wire.updates.update_codec import SINGLE_BATCH_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from barrage.model.view_updates import ViewRows, ViewUpdates
    from barrage.rowset.arrays import BoolArray, Int64Array
    from barrage.rowset.many_sets import ManyRowSets
    from barrage.wire.columns.sliced_columns import SlicedColumn
    from barrage.wire.updates.update_codec import UpdateEncoder

    Bytes = NDArray[np.uint8]

_GROUPS_MAX = 128
"""Most groups of modified columns that are laid out here; where every column was modified in rows
of its own there is nothing to share."""

_BODY_BYTES_MAX = 64 * 1024
"""Longest body that is laid out with others. Of a longer one the bytes are what costs, and those of
a large message are not made before they can be sent."""

_SHARED = 3
"""Slot of the rows that were modified in any column."""

_NONE = -1
"""In place of a slot: no row was modified."""


def view_frames(
    encoder: UpdateEncoder[Any], updates: ViewUpdates, which: Int64Array
) -> list[bytes | None]:
    """The message of each view in ``which``; None for one that the encoder has to make itself."""
    options = encoder.options
    frames: list[bytes | None] = [None] * len(which)
    if (
        encoder.detach is not None
        or options.columns_as_list
        or not options.revision.has_view_positions
        or len(updates.modified) > _GROUPS_MAX
    ):
        return frames
    rows_max = min(SINGLE_BATCH_ROWS, options.batch_rows_max)
    added = _rows(() if updates.added is None else (updates.added,), which)
    modified = _rows(updates.modified, which)
    # A view with rows of both kinds is told in two batches, which is not known here.
    for groups, rows, is_here in (
        (updates.modified, modified, added == 0),
        ((updates.added,), added, (added > 0) & (modified == 0)),
    ):
        fits = is_here & (rows <= rows_max)
        made = _fitting(encoder, updates, which, groups=groups, rows=rows, fits=fits)
        for place in np.flatnonzero(fits).tolist():
            frames[place] = made[place]
    return frames


def _rows(groups: Sequence[ViewRows], which: Int64Array) -> Int64Array:
    """Rows of each view's batch."""
    rows = np.zeros(len(which), dtype=np.int64)
    for group in groups:
        np.maximum(rows, group.sizes[which], out=rows)
    return rows


def _frames(
    encoder: UpdateEncoder[Any],
    updates: ViewUpdates,
    which: Int64Array,
    *,
    groups: Sequence[ViewRows | None],
    rows: Int64Array,
) -> list[bytes | None]:
    """Messages of one batch each, of the rows in ``groups``."""
    columns = _columns(encoder, groups, which)
    if columns is None:
        return [None] * len(which)
    bodies = _Bodies.of(columns, len(which))
    fits = bodies.lengths <= min(encoder.target_bytes, _BODY_BYTES_MAX)
    if not fits.all():
        return _fitting(encoder, updates, which, groups=groups, rows=rows, fits=fits)
    headers = _headers(encoder, columns, rows, bodies=bodies)
    fronts = _Fronts(encoder, updates, which, headers=headers, bodies=bodies)
    made = fronts.joined(bodies.filled(columns))
    # Of many columns the header may be longer than the body, and readers limit the whole message.
    bytes_max = encoder.options.message_bytes_max
    return [frame if len(frame) <= bytes_max else None for frame in made]


def _fitting(
    encoder: UpdateEncoder[Any],
    updates: ViewUpdates,
    which: Int64Array,
    *,
    groups: Sequence[ViewRows | None],
    rows: Int64Array,
    fits: BoolArray,
) -> list[bytes | None]:
    """Messages of those that ``fits`` names, before a byte of the others is gathered."""
    frames: list[bytes | None] = [None] * len(which)
    places = np.flatnonzero(fits)
    if len(places):
        made = _frames(encoder, updates, which[places], groups=groups, rows=rows[places])
        for place, frame in zip(places.tolist(), made, strict=True):
            frames[place] = frame
    return frames


def _columns(
    encoder: UpdateEncoder[Any], groups: Sequence[ViewRows | None], which: Int64Array
) -> list[_Column] | None:
    """All columns of the schema; None when one of them cannot be sliced."""
    plans = encoder.column_plans
    empty = Slices(np.zeros(len(which), dtype=np.int64), np.zeros(len(which), dtype=np.int64))
    columns = [
        _Column(plan.codec.node_count, plan.codec.buffer_count, empty, None) for plan in plans
    ]
    for group in groups:
        if group is None:
            continue
        slices = Slices(group.low[which], group.sizes[which])
        for index, values in zip(group.columns, group.values, strict=True):
            plan = plans[index]
            if not isinstance(values, pa.Array) or plan.codec.node_count != 1:
                return None
            array = values if plan.convert is None else plan.convert(values)
            content = plan.codec.slices(array, slices)
            if content is None:
                return None
            columns[index] = columns[index]._replace(slices=slices, content=content)
    return columns


class _Column(NamedTuple):
    node_count: int
    buffer_count: int
    slices: Slices
    content: SlicedColumn | None
    """None for a column without rows in any view."""


class _Bodies(NamedTuple):
    """Where everything lies in the common buffer of all bodies. One row per view; ``offsets`` and
    ``padded`` have one column per buffer of the schema, counted from the view's own body."""

    starts: Int64Array
    lengths: Int64Array
    offsets: Int64Array
    padded: Int64Array

    @classmethod
    def of(cls, columns: list[_Column], count: int) -> _Bodies:
        padded = np.zeros((count, sum(each.buffer_count for each in columns)), dtype=np.int64)
        at = 0
        for column in columns:
            if column.content is not None:
                for number, buffer in enumerate(column.content.buffers):
                    padded[:, at + number] = (buffer.lengths + 7) & ~7
            at += column.buffer_count
        stops = np.cumsum(padded, axis=1)
        lengths = stops[:, -1] if at else np.zeros(count, dtype=np.int64)
        return cls(
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            offsets=stops - padded,
            padded=padded,
        )

    def filled(self, columns: list[_Column]) -> memoryview:
        """All bodies, one after the other."""
        body = np.zeros(int(self.lengths.sum()), dtype=np.uint8)
        at = 0
        for column in columns:
            if column.content is not None:
                for number, buffer in enumerate(column.content.buffers):
                    buffer.fill(body, self.starts + self.offsets[:, at + number])
            at += column.buffer_count
        return body.data


def _headers(
    encoder: UpdateEncoder[Any], columns: list[_Column], rows: Int64Array, *, bodies: _Bodies
) -> Bytes:
    """One batch header in each row."""
    node_longs = 2 * sum(each.node_count for each in columns)
    buffer_longs = 2 * sum(each.buffer_count for each in columns)
    longs = record_header_longs(node_longs, buffer_longs)
    headers = np.tile(longs.template, (len(rows), 1))
    headers[:, longs.length] = rows
    headers[:, longs.body_bytes] = bodies.lengths
    at = longs.nodes
    for column in columns:
        if column.content is not None:
            headers[:, at] = column.slices.counts
            headers[:, at + 1] = column.content.null_counts
        at += 2 * column.node_count
    headers[:, longs.buffers :: 2] = bodies.offsets
    headers[:, longs.buffers + 1 :: 2] = bodies.padded
    return headers.view(np.uint8)


class _Fronts:
    """Everything of the messages before their bodies."""

    def __init__(
        self,
        encoder: UpdateEncoder[Any],
        updates: ViewUpdates,
        which: Int64Array,
        *,
        headers: Bytes,
        bodies: _Bodies,
    ) -> None:
        self._updates = updates
        self._headers = headers
        self._bodies = bodies
        self._source_time_ns = updates.source_time_ns if encoder.options.sends_source_time else None
        self._column_count = len(encoder.column_plans)
        none = None if updates.effective_columns is None else updates.effective_columns
        self._effective_columns = None if none is None else encode_bit_set(none)
        self._sets = _row_sets(updates, which)

    def joined(self, bodies: memoryview) -> list[bytes]:
        """All messages."""
        starts, lengths = self._bodies.starts, self._bodies.lengths
        varints = _varint_lengths(lengths)
        signature = np.column_stack(
            [varints, self._sets.states, *(each.lengths for each in self._sets.encoded)]
        )
        found: list[bytes] = [b""] * len(lengths)
        for members in _groups(signature):
            fronts = self._fronts(members, int(varints[members[0]]))
            content = fronts.tobytes()
            width = fronts.shape[1]
            at = 0
            begins = starts[members].tolist()
            sizes = lengths[members].tolist()
            for member, begin, size in zip(members.tolist(), begins, sizes, strict=True):
                found[member] = content[at : at + width] + bodies[begin : begin + size]
                at += width
        return found

    def _fronts(self, members: Int64Array, varint_bytes: int) -> Bytes:
        """Those of views that have one layout, one in each row."""
        metadata, places = self._metadata_template(int(members[0]))
        header_bytes = self._headers.shape[1]
        # As in ``_frame_ends``: what pads the header lets the body begin at a multiple of eight.
        tail_bytes = len(TAG_BODY) + varint_bytes
        between = TAG_METADATA + encode_varint(len(metadata))
        rest = len(TAG_HEADER) + header_bytes + len(between) + len(metadata) + tail_bytes
        padding = -(rest + len(encode_varint(header_bytes))) & 7
        length = encode_varint(header_bytes + padding)
        if (rest + padding + len(length)) & 7:
            padding += 7
            length = encode_varint(header_bytes + padding)
        head = TAG_HEADER + length
        template = b"".join(
            (head, bytes(header_bytes + padding), between, metadata, TAG_BODY, bytes(varint_bytes))
        )
        fronts = np.tile(np.frombuffer(template, np.uint8), (len(members), 1))
        fronts[:, len(head) : len(head) + header_bytes] = self._headers[members]
        metadata_at = len(head) + header_bytes + padding + len(between)
        for encoded, place in zip(self._sets.encoded, places, strict=True):
            if place is None:
                continue
            width = int(encoded.lengths[members[0]])
            at = metadata_at + place
            picked = encoded.starts[members][:, None] + np.arange(width)
            fronts[:, at : at + width] = encoded.content[picked]
        _write_varints(fronts[:, -varint_bytes:], self._bodies.lengths[members])
        return fronts

    def _metadata_template(self, view: int) -> tuple[bytes, list[int | None]]:
        """The metadata of one view, and where in it each of its row sets stands."""
        updates, sets = self._updates, self._sets
        dummies = [_dummy(slot, int(each.lengths[view])) for slot, each in enumerate(sets.encoded)]
        added, removed, viewport, *_ = dummies
        modified = [EMPTY_ROW_SET] * self._column_count
        for number, group in enumerate(updates.modified):
            slot = int(sets.states[view, number])
            for column in group.columns if slot != _NONE else ():
                modified[column] = dummies[slot]
        has_viewport = updates.effective_viewports is not None
        template, at = update_template(
            EncodedMetadata(
                first_seq=updates.first_step,
                last_seq=updates.last_step,
                is_snapshot=updates.is_snapshot,
                is_effective_reverse=updates.is_effective_reverse,
                effective_viewport=viewport if has_viewport else None,
                effective_columns=self._effective_columns,
                added_rows=added,
                removed_rows=removed,
                shift_data=None,
                added_rows_included=None,
                modified_rows=tuple(modified),
                table_size=updates.table_size,
                add_batch_count=0,
                mod_batch_count=0,
                source_time_ns=self._source_time_ns,
            )
        )
        contents = (viewport, None, added, removed, None, None, *dict.fromkeys(modified))
        place_of = dict(zip(contents, at, strict=True))
        places = [
            place_of.get(dummy) if len(dummy) > len(EMPTY_ROW_SET) else None for dummy in dummies
        ]
        return template, places


class _RowSets(NamedTuple):
    """The row sets of all views, encoded: by slot, those of added rows, removed rows, viewports,
    rows modified in any column, and of each group's own modified rows. ``states`` tells for each
    view and group in which slot its modified rows are."""

    encoded: list[ManyEncoded]
    states: Int64Array


def _row_sets(updates: ViewUpdates, which: Int64Array) -> _RowSets:
    count = len(which)
    encoded = [
        _encoded(sets, which)
        for sets in (
            None if updates.added is None else updates.added.rows,
            updates.removed,
            updates.effective_viewports,
            updates.modified_rows,
        )
    ]
    states = np.empty((count, len(updates.modified)), dtype=np.int64)
    every = updates.modified_rows
    every_sizes = np.zeros(count, dtype=np.int64) if every is None else every.sizes[which]
    for number, group in enumerate(updates.modified):
        sizes = group.sizes[which]
        is_own = (sizes > 0) & (sizes < every_sizes)
        states[:, number] = np.where(sizes == 0, _NONE, np.where(is_own, len(encoded), _SHARED))
        own = np.flatnonzero(is_own)
        written = encode_many(group.rows.pick(which[own]))
        starts = np.zeros(count, dtype=np.int64)
        lengths = np.zeros(count, dtype=np.int64)
        starts[own], lengths[own] = written.starts, written.lengths
        encoded.append(ManyEncoded(written.content, starts, lengths))
    return _RowSets(encoded, states)


def _encoded(sets: ManyRowSets | None, which: Int64Array) -> ManyEncoded:
    if sets is not None:
        return encode_many(sets.pick(which))
    none = np.zeros(len(which), dtype=np.int64)
    return ManyEncoded(np.frombuffer(EMPTY_ROW_SET, np.uint8), none, none + len(EMPTY_ROW_SET))


def _dummy(number: int, length: int) -> bytes:
    """Stands for a row set of so many bytes and equals nothing else that stands there (a set of
    columns ends with a byte that is not zero); the empty set stands for itself, as it is written
    once."""
    if length <= len(EMPTY_ROW_SET):
        return EMPTY_ROW_SET
    return bytes((0xFF - number,)) * (length - 1) + b"\0"


def _groups(signature: Int64Array) -> list[Int64Array]:
    """The views with equal rows of ``signature``."""
    keys = np.ascontiguousarray(signature).view(np.dtype((np.void, signature.shape[1] * 8))).ravel()
    _, group = np.unique(keys, return_inverse=True)
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def _varint_lengths(values: Int64Array) -> Int64Array:
    """Bytes of each value as a varint."""
    lengths = np.ones(len(values), dtype=np.int64)
    rest = values >> 7
    while rest.any():
        lengths += rest > 0
        rest >>= 7
    return lengths


def _write_varints(places: Bytes, values: Int64Array) -> None:
    """Each value into its row, whose length is that of the varint."""
    last = places.shape[1] - 1
    for index in range(last + 1):
        group = (values >> (7 * index)) & 0x7F
        places[:, index] = group | (0x80 if index < last else 0)
