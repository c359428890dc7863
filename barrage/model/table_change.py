"""A change with its values: what a table's journal records of one cycle.

A :class:`~barrage.model.update.TableUpdate` says which rows changed; this adds the cells, those of
before included. They must be taken while the cycle is committed: afterwards the table has
overwritten or freed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSet


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One cycle of one source table, in plain Arrow values that nobody changes any more.

    Every tuple of cells has one entry per schema column, in schema order; its length is that of the
    row set it belongs to, in key order.
    """

    update: TableUpdate
    removed: tuple[pa.Array | pa.ChunkedArray, ...]
    """Cells before the cycle of ``update.removed_keys_pre``."""
    modified_keys_post: RowSet
    """Rows modified in any column: the union of ``update.modified_keys_post``."""
    before: tuple[pa.Array | pa.ChunkedArray, ...]
    """Cells before the cycle of ``modified_keys_post``, every column."""
    after: tuple[pa.Array | pa.ChunkedArray, ...]
    """Cells after the cycle of ``modified_keys_post``, every column."""
    added: tuple[pa.Array | pa.ChunkedArray, ...]
    """Cells of ``update.added_keys_post``."""
