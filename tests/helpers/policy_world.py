"""A server whose rules, tables and callers change at random, and an oracle beside it.

After each action nothing may have been sent to anybody that the oracle has not allowed at some time
before, and what the callers see must be what the oracle says.
"""

from __future__ import annotations

import datetime
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

import barrage
from barrage import Operation, Policy, Rule
from barrage.client import State
from barrage.errors import BarrageError, PermissionDeniedError, TableNotFoundError
from barrage.server import Login, ServerConfig, User
from barrage.transport.deephaven_messages import APPLICATION_SERVICE, MESSAGES, SESSION_SERVICE
from barrage.transport.flight_messages import FLIGHT, Descriptor, encode_action, encode_ticket
from tests.helpers.policy_draws import ADMIN, ALWAYS, PLAIN, READ, random_part, random_rule
from tests.helpers.policy_oracle import (
    OracleTable,
    Person,
    Row,
    deciding_rule,
    is_part,
    mark_of_float,
    mark_of_int,
    marks_in,
    marks_of,
    may,
    shown,
)
from tests.helpers.server_process import wait_until
from tests.helpers.wiretap import HANG_S, RawClient, Wiretap, listening

PEOPLE = (Person("bob"), Person("eve"), Person("olga", frozenset({"ops"})))
TABLES_MAX = 4
HASH_KEY = bytes(range(16))
_KEPT = re.compile(rb"f/[0-9a-f]{32}/\d+")
NEVER_YET = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


class LeakError(AssertionError):
    """Somebody was sent what must not be."""


@dataclass
class Followed:
    """A subscription somebody has open."""

    who: Person
    table: str
    live: barrage.client.TickingTable
    first: int | None
    """Rows of its viewport; None for all."""


class PolicyWorld:
    """Draws from a seed. To be used within ``with``."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._numbers = count(1)
        self.rules: tuple[Rule, ...] = ()
        self.tables: dict[str, OracleTable] = {}
        self.allowed: dict[str, set[str]] = defaultdict(set)
        self._followed: list[Followed] = []
        self.compared = 0
        """Answers that were held against the oracle and had rows."""
        self.marks_sent = 0
        self._tickets: list[bytes] = []
        self.patience_s = HANG_S

    def __enter__(self) -> PolicyWorld:
        self._listening = listening()
        self.tap: Wiretap = self._listening.__enter__()
        config = ServerConfig(journal="memory")
        self.server = barrage.Server(
            "inproc://", config=config, authenticate=_authenticate, policy=self._policy()
        ).start()
        self.sessions = {
            who.name: barrage.connect(self.server.uri, auth=barrage.Bearer(who.name))
            for who in PEOPLE
        }
        for _ in range(3):
            self.make_table()
        self.change_policy()
        return self

    def __exit__(self, *_: object) -> None:
        for followed in self._followed:
            followed.live.close()
        for session in self.sessions.values():
            session.close()
        self.server.stop(0)
        self._listening.__exit__(None, None, None)

    # --- what happens ---

    def act(self) -> None:
        """One random action, and everything is checked."""
        action: Callable[[], None] = self._draw.choices(
            (
                self.change_rows,
                self.change_policy,
                self.recreate_table,
                self.follow,
                self.read_whole,
                self.query,
                self.read_history,
                self.resume,
                self.look_around,
                self.look_raw,
                self.write,
                self.share,
            ),
            (6, 3, 1, 4, 2, 3, 2, 2, 1, 2, 1, 1),
        )[0]
        action()
        self.check()

    def check(self) -> None:
        """LeakError for what nobody has allowed; AssertionError for another state."""
        for followed in self._followed:
            self._check_followed(followed)
        for who in PEOPLE:
            found = marks_in(self.tap.taken(who.header))
            self.marks_sent += len(found)
            leaked = found - self.allowed[who.name]
            if leaked:
                raise LeakError(f"{who.name} was sent {sorted(leaked)} under {self.rules}")

    def _number(self) -> int:
        return next(self._numbers)

    def _row(self, key: int, *, extra: Sequence[str], codes: Mapping[str, str]) -> Row:
        draw = self._draw
        owner = draw.choice(["bob", "eve", "olga"])
        row = {
            "Id": key,
            "Owner": owner,
            "Level": draw.randrange(6),
            "Note": None if draw.random() < 0.3 else f"~{self._number():06d}~",
            "Code": codes[owner],
            "Px": None if draw.random() < 0.3 else mark_of_float(self._number()),
            "Tags": [f"~{self._number():06d}~" for _ in range(draw.randrange(3))],
        }
        return row | {column: f"~{self._number():06d}~" for column in extra}

    def make_table(self, name: str | None = None) -> None:
        name = name or f"tzq{self._number() % 1000:03d}"
        extra = [f"czq{self._number() % 1000:03d}"]
        fields = {
            "Id": pa.int64(),
            "Owner": pa.string(),
            "Level": pa.int64(),
            "Note": pa.string(),
            "Code": pa.dictionary(pa.int32(), pa.string()),
            "Px": pa.float64(),
            "Tags": pa.list_(pa.string()),
        }
        columns = [*fields, *extra]
        self._draw.shuffle(columns)
        schema = pa.schema([(each, fields.get(each, pa.string())) for each in columns])
        table = self.tables[name] = OracleTable(name, schema)
        # One for each owner: dictionaries are smaller than tables, and have what some do not see.
        table.codes = {who.name: f"~{self._number():06d}~" for who in PEOPLE}
        table.is_keyed = self._draw.random() < 0.7
        self.server.create_table(name, schema, key="Id" if table.is_keyed else None)
        self._upsert(table, [mark_of_int(self._number()) for _ in range(self._draw.randrange(9))])

    def _upsert(self, table: OracleTable, keys: Sequence[int]) -> None:
        extra = [each for each in table.schema.names if each not in PLAIN]
        rows = [self._row(key, extra=extra, codes=table.codes) for key in keys]
        self._enter(table, rows)
        if rows:
            published, arrow = self.server.table(table.name), _arrow(rows, table)
            published.upsert(arrow) if table.is_keyed else published.add(arrow)

    def _enter(self, table: OracleTable, rows: Sequence[Row]) -> None:
        for row in rows:
            table.rows[row["Id"]] = row
            for value in row.values():
                table.ever.update(marks_of(value))
        self._allow()

    def change_rows(self) -> None:
        table = self._any_table()
        known = list(table.rows) if table.is_keyed else []
        changed = [key for key in known if self._draw.random() < 0.4]
        fresh = [mark_of_int(self._number()) for _ in range(self._draw.randrange(4))]
        gone = [key for key in changed if self._draw.random() < 0.3]
        for key in gone:
            del table.rows[key]
        if gone:
            self.server.table(table.name).remove(pa.table({"Id": gone}))
        self._upsert(table, [key for key in (*changed, *fresh) if key not in gone])

    def recreate_table(self) -> None:
        if len(self.tables) < TABLES_MAX and self._draw.random() < 0.5:
            self.make_table()
            return
        name = self._any_table().name
        for followed in [each for each in self._followed if each.table == name]:
            followed.live.close()
            self._followed.remove(followed)
        self.server.drop_table(name)
        self.make_table(name)

    # --- rules ---

    def _policy(self) -> Policy:
        return Policy(self.rules, HASH_KEY)

    def change_policy(self) -> None:
        """Other rules, for some callers or for all."""
        before = self.rules
        rules = [
            random_rule(self._draw, list(self.tables)) for _ in range(self._draw.randrange(2, 7))
        ]
        if before and self._draw.random() < 0.4:
            only = self._draw.choice(PEOPLE)
            rules = [Rule(tables=("*",), users=(only.name,), allow=READ, **random_part(self._draw))]
            rules += [each for each in before if each.users != (only.name,)]
        self.rules = (*(each for each in rules if each not in ALWAYS), *ALWAYS)
        self._allow()
        self.server.set_policy(self._policy())
        for followed in list(self._followed):
            if _rules_for(before, followed.who) != _rules_for(self.rules, followed.who):
                wait_until(lambda live=followed.live: live.state.is_final, self.patience_s)
                assert isinstance(followed.live.error, PermissionDeniedError)
                self._followed.remove(followed)

    def _allow(self) -> None:
        """What everybody may be sent from now on."""
        for who in PEOPLE:
            allowed = self.allowed[who.name]
            for table in self.tables.values():
                if any(may(self.rules, who, table.name, each) for each in Operation):
                    allowed.add(table.name)
                rows = self.seen(who, table)
                if rows is None:
                    continue
                rule = deciding_rule(self.rules, who, table.name)
                if rule is not None and not is_part(rule):
                    allowed.update(table.ever)  # It may read its history.
                allowed.update(self.columns_seen(who, table))
                for row in rows:
                    for value in row.values():
                        allowed.update(marks_of(value))

    def columns_seen(self, who: Person, table: OracleTable) -> list[str]:
        rule = deciding_rule(self.rules, who, table.name)
        assert rule is not None
        return [
            each
            for each in table.schema.names
            if each not in rule.hide and (not rule.show or each in rule.show)
        ]

    def seen(self, who: Person, table: OracleTable) -> list[Row] | None:
        return shown(self.rules, who, table, key=HASH_KEY)

    # --- doors ---

    def _any_table(self) -> OracleTable:
        return self._draw.choice(list(self.tables.values()))

    def _somebody(self) -> tuple[Person, OracleTable, barrage.client.RemoteTable]:
        who, table = self._draw.choice(PEOPLE), self._any_table()
        return who, table, self.sessions[who.name].table(table.name)

    def _refused(self, who: Person, table: str, ask: Callable[[], object]) -> None:
        """That there is no such table; the name itself is what the caller has said."""
        self.check()
        is_known = may(self.rules, who, table, Operation.WRITE)
        with pytest.raises(PermissionDeniedError if is_known else TableNotFoundError) as caught:
            ask()
        assert is_known or str(caught.value).startswith(f"table {table!r} not found")
        found = marks_in(self.tap.taken(who.header)) - {table}
        if found - self.allowed[who.name]:
            raise LeakError(f"{who.name} was refused, and told {found}")

    def follow(self) -> None:
        who, table, remote = self._somebody()
        if self.seen(who, table) is None:
            self._refused(who, table.name, lambda: remote.subscribe().wait_ready(HANG_S))
            return
        first = self._draw.choice([None, None, 1, 3])
        live = remote.subscribe(viewport=None if first is None else range(first), interval_ms=1)
        live.wait_ready(HANG_S)
        self._followed.append(Followed(who, table.name, live, first))

    def _check_followed(self, followed: Followed) -> None:
        expected = self.seen(followed.who, self.tables[followed.table])
        assert expected is not None
        live = followed.live

        def is_equal() -> bool:
            if live.state is State.FAILED:
                raise AssertionError(f"{followed} has failed: {live.error}")
            rows = live.to_arrow().to_pylist()
            if followed.first is None:
                return same(rows, expected)
            size = min(followed.first, len(expected))
            told = [repr(row) for row in expected]
            return len(rows) == size and all(repr(in_order(row, expected)) in told for row in rows)

        wait_until(is_equal, self.patience_s)
        self.compared += bool(expected)

    def read_whole(self) -> None:
        who, table, remote = self._somebody()
        expected = self.seen(who, table)
        if expected is None:
            self._refused(who, table.name, remote.snapshot)
            return
        found = remote.snapshot()
        assert found.column_names == self.columns_seen(who, table)
        self._compare(found.to_pylist(), expected)

    def _compare(self, found: list[Row], expected: list[Row]) -> None:
        assert same(found, expected), (found, expected)
        self.compared += bool(expected)

    def query(self) -> None:
        who, table, remote = self._somebody()
        rows = self.seen(who, table)
        if rows is None:
            self._refused(who, table.name, remote.where("Level > 0").snapshot)
            return
        columns = self.columns_seen(who, table)
        column = self._draw.choice(table.schema.names)
        if column not in columns:
            for asked in (
                remote.where(f"isnull({column})"),
                remote.sort(column),
                remote.select_distinct(column),
                remote.agg_by(n=f"count_distinct({column})"),
            ):
                _expect_error(asked.snapshot, table=table.name)
            self.allowed[who.name].add(column)
            return
        if column == "Tags":
            return
        found = remote.where(f"isnotnull({column})").snapshot().to_pylist()
        self._compare(found, [row for row in rows if row[column] is not None])
        told = remote.select_distinct(column).snapshot()[column].to_pylist()
        assert sorted(map(repr, told)) == sorted({repr(row[column]) for row in rows})
        assert remote.agg_by(n="count()").snapshot().to_pylist() in ([], [{"n": len(rows)}])
        assert len(remote.sort(column).snapshot()) == len(rows)

    def read_history(self) -> None:
        who, table, remote = self._somebody()
        rule = deciding_rule(self.rules, who, table.name)
        rows = self.seen(who, table)
        if rows is None:
            self._refused(who, table.name, lambda: remote.as_of(NEVER_YET))
            return
        assert rule is not None
        if is_part(rule):
            for ask in (lambda: remote.as_of(1), lambda: list(remote.changes(1))):
                try:
                    ask()
                except PermissionDeniedError:
                    continue
                raise LeakError(f"{who.name} has read the history of {table.name}")
        else:
            self._compare(remote.as_of(NEVER_YET).to_pylist(), rows)

    def resume(self) -> None:
        """Come back with a cursor; the rules may have changed meanwhile."""
        if not self._followed:
            return
        followed = self._draw.choice(self._followed)
        if followed.first is not None:
            return
        cursor, rows = followed.live.checkpoint()
        followed.live.close()
        self._followed.remove(followed)
        self.change_rows()
        if self._draw.random() < 0.4:
            self.change_policy()
        remote = self.sessions[followed.who.name].table(followed.table)
        table = self.tables[followed.table]
        if self.seen(followed.who, table) is None or cursor is None:
            return
        try:
            live = remote.subscribe(resume_from=cursor, rows=rows, interval_ms=1)
            live.wait_ready(HANG_S)
        except barrage.errors.SchemaError:
            return  # The rows it has are of other columns now.
        self._followed.append(Followed(followed.who, followed.table, live, None))

    def look_around(self) -> None:
        """Lists, tables about the server, and a name that is nearly one there is."""
        who = self._draw.choice(PEOPLE)
        session = self.sessions[who.name]
        readable = {name for name in self.tables if may(self.rules, who, name, Operation.READ)}
        listed = {info.name for info in session.tables()}
        # Those who may everything have made tables of names that are nearly those there are.
        assert {each for each in listed if each.startswith("tzq")} == readable
        for about in (each for each in listed if each[0] == "_"):
            rows = session.table(about).snapshot().to_pylist()
            assert {row.get("user", who.name) for row in rows} <= {who.name}
            told = {row.get("table") for row in rows} - {None}
            assert all(name[0] == "_" or name in readable for name in told)
        near = self._any_table().name.replace("tzq", "tzz")
        for ask in (
            session.table(near).snapshot,
            session.table("tzq").where("Id = 1").snapshot,
            lambda: session.drop_table(near),
            lambda: session.put(near, {"Id": [1]}),
            lambda: session.put(near, {"Id": [1]}, mode="replace"),
            lambda: list(session.table(near).changes(0)),
        ):
            try:
                ask()
            except BarrageError:
                continue

    def look_raw(self) -> None:
        """Calls as bytes: tickets, lists, actions, a Deephaven session."""
        who, table = self._draw.choice(PEOPLE), self._any_table()
        raw = RawClient(self.server.uri, who.header)
        asked = table.name.encode()
        ticket = encode_ticket(b"s/" + asked)
        self.check()
        raw.call(FLIGHT + "DoGet", ticket)
        raw.call(FLIGHT + "ListFlights", b"")
        for action in ("barrage.tables", "barrage.relay"):
            raw.call(FLIGHT + "DoAction", _action(action, {}))
        for action in ("journal.info", "journal.bound", "journal.version", "journal.cursor"):
            raw.call(FLIGHT + "DoAction", _action(action, {"table": table.name}))
        raw.call(FLIGHT + "DoAction", _action("barrage.describe", {"table": table.name}))
        raw.first(f"/{APPLICATION_SERVICE}/ListFields", b"")
        self._keep_results(who, table)
        request = MESSAGES.encode(
            "ExportRequest",
            source_id=MESSAGES.new("Ticket", ticket=b"s/" + asked),
            result_id=MESSAGES.new("Ticket", ticket=b"e" + (1).to_bytes(4, "little")),
        )
        raw.call(f"/{SESSION_SERVICE}/ExportFromTicket", request)
        raw.call(FLIGHT + "DoGet", encode_ticket(b"e\x01\0\0\0"))
        found = marks_in(self.tap.taken(who.header)) - {table.name}
        if found - self.allowed[who.name]:
            raise LeakError(f"{who.name} was sent {found - self.allowed[who.name]} as bytes")

    def _keep_results(self, who: Person, table: OracleTable) -> None:
        """Results that are kept, and those somebody was given before."""
        raw = RawClient(self.server.uri, who.header)
        for method in ("GetFlightInfo", "PollFlightInfo", "GetSchema"):
            answers, _ = raw.call(FLIGHT + method, Descriptor(path=(table.name,)).encode())
            self._tickets += _KEPT.findall(b"".join(answers))
        for ticket in self._draw.sample(self._tickets, min(3, len(self._tickets))):
            raw.call(FLIGHT + "DoGet", encode_ticket(ticket))

    def write(self) -> None:
        who, table, _ = self._somebody()
        extra = [each for each in table.schema.names if each not in PLAIN]
        row = self._row(mark_of_int(self._number()), extra=extra, codes=table.codes)
        rows = _arrow([row], table)
        session = self.sessions[who.name]
        if may(self.rules, who, table.name, Operation.WRITE):
            if table.is_keyed:
                session.put(table.name, rows, mode="upsert", key="Id")
            else:
                session.put(table.name, rows)
            self._enter(table, [row])
            return
        self.check()
        try:
            session.put(table.name, rows)
        except (PermissionDeniedError, TableNotFoundError):
            found = marks_in(self.tap.taken(who.header)) - {table.name}
            assert found <= self.allowed[who.name], found
        else:
            raise LeakError(f"{who.name} has written {table.name}")

    def share(self) -> None:
        """A shared ticket in the hands of somebody else."""
        who, table, remote = self._somebody()
        other = self._draw.choice([each for each in PEOPLE if each is not who])
        if self.seen(who, table) is None:
            return
        ticket = remote.publish_shared()
        keeps = any(
            rule.allow == ADMIN and "*" in rule.tables for rule in _rules_for(self.rules, other)[:1]
        )
        try:
            self.sessions[other.name].shared(ticket).snapshot()
        except BarrageError:
            assert not keeps
        else:
            self._allow_all_of(other, self.seen(who, table) or (), table)

    def _allow_all_of(self, other: Person, rows: Sequence[Row], table: OracleTable) -> None:
        """Who keeps the server may have what others have."""
        first = _rules_for(self.rules, other)
        if not first or first[0].allow != ADMIN:
            return
        for row in rows:
            for value in row.values():
                self.allowed[other.name].update(marks_of(value))


def _arrow(rows: Sequence[Row], table: OracleTable) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=table.schema)


def _authenticate(login: Login) -> User | None:
    for who in PEOPLE:
        if login.scheme == "bearer" and login.secret == who.name:
            return User(name=who.name, roles=tuple(who.roles))
    return None


def _rules_for(rules: Sequence[Rule], who: Person) -> list[Rule]:
    return [rule for rule in rules if deciding_rule([_about_all(rule)], who, "any") is not None]


def _about_all(rule: Rule) -> Rule:
    return Rule(tables=("*",), users=rule.users, roles=rule.roles)


def in_order(row: Row, expected: list[Row]) -> Row:
    return {name: row[name] for name in expected[0]} if expected else row


def same(found: list[Row], expected: list[Row]) -> bool:
    """Whether these are the same rows, in any order."""
    told = sorted(repr(sorted(row.items())) for row in found)
    return told == sorted(repr(sorted(row.items())) for row in expected)


def _expect_error(ask: Callable[[], object], *, table: str) -> None:
    try:
        ask()
    except BarrageError:
        return
    raise LeakError(f"a column of {table} that is hidden could be asked for")


def _action(name: str, body: dict[str, Any]) -> bytes:
    return encode_action(name, json.dumps(body).encode())
