"""Files in and out, and schedules of files played back."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrage.cli.command_errors import CommandError
from barrage.cli.data_file import check_writable, open_data_file, read_data_file, write_data_file
from barrage.cli.replay.replay_clock import ReplaySchedule
from barrage.cli.table_writer import TICK_NS, TableWriter, play
from tests.helpers.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from pathlib import Path

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".arrow", ".feather"])
def test_what_is_written_is_read_again(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    write_data_file(path, TABLE)
    read = read_data_file(path)
    assert read.column("a").to_pylist() == [1, 2, 3]
    # CSV has no null strings: they come back empty.
    assert read.column("b").to_pylist() == (
        ["x", "", "z"] if ending == ".csv" else ["x", None, "z"]
    )
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_arrow_streams_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "t.arrows"
    with pa.ipc.new_stream(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE)
    assert read_data_file(path) == TABLE


def test_an_arrow_file_is_mapped_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "t.arrow"
    write_data_file(path, pa.table({"n": np.arange(1_000_000)}))
    before = pa.total_allocated_bytes()
    table = read_data_file(path)
    assert table.num_rows == 1_000_000
    assert pa.total_allocated_bytes() - before < 100_000


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_a_file_without_rows_still_has_columns(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    write_data_file(path, TABLE.slice(0, 0))
    with open_data_file(path) as opened:
        assert [batch.num_rows for batch in opened.batches] == [0]
        assert opened.schema.names == ["a", "b"]


def test_csv_writes_lists_as_json(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_data_file(path, pa.table({"l": [[1, 2], None], "b": [b"\x01", b""]}))
    assert path.read_text() == '"l","b"\n"[1, 2]","""01"""\n,""""""\n'


def test_csv_times_are_read_as_the_same_times(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    times = pa.array([START, None], pa.timestamp("us", "UTC"))
    write_data_file(path, pa.table({"n": [1, 2], "t": times}))
    assert path.read_text() == '"n","t"\n1,"2026-01-01 00:00:00.000000Z"\n2,\n'
    assert read_data_file(path).column("t").to_pylist() == times.to_pylist()


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".csv"])
def test_a_broken_file_is_one_line(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t{ending}"
    path.write_bytes(b"" if ending == ".csv" else b"no such format")
    with pytest.raises(CommandError, match="cannot read") as caught:
        read_data_file(path)
    assert "\n" not in str(caught.value)


def test_a_broken_row_in_the_middle_of_a_csv_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 400_000 + "1,2,3\n")
    with pytest.raises(CommandError, match=r"cannot read .*t\.csv"):
        read_data_file(path)


def test_wrong_names_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no such file"):
        read_data_file(tmp_path / "missing.csv")
    (tmp_path / "t.txt").touch()
    with pytest.raises(CommandError, match="cannot tell the format"):
        read_data_file(tmp_path / "t.txt")
    with pytest.raises(CommandError, match="cannot tell the format"):
        check_writable(tmp_path / "t.txt")
    with pytest.raises(CommandError, match="no such folder"):
        check_writable(tmp_path / "nowhere" / "t.csv")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    unwritable = pa.table({"d": pa.array([1], pa.duration("s"))})
    with pytest.raises(CommandError, match="cannot tell"):
        write_data_file(tmp_path / "t.xyz", unwritable)
    assert list(tmp_path.iterdir()) == []


def at(*seconds: float | None) -> pa.Array:
    times = [None if s is None else START + dt.timedelta(seconds=s) for s in seconds]
    return pa.array(times, pa.timestamp("us", "UTC"))


def schedule_of(times: pa.Array, *, speed: float = 1.0) -> ReplaySchedule:
    table = pa.table({"t": times, "n": list(range(len(times)))})
    return ReplaySchedule(table, time_column="t", speed=speed)


def test_rows_are_due_by_their_time() -> None:
    schedule = schedule_of(at(0, 1, 1, 3))
    assert [schedule.due_count(int(s * 1e9)) for s in (0, 0.5, 1, 2.9, 3)] == [1, 1, 3, 3, 4]
    assert schedule.due_ns(3) == 3_000_000_000


def test_speed_divides_the_time() -> None:
    schedule = schedule_of(at(0, 10), speed=4)
    assert schedule.due_ns(1) == 2_500_000_000
    assert schedule.due_count(2_499_999_999) == 1
    assert schedule.due_count(2_500_000_000) == 2


def test_of_rows_with_one_key_that_are_due_together_the_last_is_played() -> None:
    words = pa.chunked_array([pa.array(["x", "y", "x"]), pa.array(["x", "z", "x"])])
    for symbols in (words, words.dictionary_encode()):
        table = pa.table({"t": at(*range(6)), "s": symbols, "k": [1, 1, 1, 2, 1, 1]})
        schedule = ReplaySchedule(table, time_column="t", speed=1, key_columns=["s", "k"])
        played = schedule.between(0, 6)
        assert [row["t"].second for row in played.to_pylist()] == [1, 3, 4, 5]
        assert schedule.between(2, 3).num_rows == 1
        assert schedule.row_count == 6


def test_infinite_speed_is_due_at_once() -> None:
    schedule = schedule_of(at(0, 10**6), speed=math.inf)
    assert schedule.due_count(0) == 2
    assert schedule.due_ns(1) == 0


def test_rows_come_in_time_order_and_ties_keep_the_order_of_the_file() -> None:
    schedule = schedule_of(at(2, 1, 2, 0))
    assert schedule.rows.column("n").to_pylist() == [3, 1, 0, 2]
    assert schedule.time_text(0) == "2026-01-01 00:00:00Z"


@pytest.mark.parametrize(
    "times",
    [
        pa.array([0, 1]),
        pa.array([1.7e9, 1.7e9 + 1]),
        pa.array([dt.date(1970, 1, 1), dt.date(1970, 1, 2)]),
        pa.array([5, 6], pa.timestamp("s")),
    ],
)
def test_numbers_and_dates_are_times_too(times: pa.Array) -> None:
    schedule = schedule_of(times, speed=86400.0 if pa.types.is_date(times.type) else 1.0)
    assert schedule.due_ns(1) == pytest.approx(1_000_000_000, abs=1000)


def test_null_times_are_refused_with_their_row() -> None:
    with pytest.raises(CommandError, match="2 null times, the first in row 1"):
        schedule_of(at(0, None, None))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (pa.array(["a"]), "is not a time"),
        (pa.array([0.0, math.nan]), "NaN"),
        (pa.array([0, 1_700_000_000_000_000_000]), "taken as seconds"),
    ],
)
def test_what_is_no_time_is_refused(times: pa.Array, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        schedule_of(times)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_a_speed_must_be_positive(speed: float) -> None:
    with pytest.raises(CommandError, match="greater than 0"):
        schedule_of(at(0), speed=speed)


class FakeSession:
    """Remembers what was put, and when."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.puts: list[tuple[int, str, str, int]] = []

    def put(
        self, name: str, data: pa.Table, *, key: object, mode: str, on_progress: object
    ) -> None:
        self.puts.append((self.clock.monotonic_ns(), name, mode, data.num_rows))

    def table(self, name: str) -> FakeSession:
        """Every table exists."""
        return self

    def info(self) -> None:
        """There is nothing to know about it."""


class NoProgress:
    def advance_to(self, row_count: int, *, note: str = "") -> None:
        """Nothing is shown."""


def test_play_sends_each_row_when_it_is_due_and_never_early() -> None:
    clock = VirtualClock()
    session = FakeSession(clock)
    writer = TableWriter(session, "t", key_columns=None, is_append=False)
    play(
        schedule_of(at(0, 0.01, 0.02, 5)),
        writer,
        NoProgress(),
        clock=clock,
        wait=lambda seconds: clock.advance(round(seconds * 1e9)),
    )
    assert session.puts == [
        (0, "t", "create", 0),
        (0, "t", "append", 1),
        (TICK_NS, "t", "append", 2),
        (5_000_000_000, "t", "append", 1),
    ]
    assert writer.row_count == 4


def test_a_keyed_writer_upserts() -> None:
    session = FakeSession(VirtualClock())
    writer = TableWriter(session, "t", key_columns=["a"], is_append=True)
    writer.write(TABLE)
    assert session.puts == [(0, "t", "upsert", 3)]


def test_parquet_says_its_row_count(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(TABLE, path)
    with open_data_file(path) as opened:
        assert opened.row_count == 3
