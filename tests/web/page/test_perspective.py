"""Perspective's viewer in a panel: a real Perspective, in a frame, in step with a table."""

from __future__ import annotations

import datetime
import json
import random
import urllib.parse
from decimal import Decimal
from importlib.metadata import PackageNotFoundError

import pyarrow as pa
import pytest

from barrage.web.perspective_files import perspective_files
from tests.web.page.conftest import web_server
from tests.web.page.screen import wait_until
from tests.web.page.test_access import audit
from tests.web.page.test_trust import port_of

pytest.importorskip("perspective")

ROWS_MAX = 100_000
"""Of `web/perspective/perspective_core.ts`."""

READ = """async (names) => {
  const viewer = document.querySelector('perspective-viewer');
  if (!viewer) return null;
  const view = await (await viewer.getTable()).view({columns: names});
  const columns = await view.to_columns();
  await view.delete();
  return JSON.stringify(columns);
}"""


def board(*panels):
    rows = [{"height": 1, "panels": [{**panel, "width": 1} for panel in panels]}]
    return "#board=" + urllib.parse.quote(json.dumps({"rows": rows}))


def perspective(table, **more):
    return {"perspective": {"table": table, **more}}


def frame_of(screen):
    """The one frame there is."""
    found = wait_until(lambda: screen.page.query_selector("live-perspective iframe"), "the frame")
    return found.content_frame()


def rows_of(frame, *names):
    """The rows Perspective has, in no order; none while it has no table."""
    told = frame.evaluate(READ, list(names))
    columns = json.loads(told) if told else {}
    return sorted(zip(*(columns.get(name, []) for name in names), strict=True), key=repr)


def shown_rows(frame, *names):
    try:
        return rows_of(frame, *names)
    except Exception:  # no viewer yet, or one without a table
        return None


def kept_state(screen):
    text = urllib.parse.unquote(screen.page.evaluate("location.hash"))
    return json.loads(text.removeprefix("#board="))["rows"][0]["panels"]


SCHEMA = {"id": "int64", "symbol": "string", "price": "float64", "size": "int32", "open": "bool"}
NAMES = tuple(SCHEMA)


def random_rows(rng, ids):
    return {
        "id": list(ids),
        "symbol": [rng.choice(["A", "B", "é", None]) for _ in ids],
        "price": [rng.choice([None, rng.randint(-4000, 4000) / 8]) for _ in ids],
        "size": [rng.randint(-(2**31), 2**31 - 1) for _ in ids],
        "open": [rng.choice([True, False, None]) for _ in ids],
    }


@pytest.mark.parametrize("seed", range(2))
def test_values_follow_the_server(server, open_screen, seed):
    rng = random.Random(seed)
    table = server.create_table("quotes", SCHEMA, key="id")
    table.upsert(random_rows(rng, range(200)))
    screen = open_screen(server, board(perspective("quotes")))
    frame = frame_of(screen)

    def is_equal():
        rows = sorted(map(tuple, (row.values() for row in table.to_arrow().to_pylist())), key=repr)
        return shown_rows(frame, *NAMES) == rows

    wait_until(is_equal, "the first rows")
    for _ in range(12):
        ids = rng.sample(range(400), rng.randint(1, 60))
        table.upsert(random_rows(rng, ids))
        if rng.random() < 0.7:
            there = table.to_arrow()["id"].to_pylist()
            table.remove({"id": rng.sample(there, len(there) // 4)})
        if rng.random() < 0.5:
            wait_until(is_equal, "the rows of one step")
    wait_until(is_equal, "the last rows")
    table.remove({"id": table.to_arrow()["id"].to_pylist()})
    wait_until(is_equal, "no rows")


def opened_by_menu(screen):
    screen.page.get_by_label("Charts").first.click()
    screen.page.get_by_role("menuitem", name="Pivots and charts of Perspective").click()


def test_it_is_loaded_when_it_is_opened_and_gone_when_it_is_closed(server, open_screen):
    table = server.create_table("quotes", SCHEMA, key="id")
    table.upsert(random_rows(random.Random(1), range(50)))
    screen = open_screen(server, "#table=quotes")
    screen.wait_ready()
    asked = []
    screen.page.on("request", lambda request: asked.append(request.url))
    screen.set_state(filters={"id": "< 20"})
    wait_until(lambda: screen.row_count == 20)
    assert not [url for url in asked if "perspective" in url]
    opened_by_menu(screen)
    frame = frame_of(screen)
    wait_until(lambda: shown_rows(frame, "id") == [(i,) for i in sorted(range(20), key=repr)])
    assert [panel.keys() & {"grid", "perspective"} for panel in kept_state(screen)] == [
        {"grid"},
        {"perspective"},
    ]
    assert len(screen.page.workers) >= 1
    assert audit(screen) == []
    screen.page.get_by_label("Close panel").nth(1).click()
    frames = screen.page.locator("iframe")
    wait_until(lambda: frames.count() == 0 and not screen.page.workers, "the end of the worker")


def viewer_state(frame):
    return frame.evaluate("document.querySelector('perspective-viewer').save()")


def test_what_is_shown_is_in_the_link(server, open_screen):
    table = server.create_table("quotes", SCHEMA, key="id")
    table.upsert(random_rows(random.Random(2), range(50)))
    screen = open_screen(server, board(perspective("quotes")))
    frame = frame_of(screen)
    wait_until(lambda: screen.page.query_selector("live-perspective .inside[aria-busy=false]"))
    pivot = {"group_by": ["symbol"], "columns": ["size", "price"], "plugin": "Y Bar"}
    frame.evaluate("view => document.querySelector('perspective-viewer').restore(view)", pivot)
    wait_until(lambda: "group_by" in kept_state(screen)[0].get("perspective", {}).get("view", {}))
    kept = kept_state(screen)[0]["perspective"]
    assert {name: kept["view"][name] for name in pivot} == pivot
    assert kept["table"] == "quotes"
    assert not kept["view"].keys() & {"table", "theme", "title"}
    screen.page.reload()
    frame = frame_of(screen)
    wait_until(lambda: len(shown_rows(frame, "id") or []) == 50)
    wait_until(lambda: pivot.items() <= viewer_state(frame).items())


def test_a_kept_view_of_other_columns_gives_way(server, open_screen):
    table = server.create_table("quotes", SCHEMA, key="id")
    table.upsert(random_rows(random.Random(2), range(50)))
    view = {"group_by": ["venue"], "columns": ["lots"], "sort": [["lots", "asc"]]}
    screen = open_screen(server, board(perspective("quotes", view=view)))
    frame = frame_of(screen)
    wait_until(lambda: len(shown_rows(frame, "id") or []) == 50)
    wait_until(lambda: viewer_state(frame)["columns"] == list(NAMES))


def test_a_query(server, open_screen):
    table = server.create_table("quotes", SCHEMA, key="id")
    rows = random_rows(random.Random(3), range(40))
    table.upsert(rows)
    screen = open_screen(server, board(perspective("quotes")))
    frame = frame_of(screen)
    wait_until(lambda: len(shown_rows(frame, "id") or []) == 40)
    line = screen.page.get_by_label("Query")
    line.fill("agg by open n=count()")
    line.press("Enter")
    counts = {(one, rows["open"].count(one)) for one in rows["open"]}
    wait_until(lambda: set(shown_rows(frame, "open", "n") or []) == counts)
    table.remove({"id": [0]})
    counts = {(one, rows["open"][1:].count(one)) for one in rows["open"][1:]}
    wait_until(lambda: set(shown_rows(frame, "open", "n") or []) == counts)


def test_a_table_is_dropped_and_made_again_with_other_columns(server, open_screen):
    table = server.create_table("quotes", SCHEMA, key="id")
    table.upsert(random_rows(random.Random(3), range(40)))
    screen = open_screen(server, board(perspective("quotes")))
    frame = frame_of(screen)
    wait_until(lambda: len(shown_rows(frame, "id") or []) == 40)
    server.drop_table("quotes")
    message = screen.page.locator("live-perspective .message")
    wait_until(message.is_visible, "what is wrong")
    assert "quotes" in message.text_content()
    assert len(rows_of(frame, "id")) == 40
    other = server.create_table("quotes", {"name": "string", "k": "int64"}, key="k")
    other.upsert({"name": ["x", "y"], "k": [1, 2]})
    wait_until(lambda: shown_rows(frame, "k", "name") == [(1, "x"), (2, "y")])
    wait_until(lambda: not message.is_visible())
    assert viewer_state(frame)["columns"] == ["name", "k"]


def test_types(server, open_screen):
    schema = {
        "_row": "int64",
        "big": "uint64",
        "day": "date32",
        "at": pa.timestamp("ns", "UTC"),
        "amount": pa.decimal128(10, 2),
        "raw": "binary",
        "many": pa.list_(pa.int64()),
    }
    table = server.create_table("odd", schema, key="_row")
    late = 2**53 + 2
    table.upsert(
        {
            "_row": [late, 2],
            "big": [2**64 - 1, None],
            "day": [datetime.date(1969, 12, 31), None],
            "at": [-1_500_000, None],
            "amount": [Decimal("-1.50"), None],
            "raw": [b"\x01\xff", None],
            "many": [[1, None], None],
        }
    )
    screen = open_screen(server, board(perspective("odd")))
    frame = frame_of(screen)
    wait_until(lambda: len(shown_rows(frame, "_row") or []) == 2)
    rows = {row[0]: row[1:] for row in rows_of(frame, *schema)}
    day = -86_400_000
    assert rows[late] == (str(2**64 - 1), day, -2, "-1.50", "0x01ff", "[1, null]")
    assert rows[2] == (None,) * 6
    assert viewer_state(frame)["columns"] == list(schema)


def test_of_a_large_table_the_first_rows(server, open_screen):
    server.create_table("long", {"n": "int64"}, key="n").upsert({"n": range(ROWS_MAX + 1)})
    screen = open_screen(server, board(perspective("long")))
    frame = frame_of(screen)
    wait_until(lambda: len(shown_rows(frame, "n") or []) == ROWS_MAX)
    status = screen.page.locator("live-perspective .status")
    assert "the first 100,000 of 100,001 rows" in status.text_content()


def test_the_frame_is_of_no_origin(server, open_screen):
    server.create_table("quotes", SCHEMA, key="id")
    screen = open_screen(server, board(perspective("quotes")))
    frame = frame_of(screen)
    wait_until(lambda: shown_rows(frame, "id") == [])
    assert frame.evaluate("self.origin") == "null"
    reached = """() => [() => parent.document, () => document.cookie, () => localStorage].map(
      (reach) => { try { reach(); return 'reached'; } catch (error) { return error.name; } })"""
    assert frame.evaluate(reached) == ["SecurityError"] * 3
    page = screen.page.request.get(server.web_uri).headers["content-security-policy"]
    assert "unsafe" not in page
    inside = screen.page.request.get(server.web_uri + "perspective.html").headers
    policy = inside["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "allow-same-origin" not in policy
    assert "connect-src data: blob:;" in policy


def test_where_it_is_not_installed(server, open_screen, monkeypatch):
    def nothing(name):
        raise PackageNotFoundError(name)

    server.create_table("quotes", SCHEMA, key="id")
    with monkeypatch.context() as patch:
        patch.setattr("barrage.web.perspective_files.distribution", nothing)
        perspective_files.cache_clear()
        screen = open_screen(server, board(perspective("quotes")))
        hint = screen.page.locator("live-perspective .hint")
        wait_until(lambda: 'pip install "barrage[perspective]"' in (hint.text_content() or ""))
        assert audit(screen) == []
    perspective_files.cache_clear()
    assert screen.page.locator("iframe").count() == 0


def test_the_server_is_there_again(open_screen):
    server = web_server().start()
    port = port_of(server)
    table = server.create_table("quotes", SCHEMA, key="id")
    table.upsert(random_rows(random.Random(4), range(30)))
    screen = open_screen(server, board(perspective("quotes")))
    frame = frame_of(screen)
    wait_until(lambda: len(shown_rows(frame, "id") or []) == 30)
    server.stop(grace=0)
    pill = screen.page.locator("live-perspective .pill")
    wait_until(lambda: pill.text_content().startswith("reconnecting"))
    assert len(rows_of(frame, "id")) == 30
    with web_server(web_port=port) as again:
        table = again.create_table("quotes", SCHEMA, key="id")
        table.upsert(random_rows(random.Random(5), range(100, 120)))
        screen.page.evaluate("dispatchEvent(new Event('online'))")
        wait_until(lambda: shown_rows(frame, "id") == [(i,) for i in range(100, 120)])
        table.remove({"id": [100]})
        wait_until(lambda: shown_rows(frame, "id") == [(i,) for i in range(101, 120)])
