"""What sources record of their cycles: replayed on a naive model it gives the table, and what it
says about before is what the model held. Restored tables go on as the originals do."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine import SourceTable, UpdateGraph, restore_source
from barrage.model.table_change import TableChange
from barrage.rowset import RowSet
from tests.helpers import model
from tests.helpers.examples import examples
from tests.helpers.source_edits import KINDS, RING_CAPACITY, SCHEMA, Edits, crowded, source_of

draws = st.integers(0, 2**48).map(Random)
"""Seeds are drawn, not every choice: that is ten times as fast, and rows are few as it is."""


def rows_in(cells: tuple[pa.Array | pa.ChunkedArray, ...]) -> list[tuple[str, ...]]:
    columns = [[model.canonical(value) for value in column.to_pylist()] for column in cells]
    return list(zip(*columns, strict=True))


def replayed(content: model.Content, change: TableChange, *, is_blink: bool) -> model.Content:
    """``content`` after the change; checks what the change says about before."""
    update = change.update
    removed = list(update.removed_keys_pre)
    if is_blink:
        assert all(len(column) == 0 for column in change.removed)
    else:
        assert rows_in(change.removed) == [content[key] for key in removed], "removed as they were"
    now = {
        next(iter(update.shifts.apply(RowSet([key])))): cells
        for key, cells in content.items()
        if key not in update.removed_keys_pre
    }
    added = rows_in(change.added)
    now |= dict(zip(update.added_keys_post, added, strict=True))
    modified = list(change.modified_keys_post)
    assert set(modified) == {key for keys in update.modified_keys_post for key in keys}
    assert rows_in(change.before) == [now[key] for key in modified], "modified as they were"
    now |= dict(zip(modified, rows_in(change.after), strict=True))
    return now


def followed(table: SourceTable, edits: Edits, cycles: int) -> None:
    table.start_recording()
    content = model.content_of(table)
    for _ in range(cycles):
        edits.stage(table)
        result = table.graph.run_cycle()
        change = table.take_change()
        assert (change is None) == (table not in result.updates)
        assert table.take_change() is None, "a change is taken once"
        if change is not None:
            assert change.update == result.updates[table]
            assert table.changed_step == result.step
            content = replayed(content, change, is_blink=table.is_blink)
        now = model.content_of(table)
        assert dict(sorted(content.items())) == now


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_crowded", [False, True])
@examples(12)
@given(draw=draws)
def test_changes_replay_to_the_table(kind: str, is_crowded: bool, draw: Random) -> None:
    table = source_of(kind, UpdateGraph())
    edits = Edits(kind, draw)
    if not is_crowded:
        followed(table, edits, 6)
        return
    with crowded():
        followed(table, edits, 10)


def restored(table: SourceTable, graph: UpdateGraph) -> SourceTable:
    return restore_source(
        graph,
        table.kind,
        SCHEMA,
        key=table.key_columns,
        capacity=RING_CAPACITY if table.kind == "ring" else None,
        keys=table.row_keys,
        rows=table.to_arrow(),
        changed_step=table.changed_step,
    )


@pytest.mark.parametrize("kind", KINDS)
@examples(12)
@given(draw=draws)
def test_a_restored_table_goes_on_as_the_original(kind: str, draw: Random) -> None:
    """Unless it was being packed: a pass is not kept, and begins anew."""
    with crowded(), patch("barrage.engine.tables.keyed.PACKED_CELLS", 10_000):
        graph = UpdateGraph()
        table, edits = source_of(kind, graph), Edits(kind, draw)
        for _ in range(draw.randrange(8)):
            edits.stage(table)
            graph.run_cycle()
        other_graph = UpdateGraph(first_step=graph.step)
        other = restored(table, other_graph)
        assert other.changed_step == table.changed_step
        other.start_recording()
        table.start_recording()
        for _ in range(6):
            assert model.content_of(other) == model.content_of(table)
            edits.stage(table, other)
            update = graph.run_cycle().updates.get(table)
            assert other_graph.run_cycle().updates.get(other) == update
            changes = table.take_change(), other.take_change()
            if update is not None:
                assert rows_in(changes[0].before) == rows_in(changes[1].before)
                assert rows_in(changes[0].added) == rows_in(changes[1].added)
