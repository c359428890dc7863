"""The stream reader: Spark's questions on the driver side, and reading in the executors.

One process asks the questions for as long as the query lives; a copy of the reader, pickled before
any of them, reads in the executors. So the live parts (the watch, the chooser) are made by the
first question and never travel, and everything a task needs is in its partition.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from barrage.errors import ConfigError, SchemaError
from spark_sink.connection import ServerError
from spark_sink.journal_access import fetch, open_journal
from spark_sink.offsets import SYMBOLIC, Offset
from spark_sink.options import SourceOptions
from spark_sink.partitioning import batch_pieces
from spark_sink.patience import wait_meter
from spark_sink.planning import (
    APPENDED_KINDS,
    NO_LIMITS,
    Head,
    OffsetChooser,
    Piece,
    ReadLimits,
    plan_batch,
)
from spark_sink.source import expected_schema
from spark_sink.types import arrow_target, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_sink.journal_access import SourceJournal
    from spark_sink.remote_journal import SourceFacts
    from spark_sink.watch import VersionMark


_log = logging.getLogger(__name__)


class BarragePartition(InputPartition):
    """One task's piece of a batch; everything the task needs to know."""

    def __init__(self, piece: Piece) -> None:
        super().__init__(None)
        self.piece = piece

    def __repr__(self) -> str:
        return f"BarragePartition({self.piece})"


class BarrageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A table's change feed, or the rows of one that is only appended to, as a stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._questions: Questions | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_questions": None}

    def _asked(self) -> Questions:
        if self._questions is None:
            self._questions = Questions(self.options, self.schema)
        return self._questions

    # --- Spark's names ----------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """A constant: Spark asks for it again after a restart."""
        return SYMBOLIC.as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.options.rows_max is not None:
            return ReadMaxRows(self.options.rows_max)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        begin = SYMBOLIC if start is None else Offset.of(start)
        is_unlimited = isinstance(limit, ReadAllAvailable)
        return self._asked().next_offset(begin, is_unlimited=is_unlimited).as_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._asked().note_target()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._asked().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[BarragePartition]:
        pieces = self._asked().pieces(Offset.of(start), Offset.of(end))
        return [BarragePartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, BarragePartition)
        return fetch(self.options, partition.piece, arrow_target(self.schema))

    def commit(self, end: dict[str, Any]) -> None:
        self._asked().commit(Offset.of(end))

    def stop(self) -> None:
        if self._questions is not None:
            self._questions.close()
            self._questions = None


class Questions:
    """The driver side of a stream reader: its journal, and what it knows between questions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._fingerprint = fingerprint(schema)
        self._checked: object = None
        consumer = options.consumer or f"spark-{secrets.token_hex(8)}"
        self._journal: SourceJournal = open_journal(options, consumer=consumer)
        self._chooser = OffsetChooser(
            self._journal,
            table=options.table,
            start=options.start,
            fails_on_data_loss=options.fails_on_data_loss,
        )
        self._held: int | None = None
        self._last: Offset | None = None
        self._moved_at = time.monotonic()
        self._waiting_for: tuple[Offset, int] | None = None

    def next_offset(self, start: Offset, *, is_unlimited: bool) -> Offset:
        """The end of the next batch, or ``start`` when there is to be none yet."""
        mark = self._journal.newest()
        head = Head(mark.epoch, mark.version)
        if self._last is None and not start.is_symbolic:
            self._hold(start.version)
        if self._chooser.is_idle(start, head):
            # Spark takes this for all there is, so what is on its way has to be waited for.
            mark = self._journal.newest_asked()
            head = Head(mark.epoch, mark.version)
        if self._chooser.is_idle(start, head) or self._is_away(start):
            self._last = start
            return start
        if self._is_too_early(start, mark, is_unlimited):
            return start
        end = self._chooser.next_offset(start, head, self._limits(is_unlimited))
        if end != start:
            self._check_table(self._journal.described)
            if start.is_symbolic:
                self._hold(end.version)
            self._moved_at = time.monotonic()
        self._last = end
        return end

    def _is_away(self, start: Offset) -> bool:
        """Whether the server is away and there is nothing to do but to wait: a query that has no
        batch still reports its progress. A run that is to end with what is there would end."""
        is_away = self._journal.away_seconds > 0
        return is_away and not start.is_symbolic and not self._chooser.has_target

    def _limits(self, is_unlimited: bool) -> ReadLimits:
        options = self._options
        # A one-time trigger says "everything" although the options have a limit.
        if is_unlimited and (options.rows_max or options.bytes_max):
            return NO_LIMITS
        return ReadLimits(options.rows_max, options.bytes_max)

    def _is_too_early(self, start: Offset, mark: VersionMark, is_unlimited: bool) -> bool:
        """Whether ``minRowsPerTrigger`` says to wait. A run that is to end does not wait, nor does
        a snapshot or what comes after a loss."""
        least = self._options.rows_min
        if least is None or self._chooser.has_target or start.is_symbolic or start.row >= 0:
            return False
        if start.epoch != mark.epoch or start.version >= mark.version:
            return False
        if is_unlimited and (self._options.rows_max or self._options.bytes_max):
            return False
        waited_ms = (time.monotonic() - self._moved_at) * 1000
        if waited_ms >= self._options.delay_ms_max:
            return False
        if self._waiting_for == (start, mark.version):
            return True
        if self._journal.change_rows(start.epoch, start.version, mark.version) >= least:
            return False
        self._waiting_for = (start, mark.version)
        return True

    def note_target(self) -> None:
        """End the run at what is there now."""
        mark = self._journal.newest_asked()
        self._chooser.note_target(Head(mark.epoch, mark.version))

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """What the tasks of a batch fetch."""
        if start == end:
            return []
        table = self._journal.describe()
        self._check_table(table)
        if self._held is None:
            self._hold(end.version if start.is_symbolic else start.version)
        plan = plan_batch(
            start,
            end,
            table.facts,
            table=self._options.table,
            fails_on_data_loss=self._options.fails_on_data_loss,
        )
        return self._journal.prepared(batch_pieces(plan, self._options, self._journal))

    def commit(self, end: Offset) -> None:
        """Batches up to ``end`` are done: their history may be forgotten."""
        if not end.is_symbolic and end.version != self._held:
            self._hold(end.version)

    def _hold(self, version: int) -> None:
        self._journal.hold(version)
        self._held = version

    def _check_table(self, table: SourceFacts) -> None:
        """SchemaError when the table is no longer what the query was planned for; ConfigError when
        plain rows are asked of a table whose rows change."""
        if table.schema is self._checked:
            return
        options = self._options
        if not options.has_feed_columns and table.kind not in APPENDED_KINDS:
            raise ConfigError(
                f"readChangeFeed=false needs a table that is only appended to, and "
                f"{options.table!r} is {table.kind}: its rows change, which plain rows cannot say; "
                "set option readChangeFeed=true"
            )
        if fingerprint(expected_schema(options, table)) != self._fingerprint:
            raise SchemaError(
                f"the schema of table {options.table!r} changed: restart the query, which then "
                "reads the new one"
            )
        self._checked = table.schema

    def report(self) -> dict[str, Any] | None:
        """The newest offset with what users of Kafka look for: how far the query is behind."""
        mark = self._journal.newest()
        told: dict[str, Any] = {
            "epoch": mark.epoch,
            "version": mark.version,
            "rows": mark.rows,
            "bytes": mark.bytes,
            "timestampMs": mark.timestamp_us // 1000,
            **_waits(self._journal.away_seconds),
        }
        last = self._last
        if last is None or last.is_symbolic or last.epoch != mark.epoch:
            return told
        behind = max(0, mark.version - last.version)
        told["versionsBehindLatest"] = behind
        if not behind or not self._journal.away_seconds:
            told["rowsBehindLatest"] = self._rows_behind(last, mark) if behind else 0
        known = self._journal.mark_before(last.epoch, last.version)
        if known is not None:
            seconds = max(0, mark.timestamp_us - known.timestamp_us) / 1e6
            told["secondsBehindLatest"] = seconds
        return told

    def _rows_behind(self, last: Offset, mark: VersionMark) -> int | None:
        try:
            return self._journal.change_rows(mark.epoch, last.version, mark.version)
        except ServerError as error:
            # Metrics are no reason to end a query; whoever reads next tells what is the matter.
            _log.debug("the distance to the newest version is not known", exc_info=error)
            return None

    def close(self) -> None:
        self._journal.close()


def _waits(away_seconds: float) -> dict[str, Any]:
    """What this process has waited for its server, for the progress of the query."""
    counts = wait_meter.counts
    told: dict[str, Any] = {
        "waits": counts.waits,
        "retries": counts.retries,
        "waitedSeconds": round(counts.seconds + away_seconds, 1),
    }
    if away_seconds:
        told["serverAwaySeconds"] = round(away_seconds, 1)
    return told


def stream_reader(given: Mapping[str, str], schema: StructType) -> BarrageStreamReader:
    """The reader of ``readStream``; calls nobody."""
    return BarrageStreamReader(SourceOptions.of(given).for_stream(given), schema)
