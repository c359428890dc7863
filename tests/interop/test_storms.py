"""Rough use: viewport storms, changes of columns, listeners by the hundred, clients that are
killed, servers that are started again; and that our server keeps nothing of it."""

from __future__ import annotations

import random
import re

import pytest

from barrage.client import State
from tests.helpers.server_process import wait_until
from tests.interop.clients import WAIT_SECONDS, JavaClient, OurClient, SteeredClient, TickingClient
from tests.interop.recording import Shown, history_of, last_rows_of, rows_of

pytestmark = pytest.mark.interop

TIMES = 500
RSS_GROWTH_MAX = 150 * 1024 * 1024
COUNTED = ("streams", "sessions", "exports", "producers", "tables")


@pytest.fixture
def own_session(server):
    with server.connect() as session:
        yield session


def settles_at(server, live, name, view):
    """The live table arrives at what ``view`` shows of the table now."""
    expected = server.last_digest(name, view)
    wait_until(lambda: Shown.of(live.to_arrow()).is_state(expected), WAIT_SECONDS)


@pytest.mark.parametrize("name", ["keyed", "sorted_by_value", "ring", "grown", "big"])
def test_a_storm_of_viewports_ends_with_the_last(server, own_session, name):
    """Viewports, directions and columns change faster than they are answered, over a table that
    ticks; every state shown is a state of one of the views, and the last request wins."""
    choice = random.Random(name)
    columns = server.rows(name, server.versions[name]).column_names
    with own_session.table(name).subscribe(viewport=(0, 10), interval_ms=20) as live:
        for _ in range(3):
            with server.ticking(0.005):
                for _ in range(60):
                    request(live, choice, columns)
            start, chosen = choice.randrange(0, 60), choice.sample(columns, 2)
            live.set_columns(chosen)
            live.set_viewport((start, start + 25))
            live.wait_ready(WAIT_SECONDS)
            view = rows_of(start, start + 25)
            settles_at(server, live, name, lambda t, v=view, c=chosen: v(t).select(c))
            live.set_viewport((0, 12), reverse=True)
            live.set_columns(columns)
            live.wait_ready(WAIT_SECONDS)
            settles_at(server, live, name, last_rows_of(12))
            assert live.state is State.LIVE


def request(live, choice, columns):
    start = choice.randrange(0, 200)
    if choice.random() < 0.3:
        live.set_columns(choice.sample(columns, choice.randrange(1, len(columns) + 1)))
    else:
        live.set_viewport((start, start + choice.randrange(1, 80)), reverse=choice.random() < 0.3)


def test_every_state_of_a_viewport_is_a_state_of_the_table(server):
    """Viewports that stay, over tables whose rows move, with one listener per viewport."""
    client = OurClient()
    followers = []
    for name in ("sorted_by_value", "keyed", "ring", "joined"):
        for start in (0, 7, 40, 190):
            history = history_of(server, name, rows_of(start, start + 25))
            options = {"viewport": (start, start + 25)}
            followers.append((history, client.follow(server, name, **options)))
        history = history_of(server, name, last_rows_of(15))
        follower = client.follow(server, name, viewport=(0, 15), reverse=True)
        followers.append((history, follower))
    server.step(15)
    for history, follower in followers:
        follower.wait_for(history.last)
        assert not follower.errors()
        history.check(follower.states())
        follower.stop()
    client.close()


# --- many listeners ---


def test_ticking_listeners_started_and_stopped(server, python_client):
    session = python_client.session(server)
    with leaves_nothing(server):
        with server.ticking(0.05):
            for name in ("keyed", "sorted_by_value"):
                shown = python_client.do("storm", session=session, table=name, times=TIMES // 2)
                assert shown["shown"] >= TIMES // 6 - 1
        works_still(server, TickingClient(python_client))
        python_client.do("collect")


def test_our_listeners_started_and_stopped(server, own_session):
    with leaves_nothing(server):
        with server.ticking(0.05):
            for number in range(TIMES):
                with own_session.table("keyed").subscribe(interval_ms=20) as live:
                    if number % 3 == 0:
                        live.wait_ready(WAIT_SECONDS)
        works_still(server, OurClient())


def test_java_subscriptions_started_and_ended(server, java_client):
    session = java_client.session(server)
    works_still(server, JavaClient(java_client))
    with leaves_nothing(server), server.ticking(0.05):
        found = java_client.do("come_and_go", session=session, table="keyed", times=TIMES // 5)
        assert len(found["rows"]) == TIMES // 5
        assert min(found["rows"]) > 0


def test_a_ticking_listener_that_cannot_start_does_no_harm(our_server, python_client):
    """Its client leaves an exchange without a request; the process would wait for ever if the
    server did not end it."""
    session = python_client.session(our_server)
    with leaves_nothing(our_server):
        for _ in range(5):
            answer = python_client.do("listen_fails", session=session, table="all_types")
            assert answer["error"]
        works_still(our_server, TickingClient(python_client))
        python_client.do("collect")


def works_still(server, client, name="keyed"):
    """A new listener shows every state rightly."""
    history = history_of(server, name)
    follower = client.follow(server, name)
    server.step(3)
    follower.wait_for(history.last)
    assert not follower.errors()
    history.check(follower.states())
    follower.stop()
    if isinstance(client, OurClient):
        client.close()


class leaves_nothing:  # noqa: N801
    """Counters of our server are afterwards what they were before, and its memory has not grown
    much."""

    def __init__(self, server):
        self._server = server

    def __enter__(self):
        if self._server.kind == "barrage":
            self._before = self._server.stats()

    def __exit__(self, kind, error, traceback):
        if self._server.kind != "barrage" or error is not None:
            return
        now = {}

        def is_back():
            now.update(self._server.stats())
            return all(now[name] <= self._before[name] for name in COUNTED)

        try:
            wait_until(is_back, WAIT_SECONDS)
        except AssertionError:
            raise AssertionError(f"before {self._before}, after {now}") from None
        assert now["rss"] - self._before["rss"] < RSS_GROWTH_MAX


# --- clients that vanish ---


def test_a_ticking_client_is_killed_in_the_middle(server, deephaven_interpreter, tmp_path):
    """Others notice nothing, and nothing of it stays."""
    victim = SteeredClient("python_client", deephaven_interpreter, tmp_path)
    kill_while_it_follows(server, victim, TickingClient(victim))


def test_a_java_client_is_killed_in_the_middle(server, java_client):
    kill_while_it_follows(server, java_client, JavaClient(java_client))


def kill_while_it_follows(server, victim, client):
    bystander = OurClient()
    followers = []
    for name in ("keyed", "sorted_by_value", "big"):
        history = history_of(server, name)
        followers.append((history, bystander.follow(server, name)))
    before = server.stats()
    for name in client.tables(server):
        if name not in ("all_types", "odd_lists"):
            client.follow(server, name)
    with server.ticking(0.01):
        server.process.pause(0.3)
        victim.kill()
        server.process.pause(0.3)
    for history, follower in followers:
        follower.wait_for(history.last)
        assert not follower.errors()
        history.check(follower.states())
    if server.kind == "barrage":
        wait_until(lambda: server.stats()["streams"] <= before["streams"], WAIT_SECONDS)
    for _, follower in followers:
        follower.stop()
    bystander.close()


# --- servers that come back ---


def test_a_server_is_started_again(server, python_client, java_client):
    """Our client goes on by itself; Deephaven's report the end, and new sessions work."""
    ours = OurClient()
    ticking, java = TickingClient(python_client), JavaClient(java_client)
    live = ours.session(server).table("keyed").subscribe(interval_ms=20)
    live.wait_ready(WAIT_SECONDS)
    followers = [ticking.follow(server, "keyed"), java.follow(server, "keyed")]
    server.step()
    server.restart()
    server.step(3)
    for follower in followers:
        assert follower.wait_error(), type(follower)
    settles_at(server, live, "keyed", lambda table: table)
    live.close()
    for client in (ticking, java, ours):
        works_still(server, client, "sorted_by_value")


def test_a_token_of_an_earlier_server_is_refused(server, python_client):
    session = python_client.session(server, is_new=True)
    server.restart()
    refusals = []

    def is_refused():
        with pytest.raises(AssertionError) as caught:
            python_client.do("names", session=session)
        refusals.append(str(caught.value))
        return "UNAVAILABLE" not in refusals[-1]

    wait_until(is_refused, WAIT_SECONDS)
    assert re.search("UNAUTHENTICATED|Authentication", refusals[-1])


def test_closed_sessions_leave_nothing(our_server, python_client):
    with leaves_nothing(our_server):
        for _ in range(20):
            session = python_client.session(our_server, is_new=True)
            for name in ("keyed", "types", "static_rows"):
                python_client.do("read", session=session, table=name)
            python_client.do("disconnect", session=session)
        for _ in range(20):
            with our_server.connect() as session:
                assert session.table("keyed").snapshot().num_rows
