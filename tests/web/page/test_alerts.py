"""Alerts of a board: what comes true is told, once, and kept with the board."""

from __future__ import annotations

import json
import urllib.parse

import pytest

from tests.web.page.screen import wait_until
from tests.web.page.test_access import audit


@pytest.fixture
def loads(server):
    table = server.create_table("loads", {"id": "int64", "n": "int64"}, key="id")
    table.upsert({"id": list(range(50)), "n": [0] * 49 + [99]})
    return table


def link(where="n > 90", table="loads"):
    board = {
        "rows": [{"panels": [{"grid": {"table": "loads"}}]}],
        "alerts": [{"table": table, "where": where}],
    }
    return f"#board={urllib.parse.quote(json.dumps(board))}"


def notes(screen):
    """What was told, the newest first."""
    return screen.page.locator(".alertnote").evaluate_all(
        "notes => notes.map(note => [...note.querySelectorAll(':scope > div')]"
        ".map(line => line.textContent).join('|'))"
    )


def rule_states(screen):
    return screen.page.locator(".alertrules small").all_text_contents()


def watched(screen, state):
    wait_until(lambda: rule_states(screen) == [state], f"the state {state}")


def test_rows_that_come_to_fulfil_it_are_told_once(loads, server, open_screen):
    screen = open_screen(server, link())
    watched(screen, "1 row")
    assert notes(screen) == []
    loads.upsert({"id": [3], "n": [91]})
    wait_until(lambda: notes(screen) == ["id 3, n 91"])
    # It goes on to be true: no news. It is over and comes again: news.
    loads.upsert({"id": [3, 7], "n": [95, 92]})
    wait_until(lambda: notes(screen) == ["id 7, n 92", "id 3, n 91"])
    loads.upsert({"id": [3], "n": [0]})
    watched(screen, "2 rows")
    loads.upsert({"id": [3], "n": [93]})
    wait_until(lambda: notes(screen)[0] == "id 3, n 93" and len(notes(screen)) == 3)
    assert audit(screen) == []
    screen.page.locator(".alertnote button").first.click()
    wait_until(lambda: len(notes(screen)) == 2)


def test_an_alert_is_made_kept_and_removed(loads, server, open_screen):
    screen = open_screen(server, "#table=loads")
    screen.wait_ready()
    screen.page.get_by_role("button", name="Alerts").click()
    dialog = screen.page.locator("dialog.alerts")
    assert dialog.locator("#alert-table").input_value() == "loads"
    dialog.locator("#alert-where").fill("n = 5")
    screen.page.keyboard.press("Enter")
    watched(screen, "no row")
    assert audit(screen) == []
    screen.page.keyboard.press("Escape")
    screen.page.reload()
    watched(screen, "no row")
    loads.upsert({"id": [1], "n": [5]})
    wait_until(lambda: notes(screen) == ["id 1, n 5"])
    screen.page.get_by_role("button", name="Boards").click()
    screen.page.get_by_text("Save …").click()
    screen.page.locator("#board-name").fill("watchful")
    screen.page.keyboard.press("Enter")
    wait_until(lambda: screen.page.locator("dialog[open]").count() == 0)
    other = open_screen(server, "#table=loads")
    other.wait_ready()
    other.page.get_by_role("button", name="Boards").click()
    other.page.get_by_text("watchful").click()
    watched(other, "1 row")
    other.page.get_by_role("button", name="Alerts").click()
    other.page.get_by_label("Remove the alert loads: n = 5").click()
    wait_until(lambda: rule_states(other) == [])
    wait_until(lambda: "alerts" not in other.page.evaluate("location.hash"))


def test_the_browser_notifies_when_it_may(loads, server, open_screen):
    screen = open_screen(server, "", permissions=["notifications"])
    screen.page.evaluate(
        "() => { window.told = []; window.Notification = class { static permission = 'granted';"
        " constructor(title, options) { window.told.push([title, options.body]); } }; }"
    )
    screen.page.evaluate("hash => { location.hash = hash; }", link())
    watched(screen, "1 row")
    loads.upsert({"id": [3], "n": [91]})
    wait_until(lambda: screen.page.evaluate("window.told") == [["loads: n > 90", "id 3, n 91"]])


def test_a_condition_that_is_wrong_says_so(loads, server, open_screen):
    screen = open_screen(server, link(where="nn > 90"))
    wait_until(lambda: any("nn" in state for state in rule_states(screen)))
    screen = open_screen(server, link(table="none"))
    wait_until(lambda: any("none" in state for state in rule_states(screen)))


def test_a_storm_of_changes_is_a_few_notes(loads, server, open_screen):
    """A hundred thousand rows that come true and false again: the page tells how many, a few times
    a second, and keeps no more than thirty notes."""
    screen = open_screen(server, link())
    watched(screen, "1 row")
    many = list(range(100, 20_100))
    for _ in range(3):
        loads.upsert({"id": many, "n": [95] * len(many)})
        watched(screen, f"{len(many) + 1:,} rows")
        loads.upsert({"id": many, "n": [0] * len(many)})
        watched(screen, "1 row")
    assert 0 < len(notes(screen)) <= 30
    assert any("20,000 more rows" in note for note in notes(screen))


HIDE = """
(isHidden) => {
  Object.defineProperty(document, 'hidden', {configurable: true, get: () => isHidden});
  document.dispatchEvent(new Event('visibilitychange'));
}
"""


def test_a_page_that_is_hidden_is_still_alert(loads, server, open_screen):
    """Its tables stand still; what is watched does not, also when the connection is a new one."""
    screen = open_screen(server, link())
    watched(screen, "1 row")
    screen.page.evaluate(HIDE, True)
    loads.upsert({"id": [3, 0], "n": [91, -7]})
    wait_until(lambda: notes(screen) == ["id 3, n 91"])
    assert screen.cells()[0]["n"] == "0"
    screen.page.evaluate(HIDE, False)
    wait_until(lambda: screen.cells()[0]["n"] == "-7")
