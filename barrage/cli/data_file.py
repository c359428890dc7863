"""Parquet, CSV and Arrow files: read in batches, written in batches, chosen by the end of the name.

Arrow IPC files are memory-mapped, Parquet is read row group by row group, CSV in blocks, so a file
larger than memory can be sent. Feather V2 is the Arrow file format under another name.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from barrage.cli.cells import json_values_text
from barrage.cli.command_errors import CommandError, usage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    BatchStream = tuple[pa.Schema, int | None, Iterator[pa.RecordBatch]]

BATCH_ROWS = 64 * 1024
PART_BYTES = 32 * 1024 * 1024
WRITE_ROWS = 256 * 1024
"""Rows written at a time: how soon Ctrl+C and the progress bar get a turn."""
ARROW_ENDINGS = (".arrow", ".arrows", ".feather", ".ipc")
PARQUET_ENDINGS = (".parquet", ".pq")
CSV_ENDINGS = (".csv",)
_ARROW_FILE_MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """A file ready to be read once."""

    schema: pa.Schema
    row_count: int | None
    """None where the format does not say before everything is read (CSV, Arrow streams)."""
    batches: Iterator[pa.RecordBatch]

    def parts(self) -> Iterator[pa.Table]:
        """The batches gathered into tables worth a call of their own."""
        gathered: list[pa.RecordBatch] = []
        for batch in self.batches:
            gathered.append(batch)
            if sum(batch.nbytes for batch in gathered) >= PART_BYTES:
                yield pa.Table.from_batches(gathered)
                gathered = []
        if gathered:
            yield pa.Table.from_batches(gathered)


@contextmanager
def open_data_file(path: Path) -> Iterator[OpenedFile]:
    """Open by the end of the name; unreadable content is a one-line error that names the file.

    There is at least one batch, an empty one for a file without rows.
    """
    if not path.exists():
        raise CommandError(f"no such file: {path}; check the path")
    opener = _opener(path)
    try:
        schema, row_count, batches = opener(path)
        yield OpenedFile(
            schema=schema, row_count=row_count, batches=_checked(path, schema, batches)
        )
    except pa.ArrowInvalid as error:
        raise _unreadable(path, error) from error


def read_data_file(path: Path) -> pa.Table:
    """The whole file. An Arrow file stays memory-mapped: its buffers are its pages."""
    with open_data_file(path) as opened:
        return pa.Table.from_batches(opened.batches, schema=opened.schema)


def write_data_file(
    path: Path, table: pa.Table, *, on_progress: Callable[[int], None] | None = None
) -> None:
    """Write by the end of the name; the file appears under its name only when complete.

    ``on_progress`` gets the rows written so far.
    """
    open_writer = _WRITERS.get(path.suffix.lower())
    if open_writer is None:
        raise usage_error(f"{path}: cannot tell the format; use .parquet, .arrow or .csv")
    ready = csv_ready(table) if path.suffix.lower() in CSV_ENDINGS else table
    partial = path.with_name(f"{path.name}.part")
    try:
        with open_writer(partial, ready.schema) as writer:
            for start in range(0, ready.num_rows, WRITE_ROWS):
                writer.write_table(ready.slice(start, WRITE_ROWS))
                if on_progress is not None:
                    on_progress(min(start + WRITE_ROWS, ready.num_rows))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Say that the ending or the folder is wrong before anything is fetched."""
    if path.suffix.lower() not in _WRITERS:
        raise usage_error(f"{path}: cannot tell the format; use .parquet, .arrow or .csv")
    if not path.parent.is_dir():
        raise CommandError(f"no such folder: {path.parent}; create it first")


def csv_ready(table: pa.Table) -> pa.Table:
    """The same table in words CSV has, quickly: lists, structs and bytes become JSON text, and so
    that Arrow need not look up the time zone of every row (25 times slower), UTC times their text.
    """
    for index, field in enumerate(table.schema):
        texts = _csv_texts(table.column(index))
        if texts is not None:
            table = table.set_column(index, field.name, texts)
    return table


def _csv_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array | None:
    """The column as text; None where Arrow writes it well as it is."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz == "UTC":
        naive = column.cast(pa.timestamp(kind.unit)).cast(pa.string())
        return pc.binary_join_element_wise(naive, "Z", "")
    if _is_csv_type(kind):
        return None
    return pa.array(json_values_text(column), pa.string())


def _is_csv_type(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_csv_type(kind.value_type)
    is_plain = pa.types.is_primitive(kind) and not pa.types.is_duration(kind)
    return bool(
        (is_plain and not pa.types.is_interval(kind))
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    )


def _opener(path: Path) -> Callable[[Path], BatchStream]:
    ending = path.suffix.lower()
    if ending in PARQUET_ENDINGS:
        return _open_parquet
    if ending in CSV_ENDINGS:
        return _open_csv
    if ending in ARROW_ENDINGS:
        return _open_arrow
    raise usage_error(f"{path}: cannot tell the format; use .parquet, .csv or .arrow")


def _open_parquet(path: Path) -> BatchStream:
    source = pq.ParquetFile(path)
    return source.schema_arrow, source.metadata.num_rows, source.iter_batches(batch_size=BATCH_ROWS)


def _open_csv(path: Path) -> BatchStream:
    reader = csv.open_csv(path)
    return reader.schema, None, iter(reader)


def _open_arrow(path: Path) -> BatchStream:
    source = pa.memory_map(str(path)) if path.stat().st_size else pa.BufferReader(b"")
    if source.read(len(_ARROW_FILE_MAGIC)) != _ARROW_FILE_MAGIC:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return stream.schema, None, iter(stream)
    source.seek(0)
    file = pa.ipc.open_file(source)
    batches = [file.get_batch(index) for index in range(file.num_record_batches)]
    return file.schema, sum(batch.num_rows for batch in batches), iter(batches)


def _checked(
    path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Errors in the middle of a file name the file, too."""
    is_empty = True
    try:
        for batch in batches:
            is_empty = False
            yield batch
    except pa.ArrowInvalid as error:
        raise _unreadable(path, error) from error
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def _unreadable(path: Path, error: Exception) -> CommandError:
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CommandError(f"cannot read {path}: {first_line}")


def _parquet_writer(path: Path, schema: pa.Schema) -> Any:
    return pq.ParquetWriter(path, schema)


def _arrow_writer(path: Path, schema: pa.Schema) -> Any:
    return pa.ipc.new_file(str(path), schema)


def _csv_writer(path: Path, schema: pa.Schema) -> Any:
    return csv.CSVWriter(str(path), schema)


_WRITERS: dict[str, Callable[[Path, pa.Schema], Any]] = {
    **dict.fromkeys(PARQUET_ENDINGS, _parquet_writer),
    **dict.fromkeys(ARROW_ENDINGS, _arrow_writer),
    **dict.fromkeys(CSV_ENDINGS, _csv_writer),
}
