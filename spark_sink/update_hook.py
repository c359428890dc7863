"""``outputMode("update")`` for the sink.

Spark refuses update mode for every sink written in Python: the interface it looks for is not one a
Python sink can have. ``foreachBatch`` takes update mode, so :func:`barrage_update_sink` does there
what the sink does elsewhere, with the same calls and the same identity, and
:func:`install_update_hook` lets the usual chain end in it::

    df.writeStream.format("barrage").outputMode("update").option(...).start()

The hook sees every ``start()`` of this process and touches those with format ``barrage`` and mode
``update`` only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.errors import ConfigError
from spark_sink.sink_columns import sent_schema, table_schema
from spark_sink.sink_errors import SinkWriteError, is_stop, staging_error, stop_error
from spark_sink.sink_flight import BatchKey, TaskPart, abort, commit, stage_task
from spark_sink.sink_identity import required_key
from spark_sink.sink_options import SinkOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

FORMAT = "barrage"
UPDATE = "update"
STAGINGS_MAX = 3
"""How often a batch is staged whose rows the server lost, as one that restarts does."""

STAGED_LOST = "staged-lost"
_STAGED_COLUMNS = "partition int, attempt bigint, staged bigint"
_INSTALLED = "_barrage_update_hook"


class UpdateSink:
    """A ``foreachBatch`` function: stages with one Spark job, commits with one call. Picklable, as
    Spark Connect sends it to the server."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = SinkOptions.of(options)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        options = self._options
        mode = options.mode_for(rows.columns, is_complete=False, is_update=True)
        key = required_key(options, batch, rows.sparkSession)
        as_json = options.variant_as_json
        table = table_schema(rows.schema, mode, variant_as_json=as_json)
        sent = sent_schema(rows.schema, mode, variant_as_json=as_json)
        staging = _Staging(options, key, sent)
        for tries_left in range(STAGINGS_MAX - 1, -1, -1):
            parts = self._staged(rows, staging, key)
            try:
                commit(
                    options,
                    key,
                    parts,
                    mode=mode,
                    schema=table,
                    is_loss_refused=options.fails_on_data_loss is not False,
                )
            except SinkWriteError as error:
                if not tries_left or not error.reason.startswith(STAGED_LOST):
                    raise
                _log.warning("the server has lost what was staged, staging it again: %s", error)
            else:
                return

    def _staged(self, rows: DataFrame, staging: _Staging, key: BatchKey) -> list[TaskPart]:
        """Stage all rows with one Spark job. SinkWriteError, StagingFailedError."""
        options, batch = self._options, key.batch
        try:
            told = rows.mapInArrow(staging, _STAGED_COLUMNS).collect()
        except Exception as error:
            # The task's error is the one to tell; the staging area forgets by itself.
            with contextlib.suppress(SinkWriteError):
                abort(options, key)
            _log.debug("staging batch %d of %s failed", batch, options.table, exc_info=error)
            if is_stop(error):
                raise stop_error(table=options.table, batch=batch) from None
            raise staging_error(error, table=options.table, batch=batch) from None
        return [
            TaskPart(partition=row.partition, attempt=row.attempt, rows=row.staged) for row in told
        ]


class _Staging:
    """What ``mapInArrow`` runs in each task: stage all rows, answer with one row."""

    def __init__(self, options: SinkOptions, key: BatchKey, schema: pa.Schema) -> None:
        self._options = options
        self._key = key
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = stage_task(self._options, self._key, self._schema, batches=batches)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([part.partition], pa.int32()),
                pa.array([part.attempt], pa.int64()),
                pa.array([part.rows], pa.int64()),
            ],
            names=["partition", "attempt", "staged"],
        )


def barrage_update_sink(
    uri: str | None = None, table: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that keeps a table up to date with an aggregation in update
    mode.

    ``options`` are those of the sink, with Python values: ``keyColumns="symbol,window"``. Each
    (query, batch) is applied once, however often Spark runs it. Two sinks of one query that write
    to the same table each need a ``txnAppId`` of their own.
    """
    given = {key: _text(value) for key, value in options.items() if value is not None}
    if uri is not None:
        given["uri"] = uri
    if table is not None:
        given["table"] = table
    return UpdateSink(given)


def install_update_hook() -> None:
    """Let ``format("barrage").outputMode("update")`` work in this process, for classic sessions and
    for Connect. Does nothing the second time."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    _install(DataStreamWriter, _ClassicState)
    try:
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectWriter
    except ImportError:
        return  # The packages of Spark Connect are not there, so nobody uses it.
    _install(ConnectWriter, _ConnectState)


class _ClassicState:
    """What the user's chain has set on a classic writer: Spark keeps it in the JVM, so the hook
    notes it on the way."""

    @staticmethod
    def read(writer: Any) -> tuple[str | None, str | None, dict[str, str]]:
        noted = writer.__dict__
        return (
            noted.get("_barrage_format"),
            noted.get("_barrage_mode"),
            noted.get("_barrage_options", {}),
        )

    @staticmethod
    def install(writer_class: type) -> None:
        def noting(name: str, note: Callable[..., None]) -> None:
            original = getattr(writer_class, name)

            @functools.wraps(original)
            def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
                note(self, *args, **kwargs)
                return original(self, *args, **kwargs)

            setattr(writer_class, name, noted)

        def note_format(self: Any, source: str) -> None:
            self.__dict__["_barrage_format"] = source

        def note_mode(self: Any, outputMode: str) -> None:  # noqa: N803
            self.__dict__["_barrage_mode"] = outputMode

        def note_option(self: Any, key: str, value: Any) -> None:
            if value is not None:
                self.__dict__.setdefault("_barrage_options", {})[key.lower()] = _text(value)

        def note_options(self: Any, **options: Any) -> None:
            for key, value in options.items():
                note_option(self, key, value)

        noting("format", note_format)
        noting("outputMode", note_mode)
        noting("option", note_option)
        noting("options", note_options)

    @staticmethod
    def as_foreach_batch(writer: Any) -> None:
        """``foreachBatch`` sets the format itself."""


class _ConnectState:
    """Under Connect the chain is a message on this side."""

    @staticmethod
    def read(writer: Any) -> tuple[str | None, str | None, dict[str, str]]:
        message = writer._write_proto
        options = {key.lower(): value for key, value in message.options.items()}
        return message.format, message.output_mode, options

    @staticmethod
    def install(writer_class: type) -> None:
        """Nothing to note."""

    @staticmethod
    def as_foreach_batch(writer: Any) -> None:
        writer._write_proto.format = ""


def _install(writer_class: Any, state: Any) -> None:
    if _INSTALLED in writer_class.__dict__:
        return
    state.install(writer_class)
    original = writer_class.start

    @functools.wraps(original)
    def start(  # noqa: PLR0917  (Spark's signature)
        self: Any,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | list[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> Any:
        # Spark's start() takes the chain's settings as arguments too, and passes them on like this.
        self.options(**options)
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        source, mode, given = state.read(self)
        if (source or "").lower() != FORMAT or (mode or "").lower() != UPDATE:
            return original(self, path, partitionBy=partitionBy, queryName=queryName)
        if partitionBy is not None:
            raise ConfigError("a table of the server has no partitions: leave out partitionBy")
        self.foreachBatch(UpdateSink({"table": path, **given} if path is not None else given))
        state.as_foreach_batch(self)
        return original(self, queryName=queryName)

    writer_class.start = start
    setattr(writer_class, _INSTALLED, True)


def _text(value: Any) -> str:
    """A value of an option as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
