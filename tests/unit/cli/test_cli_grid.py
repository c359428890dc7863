"""The grid in a terminal that exists only in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from barrage.cli.watch.grid import GridApp
from tests.helpers.virtual_clock import VirtualClock
from tests.unit.cli.fake_feed import FakeFeed

if TYPE_CHECKING:
    from textual.pilot import Pilot

HUGE = 10**8
SIZE = (80, 24)
ROWS_ON_SCREEN = 24 - 2 - 1

Steps = "Callable[[GridApp, Pilot[int], FakeFeed], Awaitable[None]]"


def run(source: FakeFeed, steps: Steps, *, clock: VirtualClock | None = None) -> GridApp:
    """Run ``steps`` in a grid over ``source``; redraws happen when the steps ask for them."""
    app = GridApp(source, title="localhost:10000/t", clock=clock or VirtualClock(1))

    async def session() -> None:
        async with app.run_test(size=SIZE) as pilot:
            app.redraw()
            await pilot.pause()
            await steps(app, pilot, source)

    asyncio.run(asyncio.wait_for(session(), 30))
    return app


def lines(app: GridApp) -> list[str]:
    """What the grid widget draws, as text."""
    app.redraw()
    return [app.grid.render_line(y).text for y in range(app.grid.size.height)]


def test_shows_names_rows_and_position() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        shown = lines(app)
        assert shown[0].split() == ["id", "name", "price"]
        assert shown[1].split()[:4] == ["0", "0", "row-0", "1.0"]
        assert len(shown) == ROWS_ON_SCREEN + 1
        header = str(app.query_one("#header").render())
        assert "live" in header
        assert "100,000,000 rows" in header
        assert "9.5 updates/s" in header
        assert "lag 12 ms" in header
        assert "bodies shm" in header

    run(FakeFeed(HUGE), steps)


def test_moves_through_a_hundred_million_rows_and_loads_only_windows() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press("end")
        app.redraw()
        assert lines(app)[ROWS_ON_SCREEN].split()[0] == str(HUGE - 1)
        await pilot.press("pageup", "up", "down")
        assert lines(app)[1].split()[0] == str(HUGE - 2 * ROWS_ON_SCREEN + 1)
        await pilot.press("home")
        assert lines(app)[1].split()[0] == "0"
        await pilot.press("pagedown")
        assert lines(app)[1].split()[0] == str(ROWS_ON_SCREEN - 1)
        assert max(window.size for window in source.requests) <= 6 * ROWS_ON_SCREEN

    run(FakeFeed(HUGE), steps)


def test_goes_to_a_row_by_number() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press("g", *"99_000_0001", "backspace")
        app.redraw()
        assert "go to row: 99000000" in str(app.query_one("#footer").render())
        await pilot.press("enter")
        assert lines(app)[1].split()[0] == "99000000"
        # What is no number changes nothing, and the keys belong to the grid again.
        await pilot.press("g", "x", "enter")
        await pilot.press("down")
        assert lines(app)[1].split()[0] == "99000001"
        await pilot.press("g", "5", "pagedown", "q", "escape")
        assert lines(app)[1].split()[0] == "99000001"
        assert "q quit" in str(app.query_one("#footer").render())

    run(FakeFeed(HUGE), steps)


def test_follows_the_end_through_a_reverse_viewport() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press("f")
        app.redraw()
        assert source.requests[-1].is_reverse
        source.append(7)
        assert lines(app)[ROWS_ON_SCREEN].split()[0] == "1006"
        await pilot.press("up")
        source.append(100)
        app.redraw()
        assert not source.requests[-1].is_reverse
        assert lines(app)[ROWS_ON_SCREEN].split()[0] == "1005"

    run(FakeFeed(1000), steps)


def styles_of(app: GridApp, y: int, text: str) -> list[str | None]:
    return [
        segment.style.bgcolor.name if segment.style and segment.style.bgcolor else None
        for segment in app.grid.render_line(y)
        if segment.text.strip() == text
    ]


def test_changed_cells_flash_and_stop() -> None:
    clock = VirtualClock(1)

    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        assert styles_of(app, 4, "1.0") == [None]
        source.tick(3, 2.5)
        app.redraw()
        assert styles_of(app, 4, "2.5") == ["green"]
        source.tick(3, 2.0)
        app.redraw()
        assert styles_of(app, 4, "2.0") == ["red"]
        clock.advance(1_000_000_000)
        app.redraw()
        assert styles_of(app, 4, "2.0") == [None]

    run(FakeFeed(100, key_columns=("id",)), steps, clock=clock)


def test_no_color_draws_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        source.tick(3, 2.5)
        app.redraw()
        await pilot.pause()
        assert lines(app)[1].split()[2] == "row-0"

    assert run(FakeFeed(1000), steps).return_value is None


def test_pause_holds_the_picture_but_scrolling_still_works() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press("space")
        source.tick(3, 7.5)
        assert "7.5" not in lines(app)[4]
        assert "paused" in str(app.query_one("#header").render())
        await pilot.press("g", *"5000", "enter")
        app.redraw()
        assert lines(app)[1].split()[0] == "5000"
        await pilot.press("home", "space")
        app.redraw()
        assert "7.5" in lines(app)[4]

    run(FakeFeed(HUGE), steps)


def test_columns_scroll_and_the_row_number_stays() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press("right", "right", "right", "right")
        shown = lines(app)
        assert shown[0].split() == ["price"]
        assert shown[1].split()[:2] == ["0", "1.0"]
        await pilot.press("left")
        assert lines(app)[0].split() == ["name", "price"]

    run(FakeFeed(100), steps)


def test_the_wheel_scrolls() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        app.grid.action_scroll_rows(0)
        from textual.events import MouseScrollDown, MouseScrollUp

        for event_type, top in ((MouseScrollDown, 3), (MouseScrollUp, 0)):
            app.grid.post_message(
                event_type(app.grid, 1, 1, 0, 1, 0, shift=False, meta=False, ctrl=False)
            )
            await pilot.pause()
            assert app.grid.scroller.top == top

    run(FakeFeed(HUGE), steps)


def test_a_lost_connection_is_shown_and_the_rows_stay() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        source.state = "reconnecting: no route"
        source.lag_ms = None
        assert lines(app)[1].split()[2] == "row-0"
        header = str(app.query_one("#header").render())
        assert "reconnecting: no route" in header
        assert "lag -" in header

    run(FakeFeed(100), steps)


def test_an_empty_table_is_just_its_names() -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press("end", "f", "pagedown", "g", "5", "enter")
        shown = lines(app)
        assert shown[0].split() == ["id", "name", "price"]
        assert not "".join(shown[1:]).strip()

    run(FakeFeed(0), steps)


def test_a_frame_that_is_behind_the_screen_shows_that_rows_are_coming() -> None:
    class SlowFeed(FakeFeed):
        def request(self, window: object) -> None:
            """The answer never comes."""

    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press("g", *"5000", "enter")
        assert lines(app)[1].split()[:2] == ["5000", "…"]

    run(SlowFeed(HUGE), steps)


@pytest.mark.parametrize(("key", "code"), [("q", 0), ("ctrl+c", 130)])
def test_ends_with_its_exit_code(key: str, code: int) -> None:
    async def steps(app: GridApp, pilot: Pilot[int], source: FakeFeed) -> None:
        await pilot.press(key)

    assert run(FakeFeed(10), steps).return_value == code
