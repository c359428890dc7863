"""``barrage top`` and ``barrage trace`` against servers that work, are old, and refuse."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import barrage
from barrage import Operation, Policy, Rule
from barrage.cli.top.picture import ServerPicture
from barrage.cli.top.picture_text import (
    ORDERS,
    alert_lines,
    amount,
    connector_lines,
    duration,
    picture_lines,
)
from barrage.cli.top.top_app import TopApp
from barrage.cli.trace.stages import stage_lines
from barrage.connector import MessageBatch, Source, WorkerDelivery, run_sources
from barrage.errors import TransportError
from barrage.server import Alert, ServerConfig
from barrage.server.access.resolver import TicketResolver
from tests.helpers.alert_receiver import LOOPBACK, receiver
from tests.helpers.server_process import wait_until
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.unit.cli.test_cli_command_line import run, unused_port


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[barrage.Server]:
    """A server with a journal, a subscriber, and a table that changes all the time."""
    config = ServerConfig(data=str(tmp_path_factory.mktemp("top") / "data"))
    with barrage.Server(config=config) as server:
        table = server.create_table("quotes", {"a": "int64", "b": "string"}, key="a")
        is_over = threading.Event()

        def write() -> None:
            number = 0
            while not is_over.wait(0.02):
                number += 1
                table.upsert({"a": [number % 5], "b": [f"\x1b[31m{number}"]}, wait=False)

        writer = threading.Thread(target=write)
        with (
            barrage.connect(server.uri) as session,
            session.table("quotes").subscribe(interval_ms=10) as ticking,
        ):
            ticking.wait_ready(60)
            writer.start()
            wait_until(lambda: ticking.to_arrow().num_rows > 0)
            yield server
            is_over.set()
            writer.join()


def test_one_picture_for_scripts(busy: barrage.Server) -> None:
    code, out, err = run("top", busy.address, "--once", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["measures"]["ready"] == 1
    assert told["measures"]["subscriptions"] == {"quotes": 1}
    assert told["measures"]["journals"] == 1
    assert told["durations"]["cycle_seconds"]["count"] > 0
    (row,) = told["subscriptions"]
    assert (row["table"], row["user"]) == ("quotes", "anonymous")


def test_one_picture_for_people(busy: barrage.Server) -> None:
    for order in ORDERS:
        code, out, _ = run("top", busy.address, "--once", "--sort", order)
        assert code == 0
        assert "1 subscriptions" in out
        assert "1 journals" in out
        assert " quotes " in out
        assert "\x1b" not in out


class Given(Source):
    name = "orders"

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        yield MessageBatch(ids=[1, 2, 3], payloads=[b"{}", b"{}", b"{}"])


@pytest.mark.further
def test_sources_and_their_streams_are_seen() -> None:
    with barrage.Server(config=ServerConfig(connector="127.0.0.1:0")) as server:
        code, out, _ = run("top", server.address, "--once")
        assert (code, "program" in out) == (0, False)
        delivery = WorkerDelivery(f"127.0.0.1:{server.connector_port}", program="shop")
        asyncio.run(run_sources(Given(), delivery))

        def stream() -> dict[str, object]:
            told = json.loads(run("top", server.address, "--once", "--json")[1])
            return told["streams"][0] if told["streams"] else {}

        wait_until(lambda: stream().get("last_safe") == 3)
        assert stream()["table"] == "shop"
        last = run("top", server.address, "--once")[1].splitlines()[-1]
        assert last.split()[:4] == ["orders", "shop", "3", "0"]


def test_of_many_sources_the_first_are_shown() -> None:
    connector = {
        **{"connection": 1, "program": "shop", "instance": "\x1b[31m", "state": "streaming"},
        **{"streams": 2, "credits": 100, "waiting": 7, "waiting_bytes": 9, "messages": 3},
        **{"rate": 2_500.0, "last_error": None},
    }
    stream = {
        **{"table": "shop", "stream": 5, "name": None, "is_owned": True, "last_position": 9},
        **{"last_safe": None, "lag": 2, "messages": 3, "rate": None, "last_error": "bad payload"},
    }
    late = {**stream, "name": "late", "lag": 5_000, "last_safe": 4}
    picture = ServerPicture(connectors=[connector] * 3, streams=[stream, late])
    lines = connector_lines(picture, rows_max=2, width=None)
    assert "\x1b" not in "".join(lines)
    assert lines[2].split() == [*("1", "shop", "\\x1b[31m", "streaming", "2", "100", "7"), "2.5K"]
    assert lines[4] == "… and 1 more"
    assert lines[7].split() == ["late", "shop", "4", "5.0K", "0", "bad", "payload"]
    assert lines[8].split() == ["5", "shop", "2", "0", "bad", "payload"]
    assert connector_lines(ServerPicture(), rows_max=2, width=None) == []


@pytest.mark.further
def test_alerts_are_seen() -> None:
    with receiver() as kept, barrage.Server(config=ServerConfig(alert_hosts=LOOPBACK)) as server:
        assert "firing" not in run("top", server.address, "--once")[1]
        table = server.create_table("t", {"x": "int64"})
        server.add_alert(Alert(name="hot", table="t", where="x > 0", url=kept.url))
        server.add_alert(Alert(name="late", table="u", where="x > 0", url=kept.url))
        table.add({"x": [1]})
        kept.wait_for(1)

        def alerts() -> list[dict[str, object]]:
            told = json.loads(run("top", server.address, "--once", "--json")[1])
            return [alert for alert in told["alerts"] if alert["sent"]]

        wait_until(lambda: bool(alerts()))
        [alert] = alerts()
        assert (alert["alert"], alert["state"], alert["messages"]) == ("hot", "watching", 1)
        lines = run("top", server.address, "--once")[1].splitlines()[-2:]
        assert lines[0].split() == ["hot", "t", "watching", *"1", *"0010", "0"]
        assert lines[1].split()[:4] == ["late", "u", "waiting", "0"]
        assert lines[1].endswith("table 'u' is not there")


def test_of_many_alerts_the_worst_are_shown() -> None:
    alert = {
        **{"alert": "a\x1b[31m", "table": "t", "state": "watching", "detail": None, "firing": 1},
        **{"pending": 2, "further": 0, "waiting": 3, "sent": 4_000, "messages": 5, "retries": 6},
        **{"dropped": 0, "last_error": "the receiver answered 500"},
    }
    worst = {**alert, "alert": "worst", "dropped": 7}
    picture = ServerPicture(alerts=[alert, alert, worst])
    lines = alert_lines(picture, rows_max=2, width=None)
    assert "\x1b" not in "".join(lines)
    assert lines[2].split()[:9] == ["worst", "t", "watching", *"123", "4.0K", *"67"]
    assert lines[2].endswith("the receiver answered 500")
    assert lines[4] == "… and 1 more"
    assert alert_lines(ServerPicture(), rows_max=2, width=None) == []


def test_wrong_servers_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run("top", f"localhost:{unused_port()}", "--once")
    assert (code, err.count("\n")) == (1, 1)
    monkeypatch.setattr(TicketResolver, "_make_demanded", lambda *_: asyncio.sleep(0))
    with barrage.Server("127.0.0.1") as old:
        code, _, err = run("top", old.address, "--once")
        assert (code, err.count("\n")) == (1, 1)
        assert "older than this command" in err
    assert run("top", "localhost:1", "--interval", "0")[0] == 2


@pytest.mark.further
def test_rules_show_what_concerns_one(tmp_path: Path) -> None:
    rules = (
        Rule(tables=("*", "_*"), roles=("writer",), allow=frozenset({Operation.ADMIN})),
        Rule(tables=("quotes", "_subscriptions"), allow=frozenset({Operation.READ})),
    )
    config = ServerConfig(users=str(users_file(tmp_path / "users")))
    with barrage.Server(config=config, policy=Policy(rules)) as server:
        server.create_table("quotes", {"a": "int64"}, key="a")
        for user, is_keeper in (("alice", True), ("bob", False)):
            env = {"BARRAGE_USER": user, "BARRAGE_PASSWORD": ALICE_PASSWORD}
            code, out, err = run("top", server.address, "--once", env=env)
            assert (code, err) == (0, "")
            assert ("the rules of the server do not show _server" in out) != is_keeper
            code, _, err = run("trace", server.address, "quotes", "--seconds", "1", env=env)
            assert code == (0 if is_keeper else 1)
            assert ("may do everything" in err) != is_keeper


def test_numbers_fit_their_columns() -> None:
    assert [amount(n) for n in (0, 999, 1000, 12_340_000, 0.5)] == [
        "0",
        "999",
        "1.0K",
        "12.3M",
        "0.5",
    ]
    assert [duration(s) for s in (None, 12.34, 0.0123, 0.000_05)] == [
        *("-", "12.3 s", "12.3 ms", "50 us")
    ]
    lines = picture_lines(ServerPicture(), order="lag", rows_max=5, width=None)
    assert "no subscriptions" in lines


ROW = {
    **{"stream": 1, "user": None, "peer": "p", "table": "t", "way": "inline", "updates": 3},
    **{"bytes_per_second": 10.0, "outbox_bytes": 0, "lag_ms": None, "held_ms": None},
}


@pytest.mark.further
def test_the_terminal_view_sorts_pauses_and_survives_a_lost_server() -> None:
    rows = [{**ROW, "stream": n, "table": f"t{n}", "updates": n, "lag_ms": -n} for n in range(3)]
    pictures: list[ServerPicture | Exception] = [
        ServerPicture(values={"connections": {"": 3.0}}, subscriptions=rows),
        TransportError("it is gone"),
    ]

    async def take() -> ServerPicture:
        found = pictures[0] if len(pictures) == 1 else pictures.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def scene() -> None:
        app = TopApp(take, title="here", order="lag", seconds=3600)
        async with app.run_test(size=(120, 40)) as pilot:

            def text(name: str) -> str:
                return str(app.query_one(f"#{name}").render())

            assert "live" in text("head")
            assert "3 connections" in text("summary")
            assert text("subscriptions").index("t0") < text("subscriptions").index("t2")
            for _ in range(3):
                await pilot.press("s")
            assert "sorted by updates" in text("head")
            assert text("subscriptions").index("t2") < text("subscriptions").index("t0")
            await app.look()
            assert "it is gone" in text("head")
            assert "3 connections" in text("summary"), "the last picture stays"
            await pilot.press("space")
            pictures[:] = [AssertionError("asked while it is held")]
            await app.look()
            await pilot.press("q")
        assert app.return_value == 0

    asyncio.run(asyncio.wait_for(scene(), 60))


# --- trace ----------------------------------------------------------------------------------------


@pytest.mark.further
def test_the_stages_of_updates(busy: barrage.Server, tmp_path: Path) -> None:
    code, out, err = run("trace", busy.address, "quotes", "--seconds", "1", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    whole = [
        each
        for each in told["updates"]
        if each["cycle"] and each["propagate"] and each["write"][1] and not each["is_snapshot"]
    ]
    assert whole
    for update in whole:
        (cycle, propagate, encode, write) = (
            update[stage] for stage in ("cycle", "propagate", "encode", "write")
        )
        assert (
            cycle[0] <= cycle[1] <= propagate[1] <= encode[0] <= encode[1] <= write[0] <= write[1]
        )
        assert update["written"] <= update["streams"]
    assert any(str(update["wall_ns"]) in told["applied"] for update in whole)
    file = tmp_path / "trace.json"
    code, out, err = run(
        "trace", busy.address, "quotes", "--seconds", "1", "--out", str(file), "--quiet"
    )
    assert (code, out) == (0, "")
    events = json.loads(file.read_text())["traceEvents"]
    assert {each["name"] for each in events if each["ph"] == "X"} == {
        *("cycle", "propagate", "encode", "write", "apply")
    }
    assert all(each["dur"] >= 0 for each in events if each["ph"] == "X")
    code, out, _ = run("trace", busy.address, "quotes", "--seconds", "1")
    assert code == 0
    assert "median" in out


def test_tracing_ends_by_itself_and_costs_nothing_then(busy: barrage.Server) -> None:
    operations = busy._running.operations
    run("trace", busy.address, "quotes", "--seconds", "1", "--json")
    operations.traces._end()
    assert busy._parts.runtime.observation.observer is None
    code, _, err = run("trace", busy.address, "nothing", "--seconds", "1")
    assert (code, err.count("\n")) == (1, 1)
    assert "not found" in err


def test_a_server_that_traces_all_the_time_answers_at_once() -> None:
    with barrage.Server(config=ServerConfig(trace=True)) as server:
        table = server.create_table("t", {"a": "int64"}, key="a")
        with (
            barrage.connect(server.uri) as session,
            session.table("t").subscribe(interval_ms=10) as ticking,
        ):
            ticking.wait_ready(60)
            step = table.upsert({"a": [1]})
            for update in ticking.updates(timeout=60):
                if update.last_step >= step:
                    break
        code, out, _ = run("trace", server.address, "t", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["always"]
    assert step in [each["step"] for each in told["updates"]]
    assert stage_lines([], rows_max=5) == ["no updates were sent in that time"]
