"""A keyed table, a subscriber, and what the updates say."""

import barrage

SCHEMA = {"symbol": "string", "price": "float64", "size": "int64"}

with barrage.Server() as server:
    quotes = server.create_table("quotes", SCHEMA, key="symbol")
    quotes.upsert({"symbol": ["AAPL", "MSFT"], "price": [187.2, 411.9], "size": [100, 50]})

    session = barrage.connect(server.uri)
    with session, session.table("quotes").subscribe(interval_ms=10) as mine:
        mine.wait_ready(timeout=10)
        print(mine.to_arrow().to_pylist())

        updates = mine.updates(timeout=10)
        print("first the whole state:", next(updates))

        # The price of one row changes; its size does not, and is not sent.
        quotes.upsert({"symbol": ["MSFT"], "price": [412.0], "size": [50]})
        update = next(updates)
        print("modified:", {name: rows for name, rows in update.modified_rows.items()})

        quotes.remove(["AAPL"])
        print("removed:", next(updates).removed.to_pylist())
        print(mine)
