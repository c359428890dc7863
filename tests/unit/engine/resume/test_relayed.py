"""A source that is told the updates of another one has its rows, row keys and steps after each."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, SourceTable, UpdateGraph
from barrage.engine.operators import derive
from barrage.engine.resume.relayed import RelayedForm, RelayedTable, ToldUpdate, by_keys
from barrage.errors import EngineError, TableFailedError
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.helpers.recorded_world import State
from tests.helpers.source_edits import KINDS, Edits, crowded, source_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def form_of(table: SourceTable) -> RelayedForm:
    return RelayedForm(schema=table.schema, traits=table.traits, kind=table.kind)


def relayed(table: SourceTable, graph: UpdateGraph) -> RelayedTable:
    state = State(table.row_keys, table.to_arrow())
    return RelayedTable(graph, form_of(table), state, step=table.changed_step)


def told(table: SourceTable, update: TableUpdate) -> ToldUpdate:
    """What a subscriber is told of the last cycle."""
    columns = range(len(table.schema))
    return ToldUpdate(
        update=update,
        added=table.read(update.added_keys_post),
        modified=[
            table.read(update.modified_keys_post[column], (column,))[0] for column in columns
        ],
    )


def same_change(left: TableChange, right: TableChange) -> bool:
    cells = ("removed", "before", "after", "added")
    return left.update == right.update and all(
        [column.to_pylist() for column in getattr(left, name)]
        == [column.to_pylist() for column in getattr(right, name)]
        for name in cells
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_rows_keys_steps_and_recorded_changes_are_those_of_the_other(kind: str, seed: int) -> None:
    draw = Random(f"{kind}/{seed}")
    with crowded():
        origin, here = UpdateGraph(first_step=1000), UpdateGraph()
        table = source_of(kind, origin)
        edits = Edits(kind, draw)
        for _ in range(3):
            edits.stage(table)
            origin.run_cycle()
        table.start_recording()
        copy = relayed(table, here)
        copy.start_recording()
        for _ in range(15):
            edits.stage(table)
            update = origin.run_cycle().updates.get(table)
            change = table.take_change()
            if update is None:
                continue
            copy.stage_told(told(table, update))
            seen = here.run_cycle().updates[copy]
            assert seen == update
            assert copy.changed_step == table.changed_step == copy.present_step
            assert copy.row_keys == table.row_keys
            assert copy.to_arrow().to_pylist() == table.to_arrow().to_pylist()
            recorded = copy.take_change()
            assert change is not None
            assert recorded is not None
            assert same_change(recorded, change)


class Pair:
    """A keyed table and what is told of it, in another graph whose steps are far behind."""

    def __init__(self) -> None:
        self.origin, self.here = UpdateGraph(first_step=500), UpdateGraph()
        self.table = KeyedTable(self.origin, SCHEMA, key="k")
        self.write([1, 2, 3])
        self.copy = relayed(self.table, self.here)

    def write(self, keys: list[int]) -> TableUpdate:
        rows = pa.table([keys, [key * 10 + self.origin.step for key in keys]], schema=SCHEMA)
        self.table.stage_upsert(rows)
        return self.origin.run_cycle().updates[self.table]


def test_each_update_has_a_cycle_of_its_own() -> None:
    pair = Pair()
    for key in (4, 5, 6):
        pair.copy.stage_told(told(pair.table, pair.write([key])))
    steps = []
    while pair.here.has_pending:
        steps.append(pair.here.run_cycle().updates[pair.copy].last_step)
    assert steps == [502, 503, 504]
    assert pair.here.step == 3


def test_what_is_derived_of_it_alone_bears_its_steps() -> None:
    pair = Pair()
    view = derive.where(pair.copy, "v > 0")
    assert view.changed_step == pair.copy.changed_step == 501
    pair.copy.stage_told(told(pair.table, pair.write([9])))
    update = pair.here.run_cycle().updates[view]
    assert (update.first_step, update.last_step, view.changed_step) == (502, 502, 502)


def test_what_is_derived_of_several_timelines_bears_the_steps_of_the_graph() -> None:
    pair, other = Pair(), Pair()
    rival = RelayedTable(
        pair.here,
        form_of(other.table),
        State(other.table.row_keys, other.table.to_arrow()),
        step=other.table.changed_step,
    )
    both = derive.merge(pair.copy, rival)
    assert both.changed_step == pair.here.step
    rival.stage_told(told(other.table, other.write([9])))
    update = pair.here.run_cycle().updates[both]
    assert (update.first_step, update.last_step, both.changed_step) == (1, 1, 1)


def test_rows_named_by_position_are_found_again() -> None:
    keys = RowSet([3, 5, 9])
    update = TableUpdate(
        first_step=1,
        last_step=1,
        removed_keys_pre=RowSet([1]),
        shifts=RowSetShiftData.from_shifts([(2, 2, 5)]),
        added_keys_post=RowSet([4]),
        modified_keys_post=(RowSet([7]),),
    )
    found = by_keys(update, keys)
    assert found.removed_keys_pre == RowSet([5])
    assert found.keys_after(keys) == RowSet([0, 4, 7])
    with pytest.raises(EngineError, match="not there"):
        by_keys(replace(update, removed_keys_pre=RowSet([3])), keys)


def test_rows_that_are_only_named_anew_are_told_with_the_next_update() -> None:
    pair = Pair()
    nothing = TableUpdate.nothing(step=501, column_count=2)
    anew = replace(nothing, shifts=RowSetShiftData.from_shifts([(0, 2, 10)]))
    none = pair.table.read(RowSet.empty())
    pair.copy.stage_told(ToldUpdate(update=anew, added=none, modified=none, is_by_position=True))
    assert pair.copy not in pair.here.run_cycle().updates
    assert pair.copy.row_keys == RowSet([0, 1, 2])
    more = replace(nothing, first_step=502, last_step=502, removed_keys_pre=RowSet([11]))
    pair.copy.stage_told(ToldUpdate(update=more, added=none, modified=none))
    update = pair.here.run_cycle().updates[pair.copy]
    assert update.removed_keys_pre == RowSet([1])
    assert (update.first_step, update.last_step) == (502, 502)
    assert pair.copy.row_keys == RowSet([10, 12])
    assert pair.copy.to_arrow().column("k").to_pylist() == [1, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"removed_keys_pre": RowSet([7])},
        {"modified_keys_post": (RowSet.empty(), RowSet([8]))},
        {"first_step": 400, "last_step": 400},
        {"added_keys_post": RowSet([1])},
    ],
)
def test_an_update_that_does_not_fit_fails_the_table_and_no_other(
    wrong: dict[str, object],
) -> None:
    pair = Pair()
    beside = KeyedTable(pair.here, SCHEMA, key="k")
    nothing = TableUpdate.nothing(step=502, column_count=2)
    update = replace(nothing, **wrong)  # type: ignore[arg-type]
    one = pa.array([1], pa.int64())
    none = pa.array([], pa.int64())
    added = [one if len(update.added_keys_post) else none] * 2
    modified = [one if len(keys) else none for keys in update.modified_keys_post]
    if update.last_step == 400:
        update = replace(update, removed_keys_pre=RowSet([0]))
    pair.copy.stage_told(ToldUpdate(update=update, added=added, modified=modified))
    beside.stage_upsert(pa.table([[1], [1]], schema=SCHEMA))
    result = pair.here.run_cycle()
    assert pair.copy in result.failed
    assert beside in result.updates
    with pytest.raises(TableFailedError):
        pair.copy.stage_told(ToldUpdate(update=nothing, added=[none] * 2, modified=[none] * 2))


def test_an_update_without_its_cells_is_refused() -> None:
    pair = Pair()
    update = replace(
        TableUpdate.nothing(step=502, column_count=2), added_keys_post=RowSet([50, 51])
    )
    one = pa.array([1], pa.int64())
    none = pa.array([], pa.int64())
    with pytest.raises(EngineError, match="cells"):
        pair.copy.stage_told(ToldUpdate(update=update, added=[one] * 2, modified=[none] * 2))
    with pytest.raises(EngineError, match="columns"):
        pair.copy.stage_told(ToldUpdate(update=update, added=[one], modified=[none]))
    assert pair.copy.told_count == 0


def test_staged_updates_can_be_taken_back() -> None:
    pair = Pair()
    mark = pair.copy.staged_mark()
    pair.copy.stage_told(told(pair.table, pair.write([4])))
    pair.copy.rollback(mark)
    assert not pair.here.has_pending
    with pytest.raises(EngineError):
        pair.copy.rollback(mark + 1)
