"""Reading a table of 10^7 rows back from its journal, against reading the same rows from Parquet
and the same changes from an Arrow IPC file.

The journal holds a checkpoint with nine tenths of the rows and the changes after it: cycles of
10,000 rows that add, and modify some of what is there. Ours ends with the table's rows, their keys
and ids; the baseline ends with the rows of the checkpoint and the record batches of the changes in
memory, which is less. Both read from the page cache, run in turns, and the best of each counts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from barrage.journal import JournalOptions, JournalStore, LocalStorage, TableIdentity
from barrage.journal.stores.offline import compact, find_table
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData
from benchmarks import shapes
from benchmarks.journal_append import NO_ROWS, added
from benchmarks.report import Measurement, compared, result

CYCLE_ROWS = 10_000
OPTIONS = JournalOptions(retain_bytes=None, checkpoint_bytes_min=1 << 40)


def modified(step: int, keys: RowSet, rows: pa.Table) -> TableChange:
    """A cycle that gives the rows under ``keys`` other cells in every column."""
    nothing = tuple(pa.array([], field.type) for field in rows.schema)
    update = TableUpdate(
        first_step=step,
        last_step=step,
        removed_keys_pre=NO_ROWS,
        shifts=RowSetShiftData.empty(),
        added_keys_post=NO_ROWS,
        modified_keys_post=(keys,) * len(rows.schema),
    )
    cells = tuple(rows.columns)
    return TableChange(
        update=update,
        removed=nothing,
        modified_keys_post=keys,
        before=cells,
        after=cells,
        added=nothing,
    )


def write(directory: Path, row_count: int, *, modified_share: int) -> None:
    """Fill the journal. Of every ``modified_share`` cycles after the checkpoint one modifies."""
    base = row_count - row_count // 10
    rows = shapes.batch(0, CYCLE_ROWS)
    storage = LocalStorage(directory)
    store = JournalStore(storage, OPTIONS)
    store.open_all()
    journal = store.create(TableIdentity(name="t", kind="keyed", key=("id",), schema=rows.schema))
    for step, start in enumerate(range(0, base, 1_000_000), 1):
        count = min(1_000_000, base - start)
        journal.append(added(step, start, shapes.batch(start, count)), step=step, wall_ns=step)
        store.step_committed(step)
        store.pump(step * 10**9)
    store.close()
    storage.lock()
    compact(storage, find_table(storage, "t"))
    storage.unlock()
    store = JournalStore(storage, OPTIONS)
    (journal,) = store.open_all()
    step = store.first_step
    draw = np.random.default_rng(7)
    size = base
    while size < row_count:
        step += 1
        if modified_share and step % modified_share == 0:
            keys = RowSet(np.unique(draw.integers(0, base, CYCLE_ROWS)))
            change = modified(step, keys, shapes.batch(step, len(keys)))
        else:
            change = added(step, size, rows)
            size += CYCLE_ROWS
        journal.append(change, step=step, wall_ns=step)
        store.step_committed(step)
        store.pump(step * 10**9)
    store.close()


def write_baseline(directory: Path) -> None:
    """The rows of the checkpoint as Parquet, the changes as one IPC stream."""
    (checkpoint,) = directory.glob("tables/t/checkpoints/*.arrow")
    rows = pa.ipc.open_file(pa.memory_map(str(checkpoint))).read_all()
    pq.write_table(rows.replace_schema_metadata(None), directory / "rows.parquet")
    with (directory / "changes.arrow").open("wb") as out:
        writer = None
        for segment in sorted(directory.glob("tables/t/wal/*.arrow")):
            for batch in pa.ipc.open_stream(pa.memory_map(str(segment))):
                writer = writer or pa.ipc.new_stream(out, batch.schema)
                writer.write_batch(batch)
        if writer is not None:
            writer.close()


def ours(directory: Path) -> tuple[float, int]:
    """Open the store and get the rows; answers the time and their number."""
    started = time.perf_counter()
    store = JournalStore(LocalStorage(directory), OPTIONS)
    (journal,) = store.open_all()
    count = journal.state_at(journal.latest_version).rows.num_rows
    took = time.perf_counter() - started
    store.close()
    return took, count


def baseline(directory: Path) -> float:
    """Read Parquet and IPC."""
    started = time.perf_counter()
    rows = pq.read_table(directory / "rows.parquet")
    with (directory / "changes.arrow").open("rb") as file:
        changes = pa.ipc.open_stream(file).read_all()
    took = time.perf_counter() - started
    assert rows.num_rows
    assert changes.num_rows
    return took


def one_shape(what: str, row_count: int, *, modified_share: int, repeats: int) -> Measurement:
    """The line for one kind of changes."""
    directory = Path(tempfile.mkdtemp(prefix="barrage-bench-"))
    try:
        write(directory, row_count, modified_share=modified_share)
        write_baseline(directory)
        best, plain, count = float("inf"), float("inf"), 0
        for _ in range(repeats):
            took, count = ours(directory)
            best = min(best, took)
            plain = min(plain, baseline(directory))
        assert count >= row_count
    finally:
        shutil.rmtree(directory)
    return compared(
        f"reading back {row_count:,} rows, {what}",
        best,
        "s",
        baseline="the same rows from Parquet and the same changes from IPC",
        baseline_value=plain,
        at_most=1.5,
        detail={"rows_per_second": count / best},
    )


def run(*, quick: bool = False) -> dict[str, Any]:
    rows = 1_000_000 if quick else 10_000_000
    return result(
        "journal_recovery",
        [
            one_shape("a tenth of them added since", rows, modified_share=0, repeats=5),
            one_shape("added to and modified since", rows, modified_share=2, repeats=5),
        ],
    )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
