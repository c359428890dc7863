"""The tables of a simulation: an engine table, and the same thing as a plain Python list of rows.

The list side knows nothing of the engine; it states what each kind of table and operator means. Its
whole history is kept, so that what a client shows can be compared at the step it claims to show.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    StaticTable,
    Table,
    UpdateGraph,
)
from barrage.engine.operators import derive

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.int32()),
        ("name", pa.string()),
        ("value", pa.float64()),
        ("flag", pa.bool_()),
    ]
)
NAMES = ("red", "green", "blue", "a rather long name, so that buffers differ in size", "")
RING_CAPACITY = 12
KEYED_IDS = 40
STATIC_STEP = -1

Row = tuple[Any, ...]


def as_arrow(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    return pa.table(
        [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


class SimTable:
    """One published table with its model. ``rows`` is what it shows now."""

    def __init__(self, name: str, kind: str, graph: UpdateGraph, random: Random) -> None:
        self.name = name
        self.kind = kind
        self._random = random
        self._ids = count()
        self._source_rows: list[Row] = []
        self.source_kind, _, self._operators = kind.partition(" ")
        self._source = self._make_source(graph)
        self.table: Table = self._derive(self._source)
        self.rows: list[Row] = self._shown()
        self.steps: list[int] = []
        self.history: list[list[Row]] = []
        self.first_rows = list(self.rows)

    @property
    def is_blink(self) -> bool:
        return self.source_kind == "blink"

    @property
    def is_static(self) -> bool:
        return self.source_kind == "static"

    def _make_source(self, graph: UpdateGraph) -> Any:
        if self.source_kind == "static":
            self._source_rows = [self._fresh() for _ in range(self._random.randrange(30))]
            return StaticTable(graph, as_arrow(self._source_rows))
        makers: dict[str, Callable[[], Any]] = {
            "append": lambda: AppendOnlyTable(graph, SCHEMA),
            "keyed": lambda: KeyedTable(graph, SCHEMA, key="id"),
            "list": lambda: ListTable(graph, SCHEMA),
            "ring": lambda: RingTable(graph, SCHEMA, capacity=RING_CAPACITY),
            "blink": lambda: BlinkTable(graph, SCHEMA),
        }
        return makers[self.source_kind]()

    def _derive(self, source: Table) -> Table:
        operators: dict[str, Callable[[Table], Table]] = {
            "": lambda table: table,
            "tail": lambda table: derive.tail(table, 9),
            "where": lambda table: derive.where(table, "x >= 20"),
            "last_by": lambda table: derive.last_by(table, "name"),
            "sorted": lambda table: derive.sort(table, "-x", "id"),
            "sorted head": lambda table: derive.head(derive.sort(table, "x", "-id"), 7),
            "joined": lambda table: derive.select(
                derive.natural_join(
                    derive.select(table, "id", "x", "name", "flag"),
                    derive.select(derive.where(table, "x >= 20"), "id", "value"),
                    on=["id"],
                ),
                *SCHEMA.names,
            ),
        }
        return operators[self._operators](source)

    def _shown(self) -> list[Row]:
        """What the operators make of the source's rows."""
        rows = self._source_rows
        if self._operators == "tail":
            return rows[-9:]
        if self._operators == "where":
            return [row for row in rows if row[1] >= 20]
        if self._operators == "joined":
            return [row if row[1] >= 20 else (*row[:3], None, row[4]) for row in rows]
        if self._operators == "last_by":
            last: dict[str, Row] = {}
            for row in rows:
                last[row[2]] = row  # a key keeps the place of its first appearance
            return list(last.values())
        if self._operators == "sorted":
            return sorted(rows, key=lambda row: (-row[1], row[0]))
        if self._operators == "sorted head":
            return sorted(rows, key=lambda row: (row[1], -row[0]))[:7]
        return list(rows)

    # --- changes ----------------------------------------------------------------------------------

    def _fresh(self, row_id: int | None = None) -> Row:
        draw = self._random
        return (
            next(self._ids) if row_id is None else row_id,
            draw.randrange(40),
            draw.choice(NAMES),
            None if draw.random() < 0.1 else draw.randrange(1000) / 8,
            draw.choice([True, False, None]),
        )

    def change(self, most: int) -> None:
        """Stage one random change, here and in the engine."""
        getattr(self, f"_change_{self.source_kind}")(most)

    def _change_static(self, most: int) -> None:
        """Nothing can change."""

    def _change_append(self, most: int) -> None:
        rows = [self._fresh() for _ in range(self._random.randint(1, most))]
        self._source.stage_add(as_arrow(rows))
        self._source_rows = self._source_rows + rows

    def _change_ring(self, most: int) -> None:
        self._change_append(most)
        self._source_rows = self._source_rows[-RING_CAPACITY:]

    def _change_blink(self, most: int) -> None:
        self._change_append(most)

    def _change_keyed(self, most: int) -> None:
        draw = self._random
        rows = {row[0]: row for row in self._source_rows}
        ids = draw.sample(range(KEYED_IDS), draw.randint(1, most))
        if rows and draw.random() < 0.4:
            gone = draw.sample(sorted(rows), min(len(rows), draw.randint(1, most)))
            self._source.stage_remove(pa.table({"id": gone}))
            for row_id in gone:
                del rows[row_id]
        fresh = [self._fresh(row_id) for row_id in ids]
        for index, row in enumerate(fresh):
            old = rows.get(row[0])
            if old is not None and draw.random() < 0.7:  # change one cell only
                column = draw.randrange(1, len(SCHEMA))
                fresh[index] = (*old[:column], row[column], *old[column + 1 :])
        self._source.stage_upsert(as_arrow(fresh))
        rows.update((row[0], row) for row in fresh)
        self._source_rows = list(rows.values())

    def _change_list(self, most: int) -> None:
        draw = self._random
        rows = list(self._source_rows)
        if rows and draw.random() < 0.5:
            start = draw.randrange(len(rows))
            stop = min(len(rows), start + draw.randint(1, most))
            self._source.stage_delete(start, stop)
            del rows[start:stop]
        if rows and draw.random() < 0.3:
            position = draw.randrange(len(rows))
            fresh = self._fresh()
            self._source.stage_overwrite(position, as_arrow([fresh]))
            rows[position] = fresh
        else:
            position = draw.randrange(len(rows) + 1)
            fresh_rows = [self._fresh() for _ in range(draw.randint(1, most))]
            self._source.stage_insert(position, as_arrow(fresh_rows))
            rows[position:position] = fresh_rows
        self._source_rows = rows

    # --- history ----------------------------------------------------------------------------------

    def cycle_done(self, step: int, *, has_changed: bool) -> None:
        """Note what the table shows after ``step``. The engine must report every visible change."""
        shown = self._shown()
        if shown != self.rows:
            assert has_changed, f"{self.name} changed in step {step} and did not say so"
        self.rows = shown
        if has_changed:
            self.steps.append(step)
            self.history.append(shown)
        if self.is_blink:
            self._source_rows = []

    def rows_at(self, step: int) -> list[Row]:
        """What the table shows at ``step``."""
        index = bisect_right(self.steps, step)
        return self.history[index - 1] if index else self.first_rows

    def rows_between(self, after: int, last: int) -> list[Row]:
        """Blink tables: all rows of the steps in (after, last]."""
        start, stop = bisect_right(self.steps, after), bisect_right(self.steps, last)
        return [row for rows in self.history[start:stop] for row in rows]

    def has_changed_between(self, after: int, before: int) -> bool:
        """Whether the table changed in a step strictly between the two. A blink table that had no
        rows in a step has nothing to tell of it."""
        start, stop = bisect_right(self.steps, after), bisect_left(self.steps, before)
        return any(not self.is_blink or rows for rows in self.history[start:stop])
