"""From the plan of a batch to its tickets: how long the stripes of row ids are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_sink.options import SourceOptions
from spark_sink.partitioning import batch_pieces
from spark_sink.planning import BatchPlan

PLAN = BatchPlan(epoch="e", changes=(0, 9))


def tickets(rows: int, *, kind: str, most: int, tasks: int) -> list[dict]:
    options = SourceOptions.of({"uri": "grpc://x", "table": "t", "minPartitions": str(tasks)})
    described = SimpleNamespace(kind=kind, stripe_ids_max=most)
    journal = SimpleNamespace(described=described, change_rows=lambda *_: rows)
    return [piece.ticket for piece in batch_pieces(PLAN, options, journal)]


@pytest.mark.parametrize(
    ("rows", "tasks", "ids"),
    [(4_000_000, 4, 1 << 16), (1_000_000, 4, 1 << 14), (40_000, 4, 1 << 10), (32_000, 4, None)],
)
def test_stripes_of_appended_rows_are_as_long_as_keeps_tasks_even(rows, tasks, ids):
    found = tickets(rows, kind="append_only", most=1 << 16, tasks=tasks)
    if rows > 1_000_000:
        tasks = len(found)
        ids = min(1 << 16, 1 << ((rows // (8 * tasks)).bit_length() - 1))
    assert len(found) == tasks
    assert [ticket["stripe"] for ticket in found] == [[part, tasks] for part in range(tasks)]
    assert {ticket.get("stripe_ids") for ticket in found} == {ids}


def test_a_server_says_how_long_they_may_be():
    for most, ids in ((0, None), (4096, 4096)):
        (found,) = {
            ticket.get("stripe_ids")
            for ticket in tickets(4_000_000, kind="append_only", most=most, tasks=4)
        }
        assert found == ids


def test_rows_that_change_are_spread():
    for ticket in tickets(4_000_000, kind="keyed", most=1 << 16, tasks=4):
        assert "stripe_ids" not in ticket


def test_one_task_has_all_of_them():
    (ticket,) = tickets(10_000, kind="append_only", most=1 << 16, tasks=1)
    assert ticket["stripe"] == [0, 1]
    assert "stripe_ids" not in ticket
