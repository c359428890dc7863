"""What is on the screen is what the server has, whatever happened in between."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.web.page.expected import expected_rows
from tests.web.page.screen import Screen, wait_until

SCHEMA = {
    "id": "int64",
    "name": "string",
    "qty": "int32",
    "price": "float64",
    "isOpen": "bool",
    "large": "int64",
    "ts": pa.timestamp("ns", "UTC"),
}
TEXTS = ["", "a", "AAPL", "é", "世界", "🦀🦀", "שלום", "tab\tin", "<b>bold</b>"]
ONE_LINE = str.maketrans({"\n": "↵", "\t": "⇥"})


def random_rows(rng: random.Random, ids: list[int]) -> dict[str, list[Any]]:
    def maybe(make: Any) -> list[Any]:
        return [None if rng.random() < 0.1 else make() for _ in ids]

    return {
        "id": ids,
        "name": maybe(lambda: rng.choice(TEXTS)),
        "qty": maybe(lambda: rng.randrange(-(2**31), 2**31)),
        "price": maybe(lambda: round(rng.uniform(-1e6, 1e6), rng.randrange(6))),
        "isOpen": maybe(lambda: rng.random() < 0.5),
        "large": maybe(lambda: rng.randrange(-(2**63), 2**63)),
        "ts": maybe(lambda: rng.randrange(0, 2**61)),
    }


def shows_exactly(screen: Screen, table: Any, columns: list[str]) -> bool:
    rows = expected_rows(table.to_arrow().select(columns))
    cells = screen.cells()
    if screen.row_count != len(rows) or not cells or not screen.is_current:
        return False
    return all(
        at < len(rows)
        and {name: text and text.translate(ONE_LINE) for name, text in rows[at].items()} == seen
        for at, seen in cells.items()
    )


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_of_a_table_whose_rows_move(server, open_screen, seed):
    rng = random.Random(seed)
    source = server.create_table("source", SCHEMA, key="id")
    ordered = source.sort("-qty", "id")
    server.publish("ordered", ordered)
    source.upsert(random_rows(rng, list(range(300))))
    screen = open_screen(server, "#table=ordered", viewport={"width": 1700, "height": 700})
    columns = list(SCHEMA)
    wait_until(lambda: shows_exactly(screen, ordered, columns), "the first rows")
    alive = set(range(300))
    for place in [0, 120, 10**9, 280, 0, 10**9]:
        screen.go_to(place)
        for _ in range(15):
            action = rng.random()
            if action < 0.6 or len(alive) < 50:
                chosen = rng.sample(range(600), rng.randrange(1, 40))
                source.upsert(random_rows(rng, chosen))
                alive |= set(chosen)
            elif action < 0.9:
                gone = rng.sample(sorted(alive), rng.randrange(1, 30))
                source.remove({"id": gone})
                alive -= set(gone)
            else:
                everything = sorted(alive)
                source.upsert(random_rows(rng, everything))
        wait_until(lambda: shows_exactly(screen, ordered, columns), f"row {place}, seed {seed}")


def test_rows_that_come_and_go_altogether(server, open_screen):
    rng = random.Random(7)
    source = server.create_table("source", SCHEMA, key="id")
    screen = open_screen(server, "#table=source", viewport={"width": 1700, "height": 700})
    wait_until(lambda: screen.in_grid(".empty").text_content() == "No rows")
    for count in (1, 500, 3):
        source.replace(random_rows(rng, list(range(count))))
        wait_until(lambda: shows_exactly(screen, source, list(SCHEMA)), f"{count} rows")
    source.remove({"id": [0, 1, 2]})
    wait_until(lambda: screen.in_grid(".empty").text_content() == "No rows")


def test_following_the_end_of_a_growing_table(server, open_screen):
    source = server.create_table("log", {"id": "int64", "text": "string"})
    source.add({"id": list(range(100)), "text": ["x"] * 100})
    screen = open_screen(server, "#table=log")
    screen.wait_ready()
    screen.press("f")
    for last in (150, 400, 4000):
        source.add({"id": list(range(last - 50, last)), "text": ["y"] * 50})
        wait_until(lambda: f"{last - 1}" in screen.column_values("id"), "the last row")
    rows = source.to_arrow().num_rows
    wait_until(lambda: max(screen.cells()) == rows - 1)
    assert screen.state()["follows"] is True
    screen.press("PageUp")
    wait_until(lambda: screen.state()["follows"] is False)


def test_a_row_stays_where_it_is_while_rows_come_above_it(server, open_screen):
    source = server.create_table("source", {"id": "int64", "rank": "int64"}, key="id")
    source.upsert({"id": list(range(1000)), "rank": list(range(0, 10_000, 10))})
    server.publish("ranked", source.sort("rank"))
    screen = open_screen(server, "#table=ranked")
    screen.wait_ready()
    screen.go_to(500)
    wait_until(lambda: 500 in screen.cells() and screen.is_current)
    screen.press("a")
    place = "() => { const root = document.querySelector('live-grid').shadowRoot;"
    place += " const row = root.querySelector('.row.anchored:not([hidden])');"
    place += " return row && Math.round(row.getBoundingClientRect().top); }"
    before = wait_until(lambda: screen.page.evaluate(place))
    for round_ in range(12):
        first = 1000 + 20 * round_
        source.upsert({"id": list(range(first, first + 20)), "rank": [20 * round_ + 1] * 20})
        source.remove({"id": [round_]})
    there = 500 + 12 * 19
    wait_until(lambda: screen.cells().get(there, {}).get("rank") == "5,000", "the row")
    wait_until(lambda: screen.page.evaluate(place) == before, "the row where it was")


def test_a_wide_table_asks_for_the_columns_in_sight_alone(server, open_screen):
    names = [f"c{i}" for i in range(10_000)]
    server.create_table(
        "wide", kind="static", data={name: [i, None] for i, name in enumerate(names)}
    )
    screen = open_screen(server, "#table=wide")
    screen.wait_ready()
    asked = "document.querySelector('live-grid').core.rows.request.columns.length"
    assert screen.page.evaluate(asked) < 20
    assert screen.cells()[0]["c0"] == "0"
    screen.press("End")
    wait_until(lambda: screen.cells().get(0, {}).get("c9999") == "9,999")
    assert screen.page.evaluate(asked) < 20
    assert screen.cells()[1]["c9999"] is None


def test_a_hundred_million_rows(server, open_screen):
    count = 100_000_000
    server.create_table(
        "huge", kind="static", data=pa.table({"n": pa.array(range_array(count), pa.int32())})
    )
    screen = open_screen(server, "#table=huge")
    screen.wait_ready()
    screen.press("Control+End")
    wait_until(lambda: screen.cells().get(count - 1) == {"n": f"{count - 1:,}"}, "the last row")
    for row in (56_789_012, 0, 99_999_000, 12_345_678):
        screen.go_to(row)
        wait_until(lambda: screen.cells().get(row) == {"n": f"{row:,}"}, f"row {row}")
    top = "document.querySelector('live-grid').core.window.top"
    before = screen.page.evaluate(top)
    box = screen.in_grid(".body").bounding_box()
    screen.page.mouse.move(box["x"] + 200, box["y"] + 100)
    screen.page.mouse.wheel(0, 240)
    wait_until(lambda: screen.page.evaluate(top) == before + 10, "ten rows further")
    screen.press("PageDown", "PageDown", "Home", "Control+Home")
    wait_until(lambda: screen.cells().get(0) == {"n": "0"})


def range_array(count: int) -> Any:
    import numpy as np

    return np.arange(count, dtype=np.int32)
