"""From the plan of a batch to its tickets: how long the stripes of row ids are."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_sink.options import SourceOptions
from spark_sink.partitioning import batch_pieces
from spark_sink.planning import Amount, BatchPlan
from tests.unit.spark_sink.tables import TRADES

PLAN = BatchPlan(epoch="e", changes=(0, 9))


def tickets(
    rows: int,
    *,
    kind: str,
    most: int = 0,
    tasks: int = 1,
    chooses: bool = False,
    plan: BatchPlan = PLAN,
    schema: pa.Schema = TRADES,
    **given: str,
) -> list[dict]:
    told = {"uri": "grpc://x", "table": "t", "minPartitions": str(tasks), **given}
    described = SimpleNamespace(
        kind=kind, stripe_ids_max=most, chooses_feed_columns=chooses, schema=schema
    )
    journal = SimpleNamespace(
        described=described,
        change_rows=lambda *_: rows,
        amount=lambda *_: Amount(rows, rows),
    )
    return [piece.ticket for piece in batch_pieces(plan, SourceOptions.of(told), journal)]


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


@pytest.mark.parametrize("chooses", [False, True])
def test_plain_rows_are_sent_without_what_a_feed_says_of_them(chooses):
    """By servers that can; rows of a snapshot with their ids, by which a broken stream goes on."""
    snapshot = BatchPlan(epoch="e", snapshot_of=9)
    for plan, needed in ((PLAN, []), (snapshot, ["_row_id"])):
        asked = {"kind": "append_only", "chooses": chooses, "plan": plan}
        (feed,) = tickets(10, **asked)
        (plain,) = tickets(10, readChangeFeed="false", **asked)
        assert "feed_columns" not in feed
        assert plain.get("feed_columns") == (needed if chooses else None)
        own = pa.schema([("_row_id", pa.string())])
        (plain,) = tickets(10, readChangeFeed="false", schema=own, **asked)
        assert plain.get("feed_columns") == ([] if chooses else None)
