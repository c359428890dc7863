"""Replaying changes upon rows by the short ways gives what the long way gives, for every type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from barrage.journal import TableState, replayed
from barrage.journal.records.numbering import EntryBuilder, PendingChange
from barrage.journal.records.record import entry_schema
from barrage.model.row_ids import RowIdMap
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.helpers.examples import examples
from tests.helpers.strategies_columns import VALUES, cells, columns, type_names

EMPTY = RowSet.empty()


@st.composite
def histories(draw: st.DrawFn) -> tuple[TableState, list, list[str], list[int]]:
    """Some rows, entries upon them, and what must come out: cells and ids in key order."""
    name = draw(type_names)
    size = draw(st.integers(1, 12))
    ids = draw(st.permutations(range(size))) if draw(st.booleans()) else list(range(size))
    if draw(st.booleans()):
        ids = [3 * each for each in ids]
    kind = VALUES[name][0]
    schema = entry_schema(pa.schema([("c", kind)]))
    base_cells = draw(columns(name, size))
    if isinstance(base_cells, pa.Array):
        base_cells = pa.chunked_array([base_cells])
    base_cells = base_cells.cast(schema.field(2).type)
    base = TableState(
        version=0,
        wall_ns=0,
        ids=RowIdMap.of(RowSet(range(size)), np.array(ids, dtype=np.int64)),
        rows=pa.table([base_cells], schema=pa.schema([schema.field(2)])),
        next_offset=100,
    )
    builder = EntryBuilder(schema, base.ids, 100, is_blink=False)
    model = dict(zip(range(size), zip(ids, cells(base_cells), strict=True), strict=True))
    entries = []
    for step in range(1, draw(st.integers(1, 4)) + 1):
        can_remove = draw(st.sampled_from([False, False, True]))
        removed = draw(st.sets(st.sampled_from(sorted(model)))) if can_remove and model else set()
        kept = sorted(set(model) - removed)
        modified = draw(st.sets(st.sampled_from(kept), max_size=4)) if kept else set()
        behind = max([*model, 0]) + 1
        added = set(range(behind, behind + draw(st.integers(0, 3))))
        after = draw(columns(name, len(modified)))
        fresh = draw(columns(name, len(added)))
        none = pa.array([], kind)
        change = TableChange(
            update=TableUpdate(
                first_step=step,
                last_step=step,
                removed_keys_pre=RowSet(removed),
                shifts=RowSetShiftData.empty(),
                added_keys_post=RowSet(added),
                modified_keys_post=(RowSet(modified),),
            ),
            removed=(pa.nulls(len(removed), kind) if removed else none,),
            modified_keys_post=RowSet(modified),
            before=(pa.nulls(len(modified), kind) if modified else none,),
            after=(after,),
            added=(fresh,),
        )
        entry = builder.build(PendingChange(change, step, step, {}))
        entries.append(entry)
        for key in removed:
            del model[key]
        for key, cell in zip(sorted(modified), cells(after), strict=True):
            model[key] = (model[key][0], cell)
        for key, row_id, cell in zip(
            sorted(added), entry.added_ids.tolist(), cells(fresh), strict=True
        ):
            model[key] = (row_id, cell)
    rows = [model[key] for key in sorted(model)]
    return base, entries, [cell for _, cell in rows], [row_id for row_id, _ in rows]


@given(histories())
@examples(50)
def test_the_newest_cells_of_every_row_survive(
    history: tuple[TableState, list, list[str], list[int]],
) -> None:
    base, entries, expected, ids = history
    state = replayed(base, entries)
    assert state.row_ids.tolist() == ids
    assert cells(state.rows.column(0)) == expected
    assert state.rows.schema == base.rows.schema
    assert state.next_offset == entries[-1].next_offset
    one_by_one = base
    for entry in entries:
        one_by_one = replayed(one_by_one, [entry])
    assert cells(one_by_one.rows.column(0)) == expected
