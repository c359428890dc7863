"""Plans and tickets of journals: what is written reads back, and nothing else is believed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import BarrageError, LimitExceededError, RemoteProtocolError, SchemaError
from barrage.journal.change_feed.feed_schema import FEED_COLUMNS
from barrage.limits import Limits
from barrage.server.history.journal_tickets import (
    ChangesTicket,
    FeedSelection,
    SnapshotTicket,
    WatchTicket,
    is_journal_request,
    parse_plan,
    parse_ticket,
)

LIMITS = Limits()
EPOCH = "0123456789abcdef"
CHANGES: dict[str, Any] = {"mode": "changes", "table": "t", "epoch": EPOCH, "from": 3, "to": 9}
SNAPSHOT: dict[str, Any] = {"mode": "snapshot", "table": "t", "epoch": EPOCH, "version": 9}
WATCH: dict[str, Any] = {"mode": "watch", "table": "t", "consumer": "c"}
PLAN: dict[str, Any] = {"table": "t", "from": 3}
MAX = 2**63 - 1


def ticket(fields: dict[str, Any], **changed: Any) -> bytes:
    told = {**fields, **changed}
    return b"j/" + json.dumps({k: v for k, v in told.items() if v is not ...}).encode()


selections = st.builds(
    FeedSelection,
    columns=st.none() | st.lists(st.text(max_size=5), max_size=3, unique=True).map(tuple),
    filter=st.none() | st.text(max_size=20),
    preimage=st.booleans(),
    net=st.booleans(),
    row_key=st.booleans(),
    modified_columns=st.booleans(),
    feed_columns=st.sets(st.sampled_from(FEED_COLUMNS)).map(
        lambda wanted: tuple(name for name in FEED_COLUMNS if name in wanted)
    ),
)
names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=10)
versions = st.integers(0, MAX)
tickets = st.one_of(
    st.builds(
        lambda name, ends, part, selection, shift: ChangesTicket(
            table=name,
            epoch=EPOCH,
            after=min(ends),
            upto=max(ends),
            stripe=(min(part), max(part) + 1),
            stripe_ids=1 << shift,
            selection=selection,
        ),
        names,
        st.tuples(versions, versions),
        st.tuples(st.integers(0, 4000), st.integers(0, 4000)),
        selections,
        st.integers(6, 16),
    ),
    st.builds(
        lambda name, version, ids, selection: SnapshotTicket(
            table=name,
            epoch=EPOCH,
            version=version,
            ids=None if ids is None else (min(ids), max(ids)),
            selection=selection,
        ),
        names,
        versions,
        st.none() | st.tuples(versions, versions),
        selections,
    ),
    st.builds(SnapshotTicket, table=names, read_group=names, selection=selections),
    st.builds(
        WatchTicket,
        table=names,
        consumer=names,
        lease_ms=st.integers(100, 86_400_000),
        version=st.none() | versions,
    ),
)


@given(tickets)
def test_a_ticket_reads_back_as_it_was_written_and_has_one_form(written):
    encoded = written.encode()
    assert is_journal_request(encoded)
    read = parse_ticket(encoded, LIMITS)
    assert read == written
    assert read.encode() == encoded


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({**CHANGES, "to": 2}, "'to' in journal ticket must be at least 3"),
        (
            {**CHANGES, "from": -2},
            f"'from' in journal ticket must be a whole number from -1 to {MAX}",
        ),
        ({**CHANGES, "from": True}, "'from'"),
        ({**CHANGES, "from": 1.0}, "'from'"),
        ({**CHANGES, "from": "1"}, "'from'"),
        ({**CHANGES, "to": MAX + 1}, "'to'"),
        ({**CHANGES, "to": None}, "'to'"),
        ({**CHANGES, "epoch": "0123456789ABCDEF"}, "'epoch'"),
        ({**CHANGES, "epoch": EPOCH + "0"}, "must be an epoch, 16 hexadecimal digits, not"),
        ({**CHANGES, "epoch": EPOCH + "\n"}, "'epoch'"),
        ({**CHANGES, "epoch": None}, "'epoch'"),
        ({**CHANGES, "epoch": [EPOCH]}, "'epoch'"),
        ({**CHANGES, "stripe": [1, 1]}, "'stripe'"),
        ({**CHANGES, "stripe": [-1, 1]}, "'stripe'"),
        ({**CHANGES, "stripe": [0, 0]}, "'stripe'"),
        ({**CHANGES, "stripe": [0, LIMITS.journal_splits_max + 1]}, "'stripe'"),
        ({**CHANGES, "stripe": [0, 1, 2]}, "'stripe'"),
        ({**CHANGES, "stripe": {"0": 1}}, "'stripe'"),
        ({**CHANGES, "stripe": [False, True]}, "'stripe'"),
        ({**CHANGES, "stripe_ids": 32}, "'stripe_ids'"),
        ({**CHANGES, "stripe_ids": 65}, "'stripe_ids'"),
        ({**CHANGES, "stripe_ids": 1 << 17}, "'stripe_ids'"),
        ({**CHANGES, "stripe_ids": "64"}, "'stripe_ids'"),
        ({**CHANGES, "columns": [1]}, "'columns'"),
        ({**CHANGES, "columns": ["a", "a"]}, "'columns'"),
        ({**CHANGES, "feed_columns": ["_row_key"]}, "'feed_columns'"),
        ({**CHANGES, "feed_columns": ["_row_id", "_row_id"]}, "'feed_columns'"),
        ({**CHANGES, "filter": ["a > 1"]}, "'filter'"),
        ({**CHANGES, "filter": "a" * (LIMITS.expression_bytes_max + 1)}, "'filter'"),
        ({**CHANGES, "preimage": 1}, "'preimage'"),
        ({**CHANGES, "net": "true"}, "'net' in journal ticket must be true or false, not 'true'"),
        ({**CHANGES, "mode": "change"}, "must be one of changes, snapshot, watch, not 'change'"),
        ({**CHANGES, "mode": None}, "'mode'"),
        ({**CHANGES, "mode": ["changes"]}, "'mode'"),
        ({**CHANGES, "version": 3}, "unknown field 'version'"),
        ({**CHANGES, "colums": ["a"]}, "did you mean 'columns'"),
        ({**SNAPSHOT, "ids": [5, 4]}, "'ids'"),
        ({**SNAPSHOT, "ids": [-1, 4]}, "'ids'"),
        ({**SNAPSHOT, "ids": 4}, "'ids'"),
        ({**SNAPSHOT, "epoch": None}, "'epoch'"),
        ({**SNAPSHOT, "version": None, "ids": [0, 4]}, "'version'"),
        ({**SNAPSHOT, "read_group": ""}, "'read_group'"),
        ({**SNAPSHOT, "read_group": "a\tb"}, "'read_group'"),
        ({**WATCH, "consumer": None}, "'consumer'"),
        ({**WATCH, "consumer": "c" * 201}, "'consumer'"),
        ({**WATCH, "consumer": "\n"}, "'consumer'"),
        ({**WATCH, "lease_ms": 99}, "'lease_ms'"),
        ({**WATCH, "lease_ms": 24 * 3600 * 1000 + 1}, "'lease_ms'"),
        ({**WATCH, "filter": "a > 1"}, "unknown field 'filter'"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(fields, text):
    with pytest.raises(RemoteProtocolError) as raised:
        parse_ticket(ticket(fields), LIMITS)
    assert text in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"t"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"NaN",
        rb'{"a": "\ud800"}',
    ],
)
def test_what_is_no_object_is_refused(content):
    for parse in (parse_ticket, parse_plan):
        with pytest.raises(RemoteProtocolError):
            parse(b"j/" + content, LIMITS)


def test_numbers_of_thousands_of_digits_are_no_numbers():
    text = json.dumps(CHANGES).replace("9", "9" * 5000)
    with pytest.raises(RemoteProtocolError):
        parse_ticket(b"j/" + text.encode(), LIMITS)


def test_a_ticket_of_another_route_is_refused():
    with pytest.raises(RemoteProtocolError, match="starts with j/"):
        parse_ticket(b"s/t", LIMITS)
    assert not is_journal_request(b"s/j/")
    assert not is_journal_request(None)


@pytest.mark.parametrize("name", [None, 3, "", "a\nb", "x" * 1025])
def test_a_table_must_have_a_name(name):
    with pytest.raises(SchemaError):
        parse_ticket(ticket(CHANGES, table=name), LIMITS)


def test_a_ticket_has_a_longest_length():
    limits = Limits(journal_request_bytes_max=400)
    fits = ticket(CHANGES, filter="x" * 200)
    longest = fits[:-2] + b"x" * (400 - (len(fits) - 2)) + b'"}'
    assert parse_ticket(longest, limits)
    with pytest.raises(LimitExceededError):
        parse_ticket(longest[:-2] + b'x"}', limits)


def test_columns_are_bounded():
    limits = Limits(columns_max=2)
    assert parse_ticket(ticket(CHANGES, columns=["a", "b"]), limits)
    with pytest.raises(LimitExceededError):
        parse_ticket(ticket(CHANGES, columns=["a", "b", "c"]), limits)


def test_a_plan_has_defaults():
    plan = parse_plan(ticket(PLAN), LIMITS)
    assert (plan.epoch, plan.after, plan.upto, plan.splits) == (None, 3, None, 1)
    assert not plan.is_snapshot
    assert plan.selection == FeedSelection()


def test_splits_are_a_wish_with_a_bound():
    assert parse_plan(ticket(PLAN, splits=7), LIMITS).splits == 7
    assert parse_plan(ticket(PLAN, splits=10**9), LIMITS).splits == LIMITS.journal_splits_max


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"table": "t"}, "'from'"),
        ({**PLAN, "to": 2}, "'to'"),
        ({**PLAN, "splits": 0}, "'splits'"),
        ({**PLAN, "splits": -1}, "'splits'"),
        ({**PLAN, "read_group": "g"}, "'read_group'"),
        ({**PLAN, "mode": "watch"}, "'mode'"),
        ({**PLAN, "stripe": [0, 1]}, "unknown field 'stripe'"),
        ({"table": "t", "mode": "snapshot", "read_group": "g", "to": 3}, "'read_group'"),
    ],
)
def test_a_wrong_plan_is_refused(fields, text):
    with pytest.raises(RemoteProtocolError, match=text):
        parse_plan(ticket(fields), LIMITS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
fields_known = st.sampled_from(
    ["mode", "table", "epoch", "from", "to", "stripe", "ids", "version", "columns", "filter", "net"]
)


@given(st.sampled_from([CHANGES, SNAPSHOT, WATCH, PLAN]), fields_known, json_values)
def test_any_value_of_any_field_is_taken_or_refused_with_our_error(fields, name, value):
    content = ticket(fields, **{name: value})
    for parse in (parse_ticket, parse_plan):
        with contextlib.suppress(BarrageError):
            assert parse(content, LIMITS).table


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused_with_our_error(content):
    for parse in (parse_ticket, parse_plan):
        with pytest.raises(BarrageError):
            parse(b"j/" + content, LIMITS)
