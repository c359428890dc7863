"""Cells that are edited on the page, rows that are added and removed there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage import Operation, Policy, Rule, Server
from barrage.server import ServerConfig
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.web.page.screen import wait_until
from tests.web.page.test_access import audit

SCHEMA = {
    "id": "int64",
    "name": "string",
    "n": "int64",
    "ts": pa.timestamp("ns", "UTC"),
    "ok": "bool",
    "tags": pa.list_(pa.string()),
}
LARGE = 2**53 + 1


def filled(server):
    table = server.create_table("stock", SCHEMA, key="id")
    fixed = {"n": LARGE, "ts": 1769862600123456789, "ok": True, "tags": ["a"]}
    table.upsert([{"id": i, "name": f"N{i}", **fixed} for i in range(50)])
    return table


@pytest.fixture
def stock(server):
    return filled(server)


@pytest.fixture
def screen(server, stock, open_screen):
    opened = open_screen(server, "#table=stock")
    opened.wait_ready()
    return opened


def cell(screen, row, column):
    heads = screen.in_grid(".titles .headcell").evaluate_all(
        "heads => heads.map(h => [h.querySelector('.label').textContent,"
        " h.getAttribute('aria-colindex')])"
    )
    index = dict(heads)[column]
    return screen.in_grid(f".body > [aria-rowindex='{row + 2}'] [aria-colindex='{index}']")


def edit(screen, row, column):
    """Open the editor over a cell; what one writes into."""
    cell(screen, row, column).dblclick()
    return opened(screen)


def opened(screen):
    made = screen.in_grid(".editor .cellinput")
    made.wait_for()
    return made


def is_closed(screen):
    return screen.in_grid(".editor .cellinput").count() == 0


def note(screen):
    shown = screen.in_grid(".cellproblem:not([hidden])")
    return shown.text_content() if shown.count() else ""


def value(table, row, column):
    return table.to_arrow()[column].cast(pa.int64())[row].as_py()


def test_numbers_of_64_bits_and_nanoseconds_are_exact(stock, screen):
    made = edit(screen, 1, "n")
    assert made.input_value() == str(LARGE)
    made.fill(str(2**63 - 1))
    made.press("Enter")
    wait_until(lambda: screen.cells()[1]["n"] == f"{2**63 - 1:,}")
    assert value(stock, 1, "n") == 2**63 - 1
    made = edit(screen, 1, "ts")
    assert made.input_value() == "2026-01-31T12:30:00.123456789Z"
    made.fill("2026-01-31 12:30:00.123456790")
    made.press("Enter")
    wait_until(lambda: (screen.cells()[1]["ts"] or "").endswith("12:30:00.123456790Z"))
    assert value(stock, 1, "ts") == 1769862600123456790


def test_keys_alone(stock, screen):
    cell(screen, 0, "name").click()
    screen.press("Enter")
    opened(screen).fill("first")
    screen.page.keyboard.press("Enter")
    wait_until(lambda: screen.cells()[0]["name"] == "first")
    # The focus is on the cell below.
    screen.press("F2")
    made = opened(screen)
    assert made.input_value() == "N1"
    made.press("Alt+n")
    assert made.get_attribute("placeholder") == "null"
    made.press("Tab")
    wait_until(lambda: screen.cells()[1]["name"] is None)
    assert stock.to_arrow()["name"][1].as_py() is None
    screen.press("F2")
    made = opened(screen)
    made.fill("5")
    made.press("Escape")
    wait_until(lambda: is_closed(screen))
    assert value(stock, 1, "n") == LARGE


def test_an_empty_text_is_not_null_and_truth_is_chosen(stock, screen):
    edit(screen, 0, "name").fill("")
    screen.page.keyboard.press("Enter")
    wait_until(lambda: screen.cells()[0]["name"] == "")
    assert stock.to_arrow()["name"][0].as_py() == ""
    for choice in ("false", "null"):
        edit(screen, 2, "ok").select_option(choice)
        screen.page.keyboard.press("Enter")
        shown = None if choice == "null" else choice
        wait_until(lambda shown=shown: screen.cells()[2]["ok"] == shown)
    assert stock.to_arrow()["ok"][2].as_py() is None


def test_what_does_not_fit_is_said_and_not_sent(stock, screen):
    made = edit(screen, 1, "n")
    made.fill(str(2**63))
    made.press("Enter")
    wait_until(lambda: f"to {2**63 - 1}" in note(screen))
    assert made.get_attribute("aria-invalid") == "true"
    assert audit(screen) == []
    made.press("Escape")
    # What only the server knows, it says at the cell, which shows its value again.
    made = edit(screen, 1, "ts")
    made.fill("yesterday")
    made.press("Enter")
    wait_until(lambda: "'yesterday' is no timestamp" in note(screen))
    assert is_closed(screen)
    assert screen.cells()[1]["ts"] == screen.cells()[2]["ts"]
    assert audit(screen) == []
    screen.press("ArrowDown")
    wait_until(lambda: note(screen) == "")
    edited = stock.to_arrow()
    assert edited["n"].to_pylist() == [LARGE] * 50
    cell(screen, 1, "id").dblclick()
    wait_until(lambda: "A key does not change" in note(screen))
    cell(screen, 1, "tags").dblclick()
    wait_until(lambda: "not written here" in note(screen))


def test_two_pages_edit_one_cell(server, stock, screen, open_screen):
    other = open_screen(server, "#table=stock")
    other.wait_ready()
    one, two = edit(screen, 3, "n"), edit(other, 3, "n")
    one.fill("10")
    two.fill("20")
    one.press("Enter")
    wait_until(lambda: other.cells()[3]["n"] == "10")
    two.press("Enter")
    wait_until(lambda: "somebody else has changed 'n'" in note(other))
    assert value(stock, 3, "n") == 10
    edit(other, 3, "n").fill("20")
    other.page.keyboard.press("Enter")
    wait_until(lambda: screen.cells()[3]["n"] == "20")


def test_rows_are_added_and_removed(stock, screen):
    cell(screen, 0, "name").click()
    screen.press("Insert")
    form = screen.in_grid("dialog.rowform")
    form.wait_for()
    assert audit(screen) == []
    form.get_by_label("id", exact=True).fill("7")
    form.get_by_label("name", exact=True).fill("new")
    form.get_by_text("Add", exact=True).click()
    wait_until(lambda: "there is a row with id '7' already" in (form.text_content() or ""))
    form.get_by_label("id", exact=True).fill("x")
    form.get_by_text("Add", exact=True).click()
    wait_until(lambda: "a whole number" in (form.text_content() or ""))
    form.get_by_label("id", exact=True).fill("70")
    form.get_by_text("Add", exact=True).click()
    wait_until(lambda: form.count() == 0 and len(stock) == 51)
    assert stock.to_arrow().to_pylist()[50] == {
        **dict.fromkeys(SCHEMA),
        "id": 70,
        "name": "new",
    }
    wait_until(lambda: screen.row_count == 51)
    screen.go_to(50)
    wait_until(lambda: 50 in screen.cells())
    screen.in_grid(".tool").filter(has_text="More").click()
    screen.page.keyboard.press("ArrowDown")
    screen.page.keyboard.press("ArrowDown")
    screen.page.keyboard.press("Enter")
    form.wait_for()
    assert "id 70" in form.text_content()
    screen.page.keyboard.press("Enter")
    wait_until(lambda: len(stock) == 50 and screen.row_count == 50)


def test_a_row_that_moves_or_goes_under_the_editor(stock, screen):
    screen.set_state(sort=[{"name": "id", "isDescending": True}])
    wait_until(lambda: screen.cells().get(0, {}).get("id") == "49")
    made = edit(screen, 2, "name")
    assert made.input_value() == "N47"
    top = made.bounding_box()["y"]
    stock.upsert([{**dict.fromkeys(SCHEMA), "id": 100 + i} for i in range(3)])
    wait_until(lambda: made.bounding_box()["y"] > top + 60)
    made.fill("moved")
    made.press("Enter")
    wait_until(lambda: stock.to_arrow()["name"][47].as_py() == "moved")
    made = edit(screen, 5, "name")
    stock.remove(47)
    made.fill("gone")
    made.press("Enter")
    wait_until(lambda: "there is no row with id '47' any more" in note(screen))


def test_a_table_that_is_dropped_under_the_editor(server, stock, screen):
    made = edit(screen, 1, "name")
    server.drop_table("stock")
    wait_until(lambda: "dropped" in screen.message or "stock" in screen.message)
    made.fill("late")
    made.press("Enter")
    wait_until(lambda: is_closed(screen) and "stock" in note(screen))


def test_who_may_not_write_cannot_edit(tmp_path, open_screen):
    rules = Policy(
        rules=(Rule(tables=("stock",), users=("alice",), allow=frozenset({Operation.READ})),)
    )
    config = ServerConfig(
        web=True, users=str(users_file(tmp_path / "users.jsonl")), anonymous=False
    )
    with Server(config=config, policy=rules) as server:
        filled(server)
        screen = open_screen(server, "#table=stock")
        sign_in(screen)
        screen.wait_ready()
        assert screen.focusable.get_attribute("aria-readonly") == "true"
        cell(screen, 1, "name").dblclick()
        screen.press("F2", "Insert", "Delete")
        screen.in_grid(".tool").filter(has_text="More").click()
        assert screen.in_grid(".menu").get_by_text("Edit the cell").count() == 0
        assert is_closed(screen)
        assert screen.in_grid("dialog.rowform").count() == 0


def sign_in(screen):
    screen.page.locator("#signin-user").fill("alice")
    screen.page.locator("#signin-secret").fill(ALICE_PASSWORD)
    screen.page.keyboard.press("Enter")
