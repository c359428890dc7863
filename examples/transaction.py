"""Two tables changed in one step: a subscriber never sees one change without the other."""

import barrage
from barrage.errors import BarrageError

with barrage.Server() as server:
    accounts = server.create_table(
        "accounts",
        key="name",
        data={"name": ["ada", "bob"], "balance": [100, 0]},
    )
    transfers = server.create_table("transfers", {"from": "string", "to": "string", "sum": "int64"})

    with server.transaction() as changes:
        changes.upsert(accounts, {"name": ["ada", "bob"], "balance": [70, 30]})
        changes.add(transfers, {"from": "ada", "to": "bob", "sum": 30})
    print("committed in step", changes.step)

    try:
        with server.transaction() as changes:
            changes.add(transfers, {"from": "ada", "to": "bob", "sum": 99})
            changes.upsert(accounts, {"name": ["ada", None], "balance": [-29, 129]})
    except BarrageError as error:
        print("refused as a whole:", error)

    with barrage.connect(server.uri) as session:
        print(session.table("accounts").snapshot().to_pylist())
        print(session.table("transfers").snapshot().to_pylist())
