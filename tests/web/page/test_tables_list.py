"""The list of tables at the side of the page."""

from __future__ import annotations

import pyarrow as pa

from tests.web.page.screen import wait_until
from tests.web.page.test_access import audit

ORDERS = pa.schema(
    [("order_id", "int64"), ("venue", "string")],
    metadata={"description": "What was bought <b>today</b>"},
)


def listed(screen):
    return screen.page.locator(".tables .name").all_text_contents()


def test_tables_are_found_by_name_column_and_description(server, open_screen):
    server.create_table("quotes", {"id": "int64", "price": "float64"}, key="id")
    server.create_table("orders", ORDERS, key="order_id")
    screen = open_screen(server, "#table=orders")
    search = screen.page.get_by_label("Search tables")
    wait_until(lambda: listed(screen) == ["orders", "quotes"])
    for wish, found in {
        "QUO": ["quotes"],
        "venue": ["orders"],
        "bought": ["orders"],
        "nothing": [],
        "": ["orders", "quotes"],
    }.items():
        search.fill(wish)
        wait_until(lambda found=found: listed(screen) == found, wish)
    described = screen.page.locator(".tables .description")
    assert described.all_text_contents() == ["What was bought <b>today</b>"]
    assert audit(screen) == []


def test_a_table_that_is_pressed_is_shown_and_plus_adds_a_panel(server, open_screen):
    server.create_table("quotes", {"id": "int64", "price": "float64"}, key="id")
    server.create_table("orders", ORDERS, key="order_id")
    screen = open_screen(server, "#table=orders")
    screen.wait_ready()
    screen.page.locator(".tables .table", has_text="quotes").click()
    wait_until(lambda: screen.state()["table"] == "quotes")
    screen.page.get_by_label("Show orders beside the others").click()
    wait_until(lambda: screen.page.locator("live-grid").count() == 2)
