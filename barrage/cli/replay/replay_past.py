"""A table of the past that is played: the rows as of a step, and the change feed applied to them
commit by commit.

The feed names rows by their row keys. Those shift in one kind of table only, the ordered list,
where they are positions: what is removed and inserted says how the others move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.client.tables.history import FEED_COLUMNS, ROW_KEY
from barrage.client.updates.rekeying import shifts_between
from barrage.model.replica import FullReplica
from barrage.model.update import FullUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EMPTY = RowSet.empty()

INSERT, UPDATE, DELETE = "insert", "update_postimage", "delete"


@dataclass(frozen=True, slots=True)
class Commit:
    """What one cycle changed, in the form of the feed."""

    version: int
    time_us: int
    rows: pa.Table


async def commits(batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[Commit]:
    """The feed's batches put together again by version."""
    waiting: list[pa.Table] = []
    version: int | None = None
    async for batch in batches:
        rows = pa.Table.from_batches([batch])
        versions = rows.column("_commit_version").to_numpy()
        starts = np.flatnonzero(np.diff(versions, prepend=versions[:1] - 1))
        for start, stop in zip(starts, [*starts[1:], len(versions)], strict=True):
            if version is not None and versions[start] != version:
                yield _commit(version, waiting)
                waiting = []
            version = int(versions[start])
            waiting.append(rows.slice(start, stop - start))
    if version is not None:
        yield _commit(version, waiting)


def _commit(version: int, parts: list[pa.Table]) -> Commit:
    rows = pa.concat_tables(parts) if len(parts) > 1 else parts[0]
    time = rows.column("_commit_timestamp")[0]
    return Commit(version, int(time.cast(pa.int64()).as_py()), rows)


class PastTable:
    """The rows at one moment of the past, moved on by commits."""

    def __init__(self, schema: pa.Schema, keys: RowSet, rows: pa.Table, *, kind: str) -> None:
        self._is_list = kind == "list"
        self._is_blink = kind == "blink"
        self._replica = FullReplica(schema)
        self._replica.apply(
            _update(schema, added=(keys, rows), is_snapshot=True),
        )

    def __len__(self) -> int:
        return len(self._replica)

    @property
    def schema(self) -> pa.Schema:
        return self._replica.schema

    def rows(self, start: int, stop: int) -> pa.Table:
        """The rows at positions ``start`` to ``stop`` (not included), as far as there are any."""
        keys = self._replica.row_keys
        stop = min(stop, len(keys))
        return self._replica.rows(keys.keys_at(RowSet.of_span(min(start, stop), stop)))

    def to_arrow(self) -> pa.Table:
        return self._replica.to_arrow()

    def apply(self, commit: Commit) -> None:
        """Move on by one commit, which must be the next; RemoteProtocolError when it does not
        fit."""
        schema, before = self._replica.schema, self._replica.row_keys
        added_keys, added = self._of_kind(commit, INSERT)
        changed_keys, changed = self._of_kind(commit, UPDATE)
        removed, _ = self._of_kind(commit, DELETE)
        if self._is_blink:
            removed = before
        shifts = RowSetShiftData.empty()
        if self._is_list:
            kept = before - removed
            every = RowSet.of_span(0, len(kept) + len(added_keys))
            shifts = shifts_between(kept, every - added_keys)
        self._replica.apply(
            _update(
                schema,
                added=(added_keys, added),
                modified=(changed_keys, changed),
                removed=removed,
                shifts=shifts,
            )
        )

    def _of_kind(self, commit: Commit, kind: str) -> tuple[RowSet, pa.Table]:
        """The rows of one type of change in key order, and their keys."""
        rows = commit.rows.filter(pc.equal(commit.rows.column("_change_type"), kind))
        if not rows.num_rows:
            return EMPTY, self.schema.empty_table()
        keys = rows.column(ROW_KEY).to_numpy()
        if not (keys[1:] > keys[:-1]).all():
            rows = rows.take(pa.array(np.argsort(keys)))
        return RowSet.from_keys(keys), table_columns(rows).cast(self.schema)


def table_columns(rows: pa.Table) -> pa.Table:
    """Rows of the feed without the feed's own columns."""
    return rows.select([name for name in rows.column_names if name not in FEED_COLUMNS])


def _update(
    schema: pa.Schema,
    *,
    added: tuple[RowSet, pa.Table],
    modified: tuple[RowSet, pa.Table] | None = None,
    removed: RowSet = EMPTY,
    shifts: RowSetShiftData | None = None,
    is_snapshot: bool = False,
) -> FullUpdate:
    changed_keys, changed = modified or (EMPTY, schema.empty_table())
    return FullUpdate(
        first_step=0,
        last_step=0,
        is_snapshot=is_snapshot,
        effective_viewport=None,
        is_effective_reverse=False,
        effective_columns=None,
        table_size=None,
        added_columns=tuple(added[1].columns),
        modified_columns=tuple(changed.columns),
        removed_keys_pre=removed,
        shifts=shifts or RowSetShiftData.empty(),
        added_keys_post=added[0],
        included_keys_post=None,
        modified_keys_post=(changed_keys,) * len(schema),
    )
