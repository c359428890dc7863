"""The keys of a keyed table as they are now, to be looked through beside the engine thread.

Only key columns are pinned, so that writes save nothing of the others. Looking for the keys
that a batch does not have takes a table of hashes of the batch, 20 to 40 bytes for each of its
rows, and a tenth of a microsecond or two for each row of the batch and of the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from barrage.model.storage import ColumnStore, take_cells
from barrage.model.storage.hashing import hash_rows
from barrage.model.storage.key_index import KeyIndex

if TYPE_CHECKING:
    from barrage.engine.tables.source import SourceTable

LOOKED_UP_TOGETHER: Final = 1 << 16
"""Rows whose keys are looked up at a time: other threads have their turns in between."""


class PinnedKeys:
    """Made on the engine thread, read on any."""

    def __init__(self, table: SourceTable) -> None:
        """TableFailedError."""
        table.check_alive()
        places = [table.schema.get_field_index(name) for name in table.key_columns]
        self._schema = pa.schema([table.schema.field(place) for place in places])
        self._columns = [table.storage.columns[place].pinned() for place in places]
        self._row_keys = table.row_keys

    def absent_from(self, rows: pa.Table) -> pa.Table:
        """The keys that none of ``rows`` has, as :meth:`SourceTable.stage_remove` takes them. The
        rows have the columns and types of the table, no null in a key and no key twice."""
        named = [ColumnStore(field.type) for field in self._schema]
        for store, name in zip(named, self._schema.names, strict=True):
            store.append(rows.column(name))
        index = KeyIndex(lambda: named)
        index.rebuild(np.arange(len(rows), dtype=np.int64))
        slots = self._row_keys.to_numpy()
        absent = [self._schema.empty_table()]
        for start in range(0, len(slots), LOOKED_UP_TOGETHER):
            keys = take_cells(self._columns, slots[start : start + LOOKED_UP_TOGETHER])
            missing = pa.array(np.flatnonzero(index.lookup(keys, hash_rows(keys)) < 0))
            absent.append(pa.table([cells.take(missing) for cells in keys], schema=self._schema))
        return pa.concat_tables(absent)
