"""From the rows of a batch to what has to be staged in a table: modes, columns, one change per key.

Runs on a worker thread: everything here is Arrow kernels over whole columns.

In mode ``changes`` the rows are a change feed. A key's changes are applied in the order of
``_commit_version``; in one version, rows that go (``delete`` and ``update_preimage``) come before
rows that come (``insert`` and ``update_postimage``), so a row whose key columns changed leaves its
old key. What counts is the last change of each key; ``truncate`` takes back everything before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.tables.coercion import coerce_rows
from barrage.errors import RowError, SchemaError, UnsupportedError
from barrage.model.storage.expanded_bytes import expanded_bytes
from barrage.model.storage.hashing import hash_rows
from barrage.model.storage.key_index import first_duplicate
from barrage.model.storage.row_weight import row_weight
from barrage.server.ingest.portions import portions
from barrage.server.tables.table_service import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from barrage.engine.tables.source import SourceTable

Mode = Literal["append", "upsert", "replace", "changes"]

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
ROW_ID = "_row_id"
FEED_COLUMNS = frozenset(
    {CHANGE_TYPE, COMMIT_VERSION, "_commit_timestamp", ROW_ID, "_row_key", "_modified_columns"}
)
"""What a change feed has besides the table's columns."""

_GOES, _COMES, _TRUNCATES = 0, 1, 2
_RANKS = {
    "delete": _GOES,
    "update_preimage": _GOES,
    "insert": _COMES,
    "update_postimage": _COMES,
    "truncate": _TRUNCATES,
}
_ORDER = "_barrage_order"
_REPLACE, _UPSERT = "stage_replace", "stage_upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """What rows are made to fit: columns and key of the table they are for."""

    name: str
    kind: str
    schema: pa.Schema
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWrite:
    """What to do with a table, in order: the names of its ``stage_...`` methods with their rows,
    which have its types already."""

    steps: tuple[tuple[str, pa.Table], ...]
    key: tuple[str, ...]
    """Key columns of the table."""
    weight: int
    """For how many rows those of all steps together count."""

    @classmethod
    def of(cls, key: tuple[str, ...], *steps: tuple[str, pa.Table]) -> StagedWrite:
        """Counts the rows' bytes, which takes time where they are in many pieces."""
        weight = sum(_weight(rows, key) * len(rows) for _, rows in steps)
        return cls(steps=steps, key=key, weight=weight)

    @property
    def is_replacement(self) -> bool:
        return self.steps[0][0] == _REPLACE

    def changes(self, table: SourceTable) -> list[Change]:
        return [Change(table, operation, (rows,)) for operation, rows in self.steps]

    def portions(self, weight_below: int) -> list[StagedWrite]:
        """The same in parts which the engine takes one after the other, for a table with a key,
        below which so much hangs. Of a replacement only that its rows come: the others are still
        there afterwards."""
        return [
            StagedWrite.of(self.key, (_UPSERT if operation == _REPLACE else operation, portion))
            for operation, rows in self.steps
            for portion in portions(rows, _weight(rows, self.key) * weight_below)
        ]


def _weight(rows: pa.Table, key: Sequence[str]) -> int:
    return row_weight(rows, has_key=bool(key))


def bytes_in(target: TargetShape, parts: Iterable[pa.Table], mode: str) -> int:
    """What the parts of a batch take in the types of their table, before they are made to fit."""
    schema = target.schema
    if mode == "changes":
        read = {CHANGE_TYPE: pa.string(), COMMIT_VERSION: pa.int64()}
        for name, kind in read.items():
            if name not in schema.names:
                schema = schema.append(pa.field(name, kind))
    return sum(expanded_bytes(part, schema) for part in parts)


def staged_write(
    parts: Sequence[pa.Table], target: TargetShape, mode: str, *, merge_schema: bool
) -> StagedWrite:
    """What the parts of a batch do to a table. At least one step, so that a batch without rows
    leaves its number too.

    Errors: SchemaError, RowError, UnsupportedError (columns the table does not have, which
    ``merge_schema`` asked for: tables keep the columns they were made with).
    """
    if mode == "changes":
        steps = _change_steps(parts, target, merge_schema)
    else:
        fitted = [_fitted(part, target, merge_schema) for part in parts]
        rows = pa.concat_tables(fitted) if fitted else target.schema.empty_table()
        steps = _row_steps(rows, target, mode)
    return StagedWrite.of(target.key, *steps)


def _row_steps(rows: pa.Table, target: TargetShape, mode: str) -> tuple[tuple[str, pa.Table], ...]:
    if mode == "upsert" and not target.key:
        raise SchemaError(f"table {target.name!r} has no key; upserts need one")
    if target.key:
        rows = last_by_key(rows, target.key)
    if mode == "replace":
        return ((_REPLACE, rows),)
    return ((_UPSERT if target.key else "stage_add", rows),)


def _fitted(part: pa.Table, target: TargetShape, merge_schema: bool) -> pa.Table:
    """The rows in the table's columns and types."""
    if merge_schema:
        unknown = [name for name in part.column_names if name not in target.schema.names]
        if unknown:
            raise UnsupportedError(
                f"column {unknown[0]!r} is not in table {target.name!r}, and a table keeps the "
                "columns it was made with: select its columns, or write to a new table"
            )
        for field in target.schema:
            if field.name not in part.column_names:
                part = part.append_column(field, pa.nulls(len(part), field.type))
    return coerce_rows(target.schema, part)


def last_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of these."""
    last = _last_rows(rows, key)
    return rows if len(last) == len(rows) else rows.take(pa.array(last))


def _last_rows(rows: pa.Table, key: Sequence[str]) -> npt.NDArray[np.int64]:
    """Where the last row of each key stands, ascending. RowError for a key that is null."""
    for name in key:
        if rows.column(name).null_count:
            row = int(pc.index(rows.column(name).is_null(), True).as_py())
            raise RowError("a key must not be null", column=name, row=row)
    columns = tuple(rows.column(name).combine_chunks() for name in key)
    if len(rows) < 2 or first_duplicate(columns, hash_rows(columns)) is None:
        return np.arange(len(rows))
    numbered = _plain_keys(rows, key).append_column(_ORDER, pa.array(np.arange(len(rows))))
    grouped = numbered.group_by(list(key)).aggregate([(_ORDER, "max")])
    return np.sort(grouped.column(f"{_ORDER}_max").to_numpy())


def _plain_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key columns, without dictionaries, which cannot be grouped by when they differ."""
    columns = [rows.column(name) for name in key]
    plain = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in columns
    ]
    return pa.table(plain, names=list(key))


# --- change feeds ---


@dataclass(slots=True, kw_only=True)
class _Feed:
    """Rows in the table's types, with what each does and when. ``truncated_at``: the version that
    took back everything before it."""

    rows: pa.Table
    versions: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    truncated_at: int | None = None

    def since_truncation(self) -> _Feed:
        """Only what counts after the last truncation."""
        if self.truncated_at is None:
            return self
        counts = self.versions >= self.truncated_at
        return _Feed(
            rows=self.rows.filter(pa.array(counts)),
            versions=self.versions[counts],
            ranks=self.ranks[counts],
            truncated_at=self.truncated_at,
        )

    def in_order(self) -> _Feed:
        """By version; in one version, what goes before what comes."""
        order = np.lexsort((self.ranks, self.versions))
        if (order == np.arange(len(order))).all():
            return self
        return _Feed(
            rows=self.rows.take(pa.array(order)),
            versions=self.versions[order],
            ranks=self.ranks[order],
            truncated_at=self.truncated_at,
        )


def _change_steps(
    parts: Sequence[pa.Table], target: TargetShape, merge_schema: bool
) -> tuple[tuple[str, pa.Table], ...]:
    read = [_read_part(part, target, merge_schema) for part in parts]
    feed = _joined(read, target.schema).since_truncation().in_order()
    is_replacement = feed.truncated_at is not None
    if not target.key:
        return _keyless_steps(feed, target)
    last = _last_rows(feed.rows, target.key)
    comes = feed.ranks[last] == _COMES
    coming = feed.rows.take(pa.array(last[comes]))
    if is_replacement:
        return ((_REPLACE, coming),)
    going = feed.rows.select(list(target.key)).take(pa.array(last[~comes]))
    return (("stage_remove", going), (_UPSERT, coming))


def _keyless_steps(feed: _Feed, target: TargetShape) -> tuple[tuple[str, pa.Table], ...]:
    """A table without a key takes what a table without a key gives: rows that are only added."""
    if (feed.ranks != _COMES).any():
        raise SchemaError(
            f"table {target.name!r} has no key; updates and deletes of a change feed need one"
        )
    return (("stage_add" if feed.truncated_at is None else _REPLACE, feed.rows),)


def _joined(feeds: Sequence[_Feed], schema: pa.Schema) -> _Feed:
    nothing = np.empty(0, np.int64)
    truncations = [feed.truncated_at for feed in feeds if feed.truncated_at is not None]
    return _Feed(
        rows=pa.concat_tables([schema.empty_table(), *(feed.rows for feed in feeds)]),
        versions=np.concatenate([nothing, *(feed.versions for feed in feeds)]),
        ranks=np.concatenate([nothing, *(feed.ranks for feed in feeds)]),
        truncated_at=max(truncations, default=None),
    )


def _read_part(part: pa.Table, target: TargetShape, merge_schema: bool) -> _Feed:
    names = part.column_names
    if names.count(CHANGE_TYPE) != 1:
        raise SchemaError(f"column {CHANGE_TYPE!r} is missing; mode 'changes' takes a change feed")
    ranks = _ranks(part.column(CHANGE_TYPE))
    versions = _versions(part)
    # Rows that only say 'truncate' have no values; a column that must have some would refuse them.
    is_row = ranks != _TRUNCATES
    truncations = versions[~is_row]
    if len(truncations) and COMMIT_VERSION not in names:
        raise SchemaError(f"column {COMMIT_VERSION!r} is missing; 'truncate' refers to it")
    dropped = FEED_COLUMNS - set(target.schema.names)
    rows = part.select([name for name in names if name not in dropped])
    if len(truncations):
        rows = rows.filter(pa.array(is_row))
    return _Feed(
        rows=_fitted(rows, target, merge_schema),
        versions=versions[is_row],
        ranks=ranks[is_row],
        truncated_at=int(truncations.max()) if len(truncations) else None,
    )


def _versions(part: pa.Table) -> npt.NDArray[np.int64]:
    if COMMIT_VERSION not in part.column_names:
        return np.zeros(len(part), np.int64)
    field = pa.field(COMMIT_VERSION, pa.int64(), nullable=False)
    column = coerce_rows(pa.schema([field]), part.select([COMMIT_VERSION])).column(0)
    return np.asarray(column.to_numpy(), np.int64)


def _ranks(types: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """What each row does; RowError for a word that is none."""
    try:
        words = types.cast(pa.string())
    except pa.ArrowException as error:
        raise SchemaError(f"column {CHANGE_TYPE!r} must be text, not {types.type}") from error
    found = pc.index_in(words, value_set=pa.array(list(_RANKS)))
    if found.null_count:
        row = int(pc.index(pc.is_null(found), True).as_py())
        shown = repr(words[row].as_py())[:60]
        raise RowError(f"{shown} is not one of {', '.join(_RANKS)}", column=CHANGE_TYPE, row=row)
    ranks = np.array(list(_RANKS.values()), np.int64)
    return np.asarray(ranks[found.to_numpy()], np.int64)
