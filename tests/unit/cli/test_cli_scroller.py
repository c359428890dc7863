"""Where the screen stands and what it subscribes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barrage.cli.watch.scroller import RowWindow, Scroller

HUGE = 10**8


def test_the_first_window_is_the_screen_and_one_screen_more() -> None:
    assert Scroller(height=40, table_size=HUGE).window() == RowWindow(start=0, stop=80)


def test_scrolling_by_lines_keeps_the_window_until_its_edge_is_near() -> None:
    scroller = Scroller(height=40, table_size=HUGE)
    windows = set()
    for _ in range(100):
        scroller.scroll_by(1)
        windows.add(scroller.window())
    assert len(windows) == 4


def test_going_far_moves_the_window_there() -> None:
    scroller = Scroller(height=40, table_size=HUGE)
    scroller.go_to(99_000_000)
    assert scroller.window() == RowWindow(start=98_999_960, stop=99_000_080)


def test_the_end_shows_the_last_rows() -> None:
    scroller = Scroller(height=40, table_size=HUGE)
    scroller.end()
    assert scroller.top == HUGE - 40


def test_following_counts_from_the_end() -> None:
    scroller = Scroller(height=40, table_size=1000)
    scroller.follow(True)
    assert scroller.window() == RowWindow(start=0, stop=80, is_reverse=True)
    scroller.set_table_size(2000)
    assert scroller.top == 1960


def test_moving_ends_following_where_the_screen_stands() -> None:
    scroller = Scroller(height=40, table_size=1000)
    scroller.follow(True)
    scroller.scroll_by(-1)
    assert (scroller.is_following, scroller.top) == (False, 959)
    assert not scroller.window().is_reverse


def test_a_shrinking_table_pulls_the_screen_up() -> None:
    scroller = Scroller(height=10, table_size=1000)
    scroller.end()
    scroller.set_table_size(100)
    assert scroller.top == 90


def test_a_taller_screen_asks_for_more() -> None:
    scroller = Scroller(height=10, table_size=1000)
    scroller.window()
    scroller.resize(60)
    assert scroller.window().stop >= 60


def test_first_row_of_a_reverse_window() -> None:
    window = RowWindow(start=0, stop=80, is_reverse=True)
    assert window.first_row(1000) == 920
    assert window.first_row(50) == 0
    assert RowWindow(start=10, stop=20).first_row(5) == 5


_moves = st.lists(
    st.one_of(
        st.tuples(st.just("scroll_by"), st.integers(-200, 200)),
        st.tuples(st.just("page"), st.integers(-3, 3)),
        st.tuples(st.just("go_to"), st.integers(-5, 3 * HUGE)),
        st.tuples(st.just("resize"), st.integers(0, 80)),
        st.tuples(st.just("set_table_size"), st.integers(0, HUGE)),
        st.tuples(st.just("follow"), st.booleans()),
    ),
    max_size=30,
)


@given(_moves)
def test_every_row_on_screen_is_subscribed_to(moves: list[tuple[str, int]]) -> None:
    scroller = Scroller(height=20, table_size=1000)
    for name, argument in moves:
        getattr(scroller, name)(argument)
        window = scroller.window()
        top, stop = scroller.top, min(scroller.top + scroller.height, scroller.table_size)
        assert 0 <= top <= max(0, scroller.table_size - scroller.height)
        first = window.first_row(scroller.table_size)
        last = scroller.table_size - window.start if window.is_reverse else window.stop
        assert first <= top
        assert stop <= last
        assert window.size <= 6 * scroller.height
