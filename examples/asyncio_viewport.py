"""A window of a million rows, moved while it is live. Only the window travels."""

import asyncio

import numpy as np
import pyarrow as pa

import barrage

ROWS = 1_000_000


async def watch(uri: str) -> None:
    async with barrage.aconnect(uri) as session:
        big = session.table("big")
        async with big.subscribe(viewport=(0, 5), interval_ms=10) as window:
            await window.wait_ready(10)
            print("first rows:", window.to_arrow().column("n").to_pylist())

            await window.set_viewport((500_000, 500_005))
            await window.wait_ready(10)
            print("rows in the middle:", window.to_arrow().column("n").to_pylist())

            await window.set_viewport((0, 5), reverse=True)
            await window.wait_ready(10)
            print("last rows:", window.to_arrow().column("n").to_pylist())
            print(f"{window.table_size:,} rows in the table, {window.stats.bytes:,} bytes received")


with barrage.Server() as server:
    server.create_table("big", kind="static", data=pa.table({"n": np.arange(ROWS)}))
    asyncio.run(watch(server.uri))
