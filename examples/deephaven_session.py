"""A session on a Deephaven server: uploads, an input table, a shared ticket, a named table.

``python examples/deephaven_session.py dh://host:10000`` talks to a Deephaven server; without an
argument it starts a server of this package, which has the same services.
"""

import contextlib
import sys

import pyarrow as pa

import barrage

with contextlib.ExitStack() as stack:
    if len(sys.argv) > 1:
        uri = sys.argv[1]
    else:
        uri = stack.enter_context(barrage.Server()).uri.replace("grpc://", "dh://")
    session = stack.enter_context(barrage.connect(uri))

    uploaded = session.upload({"City": ["Oslo", "Rome"], "Degrees": [-3.5, 14.0]})
    print(uploaded.where("Degrees > 0").snapshot().to_pylist())

    limits = session.input_table(
        pa.schema([("City", pa.string()), ("Max", pa.int32())]), key="City"
    )
    with limits.subscribe(interval_ms=20) as live:
        live.wait_ready(10)
        updates = live.updates(timeout=10)
        limits.add({"City": ["Oslo", "Rome"], "Max": [30, 40]})
        limits.add({"City": ["Oslo"], "Max": [31]})
        while live.to_arrow().to_pydict() != {"City": ["Oslo", "Rome"], "Max": [31, 40]}:
            next(updates)
        print(live.to_arrow().to_pylist())

    ticket = limits.publish_shared()
    with barrage.connect(uri) as other:
        print(other.shared(ticket).snapshot().num_rows, "rows seen by another session")

    session.put("Weather", {"City": ["Oslo"], "Degrees": [-3.5]}, mode="replace")
    print(session.open_table("Weather").snapshot().to_pylist())
    session.drop_table("Weather")
