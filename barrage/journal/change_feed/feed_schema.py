"""The form in which history leaves the journal: rows with what happened to them.

A feed row is one change of one row: ``_change_type``, ``_commit_version`` (step of the cycle),
``_commit_timestamp``, ``_row_id``, on request ``_row_key`` (where the row stood in that version;
for deleted rows in the version before) and ``_modified_columns`` (of updates: the columns whose
cells changed), then the table's columns in plain types, all nullable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from barrage.journal.records.record import plain_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.rowset.arrays import BoolArray, Int64Array

INSERT: Final = 0
PREIMAGE: Final = 1
POSTIMAGE: Final = 2
DELETE: Final = 3
TRUNCATE: Final = 4

CHANGE_TYPES: Final = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
"""Texts of ``_change_type``, by code. ``truncate`` (forget all rows) is only made by readers."""

CHANGE_TYPE: Final = "_change_type"
COMMIT_VERSION: Final = "_commit_version"
COMMIT_TIMESTAMP: Final = "_commit_timestamp"
ROW_ID: Final = "_row_id"
ROW_KEY: Final = "_row_key"
MODIFIED_COLUMNS: Final = "_modified_columns"

FEED_COLUMNS: Final = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP, ROW_ID)
"""What every row of a feed says of itself, unless a reader wants less."""

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
MODIFIED_COLUMNS_TYPE: Final = pa.list_(pa.string())
CHANGE_TYPE_TYPE: Final = pa.dictionary(pa.int8(), pa.string())

STRIPE_IDS: Final = 64
"""Consecutive row ids in one stripe unless a reader says otherwise: new rows, whose ids follow on,
spread over all stripes, and so do those that are changed again and again."""

STRIPE_IDS_MAX: Final = 1 << 16
"""Most that a reader can say. Rows that follow on are not copied if they stay together, so for
tables that are only appended to more is better."""


def is_stripe(ids: int) -> bool:
    """Whether so many row ids can be in one stripe."""
    return STRIPE_IDS <= ids <= STRIPE_IDS_MAX and ids & (ids - 1) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedOptions:
    """Which part of the history is wanted, and in which form."""

    columns: tuple[str, ...] | None = None
    """Names of the columns, in the order wanted; None is all of them."""
    predicate: Callable[[pa.RecordBatch], Any] | None = None
    """Which rows are wanted: a boolean array for a batch of all table columns, null is false. An
    update that takes a row into the chosen ones is an insert, one that takes it out a delete."""
    preimage: bool = False
    """Whether updates also give the row as it was, directly before it."""
    net: bool = False
    """Only the last change of a row in the whole range."""
    stripe: tuple[int, int] = (0, 1)
    """Part i of n, by row id: all changes of a row are in the same part."""
    stripe_ids: int = STRIPE_IDS
    """Consecutive row ids in one stripe, a power of two."""
    row_key: bool = False
    modified_columns: bool = False
    feed_columns: tuple[str, ...] = FEED_COLUMNS
    """Those of :data:`FEED_COLUMNS` that are wanted."""

    def __post_init__(self) -> None:
        part, count = self.stripe
        if not 0 <= part < count:
            raise ValueError(f"there is no part {part} of {count}")
        if not is_stripe(self.stripe_ids):
            raise ValueError(f"stripes have no {self.stripe_ids} row ids")

    def chooser(
        self, ids: tuple[int, int] | None = None
    ) -> Callable[[Int64Array], BoolArray] | None:
        """Which row ids are wanted, of those in the half-open range ``ids``; None is all."""
        part, count = self.stripe
        if count == 1 and ids is None:
            return None

        shift = self.stripe_ids.bit_length() - 1

        def choose(given: Int64Array) -> BoolArray:
            chosen = np.ones(len(given), dtype=np.bool_)
            if ids is not None:
                chosen = (given >= ids[0]) & (given < ids[1])
            if count & (count - 1) == 0:
                # Division is what this costs; powers of two are the usual case.
                chosen &= (given >> shift) & (count - 1) == part
            elif count > 1:
                chosen &= (given >> shift) % count == part
            return chosen

        return choose

    def indices(self, schema: pa.Schema) -> list[int]:
        """Where the wanted columns are in a table's schema; KeyError names one that is not."""
        if self.columns is None:
            return list(range(len(schema)))
        chosen = [schema.get_field_index(name) for name in self.columns]
        if -1 in chosen:
            raise KeyError(self.columns[chosen.index(-1)])
        return chosen


def feed_schema(
    schema: pa.Schema,
    *,
    row_key: bool = False,
    modified_columns: bool = False,
    feed_columns: tuple[str, ...] = FEED_COLUMNS,
) -> pa.Schema:
    """The feed's schema of a table (or of some of its columns)."""
    types = (CHANGE_TYPE_TYPE, pa.int64(), TIMESTAMP_TYPE, pa.int64())
    fields = [
        pa.field(name, kind)
        for name, kind in zip(FEED_COLUMNS, types, strict=True)
        if name in feed_columns
    ]
    if row_key:
        fields.append(pa.field(ROW_KEY, pa.int64()))
    if modified_columns:
        fields.append(pa.field(MODIFIED_COLUMNS, MODIFIED_COLUMNS_TYPE))
    return pa.schema([*fields, *(pa.field(field.name, plain_type(field.type)) for field in schema)])


def options_schema(schema: pa.Schema, options: FeedOptions) -> pa.Schema:
    """The feed's schema of a table under these options; KeyError for an unknown column."""
    chosen = pa.schema([schema.field(index) for index in options.indices(schema)])
    return feed_schema(
        chosen,
        row_key=options.row_key,
        modified_columns=options.modified_columns,
        feed_columns=options.feed_columns,
    )


@cache
def _change_type_texts() -> pa.Array:
    """Made when it is first needed: to make its first array Arrow imports pandas, where there is
    one, and that takes as long as all of the server."""
    return pa.array(CHANGE_TYPES, pa.string())


def change_type_array(codes: pa.Array) -> pa.DictionaryArray:
    """Texts of int8 codes."""
    return pa.DictionaryArray.from_arrays(codes, _change_type_texts(), safe=False)
