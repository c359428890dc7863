"""What Spark needs to read and write tables of a server, looked at one after the other
(``barrage spark doctor``). Nothing here starts a JVM but for asking its version."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from importlib import metadata
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import BarrageError
from barrage.transport.findings import CheckStatus, Finding, fine, problem, warning
from spark_sink.connection import Failure, ServerConnection, ServerError
from spark_sink.fetch import fetch_piece
from spark_sink.java_runtime import JavaNotFoundError, java_home
from spark_sink.planning import ID_END, snapshot_pieces
from spark_sink.sink_flight import BatchKey, commit, stage
from spark_sink.sink_options import SinkOptions, WriteMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PYSPARK_MIN, PYSPARK_END = (4, 2), (5,)
WORKER_SECONDS_MAX = 60
RECONNECT_MS = "2000"
"""A doctor does not wait for a server for a minute."""

_WORKER_CHECK = "import pyarrow, barrage, spark_sink, pyspark_barrage; print(barrage.__version__)"
_ROW = pa.schema([("n", pa.int64())])
_INSTALL = "pip install 'barrage[spark]'"


def examine_spark(options: Mapping[str, str] | None) -> list[Finding]:
    """Findings about this machine and, with the ``options`` of a connection, about its server."""
    findings = [java(), pyspark(), worker_python()]
    if options is not None:
        findings += server(options)
    return findings


def java() -> Finding:
    """Whether there is a Java that Spark runs on."""
    try:
        home = java_home()
    except JavaNotFoundError as error:
        return problem("java", "none of version 17 or newer", str(error))
    if home is None:
        return fine("java", f"on the path: {shutil.which('java')}")
    if os.environ.get("JAVA_HOME") == str(home):
        return fine("java", f"JAVA_HOME={home}")
    advice = "export JAVA_HOME=$(python -m spark_sink.java_runtime)"
    return warning("java", f"only that of a package, at {home}", advice)


def pyspark() -> Finding:
    """Whether PySpark is there, in a version with what the source needs."""
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return problem("pyspark", "not installed", _INSTALL)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not PYSPARK_MIN <= numbers < PYSPARK_END:
        return problem("pyspark", f"{version}, not 4.2 or newer and below 5", _INSTALL)
    return fine("pyspark", version)


def worker_python() -> Finding:
    """Whether the interpreter Spark starts its workers with has what they need."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    path = shutil.which(chosen or "python3")
    name = "worker python"
    advice = "export PYSPARK_PYTHON to the interpreter that has barrage, before the session is made"
    if path is None:
        return problem(name, f"{chosen or 'python3'} is not there", advice)
    try:
        done = subprocess.run(
            [path, "-c", _WORKER_CHECK],
            capture_output=True,
            text=True,
            timeout=WORKER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return problem(name, f"{path} cannot be run: {error}", advice)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        return problem(name, f"{path}: {last}", advice)
    return fine(name, f"{path}, barrage {done.stdout.strip()}")


def server(options: Mapping[str, str]) -> list[Finding]:
    """Whether a server answers, and whether a row that is written can be read again."""
    given = {"reconnectTimeoutMs": RECONNECT_MS, **options}
    connection = ServerConnection.of(given)
    findings = [_guarded(connection.where, lambda: _reachable(connection))]
    if findings[0].status is not CheckStatus.PROBLEM:
        findings.append(_guarded("round trip", lambda: _round_trip(given, connection)))
    return findings


def _guarded(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except ServerError as error:
        if error.failure is Failure.NO_JOURNAL:
            return problem(
                name,
                "a row was written, but new tables have no journal to read it from",
                "start the server with --data DIR or --journal memory, or set option "
                "journalLocation of the source",
            )
        return problem(name, str(error), "the options of docs/spark.md say how to connect")
    except BarrageError as error:
        return problem(name, str(error), "the server's log says more")


def _reachable(connection: ServerConnection) -> Finding:
    def ask() -> set[str]:
        options = connection.call_options(connection.timeout_ms)
        return {action.type for action in connection.client().list_actions(options)}

    actions = connection.retried(ask, doing=f"asking {connection.where} what it can do")
    missing = sorted({"journal.info", "stage.commit"} - actions)
    if missing:
        return problem(
            connection.where,
            f"answers, but has no action {missing[0]}",
            "it is no barrage server: read it with option journalLocation; it cannot be written to",
        )
    return fine(connection.where, "answers, and has what source and sink need")


def _round_trip(given: Mapping[str, str], connection: ServerConnection) -> Finding:
    """One row by the calls that Spark's tasks and driver make, into a table that is dropped."""
    table = f"spark_doctor_{secrets.token_hex(6)}"
    options = SinkOptions.of({**given, "table": table})
    key = BatchKey(writer=table, batch=0)
    rows = pa.record_batch({"n": pa.array([42], pa.int64())}, schema=_ROW)
    part = stage(options, key, partition=0, schema=_ROW, batches=[rows])
    mode = WriteMode.APPEND
    commit(options, key, [part], mode=mode, schema=_ROW, is_loss_refused=False)
    try:
        told = connection.action("journal.info", table=table)
        epoch, version = str(told["epoch"]), int(told["version"])
        (piece,) = snapshot_pieces(table, epoch, version, ids=(0, ID_END), cuts=(), form={})
        batches = fetch_piece(connection, piece, _ROW, fails_on_data_loss=True)
        found = [value for batch in batches for value in batch.column("n").to_pylist()]
    finally:
        connection.action("barrage.drop_table", table=table)
    if found != [42]:
        return problem("round trip", f"wrote [42], read {found}", "the server's log says more")
    return fine("round trip", "one row was written, committed, planned and read")
