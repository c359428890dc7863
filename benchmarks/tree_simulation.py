"""How late a tick reaches views behind a tree of servers: a simulation, of nothing but costs.

Each server is one process that does one thing at a time. A tick costs it a fixed time, a time for
each relay that follows it, and a time for each view; the next tick waits until that is done. Relays
are told first, one after the other, and views after them. Every job takes a random factor, whose
spread is a parameter. What is not simulated: machines that share a network that is full, and the
merging of ticks by servers that are behind, which would make them cheaper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

UTILIZATION_MAX = 0.7
"""Of the time, that a server may be busy: the rest is for those who join, scroll and ask."""

SAMPLES = 16
"""Views of each server whose lag is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one process."""

    owner_tick: float
    """Of a tick at the server that owns the table, whoever looks on."""
    relay_tick: float
    """Of a tick at a relay."""
    reader: float
    """Of a tick for each relay that follows a server."""
    view: float
    """Of a tick for each view."""
    hop: float
    """On the way from one server to the next."""
    spread: float
    """Standard deviation of the logarithm of what a job takes, against its cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one tree does."""

    relays: tuple[int, ...]
    """On each level below the owner."""
    cores: float
    busiest: float
    """Part of the time that the busiest server is at work."""
    lag_p50: float
    lag_p99: float
    """Seconds from a tick to the view that is told of it."""
    gap_p99: float
    """Seconds between two ticks that a view is told of."""

    def keeps_up(self, gap_max: float) -> bool:
        return self.busiest <= UTILIZATION_MAX and self.gap_p99 <= gap_max


def simulate(
    costs: Costs, *, relays: tuple[int, ...], views: int, hertz: float, ticks: int, seed: int
) -> Load:
    """``views`` are spread evenly over the last level, or are the owner's without relays."""
    draw = np.random.default_rng(seed)
    widths = (1, *relays)
    free_at = [np.zeros(width) for width in widths]
    busy = [np.zeros(width) for width in widths]
    shares = np.diff(np.linspace(0, views, widths[-1] + 1).astype(int))
    lags, gaps, before = [], [], None
    for tick in range(ticks):
        at = tick / hertz
        arrived = np.array([at])
        for level, width in enumerate(widths):
            is_last = level + 1 == len(widths)
            factor = np.exp(draw.normal(-(costs.spread**2) / 2, costs.spread, width))
            begun = np.maximum(arrived, free_at[level])
            told_from = begun + factor * (costs.relay_tick if level else costs.owner_tick)
            each = factor * (costs.view if is_last else costs.reader)
            counts = shares if is_last else _followers(width, widths[level + 1])
            free_at[level] = told_from + each * counts
            busy[level] += free_at[level] - begun
            if is_last:
                steps = np.linspace(1 / SAMPLES, 1, SAMPLES)
                told = told_from + np.outer(steps, each * counts)
                lags.append(told.ravel() - at)
                if before is not None:
                    gaps.append((told - before).ravel())
                before = told
            else:
                arrived = costs.hop + np.concatenate(
                    [
                        told_from[server] + each[server] * np.arange(1, counts[server] + 1)
                        for server in range(width)
                    ]
                )
    seconds = ticks / hertz
    p50, p99 = np.percentile(np.concatenate(lags), (50, 99))
    return Load(
        relays=relays,
        cores=float(sum(part.sum() for part in busy) / seconds),
        busiest=float(max(part.max() for part in busy) / seconds),
        lag_p50=float(p50),
        lag_p99=float(p99),
        gap_p99=float(np.percentile(np.concatenate(gaps), 99)),
    )


def _followers(width: int, below: int) -> np.ndarray:
    """How many of the servers below follow each of these."""
    return np.diff(np.linspace(0, below, width + 1).astype(int))


def smallest_tree(
    costs: Costs, *, views: int, hertz: float, gap_max: float, ticks: int = 300, seed: int = 1
) -> Load | None:
    """The tree with the fewest relays that keeps up: none, one level, or two; None when the ticks
    alone are too much for any."""
    alone = simulate(costs, relays=(), views=views, hertz=hertz, ticks=ticks, seed=seed)
    if alone.keeps_up(gap_max):
        return alone
    room = UTILIZATION_MAX / hertz - costs.relay_tick
    if room <= 0:
        return None
    relays = max(1, math.ceil(views * costs.view / room))
    for _ in range(60):
        for shape in ((relays,), (max(2, round(math.sqrt(relays))), relays)):
            found = simulate(costs, relays=shape, views=views, hertz=hertz, ticks=ticks, seed=seed)
            if found.keeps_up(gap_max):
                return found
        relays = max(relays + 1, math.ceil(relays * 1.1))
    return None
