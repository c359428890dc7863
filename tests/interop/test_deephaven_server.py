"""Our client against a real Deephaven 42.7 server: what it shows must be what the server holds.

After every change the server is asked for its own contents (an Arrow export inside the server's
process, under the update graph's lock); the live table must arrive at exactly that.
"""

from __future__ import annotations

import pytest

import barrage
from barrage.client import PreSharedKey, State
from barrage.errors import AuthenticationError, LocalProtocolError, TableNotFoundError
from tests.interop.digests import digest

pytestmark = pytest.mark.interop

WAIT_SECONDS = 20
STEPS = 6


@pytest.fixture
def server(real_server):
    return real_server


@pytest.fixture
def session(server):
    with barrage.connect(server.uri, auth="Anonymous") as session:
        yield session


def arrives_at(live, updates, truth, view):
    """Follow ``updates`` until the live table shows ``view`` of ``truth`` and knows its size;
    TimeoutError if it never does."""
    expected = view(truth)
    while live.table_size != truth.num_rows or not live.to_arrow().equals(expected):
        next(updates)


def follow(server, live, name, view=lambda table: table, steps=STEPS):
    with live.updates(timeout=WAIT_SECONDS) as updates:
        arrives_at(live, updates, server.truth(name), view)
        for _ in range(steps):
            server.step()
            arrives_at(live, updates, server.truth(name), view)
            assert live.state is State.LIVE


@pytest.mark.parametrize(
    "name",
    ["keyed", "grown", "sorted_by_value", "small_values", "last_rows", "per_digit", "joined"],
)
def test_full_subscription_follows_every_kind_of_table(server, session, name):
    with session.table(name).subscribe(interval_ms=20) as live:
        live.wait_ready(WAIT_SECONDS)
        follow(server, live, name)


@pytest.mark.parametrize("name", ["keyed", "grown", "sorted_by_value"])
def test_viewport_follows_its_rows(server, session, name):
    with session.table(name).subscribe(viewport=(3, 18), interval_ms=20) as live:
        live.wait_ready(WAIT_SECONDS)
        follow(server, live, name, lambda table: table.slice(3, 15))


@pytest.mark.parametrize("name", ["keyed", "grown", "sorted_by_value"])
def test_reverse_viewport_follows_the_end(server, session, name):
    with session.table(name).subscribe(viewport=(-7, None), interval_ms=20) as live:
        live.wait_ready(WAIT_SECONDS)
        follow(server, live, name, lambda table: table.slice(table.num_rows - 7, 7))


def test_chosen_columns_in_the_order_asked_for(server, session):
    columns = ["D", "K"]
    with session.table("keyed").subscribe(columns=columns, interval_ms=20) as live:
        live.wait_ready(WAIT_SECONDS)
        follow(server, live, "keyed", lambda table: table.select(columns), steps=2)


def test_viewport_and_columns_change_while_the_table_ticks(server, session):
    table = session.table("sorted_by_value")
    with table.subscribe(viewport=(0, 10), columns=["K"], interval_ms=20) as live:
        live.wait_ready(WAIT_SECONDS)
        for start in (5, 100, 2):
            server.step()
            live.set_viewport((start, start + 20))
            live.wait_ready(WAIT_SECONDS)
            follow(server, live, "sorted_by_value",
                   lambda t, start=start: t.select(["K"]).slice(start, 20), steps=1)  # fmt: skip
        live.set_columns(["V", "S"])
        live.wait_ready(WAIT_SECONDS)
        follow(
            server, live, "sorted_by_value", lambda t: t.select(["V", "S"]).slice(2, 20), steps=1
        )
        live.set_viewport((0, 4), reverse=True)
        live.wait_ready(WAIT_SECONDS)
        follow(server, live, "sorted_by_value",
               lambda t: t.select(["V", "S"]).slice(t.num_rows - 4, 4), steps=1)  # fmt: skip


def test_a_burst_of_requests_ends_with_the_last(server, session):
    with session.table("big").subscribe(viewport=(0, 5), interval_ms=20) as live:
        for start in range(0, 900_000, 30_000):
            live.set_viewport((start, start + 50))
        live.wait_ready(WAIT_SECONDS)
        shown = live.to_arrow()
        assert shown.equals(server.truth("big").slice(870_000, 50))


def test_a_full_subscription_refuses_to_change(session):
    with session.table("static_rows").subscribe() as live:
        live.wait_ready(WAIT_SECONDS)
        with pytest.raises(LocalProtocolError):
            live.set_viewport((0, 5))


@pytest.mark.parametrize("name", ["static_rows", "no_rows", "all_types", "keyed", "big"])
def test_snapshot_is_what_the_server_holds(server, session, name):
    assert session.table(name).snapshot(timeout=60).equals(server.truth(name))


def test_parts_of_a_table_as_snapshot(server, session):
    truth = server.truth("big")
    table = session.table("big")
    part = table.snapshot(columns=["C", "A"], rows=(500_000, 520_000), timeout=60)
    assert part.equals(truth.select(["C", "A"]).slice(500_000, 20_000))
    assert table.snapshot(rows=(0, 9_000), reverse=True, timeout=60).equals(
        truth.slice(991_000, 9_000)
    )
    assert table.snapshot(rows=(2_000_000, 2_000_010), timeout=60).num_rows == 0


@pytest.mark.parametrize("name", ["all_types", "no_rows", "static_rows"])
def test_a_static_table_can_be_subscribed_to(server, session, name):
    with session.table(name).subscribe() as live:
        live.wait_ready(WAIT_SECONDS)
        assert live.to_arrow().equals(server.truth(name))


def test_a_large_table_arrives_in_parts_and_is_shown_whole(server, session):
    with session.table("big").subscribe() as live:
        with live.updates(timeout=60) as updates:
            first = next(updates)
        assert first.is_replacement
        assert first.added.num_rows == 1_000_000
        assert digest(live.to_arrow()) == server.last_digest("big")


def test_tables_are_listed(session):
    names = {info.name for info in session.tables()}
    assert {"keyed", "grown", "big", "no_rows"} <= names


def test_an_unknown_table_is_named(session):
    with pytest.raises(TableNotFoundError, match="nope"):
        session.table("nope").snapshot(timeout=WAIT_SECONDS)
    with session.table("nope").subscribe() as live, pytest.raises(TableNotFoundError, match="nope"):
        live.wait_ready(WAIT_SECONDS)


def test_wrong_credentials_are_refused(server):
    with pytest.raises(AuthenticationError):
        barrage.connect(server.uri, auth=PreSharedKey("wrong"))


def test_updates_replayed_by_hand_give_the_live_rows(server, session):
    """Iterator updates of a viewport are complete: applying them to a list gives the same rows."""
    with session.table("sorted_by_value").subscribe(viewport=(0, 25), interval_ms=20) as live:
        rows: list[dict] = []
        with live.updates(timeout=WAIT_SECONDS) as updates:
            for update in updates:
                rows = _apply(rows, update)
                if update.is_replacement:
                    assert rows == update.added.to_pylist()
                    server.step()
                    expected = server.truth("sorted_by_value").slice(0, 25).to_pylist()
                if rows == expected:
                    break
        assert rows == live.to_arrow().to_pylist()


def _apply(rows, update):
    if update.is_replacement:
        return update.added.to_pylist()
    kept = iter([row for index, row in enumerate(rows) if index not in update.removed_rows])
    added = iter(update.added.to_pylist())
    size = len(rows) - len(update.removed_rows) + len(update.added_rows)
    result = [dict(next(added if index in update.added_rows else kept)) for index in range(size)]
    for name, positions in update.modified_rows.items():
        for position, value in zip(positions, update.modified[name].to_pylist(), strict=True):
            result[position][name] = value
    return result
