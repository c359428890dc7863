"""Parquet, CSV and Arrow files: read in batches, written in batches, chosen by the end of the name.

Arrow IPC files are memory-mapped, Parquet is read row group by row group, CSV in blocks, so a file
larger than memory can be sent. Feather V2 is the Arrow file format under another name.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.cli.failures import CommandError, usage_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    BatchStream = tuple[pa.Schema, int | None, Iterator[pa.RecordBatch]]

BATCH_ROWS = 64 * 1024
PART_BYTES = 32 * 1024 * 1024
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


def write_data_file(path: Path, table: pa.Table) -> None:
    """Write by the end of the name; the file appears under its name only when complete."""
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise usage_error(f"{path}: cannot tell the format; use .parquet, .arrow or .csv")
    partial = path.with_name(f"{path.name}.part")
    try:
        writer(partial, table)
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
    """Columns CSV has no words for (lists, structs, bytes) as JSON text."""
    from barrage.cli.cells import json_values_text

    for index, field in enumerate(table.schema):
        if not _is_csv_type(field.type):
            texts = pa.array(json_values_text(table.column(index)), pa.string())
            table = table.set_column(index, field.name, texts)
    return table


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
    import pyarrow.parquet as pq

    source = pq.ParquetFile(path)
    return source.schema_arrow, source.metadata.num_rows, source.iter_batches(batch_size=BATCH_ROWS)


def _open_csv(path: Path) -> BatchStream:
    from pyarrow import csv

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


def _write_parquet(path: Path, table: pa.Table) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path)


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=BATCH_ROWS)


def _write_csv(path: Path, table: pa.Table) -> None:
    from pyarrow import csv

    csv.write_csv(csv_ready(table), path)


_WRITERS: dict[str, Callable[[Path, pa.Table], None]] = {
    **dict.fromkeys(PARQUET_ENDINGS, _write_parquet),
    **dict.fromkeys(ARROW_ENDINGS, _write_arrow),
    **dict.fromkeys(CSV_ENDINGS, _write_csv),
}
