"""Panels that are dragged: to the side of others, and the gaps between them."""

from __future__ import annotations

import json
import urllib.parse

import pytest

from tests.web.page.screen import wait_until
from tests.web.page.test_perspective import board, frame_of, perspective, shown_rows

TWO_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""What is under the pointer is decided by what was painted."""


def boxes(screen):
    return [panel.bounding_box() for panel in screen.page.locator(".panel").all()]


def drag(screen, start, end):
    """By the mouse, as a hand does it."""
    screen.page.mouse.move(*start)
    screen.page.mouse.down()
    for part in (0.1, 0.4, 0.7, 1.0):
        at = [a + (b - a) * part for a, b in zip(start, end, strict=True)]
        screen.page.mouse.move(*at)
        screen.page.evaluate(TWO_FRAMES)
    screen.page.mouse.up()


def middle(box):
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def linked_rows(screen):
    text = urllib.parse.unquote(screen.page.evaluate("location.hash")).removeprefix("#board=")
    return json.loads(text)["rows"]


@pytest.fixture
def screen(server, open_screen):
    server.create_table("a", kind="static", data={"x": [1, 2, 3]})
    server.create_table("b", kind="static", data={"x": [4, 5]})
    opened = open_screen(server, board({"grid": {"table": "a"}}, {"grid": {"table": "b"}}))
    wait_until(lambda: len(opened.cells(0)) == 3 and len(opened.cells(1)) == 2)
    return opened


def test_a_panel_is_dragged_below_another(screen):
    left, right = boxes(screen)
    assert left["y"] == right["y"]
    handle = screen.page.get_by_label("Move panel").nth(1).bounding_box()
    drag(screen, middle(handle), (middle(left)[0], left["y"] + left["height"] * 0.9))
    above, below = boxes(screen)
    assert below["y"] >= above["y"] + above["height"]
    assert below["width"] == above["width"] > left["width"]
    assert [len(row["panels"]) for row in linked_rows(screen)] == [1, 1]
    assert len(screen.cells(1)) == 2


def test_a_gap_is_dragged_and_no_panel_vanishes(screen):
    left, right = boxes(screen)
    gap = middle(screen.page.locator(".splitter").bounding_box())
    drag(screen, gap, (gap[0] + 120, gap[1]))
    wider, narrower = boxes(screen)
    assert wider["width"] == pytest.approx(left["width"] + 120, abs=6)
    assert narrower["width"] == pytest.approx(right["width"] - 120, abs=6)
    gap = middle(screen.page.locator(".splitter").bounding_box())
    drag(screen, gap, (5000, gap[1]))
    assert boxes(screen)[1]["width"] > 100


def test_gaps_and_panels_are_dragged_across_perspective(server, open_screen):
    pytest.importorskip("perspective")
    server.create_table("a", kind="static", data={"x": [1, 2, 3]})
    screen = open_screen(server, board(perspective("a"), {"grid": {"table": "a"}}))
    frame = frame_of(screen)
    wait_until(lambda: shown_rows(frame, "x") == [(1,), (2,), (3,)])
    left, _ = boxes(screen)
    gap = middle(screen.page.locator(".splitter").bounding_box())
    drag(screen, gap, (gap[0] - 150, gap[1]))
    wished = pytest.approx(left["width"] - 150, abs=6)
    wait_until(lambda: boxes(screen)[0]["width"] == wished, "the drag")
    narrower, _ = boxes(screen)
    handle = screen.page.get_by_label("Move panel").nth(1).bounding_box()
    drag(screen, middle(handle), (middle(narrower)[0], narrower["y"] + 40))
    wait_until(lambda: len(linked_rows(screen)) == 2)
    below, above = boxes(screen)
    assert above["y"] < below["y"]
    assert shown_rows(frame, "x") == [(1,), (2,), (3,)]  # the frame is the one it was
