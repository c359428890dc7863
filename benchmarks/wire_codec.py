"""What the wire codec costs: large snapshots against copying the same bytes, small updates against
pyarrow writing and reading the same batch.

Large: two million rows, encoded into messages of about 1 MiB. The floor is a plain copy of the
columns' buffers in pieces of 1 MiB; pyarrow's ``RecordBatch.serialize`` of equal slices is the
nearest thing that also writes headers. Small: 50 rows in 10 columns (4 integers, 3 floats, 2
texts, 1 boolean), with update metadata and Flight framing, which pyarrow's figure lacks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from barrage.model.update import FullUpdate
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire import EncodeOptions, UpdateAssembler, UpdateEncoder, decode_flight_data
from benchmarks.report import Measurement, compared, result
from benchmarks.timing import best_ms

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 2_000_000
ROWS_QUICK = 200_000
PIECE_BYTES = 1 << 20
GOAL_OF_COPY_MIN = 0.4
SMALL_US_MAX = 100.0
EMPTY_US_MAX = 15.0


def update_of(values: list[pa.Array]) -> FullUpdate:
    """A delta that adds ``values`` under keys 0..n-1."""
    empty = RowSet.empty()
    return FullUpdate(
        first_step=1,
        last_step=1,
        is_snapshot=False,
        effective_viewport=None,
        is_effective_reverse=False,
        effective_columns=None,
        table_size=len(values[0]),
        added_columns=tuple(values),
        modified_columns=tuple(column.slice(0, 0) for column in values),
        removed_keys_pre=empty,
        shifts=RowSetShiftData.empty(),
        added_keys_post=RowSet.of_span(0, len(values[0])),
        included_keys_post=None,
        modified_keys_post=(empty,) * len(values),
    )


def schema_of(values: list[pa.Array]) -> pa.Schema:
    return pa.schema([(f"c{i}", column.type) for i, column in enumerate(values)])


def large_shapes(rows: int) -> dict[str, list[pa.Array]]:
    """Columns of large snapshots, the same on every run."""
    draw = np.random.default_rng(1)
    integers = draw.integers(0, 1000, (5, rows))
    texts = pa.array(draw.integers(0, 10**6, rows)).cast(pa.string())
    nulls = draw.random(rows) < 0.1
    return {
        "5 integers": [pa.array(column) for column in integers],
        "integer, float, text": [pa.array(integers[0]), pa.array(draw.random(rows)), texts],
        "3 integers with 10% nulls": [pa.array(column, mask=nulls) for column in integers[:3]],
    }


def copy_in_pieces(values: list[pa.Array]) -> list[bytes]:
    """The floor: every byte copied once. The pieces are kept, as those of the codec are, because
    whoever gets the messages keeps them too: all sides pay for fresh memory."""
    pieces = []
    for column in values:
        for buffer in column.buffers():
            content = memoryview(buffer or b"")
            starts = range(0, len(content), PIECE_BYTES)
            pieces += [bytes(content[start : start + PIECE_BYTES]) for start in starts]
    return pieces


def large(rows: int) -> list[Measurement]:
    lines = []
    for shape, values in large_shapes(rows).items():
        schema, update = schema_of(values), update_of(values)
        volume = sum(column.nbytes for column in values) / 1e6
        batch = pa.record_batch(values, schema=schema)
        for style in ("bitmaps", "Deephaven nulls"):
            options = EncodeOptions(use_deephaven_nulls=style != "bitmaps")
            encoder = UpdateEncoder(schema, options)
            messages = len(list(encoder.encode(update)))
            step = -(-rows // messages)
            detail = {"messages": messages, "MB": volume}
            pieces = [batch.slice(start, step) for start in range(0, rows, step)]
            per_ms = volume / best_ms(lambda e=encoder, u=update: list(e.encode(u)), repeats=7)
            copied = volume / best_ms(lambda v=values: copy_in_pieces(v), repeats=7)
            lines.append(
                compared(
                    f"encode {shape}, {style}",
                    per_ms,
                    "GB/s",
                    baseline="copy of the same bytes",
                    baseline_value=copied,
                    at_least=GOAL_OF_COPY_MIN if "nulls" not in shape else None,
                    detail=detail,
                )
            )
            written = best_ms(lambda p=pieces: [piece.serialize() for piece in p], repeats=7)
            lines.append(
                compared(
                    f"encode {shape}, {style}",
                    per_ms,
                    "GB/s",
                    baseline="pyarrow serialize",
                    baseline_value=volume / written,
                )
            )
            lines.append(assemble_large(encoder, update, shape, style, volume, pieces))
    return lines


def assemble_large(
    encoder: UpdateEncoder,
    update: FullUpdate,
    shape: str,
    style: str,
    volume: float,
    pieces: list[pa.RecordBatch],
) -> Measurement:
    """Reading: views of the messages plus the checks, against pyarrow's reader and its checks."""
    messages = [encoder.schema_frame(), *encoder.encode(update)]
    options = encoder.options
    serialized = [piece.serialize() for piece in pieces]
    schema = pieces[0].schema

    def assemble() -> None:
        assembler = UpdateAssembler(use_deephaven_nulls=options.use_deephaven_nulls)
        for message in messages:
            assembler.receive_frame(decode_flight_data(message))

    def read() -> None:
        for content in serialized:
            pa.ipc.read_record_batch(content, schema).validate(full=True)

    return compared(
        f"assemble {shape}, {style}",
        volume / best_ms(assemble, repeats=5),
        "GB/s",
        baseline="pyarrow read and validate",
        baseline_value=volume / best_ms(read, repeats=5),
    )


def small_values(rows: int) -> list[pa.Array]:
    draw = np.random.default_rng(2)
    return [
        *(pa.array(draw.integers(0, 1000, rows)) for _ in range(4)),
        *(pa.array(draw.random(rows)) for _ in range(3)),
        *(pa.array([f"s{i}" for i in range(rows)], pa.string()) for _ in range(2)),
        pa.array(draw.integers(0, 2, rows).astype(bool)),
    ]


def small(repeats: int) -> list[Measurement]:
    lines = []
    for what, rows, us_max in (("50 rows", 50, SMALL_US_MAX), ("no rows", 0, EMPTY_US_MAX)):
        values = small_values(rows)
        schema, update = schema_of(values), update_of(values)
        batch = pa.record_batch(values, schema=schema)
        encoder = UpdateEncoder(schema, EncodeOptions(use_deephaven_nulls=True))
        messages = list(encoder.encode(update))
        assembler = UpdateAssembler(use_deephaven_nulls=True)
        assembler.receive_frame(decode_flight_data(encoder.schema_frame()))
        content = batch.serialize()

        def assemble(assembler=assembler, messages=messages) -> None:
            for message in messages:
                assembler.receive_frame(decode_flight_data(message))

        def read(content=content, schema=schema) -> None:
            pa.ipc.read_record_batch(content, schema).columns  # noqa: B018

        lines.append(
            in_us(
                f"encode 10 columns, {what}",
                lambda e=encoder, u=update: list(e.encode(u)),
                "pyarrow serialize",
                batch.serialize,
                repeats,
                us_max,
            )
        )
        lines.append(
            in_us(f"assemble 10 columns, {what}", assemble, "pyarrow read", read, repeats, None)
        )
    return lines


def in_us(
    line: str,
    work: Callable[[], Any],
    baseline: str,
    baseline_work: Callable[[], Any],
    repeats: int,
    us_max: float | None,
) -> Measurement:
    """A line in microseconds; the goal bounds the value, the ratio is for comparison."""
    value = best_ms(work, repeats=repeats) * 1e3
    baseline_value = best_ms(baseline_work, repeats=repeats) * 1e3
    return Measurement(
        line=line,
        value=value,
        unit="µs",
        baseline=baseline,
        baseline_value=baseline_value,
        ratio=value / baseline_value,
        goal="" if us_max is None else f"≤ {us_max:g} µs",
        met=None if us_max is None else value <= us_max,
    )


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything."""
    lines = large(ROWS_QUICK if quick else ROWS) + small(200 if quick else 2000)
    return result("wire_codec", lines)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2, ensure_ascii=False))
