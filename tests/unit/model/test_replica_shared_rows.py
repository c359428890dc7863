"""Columns that were modified in the same rows cost one lookup of those rows, whatever their
order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.replica_rows import SlotMap
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData

COLUMNS = 60
SCHEMA = pa.schema([(f"c{index}", pa.int64()) for index in range(COLUMNS)])
NONE = RowSet.empty()
NO_CELLS = tuple(pa.array([], pa.int64()) for _ in SCHEMA)


def common(is_snapshot: bool, added: int, modified: list[RowSet]) -> dict:
    return {
        "first_step": 1,
        "last_step": 1,
        "is_snapshot": is_snapshot,
        "effective_viewport": None,
        "is_effective_reverse": False,
        "effective_columns": tuple(range(COLUMNS)) if is_snapshot else None,
        "table_size": 10,
        "added_columns": tuple(pa.array(range(added), pa.int64()) for _ in SCHEMA),
        "modified_columns": tuple(
            pa.array([100 * index + row for row in rows], pa.int64())
            for index, rows in enumerate(modified)
        )
        if modified
        else NO_CELLS,
    }


def full(is_snapshot: bool, added: int, modified: list[RowSet]) -> FullUpdate:
    return FullUpdate(
        **common(is_snapshot, added, modified),
        removed_keys_pre=NONE,
        shifts=RowSetShiftData.empty(),
        added_keys_post=RowSet(range(0, 3 * added, 3)),
        included_keys_post=None,
        modified_keys_post=tuple(modified) or (NONE,) * COLUMNS,
    )


def view(is_snapshot: bool, added: int, modified: list[RowSet]) -> ViewUpdate:
    return ViewUpdate(
        **common(is_snapshot, added, modified),
        removed_positions=NONE,
        added_positions=RowSet.of_span(0, added),
        modified_positions=tuple(modified) or (NONE,) * COLUMNS,
    )


@pytest.mark.parametrize(("replica", "message"), [(FullReplica, full), (ViewReplica, view)])
def test_columns_modified_alike_are_looked_up_together(monkeypatch, replica, message) -> None:
    made = replica(SCHEMA)
    made.apply(message(True, 10, []))
    lookups = []
    honest = SlotMap.slots_of

    def counted(self: SlotMap, positions: RowSet):
        lookups.append(positions)
        return honest(self, positions)

    monkeypatch.setattr(SlotMap, "slots_of", counted)
    even, odd = RowSet([0, 6]), RowSet([3])
    modified = [even if index % 2 == 0 else odd for index in range(COLUMNS)]
    made.apply(message(False, 0, modified))
    assert len(lookups) == 2
    shown = made.to_arrow()
    step = 3 if replica is FullReplica else 1
    for index in (0, 1, COLUMNS - 1):
        rows = modified[index]
        expected = [100 * index + row * step if row * step in rows else row for row in range(10)]
        assert shown.column(index).to_pylist() == expected
