"""Runs inside the process of a real Deephaven server for ``test_client_on_deephaven.py``.

Arguments: port, lifetime of a session in milliseconds, directory of applications. Two ways to log
in: anonymously and with the key ``sesame``. Commands on stdin, one JSON object per line as answer:

* ``add N``: add N rows to ``grown``, change ``keyed``
* ``truth NAME PATH``: write what a table holds now to an Arrow file
"""

import json
import sys

from deephaven_server import Server

PORT, LIFETIME_MS, APPLICATIONS = sys.argv[1:4]
server = Server(
    port=int(PORT),
    jvm_args=[
        "-Xmx1g",
        "-DAuthHandlers=io.deephaven.auth.AnonymousAuthenticationHandler,"
        "io.deephaven.authentication.psk.PskAuthenticationHandler",
        "-Dauthentication.psk=sesame",
        "-Dhttp.host=127.0.0.1",
        f"-Dhttp.session.durationMs={LIFETIME_MS}",
        f"-Ddeephaven.application.dir={APPLICATIONS}",
        "-DPeriodicUpdateGraph.targetCycleDurationMillis=50",
        "-Dbarrage.minUpdateInterval=50",
    ],
    default_jvm_args=[],
)
server.start()

import pyarrow as pa  # noqa: E402
from deephaven import arrow as dharrow  # noqa: E402
from deephaven import empty_table, input_table, new_table  # noqa: E402
from deephaven.column import (  # noqa: E402
    byte_col,
    char_col,
    double_col,
    float_col,
    int_col,
    long_col,
    short_col,
)
from deephaven.execution_context import get_exec_ctx  # noqa: E402
from deephaven.update_graph import shared_lock  # noqa: E402

keyed = input_table(
    init_table=empty_table(50).update(["K = (int)i", "V = (long)(i * 37 % 50)", "S = `s` + i % 5"]),
    key_cols="K",
)
grown = input_table(init_table=empty_table(1000).update(["N = ii", "T = `row ` + i"]))
static_rows = empty_table(1000).update(["A = (int)i", "B = `b` + i % 10"])
sectors = dharrow.to_table(pa.table({"S": ["s0", "s1"], "Sector": ["tech", "food"]}))
extremes = new_table(
    [
        byte_col("Byte", [127, -127, 0]),
        short_col("Short", [2**15 - 1, -(2**15) + 1, 0]),
        int_col("Int", [2**31 - 1, -(2**31) + 1, 0]),
        long_col("Long", [2**63 - 1, -(2**63) + 1, 0]),
        char_col("Char", [0, 65534, 65]),
        float_col("Float", [3.4e38, -1e-38, float("-inf")]),
        double_col("Double", [1.7e308, -5e-324, float("inf")]),
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
        "Zoned = i == 1 ? null : toZonedDateTime(epochNanosToInstant(ii), timeZone(`ET`))",
        "Date = i == 1 ? null : java.time.LocalDate.ofEpochDay(19000 + i)",
        "Time = i == 1 ? null : java.time.LocalTime.ofNanoOfDay(ii * 1000000007L)",
        "Duration = i == 1 ? null : java.time.Duration.ofNanos(ii)",
        "BigInt = i == 1 ? null : java.math.BigInteger.valueOf(ii * 1000000007L)",
        "BigDec = i == 1 ? null : java.math.BigDecimal.valueOf(ii * 1001, 3)",
        "Object = i == 1 ? null : java.util.List.of(i, `x`)",
        "Ints = i == 1 ? null : new int[]{i, i + 1, NULL_INT}",
        "Longs = i == 1 ? null : new long[]{ii}",
        "Doubles = i == 1 ? null : new double[]{i * 0.5, NULL_DOUBLE}",
        "Bools = i == 1 ? null : new Boolean[]{true, null}",
        "Texts = i == 1 ? null : new String[]{`a` + i, null}",
        "Bytes = i == 1 ? null : new byte[]{(byte)i, (byte)2}",
    ]
)
grouped = static_rows.group_by("B")
count = 0


def add(rows):
    global count
    count += 1
    grown.add(empty_table(rows).update([f"N = 1000L * {count} + i", f"T = `add {count}`"]))
    keyed.add(
        empty_table(20)
        .update(
            [
                f"K = (int)((i * 7 + {count}) % 60)",
                f"V = (long)({count} * 100 + i)",
                "S = `s` + i % 7",
            ]
        )
        .last_by("K")
    )
    keyed.delete(empty_table(2).update([f"K = (int)((i * 5 + {count} * 3) % 60)"]))


def truth(name, path):
    with shared_lock(get_exec_ctx().update_graph):
        table = dharrow.to_arrow(globals()[name])
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


print(json.dumps({"ok": True, "port": server.port}), flush=True)
for line in sys.stdin:
    words = line.split()
    try:
        if words[0] == "add":
            add(int(words[1]))
        elif words[0] == "truth":
            truth(*words[1:])
        print(json.dumps({"ok": True}), flush=True)
    except Exception as error:
        print(json.dumps({"ok": False, "error": str(error)[:2000]}), flush=True)
