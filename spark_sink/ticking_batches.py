"""What happens to each micro-batch of a ticking table: it goes into the folder, then into the lake.

Picklable: with a classic session this runs in the user's process, with Spark Connect in a process
of the server's, where nothing of the user's process exists.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from barrage.clock import SystemClock
from barrage.errors import BarrageError
from spark_sink.connection import Failure, ServerError
from spark_sink.manifest import BatchHead
from spark_sink.manifest_folder import DELTAS, TableFolder
from spark_sink.offsets import Offset
from spark_sink.sink_identity import checkpoint_query_id, read_checkpoint_file
from spark_sink.ticking_rows import BatchRows, StateReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from spark_sink.connection import ServerConnection
    from spark_sink.lake import Lake
    from spark_sink.manifest import ManifestState

CHECKPOINT_FOLDER = "checkpoint"


class TickingTableError(BarrageError):
    """A ticking table cannot go on; says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """Everything a batch needs to know; picklable."""

    connection: ServerConnection
    table: str
    root: str
    checkpoint: str
    feed: StructType
    has_own_journal: bool
    """Whether the source keeps the journal itself, for servers that have none."""
    compact_every: int
    keep_seconds: float
    lake: Lake | None


class BatchApplier:
    """The ``foreachBatch`` function."""

    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan
        self._folder: TableFolder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"plan": self.plan, "_folder": None}

    @property
    def folder(self) -> TableFolder:
        """The folder, opened by the process that writes it: what a killed one left goes first."""
        if self._folder is None:
            plan = self.plan
            self._folder = TableFolder(
                Path(plan.root),
                seconds=_wall_seconds,
                compact_every=plan.compact_every,
                keep_seconds=plan.keep_seconds,
            )
            self._folder.recover()
        return self._folder

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Apply one batch. What was done before a kill is not done again."""
        batch = batch_of(self.plan.checkpoint, number)
        reader = StateReader(rows.sparkSession, Path(self.plan.root), self.plan.feed)
        self.folder.apply(batch, _ServedRows(rows, reader, self.plan))
        if self.plan.lake is not None:
            self._update_lake(batch, reader)

    def _update_lake(self, batch: BatchHead, reader: StateReader) -> None:
        """Bring the lake's table to the state that is shown: by the batch's changes where they are
        all there is, else as a whole."""
        lake, manifest = self.plan.lake, self.folder.manifest
        assert lake is not None
        shown = manifest.shown
        if shown is None or manifest.built is not None:
            return  # A snapshot is being read in chunks; nothing new is shown.
        history = f"{manifest.query}/{shown.sync}"
        last = lake.last_batch(history)
        if last is not None and last >= batch.batch:
            return
        changes = f"{DELTAS}/{manifest.generation}-{batch.batch}"
        if last is not None and changes in manifest.referenced and not _starts_anew(shown):
            lake.merge(
                reader.changes(changes).toArrow(),
                history=history,
                batch=batch.batch,
                cursor=f"{shown.epoch}:{shown.version}",
            )
        else:
            lake.replace(
                reader.rows_with_ids(shown).toArrow(),
                history=history,
                batch=batch.batch,
                cursor=f"{shown.epoch}:{shown.version}",
            )


class _ServedRows(BatchRows):
    """A batch's rows, with the question to the server whether it had them all."""

    def __init__(self, rows: DataFrame, reader: StateReader, plan: TablePlan) -> None:
        super().__init__(rows, reader)
        self._plan = plan

    def is_whole(self, batch: BatchHead) -> bool:
        """A server that has the history at the end of the batch had it while it was read. One that
        lost it may have ended a read early, which the source makes good with a new snapshot."""
        if self._plan.has_own_journal:
            return True
        try:
            info = self._plan.connection.action("journal.info", table=self._plan.table)
        except ServerError as error:
            if error.failure is Failure.UNREACHABLE:
                raise
            return False
        return info["epoch"] == batch.epoch and int(info["earliest"]) <= batch.version


def batch_of(checkpoint: str, number: int) -> BatchHead:
    """What the checkpoint says of a batch that is running: the query, and where the batch ends.
    TickingTableError when it cannot be read."""
    query = checkpoint_query_id(checkpoint)
    offset = offset_of(read_checkpoint_file(checkpoint, f"offsets/{number}") or "")
    if query is None or offset is None:
        raise TickingTableError(
            f"the checkpoint {checkpoint} does not tell where batch {number} ends: use a "
            "checkpointLocation that this process can read, and Spark's offset log of version 1"
        )
    return BatchHead(
        query=query,
        batch=number,
        epoch=offset.epoch,
        version=offset.version,
        row=offset.row,
        sync=offset.sync,
    )


def offset_of(log_entry: str) -> Offset | None:
    """The source's offset in an entry of Spark's offset log: the line that reads as one."""
    for line in reversed(log_entry.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "epoch" in found:
            return Offset.of(found)
    return None


def _starts_anew(shown: ManifestState) -> bool:
    """Whether the state has nothing below its changes: a batch cut what was before."""
    return not shown.bases


def _wall_seconds() -> float:
    return SystemClock().wall_ns() / 1e9
