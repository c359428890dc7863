"""Samples of the machine this runs on, as Arrow batches; psutil in, no tables and no threads here.

Values the system does not give (a disk counter in a container, another user's command line) are
null, never an error: processes vanish while they are read and most of them belong to somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIME = pa.timestamp("ns", "UTC")
_PERCENT = pa.float64()

PROCESS_SCHEMA = pa.schema(
    [
        ("pid", pa.int32()),
        ("name", pa.string()),
        ("user", pa.string()),
        ("status", pa.string()),
        ("cpu_percent", _PERCENT),
        ("memory_rss", pa.int64()),
        ("memory_percent", _PERCENT),
        ("threads", pa.int32()),
        ("created", _TIME),
        ("command", pa.string()),
    ]
)
CPU_SCHEMA = pa.schema(
    [
        ("time", _TIME),
        ("percent", _PERCENT),
        ("user", _PERCENT),
        ("system", _PERCENT),
        ("iowait", _PERCENT),
        ("idle", _PERCENT),
        ("load_1m", pa.float64()),
        ("per_core", pa.list_(_PERCENT)),
    ]
)
MEMORY_SCHEMA = pa.schema(
    [
        ("time", _TIME),
        ("percent", _PERCENT),
        ("used", pa.int64()),
        ("available", pa.int64()),
        ("cached", pa.int64()),
        ("total", pa.int64()),
        ("swap_used", pa.int64()),
    ]
)
DISK_SCHEMA = pa.schema(
    [
        ("time", _TIME),
        ("read_bytes_per_s", pa.float64()),
        ("write_bytes_per_s", pa.float64()),
        ("reads_per_s", pa.float64()),
        ("writes_per_s", pa.float64()),
        ("root_used_percent", _PERCENT),
    ]
)
NETWORK_SCHEMA = pa.schema(
    [
        ("time", _TIME),
        ("sent_bytes_per_s", pa.float64()),
        ("received_bytes_per_s", pa.float64()),
        ("sent_packets_per_s", pa.float64()),
        ("received_packets_per_s", pa.float64()),
        ("errors", pa.int64()),
    ]
)
MACHINE_SCHEMAS: dict[str, pa.Schema] = {
    "cpu": CPU_SCHEMA,
    "memory": MEMORY_SCHEMA,
    "disk": DISK_SCHEMA,
    "network": NETWORK_SCHEMA,
}

_PROCESS_FIELDS = [
    "name",
    "username",
    "status",
    "cpu_percent",
    "memory_info",
    "memory_percent",
    "num_threads",
    "create_time",
]


class ProcessSampler:
    """Reads every process. A command line is read once for each process and name, because it is the
    dear part.
    """

    def __init__(self) -> None:
        self._commands: dict[tuple[int, float | None, str | None], str] = {}
        self._pids: set[int] = set()

    def sample(self) -> tuple[pa.RecordBatch, list[int]]:
        """All processes now, and the pids that are gone since the last sample."""
        rows = []
        commands: dict[tuple[int, float | None, str | None], str] = {}
        for process in psutil.process_iter(_PROCESS_FIELDS):
            # process_iter skips processes that vanish and puts None where access is denied.
            info = process.info
            identity = (process.pid, info["create_time"], info["name"])
            command = self._commands.get(identity)
            commands[identity] = _command(process, info["name"]) if command is None else command
            rows.append(_process_row(process.pid, info, commands[identity]))
        rows.sort(key=lambda row: row["pid"])
        pids = {row["pid"] for row in rows}
        gone = sorted(self._pids - pids)
        self._pids, self._commands = pids, commands
        return pa.RecordBatch.from_pylist(rows, schema=PROCESS_SCHEMA), gone


def _process_row(pid: int, info: Mapping[str, Any], command: str) -> dict[str, Any]:
    memory, created = info["memory_info"], info["create_time"]
    return {
        "pid": pid,
        "name": _clean(info["name"]),
        "user": info["username"],
        "status": info["status"],
        "cpu_percent": _rounded(info["cpu_percent"], 1),
        "memory_rss": None if memory is None else memory.rss,
        "memory_percent": _rounded(info["memory_percent"], 2),
        "threads": info["num_threads"],
        "created": None if created is None else int(created * 1000) * 1_000_000,
        "command": command,
    }


def _command(process: psutil.Process, name: str | None) -> str:
    """The command line; the name in brackets for kernel threads and where reading is denied."""
    try:
        parts = process.cmdline()
    except psutil.Error:
        parts = []
    return _clean(" ".join(parts)) or f"[{_clean(name) or '?'}]"


def _clean(text: str | None) -> str | None:
    """Bytes that are no UTF-8 come from psutil as surrogates, which Arrow strings cannot hold."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


class MachineSampler:
    """Reads CPU, memory, disk and network. Rates are differences to the sample before; the first
    has none.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, Any]] = {}
        psutil.cpu_percent(percpu=True)
        psutil.cpu_times_percent()

    def sample(self, *, now_ns: int, wall_ns: int) -> dict[str, pa.RecordBatch]:
        """One row for each table of :data:`MACHINE_SCHEMAS`; ``now_ns`` is monotonic."""
        rows = {
            "cpu": _cpu_row(),
            "memory": _memory_row(),
            "disk": self._disk_row(now_ns),
            "network": self._network_row(now_ns),
        }
        return {
            name: pa.RecordBatch.from_pylist(
                [{"time": wall_ns, **row}], schema=MACHINE_SCHEMAS[name]
            )
            for name, row in rows.items()
        }

    def _disk_row(self, now_ns: int) -> dict[str, Any]:
        rates = self._rates(
            "disk",
            psutil.disk_io_counters(),
            {
                "read_bytes_per_s": "read_bytes",
                "write_bytes_per_s": "write_bytes",
                "reads_per_s": "read_count",
                "writes_per_s": "write_count",
            },
            now_ns=now_ns,
        )
        return {**rates, "root_used_percent": psutil.disk_usage("/").percent}

    def _network_row(self, now_ns: int) -> dict[str, Any]:
        counters = psutil.net_io_counters()
        rates = self._rates(
            "network",
            counters,
            {
                "sent_bytes_per_s": "bytes_sent",
                "received_bytes_per_s": "bytes_recv",
                "sent_packets_per_s": "packets_sent",
                "received_packets_per_s": "packets_recv",
            },
            now_ns=now_ns,
        )
        return {**rates, "errors": None if counters is None else counters.errin + counters.errout}

    def _rates(
        self, kind: str, counters: Any, names: Mapping[str, str], *, now_ns: int
    ) -> dict[str, float | None]:
        """Change of each counter per second; None without counters or without an earlier sample."""
        before_ns, before = self._before.get(kind, (now_ns, None))
        self._before[kind] = (now_ns, counters)
        if counters is None or before is None or now_ns <= before_ns:
            return dict.fromkeys(names)
        seconds = (now_ns - before_ns) / 1e9
        return {
            column: round((getattr(counters, field) - getattr(before, field)) / seconds, 1)
            for column, field in names.items()
        }


def _cpu_row() -> dict[str, Any]:
    cores = psutil.cpu_percent(percpu=True)
    times = psutil.cpu_times_percent()
    return {
        "percent": _rounded(sum(cores) / len(cores), 1) if cores else None,
        "user": times.user,
        "system": times.system,
        "iowait": getattr(times, "iowait", None),
        "idle": times.idle,
        "load_1m": round(psutil.getloadavg()[0], 2),
        "per_core": cores,
    }


def _memory_row() -> dict[str, Any]:
    memory = psutil.virtual_memory()
    return {
        "percent": memory.percent,
        "used": memory.used,
        "available": memory.available,
        "cached": getattr(memory, "cached", None),
        "total": memory.total,
        "swap_used": psutil.swap_memory().used,
    }
