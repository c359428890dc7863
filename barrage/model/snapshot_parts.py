"""The answer to a snapshot request, put together from its parts (barrage-wire.md section 7.3).

A server may answer in several updates whose included rows add up. They usually come in key order;
then the result is the received chunks laid end to end, without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError
from barrage.model.viewport import effective_columns
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet


class SnapshotParts:
    """Parts received so far."""

    def __init__(self, schema: pa.Schema, columns: ColumnSet | None) -> None:
        """``columns``: those asked for, None for all."""
        self._columns = effective_columns(columns, len(schema))
        self._schema = pa.schema(
            [schema.field(index) for index in self._columns], metadata=schema.metadata
        )
        self._keys: list[RowSet] = []
        self._known = RowSet.empty()
        self._chunks: list[list[pa.Array]] = [[] for _ in self._columns]

    @property
    def row_keys(self) -> RowSet:
        """Keys of the rows received so far."""
        return self._known

    def add(self, part: FullUpdate) -> None:
        """Take one update; RemoteProtocolError when it repeats rows or its columns do not fit."""
        self.add_rows(part.data_keys_post, [part.added_columns[index] for index in self._columns])

    def add_rows(self, keys: RowSet, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """The same from keys and one column per column asked for."""
        if self._known.overlaps(keys):
            raise RemoteProtocolError("a snapshot repeats rows it sent before")
        for index, column in zip(self._columns, columns, strict=True):
            if len(column) != len(keys):
                raise RemoteProtocolError(
                    f"column {index} has {len(column)} values for {len(keys)} rows"
                )
        if keys.is_empty:
            return
        self._known = self._known | keys
        self._keys.append(keys)
        for chunks, column in zip(self._chunks, columns, strict=True):
            chunks += column.chunks if isinstance(column, pa.ChunkedArray) else [column]

    def to_arrow(self) -> pa.Table:
        """All rows in key order."""
        columns = [
            pa.chunked_array(chunks, type=field.type)
            for chunks, field in zip(self._chunks, self._schema, strict=True)
        ]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        is_ordered = all(
            before.last < after.first
            for before, after in zip(self._keys, self._keys[1:], strict=False)
        )
        if is_ordered or not columns:
            return table
        keys = np.concatenate([part.to_numpy() for part in self._keys])
        return table.take(pa.array(np.argsort(keys, kind="stable")))
