"""A table as it was: the slider, playing, and what there is no history of."""

from __future__ import annotations

import pytest

from tests.web.page.conftest import web_server
from tests.web.page.screen import wait_until
from tests.web.page.test_access import audit

VERSIONS = 12


@pytest.fixture
def kept():
    with web_server(journal="memory") as served:
        yield served


def filled(server):
    """Version by version, row 0 holds 0, 1, 2 and so on, with a row more in each."""
    table = server.create_table("t", {"id": "int64", "n": "int64"}, key="id")
    for n in range(VERSIONS):
        table.upsert({"id": [0, n + 100], "n": [n, n]})
    return table


def bar(screen):
    shown = screen.in_grid(".timebar")
    shown.wait_for()
    return shown


def open_history(screen):
    screen.in_grid(".tool").filter(has_text="History").click()
    shown = bar(screen)
    wait_until(lambda: not shown.locator(".timeslider").is_disabled(), "the slider")
    return shown


def slide(screen, place):
    screen.in_grid(".timeslider").evaluate(
        "(slider, place) => { slider.value = place;"
        " slider.dispatchEvent(new Event('input', {bubbles: true})); }",
        place,
    )


def last_place(screen):
    return int(screen.in_grid(".timeslider").get_attribute("max"))


def shows(screen, n):
    """Whether the rows are those of the version that holds n."""
    rows = screen.cells()
    is_all = screen.row_count == n + 2
    return screen.is_current and is_all and rows.get(0, {}).get("n") == str(n)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_version_and_back_to_live(kept, open_screen, scheme):
    table = filled(kept)
    screen = open_screen(kept, "#table=t", color_scheme=scheme)
    screen.wait_ready()
    shown = open_history(screen)
    assert audit(screen) == []
    last = last_place(screen)
    for n in (0, 5, VERSIONS - 1):
        slide(screen, last - (VERSIONS - 1 - n))
        wait_until(lambda n=n: shows(screen, n), f"version {n}")
    shown.get_by_label("One version back").click()
    wait_until(lambda: shows(screen, VERSIONS - 2))
    # The past stands still, and nothing of it can be changed.
    table.upsert({"id": [0], "n": [-5]})
    assert screen.focusable.get_attribute("aria-readonly") == "true"
    assert shows(screen, VERSIONS - 2)
    shown.get_by_text("Live").click()
    wait_until(lambda: screen.cells().get(0, {}).get("n") == "-5")
    assert screen.in_grid(".timebar").count() == 0
    assert screen.state()["at"] == ""
    assert screen.focusable.get_attribute("aria-readonly") == "false"


def test_filters_and_links_are_of_the_version(kept, open_screen):
    filled(kept)
    screen = open_screen(kept, "#table=t")
    screen.wait_ready()
    open_history(screen)
    slide(screen, last_place(screen) - 4)
    wait_until(lambda: shows(screen, VERSIONS - 5))
    screen.set_state(filters={"id": ">= 100"}, sort=[{"name": "id", "isDescending": True}])
    wait_until(lambda: screen.cells().get(0, {}).get("id") == str(100 + VERSIONS - 5))
    wait_until(lambda: "at%22" in screen.page.evaluate("location.hash"))
    other = open_screen(kept, screen.page.evaluate("location.hash"))
    bar(other)
    wait_until(lambda: other.cells().get(0, {}).get("id") == str(100 + VERSIONS - 5))
    assert other.state()["at"] == screen.state()["at"]


def test_a_history_is_played_to_its_end(kept, open_screen):
    filled(kept)
    screen = open_screen(kept, "#table=t")
    screen.wait_ready()
    shown = open_history(screen)
    shown.get_by_label("Speed").select_option("100")
    shown.get_by_label("Play").click()
    seen = set()

    def is_over():
        seen.add(screen.cells().get(0, {}).get("n"))
        return shown.get_by_label("Play").count() == 1 and shows(screen, VERSIONS - 1)

    wait_until(lambda: int(screen.in_grid(".timeslider").input_value()) < last_place(screen))
    wait_until(is_over, "the end of the history")
    assert len(seen) > 3
    # Somebody who takes the slider stops it.
    shown.get_by_label("Play").click()
    slide(screen, 3)
    wait_until(lambda: shown.get_by_label("Play").count() == 1)


def test_a_slider_that_is_dragged_wildly(kept, open_screen):
    """One version is on its way at a time, and the last one that was meant is shown."""
    filled(kept)
    screen = open_screen(kept, "#table=t")
    screen.wait_ready()
    open_history(screen)
    last = last_place(screen)
    screen.in_grid(".timeslider").evaluate(
        """(slider, last) => {
          for (let i = 0; i < 2000; i++) {
            slider.value = (i * 7) % (last + 1);
            slider.dispatchEvent(new Event('input', {bubbles: true}));
          }
          slider.value = last - 3;
          slider.dispatchEvent(new Event('input', {bubbles: true}));
        }""",
        last,
    )
    wait_until(lambda: shows(screen, VERSIONS - 4))
    assert screen.message == ""


def test_a_table_without_a_history_says_so(server, open_screen):
    filled(server)
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    screen.press("h")
    shown = bar(screen)
    wait_until(lambda: "keeps no history" in (shown.text_content() or ""))
    screen.press("h")
    wait_until(lambda: screen.in_grid(".timebar").count() == 0)


def test_a_version_that_is_no_more_is_said_to_be_so(kept, open_screen):
    filled(kept)
    screen = open_screen(kept, "#table=t")
    screen.wait_ready()
    screen.set_state(at="0123456789abcdef:3")
    wait_until(lambda: "history-lost: epoch" in screen.message)
    wait_until(lambda: "another one now" in (bar(screen).text_content() or ""), "the words")
