"""How tests start Spark: one small local session, with this tree's packages in every process.

The figures (heap, threads, partitions) are those of a two-core machine; a session and its first
query take about 15 seconds, a later query 2 to 5.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
CLASS_ARCHIVE = "BARRAGE_SPARK_CLASS_ARCHIVE"
"""Environment variable with the path of a class-data archive of the JVM: used when the file is
there, made at the end of the session when it is not. Halves the time to start."""

MASTER = "local[2,4]"
"""Two tasks at a time, and four attempts each: a killed worker is a retry, not a failed query."""


def has_java() -> bool:
    """Whether a JVM can be started."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or bool(home and Path(home, "bin", "java").exists())


def prepare_environment() -> None:
    """Let every Python process of Spark use this interpreter and find this tree.

    Spark looks for ``pyspark_*`` modules in the directories of the search path, and an editable
    installation is not one of them.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["TZ"] = "UTC"
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(ROOT) not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, known)])


def java_options() -> str:
    """Flags for a JVM that starts soon and stays small."""
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Duser.timezone=UTC"]
    archive = os.environ.get(CLASS_ARCHIVE)
    if archive:
        known = "SharedArchiveFile" if Path(archive).exists() else "ArchiveClassesAtExit"
        options += [
            f"-XX:{known}={archive}",
            "-Xshare:auto",
            "-Xlog:cds=off",
            "-Xlog:cds+dynamic=off",
        ]
    return " ".join(options)


def start_session(
    work: Path, *, master: str = MASTER, name: str = "barrage tests", **settings: Any
) -> SparkSession:
    """A session that keeps everything it writes under ``work``.

    ``settings`` are further Spark settings, with ``__`` for the dots of their names.
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options(),
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "local"),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        **{key.replace("__", "."): str(value) for key, value in settings.items()},
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF" if os.environ.get("SPARK_QUIET") else "ERROR")
    return session
