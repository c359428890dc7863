"""Histories of a naive table as journal entries, and a strict consumer of the feed they give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from barrage.journal.records.record import (
    OP_ADD,
    OP_AFTER,
    OP_BEFORE,
    OP_REMOVE,
    Entry,
    entry_schema,
)
from barrage.journal.records.table_state import TableState
from barrage.model.row_ids import RowIdMap
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.helpers.strategies_rows import COLUMNS, histories

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.helpers.strategies_rows import Rows

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])

Cells = tuple[int | None, str]
State = dict[int, Cells]
"""Row id -> cells."""


def cells_of(values: tuple[int, ...]) -> Cells:
    """What the table shows for a naive row: -1 is null."""
    return (None if values[0] == -1 else values[0], f"b{values[1]}")


@dataclass
class FeedModel:
    """Versions of a table, each as plain dicts, and the entries between them."""

    versions: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    keys: list[dict[int, int]] = field(default_factory=list)
    """Row id -> row key, by version."""
    entries: list[Entry] = field(default_factory=list)
    """``entries[i]`` leads from version i to version i + 1."""

    def between(self, start: int, stop: int) -> list[Entry]:
        return self.entries[start:stop]

    def table_state(self, index: int) -> TableState:
        """The state of version number ``index`` as a journal would keep it."""
        by_key = sorted((key, row) for row, key in self.keys[index].items())
        ids = np.array([row for _, row in by_key], dtype=np.int64)
        cells = [self.states[index][row] for _, row in by_key]
        return TableState(
            version=self.versions[index],
            wall_ns=wall_ns_of(self.versions[index]),
            ids=RowIdMap.of(RowSet([key for key, _ in by_key]), ids),
            rows=pa.table(
                [pa.array([c[0] for c in cells], pa.int64()), [c[1] for c in cells]],
                schema=SCHEMA,
            ),
            next_offset=0,
        )


def wall_ns_of(version: int) -> int:
    return 1_700_000_000_000_000_000 + version * 1_000_000


class _Identities:
    """Rows of the naive table know who they are; the history gives them numbers."""

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self.next_offset = 0


def _entry(
    before: Rows, update: TableUpdate, after: Rows, version: int, names: _Identities
) -> Entry:
    """Row by row, as the rule of the numbering says."""
    pre = {identity: values for identity, values in before.cells.values()}
    rows: list[tuple[int, int, Cells]] = []
    for key in update.removed_keys_pre:
        identity, values = before.cells[key]
        rows.append((OP_REMOVE, names.ids[identity], cells_of(values)))
    for key in RowSet({key for keys in update.modified_keys_post for key in keys}):
        identity, values = after.cells[key]
        rows.append((OP_BEFORE, names.ids[identity], cells_of(pre[identity])))
        rows.append((OP_AFTER, names.ids[identity], cells_of(values)))
    for key in update.added_keys_post:
        identity, values = after.cells[key]
        names.ids[identity] = names.next_offset + len(rows)
        rows.append((OP_ADD, names.ids[identity], cells_of(values)))
    first_offset = names.next_offset
    names.next_offset += len(rows)
    columns = [
        pa.array([op for op, _, _ in rows], pa.int8()),
        pa.array([row for _, row, _ in rows], pa.int64()),
        pa.array([cells[0] for _, _, cells in rows], pa.int64()),
        pa.array([cells[1] for _, _, cells in rows], pa.string()),
    ]
    return Entry(
        step=version,
        wall_ns=wall_ns_of(version),
        update=update,
        rows=pa.RecordBatch.from_arrays(columns, schema=entry_schema(SCHEMA)),
        first_offset=first_offset,
        positions={},
    )


@st.composite
def feed_models(draw: st.DrawFn, *, steps_max: int = 6) -> FeedModel:
    """Histories from an empty table on; numbers may leap, as they do between distant rows."""
    states, updates = draw(histories(steps_max=steps_max))
    steps = draw(st.lists(st.integers(1, 4), min_size=len(states), max_size=len(states)))
    leaps = st.sampled_from((0, 0, 50, 200))
    return model_of(
        states, updates, steps, draw(st.lists(leaps, min_size=len(states), max_size=len(states)))
    )


def model_of(
    states: list[Rows], updates: list[TableUpdate], steps: list[int], leaps: list[int]
) -> FeedModel:
    """The history from an empty table over ``states``; ``updates`` lead from one to the next,
    ``steps`` are between their versions and ``leaps`` between their offsets."""
    names = _Identities()
    first = states[0]
    empty = type(first)({})
    model = FeedModel([0], [{}], [{}])
    before = empty
    all_updates = [_birth(first), *updates]
    for update, after, step, leap in zip(all_updates, states, steps, leaps, strict=True):
        model.versions.append(model.versions[-1] + step)
        model.entries.append(_entry(before, update, after, model.versions[-1], names))
        names.next_offset += leap
        model.states.append(
            {names.ids[identity]: cells_of(values) for identity, values in after.cells.values()}
        )
        model.keys.append({names.ids[identity]: key for key, (identity, _) in after.cells.items()})
        before = after
    return model


def _birth(rows: Rows) -> TableUpdate:
    return change(added=rows.keys)


def change(*, removed: RowSet | None = None, added: RowSet | None = None) -> TableUpdate:
    """An update without shifts and modifications."""
    return TableUpdate(
        first_step=0,
        last_step=0,
        removed_keys_pre=removed or RowSet.empty(),
        shifts=RowSetShiftData.empty(),
        added_keys_post=added or RowSet.empty(),
        modified_keys_post=(RowSet.empty(),) * COLUMNS,
    )


def feed_rows(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows as Python values."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        assert batch.num_rows > 0
        batch.validate(full=True)
        rows += batch.to_pylist()
    return rows


def applied(state: State, rows: Iterable[dict[str, Any]]) -> State:
    """A consumer that believes nothing: every row must fit the state it meets."""
    result = dict(state)
    for row in rows:
        identity, cells = row["_row_id"], (row["a"], row["b"])
        match row["_change_type"]:
            case "insert":
                assert identity not in result, "a living row is inserted"
                result[identity] = cells
            case "update_preimage":
                assert result[identity] == cells
            case "update_postimage":
                assert identity in result, "a dead row is changed"
                result[identity] = cells
            case "delete":
                assert result.pop(identity) == cells
            case other:
                raise AssertionError(other)
    return result


def by_version(rows: list[dict[str, Any]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Rows of each version, in the order they came; versions must ascend."""
    versions = [row["_commit_version"] for row in rows]
    assert versions == sorted(versions)
    for version in sorted(set(versions)):
        yield version, [row for row in rows if row["_commit_version"] == version]
