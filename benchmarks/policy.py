"""What rules cost: a row rule against the same ``where`` without it, many callers against few, and
a call that is checked.

* A keyed table of 10^6 rows x 10 columns of which a thousand change in a cycle, a tenth of them so
  that they begin or cease to match, and a condition that half of the rows fulfil. The engine's CPU
  time of a cycle and of what a subscriber is told of it, and that of reading everything that is
  shown; the baseline is ``where`` with the same condition.
* A table of 10^5 rows of which a hundredth changes in a cycle, shown under ten rules: the engine's
  CPU time of a cycle and of what all subscribers are told, with 1,000 callers; the baseline are 10
  callers. What is written to sockets is not in it: that is per caller, with rules and without.
* One question to the gate, for a caller and a table it has been asked about before, with ten rules
  and with ten thousand; and one it has not been asked before.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from barrage import Operation, Policy, Rule
from barrage.engine import KeyedTable, Table, UpdateGraph
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.operators.where import where
from barrage.engine.propagation.producer import Producer
from barrage.limits import DEFAULT_LIMITS
from barrage.server.identity.caller import Caller, Proof
from barrage.server.identity.current_call import begin_call
from barrage.server.policy.access_gate import AccessGate
from barrage.server.policy.restricted_tables import restricted_table
from benchmarks import shapes
from benchmarks.report import Measurement, compared, result
from benchmarks.timing import best_ms

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, CHANGED = 1_000_000, 1_000
SHARED_ROWS, SHARED_CHANGED = 100_000, 1_000
CONDITION = "venue < 8"
ROW_RULE_MAX, CALLERS_MAX, CHECK_US_MAX = 1.3, 1.5, 20.0
RULES, CALLERS = 10, 1_000
READ = frozenset({Operation.READ})
KEY = bytes(16)
ROUNDS, CHECKS = 31, 500
INTERVAL_NS = DEFAULT_LIMITS.interval_ns_min


class Ticking:
    """A table that changes."""

    def __init__(self, rows: int, changed: int) -> None:
        self.graph = UpdateGraph()
        self.table = KeyedTable(self.graph, shapes.SCHEMA, key=["id"])
        self.table.stage_upsert(shapes.batch(0, rows))
        self.graph.run_cycle()
        draw = np.random.default_rng(5)
        self._changes = itertools.cycle(
            [self._change(seed, np.sort(draw.choice(rows, changed, False))) for seed in range(8)]
        )

    @staticmethod
    def _change(seed: int, ids: Any) -> pa.Table:
        """New cells; of nine rows in ten the condition says the same as before."""
        rows = shapes.batch(0, len(ids), seed=seed + 1).set_column(0, "id", pa.array(ids))
        stays = np.arange(len(ids)) % 10 > 0
        venues = np.where(stays, VENUES[ids], rows["venue"].to_numpy())
        return rows.set_column(2, "venue", pa.array(venues))

    def stage(self) -> None:
        """Let rows change in the next cycle."""
        self.table.stage_upsert(next(self._changes))


VENUES = shapes.batch(0, ROWS)["venue"].to_numpy()
"""Of the rows at first."""


class Derived:
    """A table that changes, and one that is derived from it."""

    def __init__(self, derive: Callable[[Table], Table]) -> None:
        self._ticking = Ticking(ROWS, CHANGED)
        self._shown = derive(self._ticking.table)

    def cycle(self) -> float:
        """CPU seconds of a cycle, with what a subscriber is told of it."""
        self._ticking.stage()
        began = time.process_time()
        update = self._ticking.graph.run_cycle().updates[self._shown]
        told = update.added_keys_post
        for modified in {id(keys): keys for keys in update.modified_keys_post}.values():
            told = told | modified
        self._shown.read(told)
        return time.process_time() - began

    def whole(self) -> float:
        """CPU seconds of reading everything."""
        began = time.process_time()
        self._shown.read(self._shown.row_keys)
        return time.process_time() - began


def row_rule() -> list[Measurement]:
    """A rule against the filter it is, in turns."""
    restriction = Rule(tables=("*",), allow=READ, rows=CONDITION).restriction()
    both = (
        Derived(lambda table: restricted_table(table, "t", restriction, key=KEY)),
        Derived(lambda table: where(table, CONDITION)),
    )
    measured = {
        "row rule: a cycle, and what is told of it": [
            [each.cycle() for each in both] for _ in range(2 * ROUNDS)
        ],
        "row rule: all rows are read": [[each.whole() for each in both] for _ in range(7)],
    }
    lines = []
    for line, spent in measured.items():
        value, baseline = np.median(np.array(spent), axis=0) * 1e3
        lines.append(
            compared(
                line,
                float(value),
                "ms",
                baseline="the same `where`",
                baseline_value=float(baseline),
                at_most=ROW_RULE_MAX,
            )
        )
    return lines


def policy_of(count: int) -> Policy:
    """So many rules, one for each role."""
    return Policy(
        tuple(
            Rule(tables=("trades*",), roles=(f"r{number}",), allow=READ, rows=f"venue = {number}")
            for number in range(count)
        )
    )


def shared_seconds(count: int) -> float:
    """CPU of a cycle with what so many callers under ten rules are told of it."""
    ticking, policy = Ticking(SHARED_ROWS, CHANGED), policy_of(RULES)
    producers: dict[Table, Producer] = {}
    for number in range(count):
        caller = Caller(
            name=f"u{number}", roles=frozenset({f"r{number % RULES}"}), proof=Proof.PASSWORD
        )
        restriction = policy.decide(caller, "trades").restriction
        assert restriction is not None
        shown = restricted_table(ticking.table, "trades", restriction, key=KEY)
        producer = producers.setdefault(shown, Producer(shown))
        producer.add(number, SPEC, 0)
    assert len(producers) == RULES
    for producer in producers.values():
        producer.propagate(0)
    spent = []
    for number in range(1, ROUNDS + 1):
        ticking.stage()
        began, messages = time.process_time(), 0
        for table, update in ticking.graph.run_cycle().updates.items():
            if table in producers:
                producers[table].record(update, number)
        for producer in producers.values():
            sent = producer.propagate(number * INTERVAL_NS * 10)
            messages += sum(len(each.subscription_ids) for each in sent)  # type: ignore[union-attr]
        spent.append(time.process_time() - began)
        assert messages == count
    return float(np.median(spent))


SPEC = SubscriptionSpec(
    columns=None, viewport=None, interval_ns=INTERVAL_NS, is_key_space=True, encoding="plain"
)


def checks() -> list[Measurement]:
    """The gate is asked."""
    begin_call(Caller(name="alice", roles=frozenset({"r3"}), proof=Proof.PASSWORD))
    lines = []
    for count in (RULES, 10_000):
        gate, names = AccessGate(policy_of(count)), itertools.count()
        again = best_ms(lambda gate=gate: [gate.decision("trades") for _ in range(CHECKS)])
        anew = best_ms(
            lambda gate=gate, names=names: [
                gate.decision(f"trades{next(names)}") for _ in range(CHECKS)
            ]
        )
        for what, value in (("asked before", again), ("not asked before", anew)):
            microseconds = value * 1000 / CHECKS
            lines.append(
                Measurement(
                    line=f"check a call under {count:,} rules, {what}",
                    value=microseconds,
                    unit="µs",
                    goal=f"at most {CHECK_US_MAX:g} µs",
                    met=microseconds <= CHECK_US_MAX,
                )
            )
    return lines


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure all three."""
    del quick  # It takes seconds.
    few, many = shared_seconds(RULES), shared_seconds(CALLERS)
    shared = compared(
        f"{CALLERS:,} callers under {RULES} rules: a cycle, and what is told of it",
        many * 1e3,
        "ms",
        baseline=f"{RULES} callers under {RULES} rules",
        baseline_value=few * 1e3,
        at_most=CALLERS_MAX,
    )
    return result("policy", [*row_rule(), shared, *checks()])


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
