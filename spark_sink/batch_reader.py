"""``spark.read.format("barrage")``: the table at a version, or its changes between two.

Spark plans a batch read when a DataFrame is first used, and keeps the plan (spark.md section 6). So
that this moment does not matter, the DataFrame has the version it was loaded at, whenever and
however often it is used; with ``liveView`` each execution reads what is newest when it begins, all
its tasks the same version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition

from barrage.errors import ConfigError, HistoryLostError
from spark_sink.connection import Failure, ServerError
from spark_sink.journal_access import fetch, open_journal
from spark_sink.options import SourceOptions
from spark_sink.partitioning import batch_pieces, tasks_for, ticket_form
from spark_sink.planning import ID_END, BatchPlan, Piece, snapshot_pieces
from spark_sink.reader import BarragePartition
from spark_sink.types import ROW_ID, arrow_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_sink.journal_access import SourceJournal
    from spark_sink.planning import Facts


class BarrageBatchReader(DataSourceReader):
    """One batch read. What the options leave open is settled in :meth:`partitions`."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        loaded_at: tuple[str, int] | None = None,
    ) -> None:
        # A DataFrame that is quietly empty would be worse than an error.
        self.options = replace(options, fails_on_data_loss=True)
        self.schema = schema
        self.loaded_at = loaded_at

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        journal = open_journal(options, consumer="batch", is_writing=False)
        try:
            facts = journal.describe().facts
            if options.is_live_view:
                pieces = self._live_pieces(journal, facts)
            else:
                pieces = batch_pieces(self._plan(journal, facts), options, journal)
        finally:
            journal.close()
        return [BarragePartition(piece) for piece in pieces]

    def _live_pieces(self, journal: SourceJournal, facts: Facts) -> list[Piece]:
        """Ranges of row ids that fit the rows of now and cover those of any version."""
        options = self.options
        tasks = tasks_for(journal.amount(facts.epoch, facts.version).rows, options)
        cuts = journal.id_bounds(facts.epoch, facts.version, tasks) if tasks > 1 else ()
        form = ticket_form(options, journal.described, ROW_ID)
        return snapshot_pieces(options.table, None, None, ids=(0, ID_END), cuts=cuts, form=form)

    def _plan(self, journal: SourceJournal, facts: Facts) -> BatchPlan:
        upto = self._end(journal, facts)
        options = self.options
        if not options.is_change_feed or (options.has_start and options.start.word == "snapshot"):
            return BatchPlan(epoch=facts.epoch, snapshot_of=upto)
        after = self._start(journal, facts)
        if after > upto:
            raise ConfigError(
                f"option {options.start.option} is after the end of the read, version {upto}"
            )
        return BatchPlan(epoch=facts.epoch, changes=(after, upto))

    def _start(self, journal: SourceJournal, facts: Facts) -> int:
        """The version the changes begin after."""
        start = self.options.start
        if not self.options.has_start or start.word == "earliest":
            return facts.earliest
        if start.word == "latest":
            return facts.version
        if start.offset is not None:
            self._check_epoch(start.offset.epoch, facts, start.option)
            return self._served(start.offset.version, facts, start.option)
        if start.version is not None:
            if start.version == facts.earliest == 0:
                return 0
            return self._served(start.version - 1, facts, start.option)
        assert start.time_us is not None
        return self._served(journal.version_before(start.time_us), facts, start.option)

    def _end(self, journal: SourceJournal, facts: Facts) -> int:
        """The version that is read."""
        options = self.options
        name = "versionAsOf" if not options.is_change_feed else "the end of the read"
        if options.end_epoch is not None:
            self._check_epoch(options.end_epoch, facts, "endingOffsets")
        if options.end_version is not None:
            return self._served(options.end_version, facts, name)
        if options.end_time_us is None:
            return self._newest(facts)
        try:
            return self._served(journal.version_at(options.end_time_us), facts, name)
        except ServerError as error:
            if error.failure is not Failure.LOST:
                raise
            raise self._lost("that time", "the time of the read", facts) from error

    def _newest(self, facts: Facts) -> int:
        """The version of ``load()``; that of now for a schema the user gave, which asks nobody."""
        if self.loaded_at is None:
            return facts.version
        epoch, version = self.loaded_at
        if epoch == facts.epoch and facts.earliest <= version <= facts.version:
            return version
        raise HistoryLostError(
            self.options.table,
            asked="the version this DataFrame was loaded at",
            reason=f"it was {epoch}:{version}; load() it again, or use option liveView=true",
        )

    def _check_epoch(self, epoch: str, facts: Facts, option: str) -> None:
        if epoch != facts.epoch:
            raise HistoryLostError(
                self.options.table,
                asked=f"option {option}",
                reason=f"its epoch {epoch} is over, the table's is {facts.epoch}",
            )

    def _served(self, version: int, facts: Facts, option: str) -> int:
        if facts.earliest <= version <= facts.version:
            return version
        raise self._lost(f"version {version}", option, facts)

    def _lost(self, what: str, option: str, facts: Facts) -> HistoryLostError:
        return HistoryLostError(
            self.options.table,
            asked=f"option {option}",
            reason=f"{what} is not in the journal, which has versions {facts.earliest} to "
            f"{facts.version}",
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, BarragePartition):
            return iter(())  # Spark makes up a partition where there are none.
        piece = partition.piece
        if self.options.is_live_view and piece.ticket is not None:
            piece = replace(piece, ticket={**piece.ticket, "read_group": read_group()})
        return self._explained(fetch(self.options, piece, arrow_target(self.schema)))

    def _explained(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except ServerError as error:
            if error.failure is not Failure.LOST:
                raise
            raise HistoryLostError(
                self.options.table,
                asked="the version this DataFrame was loaded at",
                reason=f"{error.reason}; load() it again, or use option liveView=true",
            ) from error


def read_group() -> str:
    """A name all tasks of one execution share and no other has."""
    context: Any = TaskContext.get()
    if context is None:
        return "no-task"
    application = context.getLocalProperty("spark.app.id") or ""
    execution = context.getLocalProperty("spark.sql.execution.id") or f"stage-{context.stageId()}"
    return f"spark-{application}-{execution}"


def batch_reader(
    given: Mapping[str, str], schema: StructType, loaded_at: tuple[str, int] | None
) -> BarrageBatchReader:
    """The reader of ``read``; calls nobody."""
    return BarrageBatchReader(SourceOptions.of(given).for_batch(given), schema, loaded_at)
