"""Samples of this machine: complete, and robust against what vanishes or is forbidden."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

from barrage.cli import host_samples
from barrage.cli.host_samples import (
    MACHINE_SCHEMAS,
    PROCESS_SCHEMA,
    MachineSampler,
    ProcessSampler,
)

if TYPE_CHECKING:
    import pytest

WALL_NS = 1_767_355_200_000_000_000


def test_this_process_is_among_the_processes() -> None:
    rows, gone = ProcessSampler().sample()
    assert rows.schema == PROCESS_SCHEMA
    assert gone == []
    mine = next(row for row in pa.table(rows).to_pylist() if row["pid"] == os.getpid())
    assert mine["memory_rss"] > 1_000_000
    assert mine["threads"] >= 1
    assert "python" in mine["command"]
    pids = rows.column("pid").to_pylist()
    assert pids == sorted(set(pids))


def test_a_process_that_ends_is_reported_once() -> None:
    sampler = ProcessSampler()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        rows, _ = sampler.sample()
        assert child.pid in rows.column("pid").to_pylist()
        child.communicate(b"\n")
    rows, gone = sampler.sample()
    assert child.pid in gone
    assert child.pid not in rows.column("pid").to_pylist()
    assert child.pid not in sampler.sample()[1]


class ForeignProcess:
    """Another user's process: nothing may be read."""

    pid = 7

    def __init__(self) -> None:
        fields = (
            "name username status cpu_percent memory_info memory_percent num_threads create_time"
        )
        self.info: dict[str, Any] = dict.fromkeys(fields.split())

    def cmdline(self) -> list[str]:
        raise psutil.AccessDenied(self.pid)


def test_what_may_not_be_read_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "process_iter", lambda fields: iter([ForeignProcess()]))
    rows, _ = ProcessSampler().sample()
    row = rows.to_pylist()[0]
    assert row.pop("pid") == 7
    assert row.pop("command") == "[?]"
    assert set(row.values()) == {None}


def test_command_lines_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(ForeignProcess):
        reads = 0

        def cmdline(self) -> list[str]:
            Counted.reads += 1
            return ["a", "b\udcff"]

    monkeypatch.setattr(psutil, "process_iter", lambda fields: iter([Counted()]))
    sampler = ProcessSampler()
    for _ in range(3):
        rows, _ = sampler.sample()
    assert rows.to_pylist()[0]["command"] == "a b?"
    assert Counted.reads == 1


def test_machine_samples_have_their_schemas_and_time() -> None:
    samples = MachineSampler().sample(now_ns=1, wall_ns=WALL_NS)
    assert {name: batch.schema for name, batch in samples.items()} == MACHINE_SCHEMAS
    for batch in samples.values():
        assert batch.num_rows == 1
        assert batch.column("time").cast(pa.int64()).to_pylist() == [WALL_NS]
    assert len(samples["cpu"].column("per_core").to_pylist()[0]) == psutil.cpu_count()
    assert samples["memory"].column("total").to_pylist()[0] > 0


def test_rates_are_differences_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([100, 600])

    def counters() -> SimpleNamespace:
        count = next(counts)
        return SimpleNamespace(
            bytes_sent=count,
            bytes_recv=2 * count,
            packets_sent=0,
            packets_recv=0,
            errin=1,
            errout=2,
        )

    monkeypatch.setattr(psutil, "net_io_counters", counters)
    sampler = MachineSampler()
    first = sampler.sample(now_ns=0, wall_ns=WALL_NS)["network"].to_pylist()[0]
    second = sampler.sample(now_ns=500_000_000, wall_ns=WALL_NS)["network"].to_pylist()[0]
    assert first["sent_bytes_per_s"] is None
    assert (second["sent_bytes_per_s"], second["received_bytes_per_s"]) == (1000.0, 2000.0)
    assert second["errors"] == 3


def test_a_machine_without_counters_gives_nulls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("disk_io_counters", "net_io_counters"):
        monkeypatch.setattr(host_samples.psutil, name, lambda: None)
    samples = MachineSampler().sample(now_ns=1, wall_ns=WALL_NS)
    assert samples["disk"].column("reads_per_s").to_pylist() == [None]
    assert samples["network"].column("errors").to_pylist() == [None]
