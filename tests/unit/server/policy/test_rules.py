"""Rules, patterns and the file form, as values."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage import Operation, Policy, Rule
from barrage.errors import ConfigError
from barrage.relay import relay_statistics
from barrage.server.alerting import alert_statistics
from barrage.server.identity.caller import Caller, Proof
from barrage.server.policy.access_gate import AccessGate
from barrage.server.policy.patterns import PatternIndex, compiled_patterns
from barrage.server.policy.policy_file import POLICY_BYTES_MAX, parse_policy, read_policy
from barrage.server.policy.rules import ABOUT_TABLES, ABOUT_USERS, PATTERN_LENGTH_MAX, RULES_MAX
from barrage.server.statistics import (
    body_statistics,
    caller_statistics,
    connector_statistics,
    journal_statistics,
    server_statistics,
    subscription_rows,
    thread_statistics,
)

READ, ADMIN = frozenset({Operation.READ}), frozenset({Operation.ADMIN})
BOB = Caller(name="bob", proof=Proof.PASSWORD)
OPS = Caller(name="olga", roles=frozenset({"ops", "x"}), proof=Proof.PASSWORD)

names = st.text("ab_*?[]!-", max_size=5)


@given(patterns=st.lists(names.filter(bool), max_size=8), name=names)
def test_an_index_finds_what_patterns_fit(patterns: list[str], name: str) -> None:
    index = PatternIndex(enumerate(patterns), compiled_patterns(patterns))
    fitting = {n for n, pattern in enumerate(patterns) if fnmatchcase(name, pattern)}
    assert index.fitting(name) == fitting
    assert index.first(name) == min(fitting, default=None)


def test_the_first_rule_for_both_decides() -> None:
    policy = Policy.of(
        Rule(tables=("t1",), users=("b*",)),
        Rule(tables=("t*",), users=("bob",), allow=READ),
        Rule(tables=("*",), roles=("o?s",), allow=ADMIN),
        Rule(tables=("_callers",), allow=READ),
    )
    assert [policy.decide(BOB, name).rule for name in ("t1", "t2", "u")] == [1, 2, None]
    assert not policy.decide(BOB, "t1").is_known
    assert policy.decide(OPS, "t1").allow == frozenset(Operation)
    assert [policy.decide(OPS, name).rule for name in ("_callers", "_threads")] == [4, None]
    assert policy.has_all(OPS)
    assert not policy.has_all(BOB)


def test_callers_of_whom_a_condition_says_the_same_share_it() -> None:
    rule = Rule(tables=("t",), allow=READ, rows="has_role('ops') or a = 1")
    others = [Caller(name=name, roles=OPS.roles, proof=Proof.KEY) for name in "ab"]
    first, second = (rule.restriction(each).rows for each in others)
    assert first is not None
    assert (first.scope, first.text) == (second.scope, second.text)
    assert first.scope != rule.restriction(BOB).rows.scope


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tables": ()}, "needs tables"),
        ({"tables": ("",)}, "1 to 256 characters"),
        ({"tables": ("x" * (PATTERN_LENGTH_MAX + 1),)}, "1 to 256 characters"),
        ({"rows": "a >"}, "rows: expected"),
        ({"rows": "caller(1) = 'x'"}, "takes nothing"),
        ({"rows": "has_role(a)"}, "takes the name of a role"),
        ({"rows": "nothing(a)"}, "unknown function 'nothing'"),
        ({"hide": ("a",), "mask": {"a": 1}}, "column 'a' is hidden, masked or hashed twice"),
        ({"hide": ("a",), "allow": frozenset()}, "allow must have 'read'"),
        *(
            ({"hide": ("a",), "allow": READ | {each}}, f"may not have {each.value}")
            for each in Operation
            if each is not Operation.READ
        ),
    ],
)
def test_what_does_not_go_together(fields: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Rule(**{"tables": ("t",), "allow": READ, **fields})  # type: ignore[arg-type]


def test_patterns_and_rules_have_limits() -> None:
    rule = Rule(tables=("x" * PATTERN_LENGTH_MAX,), allow=READ)
    assert len(Policy((rule,) * RULES_MAX).rules) == RULES_MAX
    with pytest.raises(ConfigError, match="10001 rules are more than 10000"):
        Policy((rule,) * (RULES_MAX + 1))
    with pytest.raises(ConfigError, match="16 bytes, not 3"):
        Policy((), b"abc")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "unknown field `x`"),
        ("[[rule]]\ntables = ['t']\nallow = ['reed']", "Invalid enum value 'reed'"),
        ("[[rule]]\ntables = ['t']\n[[rule]]\ntables = ['']", "rule 2: a pattern"),
        ("[[rule]]\ntables = ['t']\nallow = 'read'", "Expected `array`"),
        ("hash_key_file = 'none'", "cannot read hash_key_file"),
        ("\0", "Invalid statement"),
        ("[[rule]]\n" * (RULES_MAX + 1), "rule"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_policy(path)


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("#" * POLICY_BYTES_MAX)
    assert read_policy(path) == Policy(())
    path.write_text("#" * (POLICY_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="more than 4194304 bytes"):
        read_policy(path)


@pytest.mark.parametrize(("digits", "fits"), [("00" * 16, True), ("00" * 15, False), ("x", False)])
def test_the_key_of_hashes_is_in_a_file(tmp_path: Path, digits: str, fits: bool) -> None:
    (tmp_path / "mask.key").write_text(f"{digits}\n")
    text = "hash_key_file = 'mask.key'"
    if fits:
        assert parse_policy(text, tmp_path).hash_key == bytes.fromhex(digits)
    else:
        with pytest.raises(ConfigError, match="32 hexadecimal digits"):
            parse_policy(text, tmp_path)
    assert "00" not in repr(Policy((), bytes(16)))


@pytest.mark.parametrize(
    ("before", "after", "is_other"),
    [
        ({}, {}, False),
        ({"mask": {"a": 0}}, {"mask": {"a": False}}, True),
        ({"rows": "a = 1"}, {"rows": "a = 2"}, True),
        ({"users": ("bob",)}, {"users": ("b*",)}, True),
    ],
)
def test_whom_a_reload_concerns(before: dict, after: dict, is_other: bool) -> None:
    mine = Rule(tables=("t",), users=("olga",), allow=READ)
    gate = AccessGate(Policy.of(mine, Rule(**{"tables": ("t",), "allow": READ, **before})))
    rules = (mine, Rule(**{"tables": ("t",), "allow": READ, **after}))
    is_meant = gate.replace(Policy(rules))
    assert is_meant(BOB) is is_other
    # Another key concerns those who are shown hashes.
    is_meant = gate.replace(Policy(rules, bytes(16)))
    assert not is_meant(BOB)
    hashing = Rule(tables=("t",), users=("bob",), allow=READ, hash=("a",))
    gate.replace(Policy((hashing,)))
    assert gate.replace(Policy((hashing,), bytes(16)))(BOB)


@pytest.mark.parametrize(
    ("before", "tables", "is_noticed"),
    [
        (("*",), ("*",), False),
        (("*",), ("t", "a*"), False),
        (("t", "u"), ("u",), False),
        (("t",), ("*",), True),
        (("t",), ("t", "u"), True),
        (("*",), ("*", "_callers"), True),
    ],
)
def test_a_rule_behind_all_that_decides_concerns_nobody(
    before: tuple[str, ...], tables: tuple[str, ...], is_noticed: bool
) -> None:
    """What is allowed to everybody else changes."""
    bobs = Rule(tables=before, users=("bob",), allow=READ)
    gate = AccessGate(Policy.of(bobs, Rule(tables=tables, allow=READ)))
    is_meant = gate.replace(Policy.of(bobs, Rule(tables=tables, allow=frozenset())))
    assert is_meant(OPS)
    assert is_meant(BOB) is is_noticed
    assert not gate.replace(Policy.of(bobs))(BOB) or is_noticed


def test_a_token_that_ends_decides_as_one_that_does_not() -> None:
    gate = AccessGate(Policy.of(Rule(tables=("t",), users=("bob",), allow=READ)))
    brief = Caller(name="bob", proof=Proof.PASSWORD, expires_ns=1)
    assert gate.decision("t", brief) is gate.decision("t", BOB)


def test_what_is_handed_on_is_for_the_same_roles() -> None:
    gate = AccessGate(Policy.of(Rule(tables=("*",), roles=("ops",), allow=ADMIN)))
    plain = Caller(name="olga", proof=Proof.PASSWORD)
    assert gate.may_hand_on(plain, plain)
    assert gate.may_hand_on(plain, OPS)
    assert not gate.may_hand_on(OPS, plain)


def test_who_asks_outside_of_a_call_is_anybody() -> None:
    gate = AccessGate(Policy.of(Rule(tables=("t",), users=("bob",), allow=READ)))
    assert not gate.decision("t").is_known


def test_rules_that_never_decide_are_found() -> None:
    policy = Policy.of(
        Rule(tables=("a",), users=("bob",), allow=READ),
        Rule(tables=("a", "b"), users=("bob",), allow=READ),
        Rule(tables=("b",), users=("bob",), allow=READ),
        Rule(tables=("*",), allow=READ),
        Rule(tables=("z",), roles=("ops",), allow=READ),
        Rule(tables=("_z",), roles=("ops",), allow=READ),
    )
    assert policy.shadowed() == [3, 5]


def test_every_table_about_the_server_with_such_a_column_is_told_by_it() -> None:
    schemas = {
        alert_statistics.ALERTS_TABLE: alert_statistics.ALERTS_SCHEMA,
        body_statistics.BODIES_TABLE: body_statistics.BODIES_SCHEMA,
        caller_statistics.CALLERS_TABLE: caller_statistics.CALLERS_SCHEMA,
        connector_statistics.CONNECTORS_TABLE: connector_statistics.CONNECTORS_SCHEMA,
        connector_statistics.STREAMS_TABLE: connector_statistics.STREAMS_SCHEMA,
        journal_statistics.JOURNAL_TABLE: journal_statistics.JOURNAL_SCHEMA,
        journal_statistics.CONSUMERS_TABLE: journal_statistics.CONSUMERS_SCHEMA,
        relay_statistics.RELAYED_TABLE: relay_statistics.RELAYED_SCHEMA,
        relay_statistics.UPSTREAMS_TABLE: relay_statistics.UPSTREAMS_SCHEMA,
        server_statistics.SERVER_TABLE: server_statistics.SERVER_SCHEMA,
        server_statistics.SUBSCRIPTIONS_TABLE: subscription_rows.SUBSCRIPTIONS_SCHEMA,
        thread_statistics.THREADS_TABLE: thread_statistics.THREADS_SCHEMA,
    }
    for name, schema in schemas.items():
        assert ("user" in schema.names) == (name in ABOUT_USERS)
        of_table = {"table", "program"} & set(schema.names)
        assert bool(of_table) == (name in ABOUT_TABLES or name == "_subscriptions")
        assert name not in ABOUT_TABLES or ABOUT_TABLES[name] in of_table
    assert set(ABOUT_TABLES) < set(schemas)
