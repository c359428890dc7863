"""The tables ``_server`` and ``_subscriptions``: what they tell, to whom, and what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import barrage
from barrage import Operation, Policy, Rule
from barrage.errors import TableNotFoundError
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.identity.caller import ANYBODY
from barrage.server.identity.current_call import CurrentCall
from barrage.server.statistics.server_measures import MEASURES, two_digits
from barrage.server.statistics.server_statistics import SERVER_SCHEMA
from barrage.server.statistics.subscription_rows import NO_TABLE, OTHER_TABLES, tallied
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST
from tests.helpers.users import ALICE_PASSWORD, users_file

ROWS = {"a": [1, 2], "b": ["x", "y"]}


def measured(session: barrage.client.Session, name: str) -> dict[str, float]:
    """The values of one measure, by label."""
    rows = session.table("_server").where(f"measure = '{name}'").snapshot().to_pylist()
    return {row["label"]: row["value"] for row in rows}


def on_loop(server: barrage.Server, work) -> None:
    asyncio.run_coroutine_threadsafe(work, server._loop).result(60)


@pytest.fixture
def served() -> Iterator[barrage.Server]:
    with barrage.Server(HOST, config=ServerConfig(journal="memory")) as server:
        server.create_table("quotes", key="a", data=ROWS)
        yield server


def test_they_are_made_when_somebody_asks_and_tell_what_was_done(served):
    with barrage.connect(served.uri) as session:
        assert [each.name for each in session.tables() if each.name == "_server"] == []
        with session.table("quotes").subscribe(interval_ms=10) as ticking:
            ticking.wait_ready(60)
            for number in range(5):
                served.table("quotes").upsert({"a": [number], "b": ["z"]})
            wait_until(lambda: ticking.to_arrow().num_rows == 5)
            wait_until(lambda: measured(session, "lag_seconds").get("", 0) >= 1)
            (row,) = session.table("_subscriptions").snapshot().to_pylist()
            assert (row["user"], row["table"], row["interval_ms"]) == ("anonymous", "quotes", 10)
            assert row["updates"] >= 2
            assert row["bytes"] > 100
            assert row["lag_ms"] is not None
            assert row["held_ms"] is None
            assert measured(session, "subscriptions") == {"quotes": 1}
            assert measured(session, "rows_changed")[""] >= 5
            assert measured(session, "cycle_seconds")[""] >= 5
            assert measured(session, "encoding_seconds")[""] >= 2
            assert measured(session, "ready") == {"": 1}
        with pytest.raises(TableNotFoundError):
            session.table("nothing").snapshot()
        wait_until(lambda: measured(session, "refusals").get("TableNotFoundError") == 1)
        wait_until(lambda: measured(session, "subscriptions") == {})
        told = set(session.table("_server").snapshot().column("measure").to_pylist())
        assert told <= MEASURES.keys()


def test_bytes_of_data_calls_are_counted_by_method() -> None:
    with barrage.Server() as served:
        rows = pa.table({"a": pa.array(range(10_000), pa.int64()), "b": ["x" * 10] * 10_000})
        size, statistics = rows.nbytes, served._running.operations.statistics

        def counted(name: str) -> dict[str, float]:
            on_loop(served, statistics.refresh())
            return {each.label: each.value for each in statistics.measures if each.name == name}

        client = flight.connect(served.uri)
        path = flight.FlightDescriptor.for_path("uploaded")
        writer, _ = client.do_put(path, rows.schema)
        writer.write_table(rows)
        writer.close()
        assert size < counted("received_bytes")["DoPut"] < 1.2 * size
        (ticket,) = [each.ticket for each in client.get_flight_info(path).endpoints]
        before = counted("sent_bytes").get("DoGet", 0)
        assert client.do_get(ticket).read_all().num_rows == 10_000
        wait_until(lambda: size < counted("sent_bytes")["DoGet"] - before < 1.2 * size)

        command = flight.FlightDescriptor.for_command(
            b'{"transform": {"ops": [["select", ["a"]]]}}'
        )
        before = counted("sent_bytes")["DoExchange"], counted("received_bytes")["DoExchange"]
        writer, reader = client.do_exchange(command)
        with writer:
            writer.begin(rows.schema)
            writer.write_table(rows)
            writer.done_writing()
            half = reader.read_all().nbytes
        wait_until(lambda: half < counted("sent_bytes")["DoExchange"] - before[0] < 1.2 * half)
        assert size < counted("received_bytes")["DoExchange"] - before[1] < 1.2 * size


def test_a_query_that_names_them_makes_them_too(served):
    with barrage.connect(served.uri) as session:
        assert measured(session, "sessions") == {"": 0}


def test_an_idle_server_ticks_nothing(served):
    with barrage.connect(served.uri) as session:
        session.table("_server").snapshot()
        statistics = served._running.operations.statistics

        async def take_over() -> None:
            """From here on they are looked at when this test says so."""
            statistics._task.cancel()
            await asyncio.wait([statistics._task])

        on_loop(served, take_over())
        for _ in range(3):
            # The end of the call that asked for them is told, and how long nothing happened.
            on_loop(served, statistics.refresh())
        for _ in range(5):
            served._parts.runtime.submit(served._parts.runtime.flush).result(60)
            cycles, before = served.stats.cycles, statistics._server._shown
            on_loop(served, statistics.refresh())
            served._parts.runtime.submit(served._parts.runtime.flush).result(60)
            after = statistics._server._shown
            pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
            changed = {now["measure"] for was, now in pairs if was != now}
            # On a busy machine a thread may have been held up for longer than before, and what the
            # look before had told may wait for it, and then be a cycle.
            assert changed <= {
                "longest_stretch_seconds",
                "stretches_above_bound",
                "commands_waiting",
                "cycle_seconds",
            }
            assert changed or served.stats.cycles == cycles
        cycles = served.stats.cycles
        served.table("quotes").upsert({"a": [9], "b": ["z"]})
        on_loop(served, statistics.refresh())
        assert served.stats.cycles >= cycles + 2


def test_rules_show_each_caller_its_own(tmp_path):
    rules = (
        Rule(tables=("*", "_*"), roles=("writer",), allow=frozenset({Operation.ADMIN})),
        Rule(tables=("quotes", "_callers", "_subscriptions"), allow=frozenset({Operation.READ})),
    )
    config = ServerConfig(users=str(users_file(tmp_path / "users")))
    with barrage.Server(config=config, policy=Policy(rules)) as server:
        server.create_table("quotes", key="a", data=ROWS)

        def connected(name: str):
            return barrage.connect(server.uri, auth=barrage.Basic(name, ALICE_PASSWORD))

        with connected("alice") as alice, connected("bob") as bob:
            with (
                alice.table("quotes").subscribe() as one,
                bob.table("quotes").subscribe() as other,
            ):
                one.wait_ready(60)
                other.wait_ready(60)

                def users(session) -> list[str]:
                    rows = session.table("_subscriptions").snapshot()
                    return sorted(rows.column("user").to_pylist())

                wait_until(lambda: users(alice) == ["alice", "bob"])
                wait_until(lambda: users(bob) == ["bob"])
                wait_until(lambda: "_callers" in [each.name for each in bob.tables()])
                assert set(bob.table("_callers").snapshot().column("user").to_pylist()) == {"bob"}
            with pytest.raises(TableNotFoundError):
                bob.table("_server").snapshot()
            assert "ready" in alice.table("_server").snapshot().column("measure").to_pylist()


class Stream:
    """What is looked at of a stream."""

    class Sending:
        def __init__(self, tables: list[str], sent: int, held: int | None) -> None:
            caller = ANYBODY
            self.call = CurrentCall(caller, tables)
            self.bytes_sent, self.updates_sent = sent, 1
            self.is_subscription, self.interval_ms = True, 0
            self.lag_ns, self.held_since_ns = None, held
            self.begun_ns, self.peer = 0, "peer"

    def __init__(self, stream_id: int, table: str, sent: int = 0, held: int | None = None) -> None:
        self.stream_id, self.pending_bytes = stream_id, 0
        self.way = BodyWay.INLINE
        self.sending = self.Sending([table] if table else [], sent, held)


def tally(streams: list[Stream], **limits: int):
    counting = tallied(streams, limits=Limits(**limits), now_ns=10**9, bytes_before={}, seconds=1.0)
    return asyncio.run(counting)


@pytest.mark.parametrize("count", [3, 4])
def test_rows_are_bounded_and_the_slow_come_first(count):
    streams = [Stream(n, "t", sent=n) for n in range(1, count)] + [Stream(count, "t", held=0)]
    told = tally(streams, statistics_subscriptions_max=3)
    assert told.streams == count
    assert told.held == 1
    shown = told.rows().column("stream").to_pylist()
    assert len(shown) == 3
    assert count in shown
    assert shown == sorted(shown)
    assert 1 in shown or count == 4, "who was sent least goes first"


@pytest.mark.parametrize(("names", "other"), [(["a", "b"], 0), (["a", "b", "c", "d"], 2)])
def test_tables_are_counted_by_name_up_to_a_bound(names, other):
    told = tally([Stream(n, name) for n, name in enumerate(names)], statistics_tables_max=2)
    assert told.by_table.pop(OTHER_TABLES, 0) == other
    assert told.by_table == {"a": 1, "b": 1}


def test_what_has_no_name_and_what_has_a_long_one():
    told = tally([Stream(1, ""), Stream(2, "x" * 500), Stream(3, "x" * 400)])
    assert told.by_table == {NO_TABLE: 1, "x" * 200: 2}


def test_much_is_told_to_two_digits():
    assert [two_digits(n) for n in (0, 7, 99, 100, 101, 12_345, 999_999)] == [
        *(0, 7, 99, 100, 100, 12_000, 990_000)
    ]


def test_every_measure_has_a_text_and_a_good_name():
    for name, info in MEASURES.items():
        assert info.text.endswith(".")
        assert name == name.lower()
        is_time = info.kind.value == "histogram"
        assert is_time == name.endswith("_seconds") or name.startswith("longest")
    assert pa.types.is_float64(SERVER_SCHEMA[3].type)
