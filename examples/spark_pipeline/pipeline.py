"""Orders and fills -> barrage -> Spark -> barrage, while the server is killed: see README.md.

Run with ``make spark-demo``. It ends with exit code 1 when a single number is not as it should be.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

# Spark starts its workers with the interpreter named here.
os.environ["PYSPARK_PYTHON"] = sys.executable

import barrage
import barrage.spark
from barrage.errors import BarrageError
from spark_sink.java_runtime import ensure_java

SYMBOLS = ("AAPL", "MSFT", "NVDA")
BEGIN = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
ORDERS_A_BATCH = 20
SECONDS_MAX = 180
ANSWER_SECONDS_MAX = 60
WRONG_USE = 2
"""Exit code of a command whose words or settings are wrong: it says so, and will again."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, so that they are the same in every life of the server."""
    with contextlib.ExitStack() as probes:
        opened = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in opened:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in opened]


class Server:
    """A server in a process of its own, with its tables on disk."""

    def __init__(self, data: Path) -> None:
        self._port, self._web_port = free_ports(2)
        self._data = data
        self._log = data.with_name("server.log")
        self.uri = f"grpc://127.0.0.1:{self._port}"
        self.page = f"http://127.0.0.1:{self._web_port}/"

    def start(self) -> None:
        words = ["serve", "--data", str(self._data), "--port", str(self._port)]
        words += ["--web", "--web-port", str(self._web_port)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from barrage.cli.main import main; main()", *words],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            if self._process.poll() == WRONG_USE:
                raise SystemExit(self._log.read_text().strip())
            if self._process.poll() is not None:
                # Somebody else had the port for a moment.
                self.start()
            try:
                with barrage.connect(self.uri, timeout=5):
                    return
            except BarrageError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class Market:
    """Orders, and fills of nine in ten of them, written once each whatever happens to the
    server. ``is_spoiled``: the first fill is written with another quantity than is remembered."""

    def __init__(self, session: barrage.Session, *, is_spoiled: bool) -> None:
        self._is_spoiled = is_spoiled
        self._writers = {}
        for name, columns in {
            "orders": {"order": "int64", "ordered": "timestamp[us, UTC]", "sym": "string"},
            "fills": {"filled": "int64", "at": "timestamp[us, UTC]", "qty": "int64"},
        }.items():
            session.create_table(name, columns)
            self._writers[name] = session.writer(name, producer="market")
        self._count = 0
        self.by_minute: collections.Counter[tuple[str, datetime]] = collections.Counter()
        self.filled: dict[int, int] = {}

    def trade(self) -> None:
        """One batch of orders and their fills."""
        numbers = range(self._count, self._count + ORDERS_A_BATCH)
        self._count += ORDERS_A_BATCH
        times = [BEGIN + timedelta(seconds=number) for number in numbers]
        syms = [random.choice(SYMBOLS) for _ in numbers]
        self._writers["orders"].write({"order": list(numbers), "ordered": times, "sym": syms})
        fills = [pair for pair in zip(numbers, times, strict=True) if pair[0] % 10]
        quantities = [random.randrange(1, 100) for _ in fills]
        later = [moment + timedelta(seconds=5) for _, moment in fills]
        written = list(quantities)
        if self._is_spoiled:
            written[0] += 1
            self._is_spoiled = False
        self._writers["fills"].write(
            {"filled": [number for number, _ in fills], "at": later, "qty": written}
        )
        for sym, moment in zip(syms, times, strict=True):
            self.by_minute[sym, moment.replace(second=0)] += 1
        self.filled |= dict(zip([number for number, _ in fills], quantities, strict=True))

    def close(self) -> None:
        """When everything is committed."""
        for writer in self._writers.values():
            writer.close()


def stream(spark: Any, server: Server, table: str) -> Any:
    """The rows of a table as they come."""
    reader = spark.readStream.format("barrage").option("uri", server.uri)
    return reader.option("readChangeFeed", "false").load(table)


def queries(spark: Any, server: Server, work: Path) -> dict[str, Any]:
    """What is not started yet: orders by minute in update mode, and orders joined with their
    fills."""
    from pyspark.sql import functions

    orders = stream(spark, server, "orders").withWatermark("ordered", "1 minute")
    fills = stream(spark, server, "fills").withWatermark("at", "1 minute")
    by_minute = (
        orders.groupBy(functions.window("ordered", "1 minute").alias("w"), "sym")
        .count()
        .select("sym", functions.col("w.start").alias("minute"), "count")
    )
    joined = orders.join(
        fills,
        functions.expr("order = filled and at between ordered and ordered + interval 30 seconds"),
    ).select("order", "sym", "qty")
    sinks = {
        "orders_by_minute": by_minute.writeStream.outputMode("update").option(
            "keyColumns", "sym,minute"
        ),
        "dashboard": joined.writeStream.outputMode("append"),
    }
    return {
        name: sink.format("barrage")
        .option("uri", server.uri)
        .option("checkpointLocation", str(work / name))
        for name, sink in sinks.items()
    }


def supervised(writers: dict[str, Any], running: dict[str, Any]) -> None:
    """Start what is not running; a query that failed goes on from its checkpoint."""
    for name, writer in writers.items():
        query = running.get(name)
        if query is None or not query.isActive:
            if query is not None:
                print(f"{name} failed: {barrage.spark.root_cause(query.exception())}")
            running[name] = writer.start(name)


def found(server: Server) -> tuple[dict[Any, int], dict[int, int]]:
    """The two results, as any client sees them. AssertionError when a row is there twice."""
    with barrage.connect(server.uri) as session:
        names = {table.name for table in session.tables()}
        if not {"orders_by_minute", "dashboard"} <= names:
            return {}, {}
        minutes = session.table("orders_by_minute").snapshot().to_pylist()
        joined = session.table("dashboard").snapshot().to_pylist()
    assert len({row["order"] for row in joined}) == len(joined), "a row is there twice"
    return (
        {(row["sym"], row["minute"]): row["count"] for row in minutes},
        {row["order"]: row["qty"] for row in joined},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3, help="how often the server is killed")
    parser.add_argument(
        "--batches", type=int, default=10, help="batches of orders before each kill, and at the end"
    )
    parser.add_argument(
        "--spoil",
        action="store_true",
        help="falsify one fill, to see that the comparison finds it: the exit code is 1",
    )
    asked = parser.parse_args()
    ensure_java()
    # Spark before any connection: see "fork" in docs/spark.md.
    spark = barrage_session()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder, "data"))
        server.start()
        try:
            return run(spark, server, Path(folder), asked=asked)
        finally:
            spark.stop()
            server.kill()


def barrage_session() -> Any:
    """A small local session."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,4]").appName("orders")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    barrage.spark.register(spark)
    return spark


def run(spark: Any, server: Server, work: Path, *, asked: argparse.Namespace) -> int:
    """Trade, kill, and compare; the exit code."""
    kills: int = asked.kills
    server.wait()
    print(f"barrage watch {server.uri.removeprefix('grpc://')}/dashboard", flush=True)
    print(f"or on the page {server.page} the board examples/boards/spark.json", flush=True)
    with barrage.connect(server.uri, timeout=60) as session:
        market = Market(session, is_spoiled=asked.spoil)
        market.trade()
        writers: dict[str, Any] = queries(spark, server, work)
        running: dict[str, Any] = {}
        pause = threading.Event()
        for number in range(kills + 1):
            for _ in range(asked.batches):
                supervised(writers, running)
                market.trade()
                pause.wait(random.random())
            if number < kills:
                print(f"kill {number + 1} of {kills}", flush=True)
                server.kill()
                pause.wait(random.random() * 2)
                server.start()
        market.close()
        wanted = dict(market.by_minute), market.filled
        deadline = time.monotonic() + SECONDS_MAX
        server.wait()
        while (results := found(server)) != wanted:
            wrong = results[1].items() - market.filled.items()
            # A fill in the dashboard stays what it is; all else may still come.
            if wrong or time.monotonic() > deadline:
                print(f"not equal: {len(results[0])} of {len(wanted[0])} minutes, ", end="")
                print(f"{len(results[1])} of {len(wanted[1])} fills, {len(wrong)} of them wrong")
                return 1
            supervised(writers, running)
            pause.wait(0.5)
        for query in running.values():
            query.stop()
        print(f"equal after {kills} kills: {len(wanted[0])} minutes, {len(wanted[1])} fills")
    return 0


if __name__ == "__main__":
    sys.exit(main())
