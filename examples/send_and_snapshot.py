"""A client creates a table, fills it, changes it, and reads some of it back."""

import barrage

with barrage.Server() as server, barrage.connect(server.uri) as session:
    rows = {"city": ["Oslo", "Rome", "Lima"], "degrees": [-3.5, 14.0, 22.5]}
    print(session.put("weather", rows, key="city"))

    session.put("weather", {"city": ["Oslo"], "degrees": [-4.0]}, key="city")
    for info in session.tables():
        print(info.name, info.total_records, "rows, key", info.key)

    weather = session.table("weather")
    print(weather.snapshot(columns=["degrees", "city"], rows=(0, 2)).to_pylist())
    session.drop_table("weather")
