"""Runs inside the process of a real Deephaven server: tables to subscribe to, changed on command.

Commands come as lines on stdin, answers go to stdout, one JSON object per line:

* ``step``: change every ticking table once, wait until the change is visible
* ``truth NAME PATH``: write the table's present contents to an Arrow file
* ``quit``

Needs the package ``deephaven-server``; started by :mod:`tests.interop.deephaven_process`.
"""

import json
import sys

from deephaven_server import Server

PORT = int(sys.argv[1])
server = Server(
    port=PORT,
    jvm_args=[
        "-Xmx2g",
        "-DAuthHandlers=io.deephaven.auth.AnonymousAuthenticationHandler",
        "-Dhttp.host=127.0.0.1",
        "-DPeriodicUpdateGraph.targetCycleDurationMillis=50",
        "-Dbarrage.minUpdateInterval=50",
    ],
    default_jvm_args=[],
)
server.start()

import pyarrow as pa  # noqa: E402
from deephaven import arrow as dharrow  # noqa: E402
from deephaven import empty_table, input_table  # noqa: E402
from deephaven.execution_context import get_exec_ctx  # noqa: E402
from deephaven.update_graph import shared_lock  # noqa: E402

KEYED_ROWS = 200

keyed = input_table(
    init_table=empty_table(KEYED_ROWS).update(
        [
            "K = (int)i",
            "V = (long)(i * 7919 % 1000)",
            "S = i % 11 == 0 ? null : `s` + i",
            "D = i % 7 == 0 ? NULL_DOUBLE : i * 0.5",
        ]
    ),
    key_cols="K",
)
grown = input_table(
    init_table=empty_table(10).update(
        ["N = (long)i", "T = `row ` + i", "W = epochNanosToInstant(i)"]
    )
)
sorted_by_value = keyed.sort("V")
small_values = keyed.where("V < 300")
last_rows = keyed.tail(20)
per_digit = keyed.update_view("G = V % 10").count_by("n", "G")
static_rows = empty_table(1000).update(["A = (int)i", "B = `b` + i % 10"])
no_rows = empty_table(0).update(["A = (int)i", "B = `b`"])
big = empty_table(1_000_000).update(
    [
        "A = ii",
        "B = ii * 3",
        "C = i * 0.25",
        "D = (int)(i % 1000)",
        "E = i % 1000 == 0 ? null : `e` + i % 100",
    ]
)
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

step = 0


def change():
    """One deterministic change: upserts, new keys, deletions, appends."""
    global step
    step += 1
    s = step
    keyed.add(
        empty_table(30)
        .update(
            [
                f"K = (int)((i * 37 + {s} * 11) % 260)",
                f"V = (long)((i * 613 + {s} * 271) % 1000)",
                f"S = `u{s}_` + i",
                f"D = {s} + i * 0.5",
            ]
        )
        .last_by("K")
    )
    keyed.delete(
        empty_table(5).update([f"K = (int)((i * 53 + {s} * 29) % 260)"]).select_distinct("K")
    )
    grown.add(
        empty_table(s % 4 + 1).update(
            [
                f"N = (long)({s} * 100 + i)",
                f"T = `step {s}`",
                f"W = epochNanosToInstant({s}L * 1000 + i)",
            ]
        )
    )


def truth(name, path):
    with shared_lock(get_exec_ctx().update_graph):
        table = dharrow.to_arrow(globals()[name])
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


print(json.dumps({"port": server.port}), flush=True)
for line in sys.stdin:
    words = line.split()
    if not words or words[0] == "quit":
        break
    try:
        if words[0] == "step":
            change()
        elif words[0] == "truth":
            truth(*words[1:])
        print(json.dumps({"ok": True, "step": step}), flush=True)
    except Exception as error:
        print(json.dumps({"ok": False, "error": str(error)[:2000]}), flush=True)
