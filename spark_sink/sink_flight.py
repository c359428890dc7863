"""The sink's three calls: stage rows (DoPut), commit a batch, forget a batch (DoAction).

Staging may be done any number of times: each attempt has a random number of its own, so a driver
that starts again and counts its attempts from nought never adds to what an earlier one staged.
What the driver does not name in the commit is dropped by the server, at the latest when its time
to live is over. Commit and abort may be repeated: the server knows the batch by (writer, batch).
"""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from spark_sink.connection import ServerError
from spark_sink.sink_columns import is_variant, json_of
from spark_sink.sink_errors import write_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_sink.sink_options import SinkOptions, WriteMode

STAGE_COMMIT = "stage.commit"
STAGE_ABORT = "stage.abort"
ATTEMPT_BITS = 53
"""Bits of an attempt's number: any JSON reader keeps whole numbers up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKey:
    """Which write a batch of rows belongs to: who writes, and the number of the batch."""

    writer: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPart:
    """What one task staged: its partition, the number of the attempt, and how many rows."""

    partition: int
    attempt: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """What the server answered to a commit."""

    version: int
    rows: int
    is_duplicate: bool


def stage_task(
    options: SinkOptions, key: BatchKey, schema: pa.Schema, *, batches: Iterable[pa.RecordBatch]
) -> TaskPart:
    """:func:`stage` for the task this process runs."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    return stage(options, key, partition=task.partitionId(), schema=schema, batches=batches)


def stage(
    options: SinkOptions,
    key: BatchKey,
    *,
    partition: int,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
) -> TaskPart:
    """Send the rows of one task to the staging area; SinkWriteError with the partition.

    Every batch is cast to ``schema``: Spark checks at most the first. A task without rows opens no
    call.
    """
    attempt = secrets.randbits(ATTEMPT_BITS)
    rows = 0
    writer: Any = None
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if writer is None:
                writer = _open_put(options, key, partition, attempt=attempt, schema=schema)
            writer.write_batch(fitted(batch, schema))
            rows += batch.num_rows
        if writer is not None:
            writer.close()  # Waits for the server: errors of staging surface here.
    except (ServerError, flight.FlightError, pa.ArrowException, OSError) as error:
        raise write_error(
            error, table=options.table, batch=key.batch, partition=partition
        ) from error
    return TaskPart(partition=partition, attempt=attempt, rows=rows)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``batch`` with the columns of ``schema``, by name, cast where Spark's form differs: large
    strings, the session's time zone."""
    if batch.schema.equals(schema):
        return batch
    columns = [batch.column(name) for name in schema.names]
    cast = [_cast(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    return json_of(column) if is_variant(column.type) else column.cast(kind)


def commit(
    options: SinkOptions,
    key: BatchKey,
    parts: Sequence[TaskPart],
    *,
    mode: WriteMode,
    schema: pa.Schema,
    is_loss_refused: bool,
) -> CommitAnswer:
    """Make what the winning attempts staged visible; does nothing the second time.

    ``schema``: of the table to make when there is none.
    """
    request = {
        "table": options.table,
        "writer": key.writer,
        "batch": key.batch,
        "staged": [[part.partition, part.attempt] for part in parts if part.rows],
        "mode": mode.value,
        "key": list(options.key_columns),
        "create": options.creates_table,
        "schema": base64.b64encode(schema.serialize().to_pybytes()).decode(),
        "merge_schema": options.merges_schema,
        "fail_on_data_loss": is_loss_refused,
    }
    answer = _action(options, STAGE_COMMIT, request, batch=key.batch)
    return CommitAnswer(
        version=int(answer["version"]),
        rows=int(answer.get("rows", 0)),
        is_duplicate=bool(answer.get("duplicate", False)),
    )


def abort(options: SinkOptions, key: BatchKey) -> None:
    """Let the server forget what was staged for a batch."""
    request = {"table": options.table, "writer": key.writer, "batch": key.batch}
    _action(options, STAGE_ABORT, request, batch=key.batch)


def _open_put(
    options: SinkOptions, key: BatchKey, partition: int, *, attempt: int, schema: pa.Schema
) -> Any:
    command = {
        "stage": {
            "table": options.table,
            "writer": key.writer,
            "batch": key.batch,
            "partition": partition,
            "attempt": attempt,
        }
    }
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
    connection = options.connection

    def open_put() -> Any:
        # No deadline: the rows come as fast as the query makes them, however long that takes.
        writer, answers = connection.client().do_put(descriptor, schema, connection.call_options())
        answers.read()  # The server says that rows may come: from here on nothing is tried again.
        return writer

    return connection.retried(open_put, doing=f"staging rows of table {options.table!r}")


def _action(
    options: SinkOptions, name: str, request: dict[str, Any], *, batch: int
) -> dict[str, Any]:
    try:
        return options.connection.action(name, **request)
    except ServerError as error:
        raise write_error(error, table=options.table, batch=batch) from error
