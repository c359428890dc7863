"""Separate executor JVMs, and Spark Connect: the package comes from a zip on PYTHONPATH only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import barrage
from tests.spark.serving import connect, options_for
from tests.spark.session import ROOT, java_options

pytest.importorskip("pyspark")
PACKAGES = ("barrage", "spark_sink", "pyspark_barrage")
SCRIPT = Path(__file__).with_name("whole_pipeline.py")
SECONDS_MAX = 300
ROWS = 500


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """The zip of docs/spark.md."""
    path = tmp_path_factory.mktemp("package") / "barrage.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in PACKAGES:
            for file in sorted((ROOT / name).rglob("*.py")):
                archive.write(file, file.relative_to(ROOT))
    return path


def settings(work: Path, package: Path, **session: str) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "local"),
        "spark.executorEnv.PYTHONPATH": str(package),
        **session,
    }


def run_pipeline(
    work: Path,
    package: Path,
    server: barrage.Server,
    session: dict,
    *,
    python: str = sys.executable,
) -> dict:
    """Run the script with the zip as the only way to our packages; what it printed."""
    told = work / "settings.json"
    told.write_text(
        json.dumps({"server": options_for(server), "work": str(work), "session": session})
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TZ": "UTC",
    }
    done = subprocess.run(
        [python, str(SCRIPT), str(told)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        cwd=work,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(server: barrage.Server, table, found: dict) -> None:
    """Everything the pipeline wrote and read, against the server's own rows."""
    before = [row for row in table.to_arrow().to_pylist() if row["id"] < 10_000]
    sums: dict[str, float] = {}
    for row in before:
        sums[row["symbol"]] = sums.get(row["symbol"], 0) + row["size"]
    with connect(server) as session:
        copy = session.table("copy").snapshot().to_pylist()
        assert sorted(copy, key=lambda row: row["id"]) == before
        for name in ("totals", "all_totals"):
            rows = session.table(name).snapshot().to_pylist()
            assert {row["symbol"]: row["size"] for row in rows} == sums
            assert len(rows) == len(sums)
        assert sorted(session.table("five").snapshot()["id"].to_pylist()) == list(range(5))
    assert found["view"] == [ROWS, sum(row["size"] for row in before)]
    assert found["later"] == ROWS + 1
    assert found["version"][0] == table.cursor.epoch


@pytest.fixture
def table(server):
    made = server.create_table(
        "trades", {"id": "int64", "symbol": "string", "size": "float64"}, key="id"
    )
    ids = list(range(ROWS))
    made.upsert({"id": ids, "symbol": [f"s{i % 5}" for i in ids], "size": [float(i) for i in ids]})
    return made


def test_executors_in_processes_of_their_own(server, table, package, tmp_path):
    session = settings(tmp_path, package, master="local-cluster[2,1,1024]")
    session["spark.executor.memory"] = "512m"
    session["spark.executor.extraJavaOptions"] = java_options()
    found = run_pipeline(tmp_path, package, server, session)
    check(server, table, found)
    assert all(str(package) in worker for worker in found["workers"])
    assert len({worker.split()[0] for worker in found["workers"]}) == 2, "two executors worked"


def test_spark_connect(server, table, package, tmp_path):
    session = settings(tmp_path, package, remote="local[2,4]")
    found = run_pipeline(tmp_path, package, server, session)
    check(server, table, found)
    assert all(str(package) in worker for worker in found["workers"])
