"""How many views which machines serve: costs measured here, and a simulation with them.

Measured, with real processes: what a tick costs a server by the number of its views, by the number
of relays that follow it, and a relay. The load and the table are those of
:mod:`benchmarks.fan_out`. Simulated (:mod:`benchmarks.tree_simulation`): the fewest relays with
which 10^3 to 10^6 different views at 10 Hz are told of each tick, at most 150 ms after the one
before (p99), with no process busy for more than 70 % of the time. The spread of what jobs take is
chosen so that the simulation of one server has the p99 that was measured.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from barrage.relay.patterns import TablePatterns
from barrage.relay.relay_server import Relay
from barrage.relay.settings import RelaySettings, relay_config
from barrage.relay.upstream_link import UpstreamSettings
from barrage.server.settings.config import ServerConfig
from benchmarks import fan_out
from benchmarks.peers import counting_client
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, result
from benchmarks.tree_simulation import Costs, simulate, smallest_tree

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HERTZ = 10.0
GAP_MAX_SECONDS = 0.150
VIEWS = (500, 1000, 2000, 4000)
RELAYS = (0, 1, 2)
HOP_SECONDS = 0.0005
"""Between two machines of one network; not measured."""

SIMULATED_VIEWS = (1_000, 4_000, 10_000, 100_000, 1_000_000)
CORES_OF_ONE_MACHINE = 64


def serve_relay(pipe: Connection, upstream: str) -> None:
    """A relay of all tables, until told to stop."""

    async def main() -> None:
        settings = RelaySettings(
            upstream=UpstreamSettings(addresses=(upstream,)), patterns=TablePatterns.parse("*")
        )
        async with Relay(settings, config=relay_config(ServerConfig())) as relay:
            await relay.wait_live("keyed")
            pipe.send(relay.uri)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


def measured_costs(*, quick: bool) -> tuple[Costs, dict[str, Any]]:
    """The costs, and what they were made of."""
    seconds = 2.0 if quick else 10.0
    counts = VIEWS[:2] if quick else VIEWS
    with child(counting_client.serve) as client, child(fan_out.serve) as server:
        loads = [
            fan_out.one_load(
                server, client, count=count, hertz=HERTZ, is_different=True, seconds=seconds
            )
            for count in counts
        ]
    followed = [_followed_by(count, seconds=seconds) for count in RELAYS]
    view, tick = np.polyfit(counts, [load["server_cores"] / HERTZ for load in loads], 1)
    reader, owner_tick = np.polyfit(RELAYS, [owner for owner, _ in followed], 1)
    relay_tick = float(np.mean([each for _, relays in followed for each in relays]))
    detail = {
        "views": [
            {name: load[name] for name in ("subscribers", "server_cores", "gap_ms_p99")}
            for load in loads
        ],
        "seconds a tick, of the owner and of each relay": followed,
    }
    costs = Costs(
        # Of a tick with views, where that is more: ticks are not applied alone there.
        owner_tick=float(max(tick, owner_tick)),
        relay_tick=relay_tick + max(0.0, float(tick - owner_tick)),
        reader=float(max(reader, 0.0)),
        view=float(view),
        hop=HOP_SECONDS,
        spread=0.0,
    )
    gap = loads[-1]["gap_ms_p99"] / 1e3
    return _with_spread(costs, views=counts[-1], gap=gap), detail


def _followed_by(count: int, *, seconds: float) -> tuple[float, list[float]]:
    """CPU seconds a tick of a server that ``count`` relays follow, and of each of these."""
    with ExitStack() as stack:
        server = stack.enter_context(child(fan_out.serve))
        relays = [stack.enter_context(child(serve_relay, server.ready)) for _ in range(count)]
        server.ask((HERTZ, 1.0))
        before = [_cpu(process) for process in (server, *relays)]
        ticks = server.ask((HERTZ, seconds))
        # What is late belongs to the ticks as well.
        time.sleep(0.5)
        owner, *others = [
            (_cpu(process) - spent) / ticks
            for process, spent in zip((server, *relays), before, strict=True)
        ]
    return owner, others


def _cpu(process: Child) -> float:
    return fan_out.server_cpu_seconds(process)


def _with_spread(costs: Costs, *, views: int, gap: float) -> Costs:
    """The spread with which one server with ``views`` views has this p99 of gaps, in seconds."""
    low, high = 0.0, 2.0
    for _ in range(20):
        middle = (low + high) / 2
        tried = replace(costs, spread=middle)
        found = simulate(tried, relays=(), views=views, hertz=HERTZ, ticks=500, seed=1)
        if found.gap_p99 < gap:
            low = middle
        else:
            high = middle
    return replace(costs, spread=low)


def run(*, quick: bool = False) -> dict[str, Any]:
    costs, detail = measured_costs(quick=quick)
    measurements = [
        Measurement(line="a tick, at the owner", value=costs.owner_tick * 1e3, unit="ms",
                    detail=detail),
        Measurement(line="a tick, at a relay", value=costs.relay_tick * 1e3, unit="ms"),
        Measurement(line="a tick, for each relay that follows", value=costs.reader * 1e3,
                    unit="ms"),
        Measurement(line="a tick, for each view", value=costs.view * 1e6, unit="µs"),
        Measurement(line="spread of what jobs take", value=costs.spread, unit=""),
    ]  # fmt: skip
    for views in SIMULATED_VIEWS:
        found = smallest_tree(costs, views=views, hertz=HERTZ, gap_max=GAP_MAX_SECONDS)
        name = f"simulated, {views:,} views at 10 Hz"
        if found is None:
            measurements.append(Measurement(line=f"{name}: no tree keeps up", value=0, unit=""))
            continue
        machines = -(-(1 + sum(found.relays)) // CORES_OF_ONE_MACHINE)
        measurements += [
            Measurement(
                line=f"{name}: relays ({' + '.join(map(str, found.relays)) or 'none'})",
                value=sum(found.relays), unit="processes",
                detail={"busiest": found.busiest, "machines_of_64_cores": machines},
            ),
            Measurement(line=f"{name}: all processes", value=found.cores, unit="cores"),
            Measurement(line=f"{name}: gap between ticks, p99", value=found.gap_p99 * 1e3,
                        unit="ms"),
            Measurement(line=f"{name}: lag, p50", value=found.lag_p50 * 1e3, unit="ms"),
            Measurement(line=f"{name}: lag, p99", value=found.lag_p99 * 1e3, unit="ms"),
        ]  # fmt: skip
    return result("scaling", measurements)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
