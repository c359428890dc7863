"""Random edits of sources of every kind, several of them in one cycle.

Rows are few and values fewer, so that writes meet: rows overwritten twice in a cycle, overwritten
with what they hold, removed after an overwrite, added and removed at once.
"""

from __future__ import annotations

from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    SourceTable,
    UpdateGraph,
)

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("a", pa.int32()),
        ("s", pa.string()),
        ("d", pa.dictionary(pa.int32(), pa.string())),
        ("l", pa.list_(pa.int8())),
    ]
)

KINDS = ("append-only", "keyed", "list", "ring", "blink")

RING_CAPACITY = 7

KEYS = 24


def crowded() -> Any:
    """With this, keyed tables and lists pack their slots after few removals, a few at a time, and
    columns change their form a few cells at a time."""
    return _Both(
        patch("barrage.engine.tables.keyed.FREE_SLOTS_MIN", 2),
        patch("barrage.engine.tables.keyed.PACKED_CELLS", 1),
        patch("barrage.model.storage.column_store.THAWED_AT_ONCE_MAX", 3),
        patch("barrage.model.storage.thawing.THAWED_TOGETHER", 2),
        patch("barrage.model.storage.log.GARBAGE_ROWS_MIN", 3),
        patch("barrage.model.storage.log.CLEANED_TOGETHER", 1),
        patch("barrage.engine.tables.list_table.FREE_SLOTS_MIN", 2),
    )


class _Both:
    def __init__(self, *patches: Any) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for each in self._patches:
            each.start()

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()


def source_of(kind: str, graph: UpdateGraph) -> SourceTable:
    if kind == "keyed":
        return KeyedTable(graph, SCHEMA, key="k")
    if kind == "ring":
        return RingTable(graph, SCHEMA, capacity=RING_CAPACITY)
    made = {"append-only": AppendOnlyTable, "list": ListTable, "blink": BlinkTable}
    return made[kind](graph, SCHEMA)


def rows(draw: Random, keys: list[int]) -> pa.Table:
    values = [draw.choice([None, 1, 2, 3]) for _ in keys]
    texts = [draw.choice([None, "x", "yy", "a longer text than fits inline"]) for _ in keys]
    labels = [draw.choice([None, "p", "q", f"r{draw.randrange(40)}"]) for _ in keys]
    lists = [draw.choice([None, [], [1], [2, None]]) for _ in keys]
    columns = [keys, values, texts, labels, lists]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


class Edits:
    """What happens to a table, as functions of any table of its kind: so that the same can happen
    to two of them."""

    def __init__(self, kind: str, draw: Random) -> None:
        self._kind = kind
        self._draw = draw

    def stage(self, *tables: SourceTable) -> None:
        """Some edits for the next cycle, the same in all of the tables."""
        for _ in range(self._draw.choice([0, 1, 1, 2, 3, 5])):
            getattr(self, f"_edit_{self._kind.partition('-')[0]}")(tables)

    def _fresh(self, most: int) -> pa.Table:
        return rows(self._draw, [self._draw.randrange(1000) for _ in range(most)])

    def _edit_append(self, tables: tuple[SourceTable, ...]) -> None:
        batch = self._fresh(self._draw.randrange(5))
        for table in tables:
            table.stage_add(batch)

    _edit_blink = _edit_append

    def _edit_ring(self, tables: tuple[SourceTable, ...]) -> None:
        batch = self._fresh(self._draw.choice([0, 1, 2, 5, 2 * RING_CAPACITY]))
        for table in tables:
            table.stage_add(batch)

    def _edit_keyed(self, tables: tuple[SourceTable, ...]) -> None:
        draw = self._draw
        keys = draw.sample(range(KEYS), draw.randrange(8))
        kind = draw.random()
        batch = rows(draw, keys)
        for table in tables:
            if kind < 0.55:
                table.stage_upsert(batch)
            elif kind < 0.9:
                table.stage_remove(batch.select(["k"]))
            else:
                table.stage_replace(batch)

    def _edit_list(self, tables: tuple[SourceTable, ...]) -> None:
        draw = self._draw
        size = tables[0].staged_size  # type: ignore[attr-defined]
        kind = draw.random()
        start = draw.randrange(size + 1)
        stop = min(size, start + draw.randrange(6))
        inserted, written = self._fresh(draw.randrange(5)), self._fresh(stop - start)
        for table in tables:
            assert isinstance(table, ListTable)
            if kind < 0.35:
                table.stage_insert(start, inserted)
            elif kind < 0.65:
                table.stage_overwrite(start, written)
            elif kind < 0.95:
                table.stage_delete(start, stop)
            else:
                table.stage_replace(inserted)
