"""The simulated tree of servers, against what can be said by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.tree_simulation import UTILIZATION_MAX, Costs, simulate, smallest_tree

COSTS = Costs(owner_tick=0.010, relay_tick=0.005, reader=0.001, view=1e-5, hop=0.0005, spread=0.0)


def test_one_server_tells_its_views_one_after_the_other() -> None:
    load = simulate(COSTS, relays=(), views=1000, hertz=10, ticks=50, seed=1)
    assert load.lag_p99 == pytest.approx(0.020, rel=0.02)
    assert load.gap_p99 == pytest.approx(0.1)
    assert load.busiest == load.cores == pytest.approx(0.2)


def test_relays_add_what_they_cost_and_the_way_there() -> None:
    load = simulate(COSTS, relays=(4,), views=4000, hertz=10, ticks=50, seed=1)
    # The last relay is told after four readers, its last view after all of its thousand.
    assert load.lag_p99 == pytest.approx(0.010 + 0.004 + 0.0005 + 0.005 + 0.010, rel=0.02)
    assert load.cores == pytest.approx(10 * (0.010 + 0.004 + 4 * (0.005 + 0.010)))


def test_a_server_that_cannot_keep_up_falls_ever_further_behind() -> None:
    short, long = (
        simulate(COSTS, relays=(), views=20_000, hertz=10, ticks=ticks, seed=1)
        for ticks in (50, 100)
    )
    assert not short.keeps_up(0.150)
    assert long.lag_p99 > 1.8 * short.lag_p99


def test_the_smallest_tree_is_as_large_as_it_must_be() -> None:
    found = smallest_tree(COSTS, views=100_000, hertz=10, gap_max=0.150)
    assert found is not None
    (relays,) = found.relays
    assert found.busiest <= UTILIZATION_MAX
    fewer = simulate(COSTS, relays=(relays - 1,), views=100_000, hertz=10, ticks=300, seed=1)
    assert not fewer.keeps_up(0.150)


def test_no_tree_helps_where_the_tick_alone_is_too_much() -> None:
    slow = replace(COSTS, owner_tick=0.2, relay_tick=0.2)
    assert smallest_tree(slow, views=10, hertz=10, gap_max=0.150) is None


def test_uneven_work_makes_uneven_gaps() -> None:
    uneven = replace(COSTS, spread=0.5)
    loads = [
        simulate(costs, relays=(), views=1000, hertz=10, ticks=200, seed=1)
        for costs in (COSTS, uneven)
    ]
    assert loads[1].gap_p99 > loads[0].gap_p99 + 0.005
    assert loads[1].cores == pytest.approx(loads[0].cores, rel=0.1)
