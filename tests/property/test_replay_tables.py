"""Tables of the past: sources put back to any version, with every operator upon them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine import Table, UpdateGraph
from barrage.engine.operators import derive
from barrage.engine.resume.replay import ReplayTable, rebuilt
from tests.helpers import model
from tests.helpers.examples import examples
from tests.helpers.recorded_world import GROWING_VIEWS, VIEWS, RecordedWorld
from tests.helpers.source_edits import KINDS, crowded

draws = st.integers(0, 2**48).map(Random)
"""Seeds are drawn, not every choice: that is ten times as fast, and rows are few as it is."""

kinds = [kind for kind in KINDS if kind != "blink"]

REPRODUCIBLE = [(kind, view) for kind in kinds for view in VIEWS] + [
    ("append-only", view) for view in GROWING_VIEWS
]


def made(world: RecordedWorld, view: str) -> Table:
    return {**VIEWS, **GROWING_VIEWS}[view](world.table, world.other)


def views_of(world: RecordedWorld, view: str) -> tuple[Table, dict[int, list[model.Row]]]:
    """A view, made at some time, after cycles, and the rows it had at each step since."""
    for _ in range(world.draw.randrange(3)):
        world.cycle()
    table = made(world, view)
    seen = {world.graph.step: model.rows_of(table)}
    for _ in range(world.draw.randrange(1, 9)):
        world.cycle()
        seen[world.graph.step] = model.rows_of(table)
    return table, seen


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("kind", "view"), REPRODUCIBLE)
@examples(3)
@given(draw=draws)
def test_replayed_views_repeat_the_original(kind: str, view: str, draw: Random) -> None:
    with crowded():
        world = RecordedWorld(kind, draw)
        table, seen = views_of(world, view)
        assert table.order_is_reproducible
        version = draw.choice(sorted(seen))
        graph = UpdateGraph(first_step=version)
        past = {
            source: ReplayTable(graph, source, world.states[version][source])
            for source in world.sources
        }
        copy = rebuilt(table, graph, past)
        assert model.rows_of(copy) == seen[version]
        content = model.content_of(copy)
        for step in range(version + 1, world.graph.step + 1):
            found = [(s, e) for at, s, e in world.entries if at == step]
            for source, entry in found:
                past[source].stage_entry(entry)
            if not found:
                continue
            update = graph.run_cycle(step).updates.get(copy)
            if update is not None:
                model.check_update(content, update, content := model.content_of(copy))
            assert model.rows_of(copy) == seen[step]
            for source in world.sources:
                assert past[source].row_keys == world.states[step][source].keys


@pytest.mark.parametrize("kind", kinds)
@examples(8)
@given(draw=draws)
def test_several_entries_are_one_update(kind: str, draw: Random) -> None:
    world = RecordedWorld(kind, draw)
    start = world.graph.step
    for _ in range(6):
        world.cycle()
    graph = UpdateGraph(first_step=start)
    past = ReplayTable(graph, world.table, world.states[start][world.table])
    before = model.content_of(past)
    for entry in world.entries_of(world.table, start, world.graph.step):
        past.stage_entry(entry)
    update = graph.run_cycle().updates.get(past)
    if update is not None:
        model.check_update(before, update, model.content_of(past))
    assert model.content_of(past) == model.content_of(world.table)


@pytest.mark.parametrize("kind", kinds)
@examples(8)
@given(draw=draws)
def test_states_can_be_viewed(kind: str, draw: Random) -> None:
    world = RecordedWorld(kind, draw)
    table, seen = views_of(world, "sorted join")
    version = draw.choice(sorted(seen))
    past = {
        source: ReplayTable(world.graph, source, world.states[version][source])
        for source in world.sources
    }
    view = rebuilt(table, world.graph, past)
    assert past[world.table].row_keys == world.states[version][world.table].keys
    assert model.rows_of(view) == seen[version]
    grouped = derive.agg_by(past[world.table], "a", n="count()")
    assert sum(row["n"] for row in model.rows_of(grouped)) == past[world.table].size
