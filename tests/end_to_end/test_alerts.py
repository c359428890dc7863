"""Alerts of a running server, with a real receiver on loopback."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from barrage.errors import ConfigError, LimitExceededError, LocalProtocolError, TableFailedError
from barrage.limits import Limits
from barrage.server import Alert, AsyncServer, ServerConfig
from barrage.server.alerting import alert_service, watched_alert
from barrage.server.alerting.alert import AlertError
from barrage.server.alerting.alert_service import AlertNotFoundError
from barrage.server.alerting.edge_tap import EdgeTap
from tests.end_to_end.test_transports_page import served as served_by
from tests.helpers.alert_receiver import HANG_SECONDS, LOOPBACK, receiver, status
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST
from tests.unit.cli.test_examples import shell_blocks

SCHEMA = {"sym": "string", "price": "float64", "n": "int64", "at": "timestamp[ns, UTC]"}
HOSTS = {"alert_hosts": "127.0.0.0/8"}


def hot(kept, **options) -> Alert:
    return Alert(
        **{
            "name": "hot",
            "table": "quotes",
            "where": "price > 100",
            "url": kept.url,
            "interval_ms": 0,
            "resolved": True,
            **options,
        }
    )


def served(**settings) -> barrage.Server:
    return barrage.Server(config=ServerConfig(**{"host": HOST, **HOSTS, **settings}))


def row(sym: str, price: float, n: int = 1) -> dict[str, object]:
    return {"sym": sym, "price": price, "n": n, "at": 1_700_000_000_123_456_789}


def state(server: barrage.Server) -> tuple[str, str | None]:
    [watched] = server._running.operations.alerts.alerts.values()
    return watched.state.value, watched.detail


def test_edges_are_told_in_their_order_with_exact_cells():
    with receiver() as kept, served() as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert([row("A", 101, 2**63 - 1), row("B", 1)])
        quotes.upsert([row("A", 102)])
        quotes.upsert([row("B", 103)])
        quotes.upsert([row("A", 99)])
        quotes.remove("B")
        quotes.upsert([row("A", 101)])
        kept.wait_for(5)
        assert kept.statuses() == [
            ("firing", ("A",)),
            ("firing", ("B",)),
            ("resolved", ("A",)),
            ("resolved", ("B",)),
            ("firing", ("A",)),
        ]
        first, *_, last = kept.events
        assert first["row"] == {
            "sym": "A",
            "price": 101.0,
            "n": 2**63 - 1,
            "at": "2023-11-14T22:13:20.123456789Z",
        }
        assert len({event["id"] for event in kept.events}) == 5
        assert not last["initial"]
        assert kept.events[2]["firing_id"] == first["id"]


def test_columns_and_a_query_say_what_is_looked_at_and_told():
    query = json.dumps({"table": "trades", "ops": [["last_by", ["sym"]]]})
    with receiver() as kept, served() as server:
        trades = server.create_table("trades", SCHEMA)
        server.add_alert(hot(kept, table="", query=query, columns=("n",)))
        for price in (101, 99, 101):
            trades.add([row("A", price, price)])
        kept.wait_for(3)
        assert [event["row"] for event in kept.events] == [{"n": 101}, {"n": 101}, {"n": 101}]
        assert kept.messages[0].told["table"] == "trades"


def test_alerts_declared_before_the_start_tell_what_is_there():
    with receiver() as kept:
        server = served()
        server.create_table("quotes", SCHEMA, key="sym", data=[row("A", 101), row("B", 1)])
        server.add_alert(hot(kept))
        with pytest.raises(AlertError, match="another alert has it"):
            server.add_alert(hot(kept))
        server.add_alert(hot(kept, name="gone"))
        server.remove_alert("gone")
        with pytest.raises(AlertNotFoundError):
            server.remove_alert("gone")
        with server:
            [event] = kept.wait_for(1)
            assert (event["status"], event["initial"]) == ("firing", True)
            with pytest.raises(AlertError, match="another alert has it"):
                server.add_alert(hot(kept))
            server.remove_alert("hot")
            with pytest.raises(AlertNotFoundError):
                server.remove_alert("hot")
            server.table("quotes").upsert([row("B", 101)])
        assert len(kept.events) == 1
        with pytest.raises(LocalProtocolError):
            server.add_alert(hot(kept))


def test_the_asynchronous_server_has_alerts_too():
    async def run(kept):
        server = AsyncServer(config=ServerConfig(host=HOST, **HOSTS))
        await server.add_alert(hot(kept, name="early"))
        await server.add_alert(hot(kept, name="gone"))
        await server.remove_alert("gone")
        async with server:
            quotes = await server.create_table("quotes", SCHEMA, key="sym")
            await server.add_alert(hot(kept))
            await quotes.upsert([row("A", 101)])
            await asyncio.to_thread(kept.wait_for, 2)
            await server.remove_alert("hot")
            await quotes.upsert([row("A", 1)])
            await asyncio.to_thread(kept.wait_for, 3)
        assert {message.told["alert"] for message in kept.messages} == {"hot", "early"}

    with receiver() as kept:
        asyncio.run(run(kept))


def test_an_alert_waits_for_its_table_and_says_so():
    with receiver() as kept, served() as server:
        server.add_alert(hot(kept))
        assert state(server) == ("waiting", "table 'quotes' is not there")
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        quotes.upsert([row("A", 101)])
        kept.wait_for(1)
        assert state(server)[0] == "watching"
        server.drop_table("quotes")
        *_, gone = kept.wait_for(2)
        assert (gone["status"], gone["reason"]) == ("resolved", "its table was dropped or replaced")
        wait_until(
            lambda: state(server) == ("waiting", "table 'quotes' is not there"), HANG_SECONDS
        )
        server.create_table("quotes", SCHEMA, key="sym").upsert([row("A", 101)])
        *_, again = kept.wait_for(3)
        assert again["status"] == "firing"


def test_a_table_that_does_not_fit_is_told_by_the_state_and_at_the_start(caplog):
    with receiver() as kept:
        with served() as server:
            server.add_alert(hot(kept))
            server.create_table("quotes", {"sym": "string"}, key="sym")
            wait_until(lambda: state(server)[0] == "failed", HANG_SECONDS)
            assert state(server)[1] == "it does not fit its table: the log says why"
            assert "unknown column 'price'" in caplog.text
        for wrong, what in (
            ({"where": "prize > 1"}, "where must be a condition upon its table"),
            ({"key": "symbol"}, "key must be columns of its table"),
            ({"key": "list"}, "key must be columns that can be a key"),
            ({"columns": ("x",)}, "columns must be columns of its table"),
            ({"table": "", "query": '{"table": "quotes", "ops": [["last_by", ["x"]]]}'}, "query"),
        ):
            server = served()
            server.create_table("quotes", {**SCHEMA, "list": pa.list_(pa.int64())}, key="sym")
            server.add_alert(hot(kept, **wrong))
            with pytest.raises(ConfigError, match=f"alert 'hot': {what}"):
                server.start()


def test_a_table_that_fails_ends_what_fired(caplog):
    with receiver() as kept, served() as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert([row("A", 101)])
        kept.wait_for(1)
        quotes.fail(TableFailedError("its source is gone"))
        *_, ended = kept.wait_for(2)
        assert ended["status"] == "resolved"
        assert ended["reason"] == "its table has failed: the log says why"
        assert state(server) == ("failed", ended["reason"])
        assert "its source is gone" in caplog.text


def test_a_server_that_is_busy_is_asked_again(monkeypatch):
    monkeypatch.setattr(alert_service, "AGAIN_S", 0.01)
    with receiver() as kept, served() as server:
        server.create_table("quotes", SCHEMA, key="sym").upsert([row("A", 101)])
        tables = server._parts.tables
        derive, refused = tables.derive, []

        def refuse_twice(make, owner=None):
            if getattr(make, "func", None) is not None and len(refused) < 2:
                refused.append(make)
                raise LimitExceededError("commands", actual=2, maximum=1, unit="commands")
            return derive(make, owner)

        monkeypatch.setattr(tables, "derive", refuse_twice)
        server.add_alert(hot(kept))
        kept.wait_for(1)
        assert len(refused) == 2


def test_cells_that_cannot_be_told_fail_their_alert_and_nothing_else(monkeypatch, caplog):
    real = watched_alert.json_values

    def json_values(column):
        if "bad" in column.to_pylist():
            raise OverflowError("no such value")
        return real(column)

    monkeypatch.setattr(watched_alert, "json_values", json_values)
    with receiver() as kept, served() as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert([row("A", 101)])
        kept.wait_for(1)
        quotes.upsert([row("bad", 101)])
        *_, ended = kept.wait_for(2)
        assert (ended["status"], ended["key"]) == ("resolved", {"sym": "A"})
        assert state(server)[0] == "failed"
        assert len(quotes) == 2
    assert "alert 'hot' could not be told" in caplog.text


def test_a_long_row_is_told_without_its_cells_beside_others():
    with receiver() as kept, served() as server:
        quotes = server.create_table("quotes", {**SCHEMA, "text": "string"}, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert(
            [{**row(str(n), 101), "text": "x" * (700_000 if n == 3 else 10)} for n in range(300)]
        )
        kept.wait_for(300)
        rows = {event["key"]["sym"]: event["row"] for event in kept.events}
        assert [sym for sym, told in rows.items() if told is None] == ["3"]
        assert len(rows) == 300


def test_only_hosts_that_are_named_may_be_sent_to():
    with receiver() as kept:
        server = served(alert_hosts="")
        server.add_alert(hot(kept))
        with pytest.raises(ConfigError, match=r"alert 'hot': url must be of a host .* '127\.0\.0"):
            server.start()


def test_there_are_so_many_alerts_at_most():
    with receiver() as kept, served(limits=Limits(alerts_max=2)) as server:
        for name in ("a", "b"):
            server.add_alert(hot(kept, name=name))
        with pytest.raises(LimitExceededError, match="number of alerts is 3"):
            server.add_alert(hot(kept, name="c"))


def test_keys_past_the_limit_are_told_by_their_number():
    with receiver() as kept, served(limits=Limits(alert_keys_max=3)) as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert([row(sym, 101) for sym in "ABCDE"])
        *firing, overflow = kept.wait_for(4)
        assert [event["status"] for event in firing] == ["firing"] * 3
        assert (overflow["status"], overflow["further_keys"]) == ("overflow", 2)
        assert kept.messages[-1].told["further_keys"] == 2
        quotes.upsert([row(event["key"]["sym"], 1) for event in firing[:2]])
        kept.wait_for(8)
        assert {e["key"]["sym"] for e in kept.events if e["status"] == "firing"} == set("ABCDE")
        assert kept.messages[-1].told["further_keys"] == 0


def test_more_edges_than_may_wait_are_all_told_in_the_end(monkeypatch):
    monkeypatch.setattr(watched_alert, "EDGES_MAX", 4)
    with receiver() as kept, served() as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert([row(str(number), 101) for number in range(50)])
        kept.wait_for(50)
        assert sorted(int(key) for _, (key,) in kept.statuses()) == list(range(50))


def test_a_key_that_cannot_be_let_in_fails_its_alert(monkeypatch):
    monkeypatch.setattr(watched_alert, "EDGES_MAX", 4)

    def refill(_):
        raise OverflowError

    monkeypatch.setattr(EdgeTap, "refill", refill)
    with receiver() as kept, served() as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert([row(str(number), 101) for number in range(5)])
        kept.wait_for(8)
        assert [event["status"] for event in kept.events[4:]] == ["resolved"] * 4
        assert state(server)[0] == "failed"


def test_a_receiver_that_never_answers_delays_no_table_and_learns_what_was_dropped():
    is_away = threading.Event()

    def answer(request):
        if not is_away.is_set():
            is_away.wait(HANG_SECONDS)
        status(200)(request)

    limits = Limits(alert_events_max=5)
    with receiver(answer) as kept, served(limits=limits) as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept, resolved=False, batch=1, timeout_ms=60_000))
        quotes.upsert([row("0", 101)])
        wait_until(lambda: len(kept.messages) == 1, HANG_SECONDS)
        with barrage.connect(server.uri) as session:
            live = session.table("quotes").subscribe(interval_ms=1).wait_ready(HANG_SECONDS)
            for number in range(1, 20):
                quotes.upsert([row(str(number), 101)])
            wait_until(lambda: len(live) == 20, HANG_SECONDS)
        [watched] = server._running.operations.alerts.alerts.values()
        wait_until(lambda: watched.queue.dropped_in_all == 14, HANG_SECONDS)
        is_away.set()
        kept.wait_for(6)
        assert [message.told["dropped"] for message in kept.messages] == [0, 14, 0, 0, 0, 0]
        assert [event["key"]["sym"] for event in kept.events] == ["0", *map(str, range(15, 20))]


def test_a_server_that_stops_tells_what_waits():
    with receiver() as kept:
        with served() as server:
            quotes = server.create_table("quotes", SCHEMA, key="sym")
            server.add_alert(hot(kept, interval_ms=600_000))
            for sym in "ABC":
                quotes.upsert([row(sym, 101)])
        assert [key for _, (key,) in kept.statuses()] == ["A", "B", "C"]


def test_a_server_that_stops_waits_for_no_receiver_longer_than_its_grace(caplog):
    with receiver(status(500)) as kept:
        server = served(drain_grace_ms=50).start()
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        server.add_alert(hot(kept))
        quotes.upsert([row("A", 101)])
        wait_until(lambda: len(kept.messages) == 1, HANG_SECONDS)
        server.stop()
    assert "alert 'hot': 1 events were not told" in caplog.text


def test_what_alerts_do_is_told_by_a_table_and_by_metrics_without_secrets(caplog):
    caplog.set_level("DEBUG", "barrage")
    with (
        receiver(status(404)) as kept,
        served(metrics_port=0, statistics=True) as server,
    ):
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        alert = hot(
            kept,
            url=kept.url + "&secret-path",
            secret="s3cr3t" * 4,
            headers={"Authorization": "Bearer s3cr3t"},
        )
        server.add_alert(alert)
        quotes.upsert([row("A", 101)])
        wait_until(lambda: len(kept.messages) == 1, HANG_SECONDS)
        with barrage.connect(server.uri) as session:
            wait_until(lambda: "_alerts" in server.table_names(), HANG_SECONDS)
            told = session.table("_alerts").subscribe(interval_ms=10).wait_ready(HANG_SECONDS)
            wait_until(lambda: told.to_arrow()["dropped"].to_pylist() == [1], HANG_SECONDS)
            [shown] = told.to_arrow().to_pylist()
        assert (shown["alert"], shown["state"], shown["firing"]) == ("hot", "watching", 1)
        assert (shown["host"], shown["last_error"]) == (LOOPBACK, "the receiver answered 404")

        def metrics() -> str:
            address = f"http://{LOOPBACK}:{server.metrics_port}/metrics"
            with urllib.request.urlopen(address, timeout=HANG_SECONDS) as answer:
                return str(answer.read().decode())

        wait_until(
            lambda: 'barrage_alert_events_dropped_total{alert="hot"} 1.0' in metrics(), HANG_SECONDS
        )
        assert 'barrage_alert_keys_firing{alert="hot"} 1.0' in metrics()
        everything = repr(shown) + metrics() + caplog.text + repr(list(server.config.described()))
    assert "1 events for 127.0.0.1 are dropped" in caplog.text
    for secret in ("secret-path", "s3cr3t"):
        assert secret not in everything


@pytest.mark.further
def test_what_happens_while_an_alert_is_added_is_told():
    """Edges that the engine tells before the loop knows that it looks at the table."""
    with receiver() as kept, served() as server:
        quotes = server.create_table("quotes", SCHEMA, key="sym")
        is_over = threading.Event()

        def write():
            for number in range(200):
                quotes.upsert([row(str(number), 101)])
            is_over.set()

        writer = threading.Thread(target=write)
        writer.start()
        server.add_alert(hot(kept))
        assert is_over.wait(HANG_SECONDS)
        writer.join()
        kept.wait_for(200)
    assert sorted(int(key) for _, (key,) in kept.statuses()) == list(range(200))


def test_the_command_serves_alerts_and_tells_what_waits_when_it_ends(tmp_path):
    (serve,) = shell_blocks("docs/alerts.md")
    with receiver() as kept:
        (tmp_path / "alerts.toml").write_text(
            'hosts = ["127.0.0.1"]\n[[alert]]\nname = "hot"\ntable = "quotes"\n'
            f'where = "price > 100"\ninterval_ms = 600000\nurl = "{kept.url}"\n'
        )
        with served_by(serve, tmp_path) as port, barrage.connect(f"localhost:{port}") as session:
            session.create_table("quotes", {"sym": "string", "price": "float64"}, key="sym")
            session.put("quotes", {"sym": ["A"], "price": [101.0]})
            kept.wait_for(1)
            session.put("quotes", {"sym": ["B"], "price": [101.0]})
        assert kept.statuses() == [("firing", ("A",)), ("firing", ("B",))]
        # With a data directory the table is back, and so is what it has to tell.
        with served_by(serve, tmp_path):
            kept.wait_for(4)
        assert [event["initial"] for event in kept.events] == [False, False, True, True]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "error: cannot read alerts"),
        ("[[alert]]\n", "alert 'number 1': name must be there"),
        (
            '[[alert]]\nname = "a"\nwhere = "x > 1"\ntable = "t"\nurl = "http://127.0.0.1/"\n',
            "alert 'a': url must be of a host",
        ),
    ],
)
def test_the_command_says_in_a_line_what_is_wrong(tmp_path, text, told):
    path = tmp_path / "alerts.toml"
    if text is not None:
        path.write_text(text)
    words = ("serve", "--port", "0", "--no-web", "--alerts", str(path))
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code in (1, 2)
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_alerts_of_a_file_are_read_at_the_start(tmp_path):
    with receiver() as kept:
        (tmp_path / "hook.url").write_text(kept.url)
        path = tmp_path / "alerts.toml"
        path.write_text(
            'hosts = ["127.0.0.1"]\n[[alert]]\nname = "hot"\ntable = "quotes"\n'
            'where = "price > 100"\ninterval_ms = 0\nurl = { file = "hook.url" }\n'
        )
        with served(alerts=str(path), alert_hosts="") as server:
            server.create_table("quotes", SCHEMA, key="sym").upsert([row("A", 101)])
            kept.wait_for(1)
        path.write_text(path.read_text().replace("interval_ms", "interval_s"))
        server = served(alerts=str(path))
        with pytest.raises(ConfigError, match=r"alerts\.toml: alert 'hot': unknown field"):
            server.start()
