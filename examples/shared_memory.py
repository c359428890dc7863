"""Large updates through shared memory: one word on the server, nothing on a client of the same
host, and the same rows."""

import numpy as np
import pyarrow as pa

import barrage

ROWS = 200_000


def readings(number: int) -> pa.Table:
    return pa.table({"sensor": np.arange(ROWS), "value": np.full(ROWS, float(number))})


with barrage.Server(bodies="shm") as server:
    sensors = server.create_table("sensors", key="sensor", data=readings(0))

    # bodies="auto" is the default; "inline" is what happens wherever shared memory cannot be had.
    session = barrage.connect(server.uri, bodies="auto")
    with session, session.table("sensors").subscribe(interval_ms=10) as mine:
        mine.wait_ready(timeout=10)
        print("bodies come by", mine.bodies)

        updates = mine.updates(timeout=10)
        next(updates)
        for number in range(1, 6):
            sensors.upsert(readings(number))
            print(next(updates))

        for way, count in mine.stats.bodies.by_way():
            print(f"{way}: {count.count} bodies, {count.bytes:,} bytes")

        # Rows without a copy: they lie where the server has put them, and stay as they are.
        print(session.table("sensors").snapshot().num_rows, "rows at one moment")
