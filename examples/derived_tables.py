"""Tables that follow other tables: where, sort, head, last_by. Only what changes is computed."""

import barrage

SCHEMA = {"id": "int64", "symbol": "string", "price": "float64"}

with barrage.Server() as server:
    trades = server.create_table("trades", SCHEMA)
    server.publish("dear", trades.where("price > 100 and symbol != 'TEST'").sort("-price").head(3))
    server.publish("latest", trades.last_by("symbol"))

    with barrage.connect(server.uri) as session:
        dear = session.table("dear").subscribe(interval_ms=10)
        updates = dear.updates(timeout=10)
        print("before:", next(updates))

        trades.add(
            [
                {"id": 1, "symbol": "AAPL", "price": 187.2},
                {"id": 2, "symbol": "TEST", "price": 999.0},
                {"id": 3, "symbol": "MSFT", "price": 411.9},
                {"id": 4, "symbol": "AAPL", "price": 188.0},
                {"id": 5, "symbol": "GE", "price": 95.5},
            ]
        )
        print("after:", next(updates))
        print("the three dearest:", dear.to_arrow().to_pylist())
        print("the last of each:", session.table("latest").snapshot().to_pylist())
        dear.close()
