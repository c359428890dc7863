"""Rules of who may see what, through real servers and clients."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import barrage
from barrage import Operation, Policy, Rule
from barrage.engine.expressions.expression import bind_condition
from barrage.errors import (
    BarrageError,
    PermissionDeniedError,
    TableNotFoundError,
)
from barrage.server import ServerConfig
from barrage.server.identity.caller import Caller, Proof
from barrage.server.policy.access_gate import AccessGate
from tests.helpers.server_process import wait_until
from tests.helpers.users import ALICE_PASSWORD, users_file

SCHEMA = pa.schema(
    {"Id": pa.int64(), "Desk": pa.string(), "Account": pa.string(), "Px": pa.float64()}
)
HANG_S = 180
NOW = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
READ, WRITE, CREATE, DROP = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DROP
RULES = (
    Rule(tables=("*", "_*"), roles=("writer",), allow=frozenset({Operation.ADMIN})),
    Rule(
        tables=("trades",),
        users=("bob",),
        allow=frozenset({READ}),
        rows="Desk = caller()",
        hide=("Account",),
        mask={"Px": 0},
    ),
    Rule(tables=("hashed",), users=("bob",), allow=frozenset({READ}), hash=("Account",)),
    Rule(tables=("public*",), allow=frozenset({READ})),
    Rule(tables=("bob_*",), users=("bob",), allow=frozenset({READ, WRITE, CREATE, DROP})),
)


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "Id": list(ids),
            "Desk": ["bob" if each % 2 else "eve" for each in ids],
            "Account": [f"SECRET{each}" for each in ids],
            "Px": [each / 3 for each in ids],
        },
        schema=SCHEMA,
    )


def read_to_the_end(table: barrage.client.TickingTable) -> None:
    for _ in table.updates(timeout=HANG_S):
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[barrage.Server]:
    config = ServerConfig(users=str(users_file(tmp_path / "users")), journal="memory")
    with barrage.Server(config=config, policy=Policy(RULES)) as running:
        for name in ("trades", "hashed", "secret", "public"):
            running.create_table(name, SCHEMA, key="Id").upsert(rows(0, 10))
        yield running


@pytest.fixture
def bob(server: barrage.Server) -> Iterator[barrage.client.Session]:
    with barrage.connect(server.uri, auth=barrage.Basic("bob", ALICE_PASSWORD)) as session:
        yield session


@pytest.fixture
def alice(server: barrage.Server) -> Iterator[barrage.client.Session]:
    with barrage.connect(server.uri, auth=barrage.Basic("alice", ALICE_PASSWORD)) as session:
        yield session


def test_a_caller_sees_the_tables_of_its_rules_only(alice, bob):
    assert {info.name for info in bob.tables()} == {"trades", "hashed", "public"}
    assert {"trades", "hashed", "public", "secret"} <= {info.name for info in alice.tables()}
    for name in ("secret", "secre", "nothing"):
        with pytest.raises(TableNotFoundError) as caught:
            bob.table(name).snapshot()
        assert str(caught.value) == f"table {name!r} not found"


def test_rows_columns_and_masks(alice, bob):
    shown = bob.table("trades").snapshot()
    assert shown.column_names == ["Id", "Desk", "Px"]
    assert shown["Id"].to_pylist() == [1, 3, 5, 7, 9]
    assert set(shown["Px"].to_pylist()) == {0.0}
    hashed = bob.table("hashed").snapshot()
    assert len(set(hashed["Account"].to_pylist())) == 10
    assert not any("SECRET" in each for each in hashed["Account"].to_pylist())
    assert alice.table("trades").snapshot().equals(rows(0, 10))


def test_rules_hold_on_changes(server, bob):
    with bob.table("trades").subscribe() as table:
        table.wait_ready()
        assert table.to_arrow().num_rows == 5
        source = server.table("trades")
        source.upsert(pa.table([[1], ["eve"], ["SECRET"], [1.0]], schema=SCHEMA))
        source.upsert(pa.table([[2], ["bob"], ["SECRET"], [1.0]], schema=SCHEMA))
        wait_until(lambda: sorted(table.to_arrow()["Id"].to_pylist()) == [2, 3, 5, 7, 9])


def test_what_is_derived_rests_on_what_is_shown(bob):
    found = bob.table("trades").agg_by(n="count()").snapshot()
    assert found.to_pylist() == [{"n": 5}]
    with pytest.raises(BarrageError, match="Account"):
        bob.table("trades").where("Account = 'SECRET1'").snapshot()
    joined = bob.table("public").natural_join(bob.table("secret"), on="Id")
    with pytest.raises(TableNotFoundError, match=r"table 'secret' not found$"):
        joined.snapshot()


def test_writes_are_for_those_who_may(bob):
    with pytest.raises(PermissionDeniedError, match="you may not write table 'public'"):
        bob.put("public", rows(20, 1))
    with pytest.raises(BarrageError) as caught:
        bob.put("secret", rows(20, 1))
    unknown = str(caught.value)
    with pytest.raises(BarrageError) as caught:
        bob.put("nothing", rows(20, 1))
    assert str(caught.value) == unknown.replace("secret", "nothing")
    with pytest.raises(PermissionDeniedError):
        bob.create_table("other", SCHEMA)
    with pytest.raises(PermissionDeniedError):
        bob.drop_table("trades")
    bob.create_table("bob_own", SCHEMA)
    bob.put("bob_own", rows(0, 3))
    assert bob.table("bob_own").snapshot().num_rows == 3
    bob.drop_table("bob_own")


def test_history_is_for_those_who_see_all(alice, bob):
    assert alice.table("trades").as_of(NOW)
    for name in ("trades", "hashed"):
        with pytest.raises(PermissionDeniedError, match="you see a part of table"):
            bob.table(name).as_of(NOW)
    with pytest.raises(TableNotFoundError):
        bob.table("secret").as_of(NOW)
    assert bob.table("public").as_of(NOW)


def test_a_dropped_table_ends_what_is_shown_of_it(server, bob):
    with bob.table("trades").subscribe(reconnect=False) as table:
        table.wait_ready()
        assert table.to_arrow().num_rows == 5
        server.drop_table("trades")
        with pytest.raises(TableNotFoundError, match="'trades' not found"):
            read_to_the_end(table)


def file_of(path: Path, *rules: str) -> Path:
    path.write_text("".join(f"[[rule]]\n{rule}\n" for rule in rules))
    return path


BOB_READS = 'users = ["bob"]\ntables = ["quotes"]\nallow = ["read"]\n'
ALICE_KEEPS = 'users = ["alice"]\ntables = ["*"]\nallow = ["admin"]\n'


def test_other_rules_end_what_is_open_for_whom_they_are_other(tmp_path):
    path = file_of(tmp_path / "policy.toml", ALICE_KEEPS, BOB_READS)
    config = ServerConfig(users=str(users_file(tmp_path / "users")), policy=str(path))
    with barrage.Server(config=config) as server:
        quotes = server.create_table("quotes", SCHEMA, key="Id")
        quotes.upsert(rows(0, 4))
        with (
            barrage.connect(server.uri, auth=barrage.Basic("bob", ALICE_PASSWORD)) as bob,
            barrage.connect(server.uri, auth=barrage.Basic("alice", ALICE_PASSWORD)) as alice,
            bob.table("quotes").subscribe() as his,
            alice.table("quotes").subscribe() as hers,
        ):
            his.wait_ready()
            hers.wait_ready()
            path.write_text("[[rule]]\nallow = 3")
            file_of(path, ALICE_KEEPS, BOB_READS + "rows = \"Desk = 'bob'\"")
            with pytest.raises(PermissionDeniedError, match="rules for you have changed"):
                read_to_the_end(his)
            assert bob.table("quotes").snapshot()["Id"].to_pylist() == [1, 3]
            quotes.upsert(rows(4, 1))
            wait_until(lambda: hers.to_arrow().num_rows == 5)


def test_shared_tickets_are_for_the_same_caller_under_rules(server, alice, bob):
    ticket = alice.table("secret").publish_shared()
    assert alice.shared(ticket).snapshot().num_rows == 10
    with pytest.raises(BarrageError, match="not found"):
        bob.shared(ticket).snapshot()


def test_a_rule_that_does_not_fit_shows_nothing_and_says_nothing(tmp_path):
    rules = (
        Rule(tables=("t",), allow=frozenset({READ}), rows="Hidden > 3"),
        Rule(tables=("u",), allow=frozenset({READ}), mask={"Id": "text"}),
        Rule(tables=("v",), allow=frozenset({READ}), hide=tuple(SCHEMA.names)),
        Rule(tables=("w",), allow=frozenset({READ}), rows="int(Account) > 3"),
    )
    with barrage.Server(policy=Policy(rules)) as server, barrage.connect(server.uri) as session:
        for name in "tuvw":
            server.create_table(name, SCHEMA).add(rows(0, 3))
            with pytest.raises(BarrageError) as caught:
                session.table(name).snapshot()
            assert "SECRET" not in str(caught.value)
            assert "Hidden" not in str(caught.value)
        assert {info.name for info in session.tables()} == set("tuvw")


def test_a_condition_that_fails_later_tells_no_cell(tmp_path):
    rule = Rule(tables=("t",), allow=frozenset({READ}), rows="int(Account) > 3")
    with barrage.Server(policy=Policy((rule,))) as server, barrage.connect(server.uri) as session:
        table = server.create_table("t", {"Account": "string"})
        table.add(pa.table({"Account": ["7", "1"]}))
        with session.table("t").subscribe() as shown:
            shown.wait_ready()
            table.add(pa.table({"Account": ["SECRET"]}))
            with pytest.raises(BarrageError, match="cannot be computed any more") as caught:
                read_to_the_end(shown)
            assert "SECRET" not in str(caught.value)
        with pytest.raises(BarrageError) as caught:
            session.table("t").snapshot()
        assert "SECRET" not in str(caught.value)


def test_a_callers_name_is_never_a_part_of_a_condition(tmp_path):
    rule = Rule(tables=("t",), allow=frozenset({READ}), rows="Desk = caller() or has_role('all')")
    policy = Policy((rule,))
    odd = Caller(name="x' or 'a' = 'a", proof=Proof.PASSWORD)
    gate = AccessGate(policy)
    decision = gate.decision("t", odd)
    assert decision.restriction is not None
    bound = bind_condition(decision.restriction.rows, SCHEMA)
    cells = [rows(0, 3)["Desk"].combine_chunks()]
    assert not any(bound.evaluate(cells, 3).to_pylist())
    ops = Caller(name="o", roles=frozenset({"all"}), proof=Proof.PASSWORD)
    bound = bind_condition(gate.decision("t", ops).restriction.rows, SCHEMA)
    assert all(bound.evaluate(cells, 3).to_pylist())


def test_bodies_outside_of_streams_are_for_keepers(tmp_path):
    config = ServerConfig(users=str(users_file(tmp_path / "users")), bodies="shm")
    with barrage.Server(config=config, policy=Policy(RULES)) as server:
        server.create_table("public", SCHEMA).add(rows(0, 3))
        for user, way in (("bob", "inline"), ("alice", "shm")):
            auth = barrage.Basic(user, ALICE_PASSWORD)
            with barrage.connect(server.uri, auth=auth) as session:
                assert session.body_status().way.value == way
                assert session.table("public").snapshot().num_rows == 3


def test_a_relay_is_told_of_whole_tables_only(server):
    def told(user: str) -> set[str]:
        with flight.connect(server.uri.replace("grpc:", "grpc+tcp:")) as client:
            options = flight.FlightCallOptions(
                headers=[client.authenticate_basic_token(user, ALICE_PASSWORD)]
            )
            (result,) = client.do_action("barrage.relay", options)
            return {table["name"] for table in json.loads(result.body.to_pybytes())["tables"]}

    assert told("bob") == {"public"}
    assert told("alice") >= {"public", "secret", "trades"}
