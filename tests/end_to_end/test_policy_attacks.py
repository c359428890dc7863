"""What somebody may try to see more than rules show: one test for each way that was tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pytest

import barrage
from barrage import Operation, Policy, Rule
from barrage.engine.operators.restrict import RestrictTable
from barrage.errors import (
    BarrageError,
    PermissionDeniedError,
    TableNotFoundError,
)
from barrage.limits import Limits
from barrage.server import Alert, Login, ServerConfig, User
from barrage.transport.deephaven_messages import (
    APPLICATION_SERVICE,
    CONSOLE_SERVICE,
    MESSAGES,
    SESSION_SERVICE,
    TABLE_SERVICE,
)
from barrage.transport.flight_messages import FLIGHT, encode_ticket
from tests.helpers.server_process import subscription_request, wait_until
from tests.helpers.wiretap import HANG_S, RawClient, Wiretap, listening

READ, ADMIN = frozenset({Operation.READ}), frozenset({Operation.ADMIN})
SCHEMA = pa.schema({"Id": pa.int64(), "Owner": pa.string(), "Note": pa.string()})
KEEPER = Rule(tables=("*", "_*"), users=("ann",), allow=ADMIN)
OWN = Rule(
    tables=("bob*",),
    users=("bob",),
    allow=frozenset({Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DROP}),
)


def bob_sees(**part: object) -> Rule:
    """A part of tables that begin with t."""
    return Rule(tables=("t*",), users=("bob",), allow=READ, **part)  # type: ignore[arg-type]


def rows(first: int, count: int, owner: str | None = None) -> pa.Table:
    """Of bob every third, of eve the others."""
    ids = range(first, first + count)
    owners = [owner or ("eve" if each % 3 else "bob") for each in ids]
    notes = [f"~{each:06d}~" for each in ids]
    return pa.table([list(ids), owners, notes], schema=SCHEMA)


def authenticate(login: Login) -> User | None:
    is_known = login.scheme == "bearer" and login.secret in ("ann", "bob", "eve")
    return User(name=login.secret) if is_known else None


@contextmanager
def served(*rules: Rule, **settings: object) -> Iterator[barrage.Server]:
    """A server with a table t of nine rows."""
    config = ServerConfig(journal="memory", **settings)  # type: ignore[arg-type]
    policy = Policy((*rules, KEEPER))
    with barrage.Server(
        "inproc://", config=config, authenticate=authenticate, policy=policy
    ) as server:
        server.create_table("t", SCHEMA, key="Id").upsert(rows(0, 9))
        yield server


def as_user(server: barrage.Server, name: str = "bob") -> barrage.client.Session:
    return barrage.connect(server.uri, auth=barrage.Bearer(name))


def notes_in(tap: Wiretap, name: str = "bob") -> set[int]:
    """Whose notes somebody was sent."""
    sent = tap.taken(f"Bearer {name}")
    return {int(each[1:-1]) for each in re.findall(rb"~\d{6}~", sent)}


# --- what is shown ---


def test_dictionaries_have_the_entries_of_rows_that_are_shown() -> None:
    encoded = rows(0, 60).set_column(
        2, "Note", pa.array([f"~{each % 3:06d}~" for each in range(60)]).dictionary_encode()
    )
    with listening() as tap, served(bob_sees(rows="Owner = 'bob'")) as server:
        table = server.create_table("td", encoded.schema)
        with as_user(server) as bob, bob.table("td").subscribe(interval_ms=1) as live:
            live.wait_ready(HANG_S)
            table.add(encoded)
            wait_until(lambda: len(live) == 20)
            assert bob.table("td").snapshot()["Note"].unique().to_pylist() == ["~000000~"]
            assert bob.table("td").sort("Id").snapshot().num_rows == 20
        assert notes_in(tap) == {0}


def test_a_masked_key_names_no_row() -> None:
    with served(bob_sees(mask={"Id": 0})) as server, as_user(server) as bob:
        assert tuple(bob.table("t").info().key) == ()
        with bob.table("t").subscribe(interval_ms=1) as live:
            live.wait_ready(HANG_S)
            server.table("t").remove(pa.table({"Id": [1]}))
            wait_until(lambda: len(live) == 8)
            assert set(live.to_arrow()["Id"].to_pylist()) == {0}


def test_hashes_agree_with_nothing_somebody_knows() -> None:
    whole = Rule(tables=("u",), users=("bob",), allow=READ)
    with served(bob_sees(hash=("Note",)), whole) as server, as_user(server) as bob:
        server.create_table("u", SCHEMA, key="Id").upsert(rows(0, 9))
        known = bob.upload(rows(0, 9).select(["Note"]))
        for other in (bob.table("u"), known):
            joined = other.natural_join(bob.table("t"), on="Note", add="There=Id")
            assert set(joined.snapshot()["There"].to_pylist()) == {None}
        assert bob.table("t").where("Note = '~000001~'").snapshot().num_rows == 0


@pytest.mark.parametrize(
    ("data_type", "constant", "told"),
    [
        (pa.string(), "***", "***"),
        (pa.int32(), 7, 7),
        (pa.float32(), 1, 1.0),
        (pa.bool_(), False, False),
        (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
        (pa.timestamp("ms", "UTC"), "2024-01-02T00:00:00Z", datetime(2024, 1, 2, tzinfo=UTC)),
        (pa.list_(pa.string()), None, None),
        (pa.string(), None, None),
    ],
    ids=str,
)
def test_a_constant_of_any_type(data_type: pa.DataType, constant: object, told: object) -> None:
    with served(bob_sees(mask={"x": constant})) as server, as_user(server) as bob:
        table = server.create_table("tx", pa.schema({"x": data_type}))
        table.add(pa.table({"x": pa.nulls(3, data_type)}))
        assert bob.table("tx").snapshot()["x"].to_pylist() == [told] * 3


def test_columns_that_are_named_are_those_there_are() -> None:
    part = bob_sees(show=("Id", "Note", "Other"), hide=("Note",))
    with served(part) as server, as_user(server) as bob:
        assert bob.table("t").snapshot().column_names == ["Id"]
        server.drop_table("t")
        server.create_table("t", {"Id": "int64", "Further": "string"})
        assert bob.table("t").snapshot().column_names == ["Id"]


def test_a_table_that_comes_back_with_other_columns_shows_nothing_that_was_not_meant() -> None:
    with served(bob_sees(rows="Owner = caller()")) as server, as_user(server) as bob:
        assert bob.table("t").snapshot().num_rows == 3
        server.drop_table("t")
        server.create_table("t", {"Secret": "string"}).add({"Secret": ["~000001~"]})
        with pytest.raises(PermissionDeniedError, match="does not fit it") as caught:
            bob.table("t").snapshot()
        assert "Secret" not in str(caught.value)
        assert "Owner" not in str(caught.value)


def test_callers_see_of_tables_about_the_server_what_concerns_them() -> None:
    about = Rule(tables=("_*",), allow=READ)
    with served(bob_sees(), about) as server, as_user(server) as bob, as_user(server, "ann") as ann:
        server.create_table("hidden", SCHEMA)
        for name in ("hidden", "t"):
            alert = Alert(name=name, table=name, where="Id > 99", url="https://hooks.example.org/")
            server.add_alert(alert)

        def names(session: barrage.client.Session, table: str, column: str) -> set[str]:
            try:
                return set(session.table(table).snapshot()[column].to_pylist())
            except TableNotFoundError:
                return set()

        with bob.table("t").subscribe() as live, ann.table("t").subscribe() as hers:
            live.wait_ready(HANG_S)
            hers.wait_ready(HANG_S)
            wait_until(lambda: names(bob, "_callers", "user") == {"bob"})
            wait_until(lambda: names(bob, "_journal", "table") == {"t"})
            wait_until(lambda: names(bob, "_alerts", "table") == {"t"})


def test_what_is_shown_is_one_table_for_all_who_see_the_same() -> None:
    rules = (
        Rule(tables=("t",), users=("bob", "eve"), allow=READ, rows="Id < 5"),
        Rule(tables=("u",), users=("bob", "eve"), allow=READ, rows="Owner = caller()"),
    )
    with served(*rules) as server, ExitStack() as stack:
        server.create_table("u", SCHEMA).add(rows_of_u := rows(0, 9))
        for name in ("bob", "eve", "bob"):
            session = stack.enter_context(as_user(server, name))
            for table in ("t", "u"):
                live = stack.enter_context(session.table(table).subscribe(interval_ms=1))
                live.wait_ready(HANG_S)
                assert 0 < len(live) < len(rows_of_u)

        def shown(name: str) -> int:
            publication = server._parts.catalog.get(name)
            children = publication.table.live_children()
            return sum(isinstance(each, RestrictTable) for each in children)

        assert [server._parts.tables.run(partial(shown, name)).result() for name in "tu"] == [1, 2]


def test_who_comes_back_under_the_same_rules_goes_on() -> None:
    with listening() as tap, served(bob_sees(rows="Owner = 'bob'")) as server:
        with as_user(server) as bob:
            with bob.table("t").subscribe(interval_ms=1) as live:
                live.wait_ready(HANG_S)
                cursor, held = live.checkpoint()
            server.table("t").upsert(rows(3, 1, owner="eve"))
            server.table("t").upsert(rows(30, 6))
            with bob.table("t").subscribe(resume_from=cursor, rows=held) as live:
                live.wait_ready(HANG_S)
                assert str(live.resumption).startswith("replayed")
                assert live.to_arrow()["Id"].to_pylist() == [0, 6, 30, 33]
        assert notes_in(tap) == {0, 3, 6, 30, 33}


def test_the_cursor_and_rows_of_somebody_else_show_nothing_more() -> None:
    with listening() as tap, served(bob_sees(rows="Owner = 'bob'", hide=("Note",))) as server:
        with as_user(server, "ann") as ann, ann.table("t").subscribe() as live:
            live.wait_ready(HANG_S)
            cursor, held = live.checkpoint()
        server.table("t").upsert(rows(30, 6))
        with as_user(server) as bob:
            for taken in (held, held.select(["Id", "Owner"])):
                with bob.table("t").subscribe(resume_from=cursor, rows=taken) as live:
                    live.wait_ready(HANG_S)
                    assert str(live.resumption).startswith("resnapshot")
                    assert live.to_arrow().to_pydict() == {
                        "Id": [0, 3, 6, 30, 33],
                        "Owner": ["bob"] * 5,
                    }
        assert notes_in(tap) == set()


def test_who_has_missed_much_is_not_told_how_much() -> None:
    few = Limits(resume_rows_max=2)
    with served(bob_sees(rows="Owner = 'bob'"), limits=few) as server, as_user(server) as bob:
        with bob.table("t").subscribe(interval_ms=1) as live:
            live.wait_ready(HANG_S)
            cursor, held = live.checkpoint()
        server.table("t").upsert(rows(30, 77, owner="eve"))
        with bob.table("t").subscribe(resume_from=cursor, rows=held) as live:
            live.wait_ready(HANG_S)
            assert live.resumption == "resnapshot (more was missed than a snapshot is)"
            assert len(live) == 3


# --- names ---


def test_no_name_is_suggested_that_is_hidden() -> None:
    may_write = Rule(
        tables=("secr*",),
        users=("bob",),
        allow=frozenset({Operation.WRITE, Operation.DROP}),
    )
    hidden = Rule(tables=("secret",), users=("bob",))
    with served(hidden, may_write) as server, as_user(server) as bob:
        server.create_table("secret", SCHEMA, key="Id")
        asks: list[Callable[[], object]] = [
            bob.table("secre").snapshot,
            lambda: bob.drop_table("secre"),
            lambda: bob.put("secre", rows(0, 1), mode="replace"),
            lambda: bob.put("secre", rows(0, 1), mode="upsert", key="Id"),
            lambda: list(bob.table("secre").changes(0)),
        ]
        for ask in asks:
            with pytest.raises(BarrageError) as caught:
                ask()
            assert "secret" not in str(caught.value)


def bound(raw: RawClient, name: str, source: bytes, number: int) -> object:
    """The status of giving a table another name, as clients of Deephaven do."""
    export = MESSAGES.new("Ticket", ticket=b"e" + number.to_bytes(4, "little"))
    raw.call(
        f"/{SESSION_SERVICE}/ExportFromTicket",
        MESSAGES.encode(
            "ExportRequest",
            source_id=MESSAGES.new("Ticket", ticket=source),
            result_id=export,
        ),
    )
    request = MESSAGES.encode("BindTableToVariableRequest", table_id=export, variable_name=name)
    return raw.call(f"/{CONSOLE_SERVICE}/BindTableToVariable", request)[1]


Ask: TypeAlias = "Callable[[barrage.client.RemoteTable, str], barrage.client.RemoteTable]"

ASKED: dict[str, Ask] = {
    "where": lambda table, column: table.where(f"{column} = '~000001~'"),
    "sort": lambda table, column: table.sort(column),
    "agg_by": lambda table, column: table.agg_by(column, n="count()"),
    "aggregated": lambda table, column: table.agg_by("Owner", n=f"max({column})"),
    "select": lambda table, column: table.select("Id", column),
    "computed": lambda table, column: table.select("Id", n=f"{column} = 'x'"),
    "drop": lambda table, column: table.drop(column),
    "select_distinct": lambda table, column: table.select_distinct(column),
    "natural_join": lambda table, column: table.natural_join(table, on=column),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_hidden_column_is_told_as_one_that_never_was(
    ask: Ask,
) -> None:
    told = []
    with served(bob_sees(hide=("Note",))) as server, as_user(server) as bob:
        for column in ("Note", "Nope"):
            with pytest.raises(BarrageError) as refused:
                ask(bob.table("t"), column).snapshot()
            told.append((type(refused.value), str(refused.value).replace(column, "?")))
    assert told[0] == told[1]


def test_another_name_outlives_no_rules() -> None:
    whole = Rule(tables=("u",), users=("bob",), allow=READ)
    with served(bob_sees(rows="Owner = 'bob'"), whole, OWN) as server:
        server.create_table("u", SCHEMA)
        raw = RawClient(server.uri, "Bearer bob")
        for number, source in enumerate((b"s/t", b"s/u"), start=1):
            assert str(bound(raw, "bob_name", source, number)).endswith("PERMISSION_DENIED")
        assert bound(RawClient(server.uri, "Bearer ann"), "theirs", b"s/t", 1) is None


# --- other rules ---


def test_a_snapshot_under_way_ends_with_the_rules_it_began_under() -> None:
    count = 400_000
    wide = pa.table([range(count), ["bob"] * count, ["y" * 40] * count], schema=SCHEMA)
    with served(bob_sees(rows="Owner = 'bob'")) as server, as_user(server) as bob:
        server.create_table("tw", data=wide, kind="static")
        told: list[int] = []

        def change(received: int) -> None:
            told.append(received)
            if len(told) == 1:
                server.set_policy(Policy((bob_sees(rows="Owner = 'eve'"),)))

        with pytest.raises(PermissionDeniedError, match="rules for you have changed"):
            bob.table("tw").snapshot(on_progress=change)
        assert bob.table("tw").snapshot().num_rows == 0


@contextmanager
def opened(raw: RawClient, method: str, *requests: bytes) -> Iterator[Future[object]]:
    """A stream that somebody keeps open until the block ends: what it was told last."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(lambda: raw.kept_open(method, *requests))


def test_whatever_is_open_ends_with_the_rules_it_began_under() -> None:
    rules = (bob_sees(rows="Owner = 'bob'"), Rule(tables=("u",), users=("bob", "eve"), allow=READ))
    with served(*rules) as server, as_user(server, "eve") as eve:
        server.create_table("u", SCHEMA, key="Id")
        raw = RawClient(server.uri, "Bearer bob")
        export = MESSAGES.new("Ticket", ticket=b"e" + (1).to_bytes(4, "little"))
        request = MESSAGES.encode(
            "ExportRequest",
            source_id=MESSAGES.new("Ticket", ticket=b"s/t"),
            result_id=export,
        )
        raw.call(f"/{SESSION_SERVICE}/ExportFromTicket", request)
        wanted = subscription_request("t")
        with (
            eve.table("u").subscribe(interval_ms=1) as hers,
            opened(raw, f"/{APPLICATION_SERVICE}/ListFields", b"") as names,
            opened(raw, f"/{TABLE_SERVICE}/ExportedTableUpdates", b"") as sizes,
            opened(RawClient(server.uri, "Bearer bob"), FLIGHT + "DoExchange", wanted) as updates,
        ):
            hers.wait_ready(HANG_S)
            wait_until(lambda: len(server._running._authenticator.calls) >= 4)
            server.set_policy(Policy((bob_sees(rows="Owner = 'eve'"), rules[1], KEEPER)))
            for stream in (names, sizes, updates):
                assert str(stream.result(HANG_S)).endswith("PERMISSION_DENIED")
            # What bob held is gone with its session.
            assert raw.call(FLIGHT + "DoGet", encode_ticket(b"e\x01\0\0\0"))[1] is not None
            server.table("u").upsert(rows(0, 3))
            wait_until(lambda: len(hers) == 3)


def test_several_change_the_rules_at_once() -> None:
    policies = [Policy((bob_sees(rows=f"Owner = '{name}'"), KEEPER)) for name in ("bob", "eve")]
    owners = ({"bob"}, {"eve"})
    with served(bob_sees(rows="Owner = 'bob'")) as server, as_user(server) as bob:

        def flip(first: int) -> None:
            for number in range(20):
                server.set_policy(policies[(first + number) % 2])

        with ThreadPoolExecutor(3) as threads:
            flips = [threads.submit(flip, first) for first in (0, 1, 0)]
            while not all(each.done() for each in flips):
                try:
                    seen = bob.table("t").snapshot()
                except PermissionDeniedError:
                    continue
                assert set(seen["Owner"].to_pylist()) in owners
            assert [each.result() for each in flips] == [None] * 3
        for policy, owner in zip(policies, owners, strict=True):
            server.set_policy(policy)
            assert set(bob.table("t").snapshot()["Owner"].to_pylist()) == owner


def test_a_writer_ends_with_the_rules_it_began_under() -> None:
    with served(OWN) as server, as_user(server) as bob:
        bob.create_table("bob_x", SCHEMA)
        writer = bob.writer("bob_x", producer="p")
        writer.write(rows(0, 3))
        writer.flush()
        server.set_policy(Policy((Rule(tables=("bob*",), users=("bob",), allow=READ),)))

        def write_on() -> None:
            while True:
                writer.write(rows(3, 1))
                writer.flush(HANG_S)

        with pytest.raises(PermissionDeniedError, match="rules for you have changed"):
            write_on()
        writer.abandon()
        assert bob.table("bob_x").snapshot().num_rows == 3


def test_who_comes_back_under_other_rules_begins_anew() -> None:
    with listening() as tap, served(bob_sees(rows="Owner = 'bob'")) as server:
        with as_user(server) as bob:
            with bob.table("t").subscribe(interval_ms=1) as live:
                live.wait_ready(HANG_S)
                cursor, held = live.checkpoint()
            server.set_policy(Policy((bob_sees(rows="Owner = 'bob' and Id > 3"),)))
            server.table("t").upsert(rows(30, 6))
            with bob.table("t").subscribe(resume_from=cursor, rows=held) as live:
                live.wait_ready(HANG_S)
                assert live.to_arrow()["Id"].to_pylist() == [6, 30, 33]
        assert notes_in(tap) == {0, 3, 6, 30, 33}


def test_a_past_that_cannot_be_computed_is_not_quoted() -> None:
    with listening() as tap, served(bob_sees(rows="int(Note) > 0")) as server:
        server.table("t").replace(rows(0, 0))
        table = server.table("t")
        good = pa.table([[1], ["eve"], ["5"]], schema=SCHEMA)
        table.upsert(good)
        with as_user(server) as bob:
            with bob.table("t").subscribe(interval_ms=1) as live:
                live.wait_ready(HANG_S)
            table.upsert(rows(2, 1))
            with (
                bob.table("t").subscribe(interval_ms=1, reconnect=False) as failing,
                pytest.raises(BarrageError, match="cannot be computed any more"),
            ):
                failing.wait_ready(HANG_S)
            cursor = server_cursor(server)
            table.remove(pa.table({"Id": [2]}))
            with bob.table("t").subscribe(resume_from=cursor, rows=good) as live:
                live.wait_ready(HANG_S)
                assert live.to_arrow().equals(good)
        assert notes_in(tap) == set()


def server_cursor(server: barrage.Server) -> barrage.Cursor:
    """Of the table t as it is now."""
    with as_user(server, "ann") as ann, ann.table("t").subscribe(interval_ms=1) as live:
        live.wait_ready(HANG_S)
        cursor, _ = live.checkpoint()
    assert cursor is not None
    return cursor


def test_a_policy_can_come_later() -> None:
    with barrage.Server("inproc://", authenticate=authenticate) as server:
        server.create_table("t", SCHEMA)
        with as_user(server) as bob:
            assert bob.table("t").snapshot().num_rows == 0
            server.set_policy(Policy((KEEPER,)))
            with pytest.raises(TableNotFoundError):
                bob.table("t").snapshot()
