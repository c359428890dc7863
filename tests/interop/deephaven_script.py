"""Runs inside the process of a real Deephaven server: the tables of the matrix, changed on command.

Commands come as lines on stdin, answers go to stdout, one JSON object per line; they are listed
in :mod:`tests.interop.driven_server`, which starts this script. Needs the package
``deephaven-server``.
"""

import json
import pathlib
import sys

from deephaven_server import Server

PORT, SEED, DIRECTORY = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
server = Server(
    port=PORT,
    jvm_args=[
        "-Xmx1500m",
        "-XX:TieredStopAtLevel=1",
        "-DAuthHandlers=io.deephaven.auth.AnonymousAuthenticationHandler",
        "-Dhttp.host=127.0.0.1",
        "-DPeriodicUpdateGraph.targetCycleDurationMillis=20",
        "-Dbarrage.minUpdateInterval=20",
    ],
    default_jvm_args=[],
)
server.start()

import pyarrow as pa  # noqa: E402
from deephaven import agg, empty_table, input_table, ring_table  # noqa: E402
from deephaven import arrow as dharrow  # noqa: E402
from deephaven.execution_context import get_exec_ctx  # noqa: E402
from deephaven.stream import blink_to_append_only  # noqa: E402
from deephaven.stream.table_publisher import table_publisher  # noqa: E402
from deephaven.update_graph import shared_lock  # noqa: E402
from workload import AFFECTED, RING_ROWS, SMALL_VALUE, STATIC, Workload  # noqa: E402

workload = Workload(SEED)


def initial(name):
    return dharrow.to_table(workload.initial[name])


keyed = input_table(init_table=initial("keyed"), key_cols="K")
extra = input_table(init_table=initial("extra"), key_cols="K")
grown = input_table(init_table=initial("grown"))
types = input_table(init_table=initial("types"))
big = input_table(init_table=initial("big"), key_cols="A")
feed, feed_publisher = table_publisher(
    "feed", {column.name: column.data_type for column in initial("feed").columns}
)
ring = ring_table(feed, RING_ROWS)
_feed_log = blink_to_append_only(feed)
sorted_by_value = keyed.sort(["V", "K"])
small_values = keyed.where(f"V < {SMALL_VALUE}")
last_rows = keyed.tail(20)
per_digit = keyed.update_view("G = (double)(V % 10)").agg_by(
    [agg.count_("n"), agg.sum_("total = V"), agg.min_("lowest = V"), agg.max_("highest = D")], "G"
)
joined = keyed.natural_join(extra, "K")
static_rows = initial("static_rows")
no_rows = initial("no_rows")
odd_lists = initial("odd_lists")
all_types = empty_table(5).update(
    [
        "Byte = i == 1 ? NULL_BYTE : (byte)i",
        "Short = i == 1 ? NULL_SHORT : (short)i",
        "Int = i == 1 ? NULL_INT : i",
        "Long = i == 1 ? NULL_LONG : ii * 10000000000L",
        "Char = i == 1 ? NULL_CHAR : (char)(65 + i)",
        "Float = i == 1 ? NULL_FLOAT : (float)(i * 0.5)",
        "Double = i == 1 ? NULL_DOUBLE : i * 0.25",
        "Bool = i == 1 ? null : i % 2 == 0",
        "Text = i == 1 ? null : `t` + i",
        "Instant = i == 1 ? null : epochNanosToInstant(1700000000000000000L + i)",
        "Date = i == 1 ? null : java.time.LocalDate.ofEpochDay(19000 + i)",
        "Time = i == 1 ? null : java.time.LocalTime.ofNanoOfDay(ii * 1000000007L)",
        "Duration = i == 1 ? null : java.time.Duration.ofNanos(ii)",
        "BigInt = i == 1 ? null : java.math.BigInteger.valueOf(ii * 1000000007L)",
        "BigDec = i == 1 ? null : java.math.BigDecimal.valueOf(ii * 1001, 3)",
        "Ints = i == 1 ? null : new int[]{i, i + 1, NULL_INT}",
        "Texts = i == 1 ? null : new String[]{`a` + i, null}",
        "Bytes = i == 1 ? null : new byte[]{(byte)i, (byte)2}",
    ]
)

INPUTS = {"keyed": keyed, "extra": extra, "grown": grown, "types": types, "big": big}
versions = {}
fed = 0


def contents(name):
    with shared_lock(get_exec_ctx().update_graph):
        return dharrow.to_arrow(globals()[name])


def record(name, table=None):
    """Keep what ``name`` holds now as its next version."""
    rows = contents(name) if table is None else table
    number = versions[name] = versions.get(name, -1) + 1
    write(rows, DIRECTORY / f"{name}.{number}.arrow")


def write(rows, path):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


def apply(change):
    global fed
    if change.table == "feed":
        fed += change.rows.num_rows
        feed_publisher.add(dharrow.to_table(change.rows))
        with shared_lock(get_exec_ctx().update_graph):
            pass
        while _feed_log.size < fed:
            _feed_log.await_update(100)
        record("feed", change.rows)
        record("ring")
        return
    table = INPUTS[change.table]
    rows = dharrow.to_table(change.rows)
    if change.verb == "remove":
        table.delete(rows)
    else:
        table.add(rows)
    for name in AFFECTED[change.table]:
        record(name)


def resident_bytes():
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def answer(words):
    if words[0] == "step":
        for change in workload.next_step().changes:
            apply(change)
    elif words[0] == "big_step":
        for change in workload.next_big_step().changes:
            apply(change)
    elif words[0] == "truth":
        write(contents(words[1]), words[2])
    elif words[0] == "stats":
        return {"rss": resident_bytes()}
    return {"versions": versions, "step": workload.number}


for table_names in AFFECTED.values():
    for table_name in table_names:
        if table_name not in versions:
            record(table_name)
for table_name in STATIC:
    record(table_name)
print(json.dumps({"ok": True, "port": server.port, "versions": versions}), flush=True)
for line in sys.stdin:
    words = line.split()
    if not words or words[0] == "quit":
        break
    try:
        print(json.dumps({"ok": True, **answer(words)}), flush=True)
    except Exception as error:
        print(json.dumps({"ok": False, "error": str(error)[:2000]}), flush=True)
