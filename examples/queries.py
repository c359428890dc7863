"""Operators chained to a remote table: the server runs them, the result stays up to date."""

import barrage

SCHEMA = {"symbol": "string", "price": "float64", "size": "int64"}
ROWS = {"symbol": ["A", "B", "A"], "price": [10.0, 20.0, 12.0], "size": [5, 1, 2]}

with barrage.Server() as server, barrage.connect(server.uri) as session:
    trades = server.create_table("trades", SCHEMA, data=ROWS)
    names = {"symbol": ["A", "B"], "name": ["Acme", "Bolt"]}
    server.create_table("names", {"symbol": "string", "name": "string"}, key="symbol", data=names)

    remote = session.table("trades")
    values = remote.select("symbol", value="price * size").where("value > 10")
    print(values.snapshot().to_pylist())

    totals = remote.agg_by("symbol", n="count()", top="max(price)")
    named = totals.natural_join(session.table("names"), on="symbol", add="name").sort("-top")
    with named.subscribe(interval_ms=10) as live:
        live.wait_ready(5)
        print(live.to_arrow().to_pylist())
        updates = live.updates(timeout=5)
        trades.add({"symbol": ["A"], "price": [30.0], "size": [1]})
        while live.to_arrow()["top"][0].as_py() != 30.0:
            next(updates)
        print(live.to_arrow().to_pylist())
