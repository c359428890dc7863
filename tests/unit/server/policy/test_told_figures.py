"""Who sees a part of a table is told no figures of all of it when something of his is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, UpdateGraph
from barrage.engine.expressions.expression import Expression
from barrage.engine.operators import derive
from barrage.engine.operators.restrict import rests_on_part
from barrage.engine.planning.cycle_work import CycleWork
from barrage.engine.planning.work_meter import TurnBudget, WorkMeter
from barrage.engine.tables.table import Table
from barrage.errors import CycleTooLongError, MuchMissedError, ResumeRefusedError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.exchange.resume_planner import MUCH_MISSED, told_reason
from barrage.server.policy.restricted_tables import restricted_table
from barrage.server.policy.rules import Restriction

SCHEMA = pa.schema({"k": pa.int64(), "who": pa.int64(), "v": pa.int64()})
SHOWN, HIDDEN = 20_000, 60_000
LIMITS = replace(DEFAULT_LIMITS, cycle_work_once_max=2_000_000)
RULE = Restriction(rows=Expression.parse("who == 1"))


def rows(keys: range, who: int, v: int) -> pa.Table:
    count = len(keys)
    columns = [np.asarray(keys), np.full(count, who), np.full(count, v)]
    return pa.table(columns, schema=SCHEMA)


class Restricted:
    """A table, the part of it that somebody sees, and a sort that he keeps of it."""

    def __init__(self) -> None:
        self.graph = UpdateGraph(LIMITS)
        self.table = KeyedTable(self.graph, SCHEMA, key="k")
        self.table.stage_upsert(rows(range(SHOWN), 1, 0))
        self.table.stage_upsert(rows(range(SHOWN, SHOWN + HIDDEN), 2, 0))
        self.graph.run_cycle()
        accounts = CycleWork(LIMITS)
        with self.graph.metered(WorkMeter(LIMITS, TurnBudget(), accounts, owner="who")):
            self.part: Table = restricted_table(self.table, "t", RULE, key=b"x")
        with self.graph.metered(WorkMeter(LIMITS, TurnBudget(), accounts, owner="who")):
            self.sort = derive.sort(self.part, "v")


def ended_beside(hidden: int) -> str:
    """What is told of a sort that 10,000 rows end, while so many hidden ones change."""
    made = Restricted()
    made.table.stage_upsert(rows(range(10_000), 1, 5))
    if hidden:
        made.table.stage_upsert(rows(range(SHOWN, SHOWN + hidden), 2, 7))
    made.graph.run_cycle()
    assert made.part.failure is None
    assert isinstance(made.sort.failure, CycleTooLongError)
    return str(made.sort.failure)


def test_the_end_of_a_view_tells_nothing_of_hidden_rows() -> None:
    told = {ended_beside(hidden) for hidden in (0, 1, 12_345)}
    assert len(told) == 1
    assert "10,000 changed rows" in told.pop()


@pytest.mark.parametrize(
    ("error", "is_count"),
    [(MuchMissedError("80,001 rows would be looked at"), True), (ResumeRefusedError("no"), False)],
)
def test_a_refusal_to_resume_tells_counts_of_whole_tables_to_those_who_see_them(
    error: ResumeRefusedError, is_count: bool
) -> None:
    made = Restricted()
    assert rests_on_part(made.sort)
    assert told_reason(made.sort, error) == (MUCH_MISSED if is_count else "no")
    assert told_reason(made.table, error) == str(error)
