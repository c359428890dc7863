"""From the plan of a batch to the pieces its tasks fetch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spark_sink.planning import (
    APPENDED_KINDS,
    Piece,
    change_pieces,
    snapshot_pieces,
    task_count,
)
from spark_sink.types import ROW_ID

if TYPE_CHECKING:
    from spark_sink.journal_access import SourceJournal
    from spark_sink.options import SourceOptions
    from spark_sink.planning import BatchPlan
    from spark_sink.remote_journal import SourceFacts

PARTITIONS_MAX = 1024
"""Most tasks of a batch."""

STRIPES_PER_TASK = 8
"""At least, so that no task has much more than another."""

STRIPE_IDS_MIN = 1024
"""Shorter stripes are not worth asking for: they are as good as the shortest."""


def parallelism(options: SourceOptions) -> int:
    """Tasks worth having when ``minPartitions`` does not say more. The reader's process has no
    Spark session to ask; the driver's cores are the best guess."""
    return min(PARTITIONS_MAX, max(2, os.cpu_count() or 2))


def batch_pieces(plan: BatchPlan, options: SourceOptions, journal: SourceJournal) -> list[Piece]:
    """The pieces of a batch; none for an empty plan."""
    pieces: list[Piece] = []
    if plan.truncate_at is not None:
        pieces.append(Piece(epoch=plan.epoch, truncate_at=plan.truncate_at))
    if plan.snapshot_of is not None:
        pieces += _snapshot(plan, plan.snapshot_of, options, journal=journal)
    if plan.changes is not None:
        after, upto = plan.changes
        rows = journal.change_rows(plan.epoch, after, upto)
        tasks = tasks_for(rows, options)
        pieces += change_pieces(
            options.table,
            plan.epoch,
            after=after,
            upto=upto,
            tasks=tasks,
            form={
                **ticket_form(options, journal.described),
                **_stripes(rows, tasks, journal.described),
            },
        )
    return pieces


def _snapshot(
    plan: BatchPlan, version: int, options: SourceOptions, *, journal: SourceJournal
) -> list[Piece]:
    rows = journal.amount(plan.epoch, version).rows
    tasks = tasks_for(rows, options)
    cuts = journal.id_bounds(plan.epoch, version, tasks) if tasks > 1 else ()
    # By its id a row is known again when a snapshot's stream breaks and another takes its place.
    form = ticket_form(options, journal.described, ROW_ID)
    return snapshot_pieces(options.table, plan.epoch, version, ids=plan.ids, cuts=cuts, form=form)


def ticket_form(options: SourceOptions, table: SourceFacts, *needed: str) -> dict[str, object]:
    """A ticket's fields for the columns that are sent: of what a feed says of its rows only
    ``needed``, where Spark wants the rows alone."""
    fields = options.form.ticket_fields()
    if options.has_feed_columns or not table.chooses_feed_columns:
        return fields
    # A column of the table's own that has such a name is what Spark wants by it.
    return {**fields, "feed_columns": [name for name in needed if name not in table.schema.names]}


def _stripes(rows: int, tasks: int, table: SourceFacts) -> dict[str, object]:
    """The ticket's field for how many row ids are in one stripe. Of a table that is only appended
    to, rows that stay together are not copied; of others, rows that change often may be
    neighbours, and are spread."""
    share = min(rows // (tasks * STRIPES_PER_TASK), table.stripe_ids_max)
    if tasks == 1 or table.kind not in APPENDED_KINDS or share < STRIPE_IDS_MIN:
        return {}
    return {"stripe_ids": 1 << (share.bit_length() - 1)}


def tasks_for(rows: int, options: SourceOptions) -> int:
    """Tasks for that many rows, by the options."""
    count = task_count(
        rows,
        partitions_min=options.partitions_min,
        partitions_max=parallelism(options),
    )
    return min(count, PARTITIONS_MAX)
