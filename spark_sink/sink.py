"""``writeStream.format("barrage")`` and ``write.format("barrage")``.

Executors send rows to a staging area of the server; the driver commits a batch with one call that
names the winning attempts. The server applies all of it in one cycle, or many rows for a table
with a key in several, and nothing when it has committed that batch of that writer before. So a
batch is there once in the end, whatever was killed and whatever Spark runs again.

Update mode does not come here: Spark refuses it for every sink written in Python. See
:mod:`spark_sink.update_hook`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from barrage.errors import ConfigError
from spark_sink.sink_columns import sent_schema, table_schema
from spark_sink.sink_errors import SinkWriteError
from spark_sink.sink_flight import BatchKey, TaskPart, abort, commit, stage_task
from spark_sink.sink_identity import driver_key, task_key
from spark_sink.sink_options import SinkOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_sink.sink_options import WriteMode

_log = logging.getLogger(__name__)

WRITER_BYTES = 8
"""Random bytes in the name of a batch write that was given none."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver: which batch, and what it staged. Also sent for zero rows, since
    it carries the identity of the query."""

    key: BatchKey
    part: TaskPart


def stream_writer(
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,
) -> BarrageStreamWriter:
    """The writer of one micro-batch. ``overwrite``: complete mode. ConfigError."""
    parsed = SinkOptions.of(options)
    mode = parsed.mode_for(schema.fieldNames(), is_complete=overwrite, is_update=False)
    return BarrageStreamWriter(parsed, schema, mode)


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> BarrageBatchWriter:
    """The writer of ``df.write``. ``overwrite``: ``mode("overwrite")``. ConfigError."""
    parsed = SinkOptions.of(options)
    mode = parsed.mode_for(schema.fieldNames(), is_complete=overwrite, is_update=False)
    if parsed.txn_app_id is not None and parsed.txn_version is None:
        raise ConfigError(
            "option txnAppId of a batch write needs txnVersion: the number of this write, "
            "greater than that of the last"
        )
    key = BatchKey(
        writer=parsed.txn_app_id or f"write-{secrets.token_hex(WRITER_BYTES)}",
        batch=parsed.txn_version or 0,
    )
    return BarrageBatchWriter(parsed, schema, mode, key=key)


class BarrageStreamWriter(DataSourceStreamArrowWriter):
    """Made anew for every micro-batch, and once more for its commit: keeps nothing."""

    def __init__(self, options: SinkOptions, schema: StructType, mode: WriteMode) -> None:
        self._options = options
        self._mode = mode
        self._sent = sent_schema(schema, mode, variant_as_json=options.variant_as_json)
        self._table = table_schema(schema, mode, variant_as_json=options.variant_as_json)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Executor: stage the rows of one task. SinkWriteError."""
        task = TaskContext.get()
        assert task is not None
        key = task_key(self._options, task)
        part = stage_task(self._options, key, self._sent, batches=iterator)
        return Staged(key=key, part=part)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Driver: one call for the whole batch. SinkWriteError."""
        key = self._key(messages, batchId)
        if key is None:
            # A batch without tasks, in a query without a checkpoint of its own.
            return
        commit(
            self._options,
            key,
            _parts(messages),
            mode=self._mode,
            schema=self._table,
            is_loss_refused=self._is_loss_refused(),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Driver: forget what was staged. When no task got as far as telling who writes, the
        server's time to live does it."""
        key = self._key(messages, batchId)
        if key is not None:
            _abort_quietly(self._options, key)

    def _key(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> BatchKey | None:
        told = _told_key(messages)
        return driver_key(self._options, batch) if told is None else told

    def _is_loss_refused(self) -> bool:
        """A batch after the first of a writer the table does not know is refused, for the table
        has lost its state. Without a checkpoint a first batch without tasks leaves no trace, so the
        question cannot be asked."""
        asked = self._options.fails_on_data_loss
        return self._options.checkpoint is not None if asked is None else asked


class BarrageBatchWriter(DataSourceArrowWriter):
    """One ``df.write``: the same instance, pickled, stages and commits."""

    def __init__(
        self, options: SinkOptions, schema: StructType, mode: WriteMode, *, key: BatchKey
    ) -> None:
        self._options = options
        self._mode = mode
        self._key = key
        self._sent = sent_schema(schema, mode, variant_as_json=options.variant_as_json)
        self._table = table_schema(schema, mode, variant_as_json=options.variant_as_json)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Executor: stage the rows of one task. SinkWriteError."""
        part = stage_task(self._options, self._key, self._sent, batches=iterator)
        return Staged(key=self._key, part=part)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver: make all of it visible. SinkWriteError."""
        commit(
            self._options,
            self._key,
            _parts(messages),
            mode=self._mode,
            schema=self._table,
            # The numbers of batch writes are the caller's; the first need not be 0.
            is_loss_refused=bool(self._options.fails_on_data_loss),
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver: forget what was staged."""
        _abort_quietly(self._options, self._key)


def _told_key(messages: Sequence[WriterCommitMessage | None]) -> BatchKey | None:
    return next((message.key for message in messages if isinstance(message, Staged)), None)


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[TaskPart]:
    return [message.part for message in messages if isinstance(message, Staged)]


def _abort_quietly(options: SinkOptions, key: BatchKey) -> None:
    """The failure being handled is the one to tell; the staging area forgets by itself."""
    with contextlib.suppress(SinkWriteError):
        abort(options, key)
        _log.info("table %s batch %d of %s was aborted", options.table, key.batch, key.writer)
