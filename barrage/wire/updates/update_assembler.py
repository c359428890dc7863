"""Flight messages to updates: the receiving side of a subscription or snapshot, without a replica.

Source: barrage-wire.md sections 3.3, 8 and 9. An update is complete when as many rows have been
read as its metadata announced (the 2020 draft counts batches instead).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.model.viewport import effective_columns
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire.messages import UpdateMetadata
from barrage.wire.metadata import decode_wrapper
from barrage.wire.revision import WireRevision
from barrage.wire.updates.batch_reader import BatchReader, ReceivedBatch, SchemaReceived

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.model.viewport import ColumnSet
    from barrage.wire.frame import FlightFrame

__all__ = ["SchemaReceived", "UpdateAssembler"]


class _Pending:
    """An update whose metadata has come and whose batches are being counted."""

    def __init__(self, metadata: UpdateMetadata, column_count: int) -> None:
        self.metadata = metadata
        included = metadata.added_rows_included
        data_rows = metadata.added_rows if included is None else included
        self.adds_expected = 0 if data_rows is None else data_rows.size
        nodes = metadata.mod_column_nodes or ()
        if len(nodes) > column_count:
            raise RemoteProtocolError(
                f"{len(nodes)} modified columns, the table has {column_count}"
            )
        missing = (RowSet.empty(),) * (column_count - len(nodes))
        self.modified = (*nodes, *missing)
        self.mod_rows = [rows.size for rows in self.modified]
        self.mods_expected = max(self.mod_rows, default=0)
        self.adds_read = 0
        self.mods_read = 0
        self.add_batches = 0
        self.mod_batches = 0
        self.added: list[list[pa.Array]] = [[] for _ in range(column_count)]
        self.changed: list[list[pa.Array]] = [[] for _ in range(column_count)]

    def is_complete(self) -> bool:
        if self.adds_read < self.adds_expected or self.mods_read < self.mods_expected:
            return False
        adds, mods = self.metadata.add_batch_count, self.metadata.mod_batch_count
        if adds is None or mods is None:
            return True
        return self.add_batches + self.mod_batches >= max(adds + mods, 1)


class UpdateAssembler:
    """Turns the messages a server sends on one stream into a schema and updates.

    ``is_viewport`` says whether this is a subscription with a viewport: then updates are in view
    positions (ViewUpdate); full subscriptions, answers to snapshot requests and the 2020 draft are
    in row keys (FullUpdate). A server that answers a viewport subscription in row keys after all is
    recognised by its shift data or included rows, and gives FullUpdate too.
    ``columns_as_list`` and ``use_deephaven_nulls`` repeat what was asked for.
    ``decodes_encodings`` hands out plain values for dictionary and run-end encoded columns.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        revision: WireRevision = WireRevision.R1_0_0,
        is_viewport: bool = False,
        *,
        columns_as_list: bool = False,
        use_deephaven_nulls: bool = False,
        decodes_encodings: bool = False,
    ) -> None:
        self._limits = limits
        self._revision = revision
        self._in_view_positions = is_viewport and revision.has_view_positions
        self._decodes = decodes_encodings
        self._reader = BatchReader(
            limits, columns_as_list=columns_as_list, use_deephaven_nulls=use_deephaven_nulls
        )
        self._columns_as_list = columns_as_list
        self._empty_columns: tuple[pa.Array, ...] = ()
        self._is_encoded: tuple[bool, ...] = ()
        self._pending: _Pending | None = None
        self._selected: ColumnSet | None = None
        """Columns of the latest snapshot; None is all."""

    @property
    def is_between_updates(self) -> bool:
        """Whether no update is half received: the only place where a stream may end."""
        return self._pending is None

    def resume(self, columns: ColumnSet | None) -> None:
        """The receiver holds a state of ``columns`` (None: all) already; deltas follow without a
        snapshot that says which."""
        self._selected = columns

    def receive_frame(self, frame: FlightFrame) -> SchemaReceived | FullUpdate | ViewUpdate | None:
        """Take the next message; None while an update is incomplete.

        Raises RemoteProtocolError for anything malformed or out of order; the assembler is of no
        use afterwards.
        """
        received = self._reader.receive(frame)
        if isinstance(received, SchemaReceived):
            return self._take_schema(received)
        if received is None:
            return None
        pending = self._pending_for(frame.metadata)
        self._count(pending, received)
        if not pending.is_complete():
            return None
        self._pending = None
        return self._finish(pending)

    def _pending_for(self, metadata: bytes | None) -> _Pending:
        """The update the current batch belongs to; metadata starts a new one."""
        if metadata is None:
            if self._pending is None:
                raise RemoteProtocolError("record batch without metadata between updates")
            return self._pending
        if self._pending is not None:
            raise RemoteProtocolError("previous update was not complete")
        message = decode_wrapper(metadata, self._revision, self._limits)
        if not isinstance(message, UpdateMetadata):
            raise RemoteProtocolError(f"metadata of type {message.message_type} is no update")
        assert self._reader.schema is not None
        if message.is_snapshot:
            self._selected = message.effective_column_set
        self._pending = _Pending(message, len(self._reader.schema))
        return self._pending

    def _count(self, pending: _Pending, batch: ReceivedBatch) -> None:
        """File the batch under adds or modifications (section 8.4) and check its columns'
        lengths."""
        adds_left = pending.adds_expected - pending.adds_read
        if self._columns_as_list and batch.rows == 0 and not self._selects_any():
            # Lists say how many rows a batch has; without any column one batch stands for all.
            mods_left = pending.mods_expected - pending.mods_read
            batch = batch._replace(rows=adds_left or mods_left)
        if adds_left:
            self._count_adds(pending, batch, adds_left)
            return
        if pending.mods_read == pending.mods_expected and batch.rows:
            raise RemoteProtocolError(f"{batch.rows} rows more than the update announced")
        pending.mod_batches += 1
        start = pending.mods_read
        if batch.rows > pending.mods_expected - start:
            raise RemoteProtocolError(
                f"{start + batch.rows} modified rows, the update announced {pending.mods_expected}"
            )
        for i, column in enumerate(batch.columns):
            wanted = max(0, min(pending.mod_rows[i] - start, batch.rows))
            if len(column) == wanted and wanted:
                pending.changed[i].append(column)
            elif len(column) != wanted and (len(column) or self._is_selected(i)):
                raise RemoteProtocolError(
                    f"column {i} has {len(column)} modified rows in a batch, expected {wanted}"
                )
        pending.mods_read = start + batch.rows

    def _count_adds(self, pending: _Pending, batch: ReceivedBatch, left: int) -> None:
        rows = batch.rows
        if rows > left:
            raise RemoteProtocolError(
                f"{pending.adds_read + rows} added rows, the update announced "
                f"{pending.adds_expected}"
            )
        pending.add_batches += 1
        for i, column in enumerate(batch.columns):
            if not self._is_selected(i):
                continue  # legal filler of a column nobody asked for
            if len(column) != rows:
                raise RemoteProtocolError(
                    f"column {i} has {len(column)} added rows in a batch of {rows}"
                )
            if rows:
                pending.added[i].append(column)
        pending.adds_read += rows

    def _is_selected(self, index: int) -> bool:
        return self._selected is None or index in self._selected

    def _selects_any(self) -> bool:
        assert self._reader.schema is not None
        return bool(effective_columns(self._selected, len(self._reader.schema)))

    def _finish(self, pending: _Pending) -> FullUpdate | ViewUpdate:
        metadata = pending.metadata
        added = self._joined(pending.added)
        modified = self._joined(pending.changed)
        empty = RowSet.empty()
        in_keys = metadata.shift_data is not None or metadata.added_rows_included is not None
        if self._in_view_positions and not in_keys:
            return ViewUpdate(
                first_step=metadata.first_seq,
                last_step=metadata.last_seq,
                is_snapshot=metadata.is_snapshot,
                effective_viewport=metadata.effective_viewport,
                is_effective_reverse=metadata.effective_reverse_viewport,
                effective_columns=metadata.effective_column_set,
                table_size=metadata.table_size or 0,
                added_columns=added,
                modified_columns=modified,
                source_time_ns=metadata.source_time_ns,
                removed_positions=metadata.removed_rows or empty,
                added_positions=metadata.added_rows or empty,
                modified_positions=pending.modified,
            )
        size = metadata.table_size
        if size is None and metadata.removed_rows is not None and self._revision.has_table_size:
            size = 0  # a size of 0 is not written; answers to snapshot requests have no size at all
        return FullUpdate(
            first_step=metadata.first_seq,
            last_step=metadata.last_seq,
            is_snapshot=metadata.is_snapshot,
            effective_viewport=metadata.effective_viewport,
            is_effective_reverse=metadata.effective_reverse_viewport,
            effective_columns=metadata.effective_column_set,
            table_size=size,
            added_columns=added,
            modified_columns=modified,
            source_time_ns=metadata.source_time_ns,
            removed_keys_pre=metadata.removed_rows,
            shifts=metadata.shift_data or RowSetShiftData.empty(),
            added_keys_post=metadata.added_rows or empty,
            included_keys_post=metadata.added_rows_included,
            modified_keys_post=None if metadata.mod_column_nodes is None else pending.modified,
        )

    def _joined(self, columns: list[list[pa.Array]]) -> tuple[pa.Array | pa.ChunkedArray, ...]:
        """Every column's pieces as one array, or as a chunked array of several."""
        joined: list[pa.Array | pa.ChunkedArray] = []
        for pieces, nothing, is_encoded in zip(
            columns, self._empty_columns, self._is_encoded, strict=True
        ):
            if not pieces:
                joined.append(nothing)
                continue
            arrays = [_plain(piece) for piece in pieces] if is_encoded else pieces
            joined.append(arrays[0] if len(arrays) == 1 else pa.chunked_array(arrays))
        return tuple(joined)

    def _take_schema(self, received: SchemaReceived) -> SchemaReceived:
        """Prepare for columns of this schema; returns the one they are handed out in."""
        self._empty_columns = self._reader.empty_columns()
        self._is_encoded = (False,) * len(received.schema)
        if not self._decodes:
            return received
        fields = [field.with_type(_plain_type(field.type)) for field in received.schema]
        self._empty_columns = tuple(map(_plain, self._empty_columns))
        self._is_encoded = tuple(
            field.type != sent.type for field, sent in zip(fields, received.schema, strict=True)
        )
        return SchemaReceived(schema=pa.schema(fields, metadata=received.schema.metadata))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Type of :func:`_plain`'s result."""
    while pa.types.is_run_end_encoded(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind


def _plain(array: pa.Array) -> pa.Array:
    """The values of an encoded array."""
    if pa.types.is_run_end_encoded(array.type):
        if pa.types.is_dictionary(array.type.value_type):
            # Arrow has no kernel for runs of dictionary values.
            rows = len(array)
            array = pa.RunEndEncodedArray.from_arrays(
                array.run_ends, array.values.dictionary_decode()
            ).slice(0, rows)
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array
