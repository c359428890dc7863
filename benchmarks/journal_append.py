"""Sustained appends through a journal with fsync group commit, against writing the same record
batches to a file as an Arrow IPC stream with the same pattern of syncs.

Both get the batches of the journal's entries: ``op``, ``row_id`` and the ten columns. Ours starts
at the change as the engine hands it over, and numbers rows, computes CRCs and keeps its index. Runs
alternate, the best of each counts: syncs take what the disk and its other users leave.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from barrage.journal import JournalOptions, JournalStore, LocalStorage, TableIdentity
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from benchmarks import shapes
from benchmarks.report import Measurement, compared, result

NO_ROWS = RowSet.empty()
WARM = bytes(1 << 20)
CYCLE_NS = 1_000_000
"""Time between cycles as the group commit sees it."""


def added(step: int, start: int, rows: pa.Table) -> TableChange:
    """A cycle that adds rows at the end."""
    nothing = tuple(pa.array([], field.type) for field in rows.schema)
    update = TableUpdate(
        first_step=step,
        last_step=step,
        removed_keys_pre=NO_ROWS,
        shifts=RowSetShiftData.empty(),
        added_keys_post=RowSet.of_span(start, start + rows.num_rows),
        modified_keys_post=(NO_ROWS,) * len(rows.schema),
    )
    return TableChange(
        update=update,
        removed=nothing,
        modified_keys_post=NO_ROWS,
        before=nothing,
        after=nothing,
        added=tuple(rows.columns),
    )


def journal_seconds(directory: Path, rows: pa.Table, cycles: int) -> tuple[float, list[int]]:
    """Append and write ``cycles`` times ``rows``; answers the time, and after which cycles
    something was synced."""
    changes = [added(number + 1, number * rows.num_rows, rows) for number in range(cycles)]
    store = JournalStore(LocalStorage(directory), JournalOptions(retain_bytes=None))
    store.open_all()
    journal = store.create(TableIdentity(name="t", kind="append-only", schema=rows.schema))
    synced_after = []
    started = time.perf_counter()
    for number, change in enumerate(changes):
        journal.append(change, step=number + 1, wall_ns=number)
        store.step_committed(number + 1)
        before = store.synced_ticket
        store.pump(number * CYCLE_NS)
        if store.synced_ticket != before:
            synced_after.append(number)
    store.pump(cycles * CYCLE_NS * 1000)
    took = time.perf_counter() - started
    assert store.synced_ticket == cycles
    store.close()
    return took, synced_after


def file_seconds(
    directory: Path, batches: list[pa.RecordBatch], cycles: int, synced_after: list[int]
) -> float:
    """Write the same batches to one file, synced after the same cycles."""
    syncs = set(synced_after)
    with pa.OSFile(str(directory / "plain.arrow"), "wb") as file:
        started = time.perf_counter()
        with pa.ipc.new_stream(file, batches[0].schema) as writer:
            for number in range(cycles):
                writer.write_batch(batches[number])
                if number in syncs:
                    os.fdatasync(file.fileno())
            os.fdatasync(file.fileno())
            return time.perf_counter() - started


def in_fresh_directory(size: int, work: Callable[[Path], float]) -> float:
    """What ``work`` answers in a directory of its own.

    A file of the size about to be written is made and removed before: else who comes first pays for
    memory that the machine has not used yet, several times the cost of the write.
    """
    directory = Path(tempfile.mkdtemp(prefix="barrage-bench-"))
    try:
        with (directory / "warm").open("wb") as file:
            for _ in range(size // len(WARM) + 1):
                file.write(WARM)
        (directory / "warm").unlink()
        return work(directory)
    finally:
        shutil.rmtree(directory)


def one_size(rows_per_cycle: int, cycles: int, *, repeats: int) -> Measurement:
    """The line for batches of one size."""
    rows = shapes.batch(0, rows_per_cycle)
    batches: list[pa.RecordBatch] = []
    synced_after: list[int] = []

    def ours(directory: Path) -> float:
        took, synced = journal_seconds(directory, rows, cycles)
        if not batches:
            batches.extend(read_batches(directory))
            synced_after.extend(synced)
        return took

    def plain(directory: Path) -> float:
        return file_seconds(directory, batches, cycles, synced_after)

    in_fresh_directory(0, ours)
    size = sum(batch.nbytes for batch in batches)
    best = {ours: float("inf"), plain: float("inf")}
    for number in range(repeats):
        for work in (ours, plain) if number % 2 else (plain, ours):
            best[work] = min(best[work], in_fresh_directory(size, work))
    return compared(
        f"append of {rows_per_cycle:,} rows a cycle, group commit",
        size / 1e6 / best[ours],
        "MB/s",
        baseline="the same Arrow IPC, the same syncs",
        baseline_value=size / 1e6 / best[plain],
        at_least=0.7,
        detail={"cycles": cycles, "rows_per_second": rows_per_cycle * cycles / best[ours]},
    )


def read_batches(directory: Path) -> list[pa.RecordBatch]:
    """The batches of all entries, copied to memory."""
    store = JournalStore(LocalStorage(directory))
    (journal,) = store.open_all()
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.concat_arrays([column, column.slice(0, 0)]) for column in entry.rows.columns],
            schema=entry.rows.schema,
        )
        for entry in journal.entries(journal.earliest_version, journal.latest_version)
    ]
    store.close()
    return batches


def run(*, quick: bool = False) -> dict[str, Any]:
    scale = 1 if quick else 4
    repeats = 3 if quick else 5
    return result(
        "journal_append",
        [
            one_size(100, 1000 * scale, repeats=repeats),
            one_size(10_000, 100 * scale, repeats=repeats),
            one_size(200_000, 10 * scale, repeats=repeats),
        ],
    )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
