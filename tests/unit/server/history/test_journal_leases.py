"""Consumers, their leases and read groups, on a clock that stands still."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from barrage.errors import LimitExceededError
from barrage.limits import Limits
from barrage.server.history.journal_leases import GROUP_LEASE_NS, LEASE_NS_DEFAULT, JournalLeases
from tests.helpers.virtual_clock import VirtualClock

SECOND = 1_000_000_000


class HeldJournal:
    """What leases use of a journal: it writes down who holds what."""

    def __init__(self, name: str = "t", durable_version: int = 10) -> None:
        self.identity = SimpleNamespace(name=name)
        self.durable_version = durable_version
        self.holds: dict[str, tuple[int, int]] = {}
        self.is_full = False

    def hold(self, consumer: str, version: int, lease_until_ns: int) -> None:
        if self.is_full:
            raise LimitExceededError("holds", actual=2, maximum=1, unit="holds")
        self.holds[consumer] = (version, lease_until_ns)

    def release(self, consumer: str) -> None:
        self.holds.pop(consumer, None)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(start_ns=100 * SECOND)


@pytest.fixture
def leases(clock: VirtualClock) -> JournalLeases:
    return JournalLeases(Limits(), clock)


def test_a_new_consumer_stands_at_the_durable_version(leases):
    journal = HeldJournal()
    consumer = leases.renew(journal, "c", lease_ns=5 * SECOND)
    assert consumer.version == 10
    assert journal.holds == {"c": (10, 105 * SECOND)}


def test_a_cursor_moves_to_where_the_consumer_says_also_back(leases):
    journal = HeldJournal()
    for version in (4, 8, 6):
        leases.renew(journal, "c", version=version)
        assert journal.holds["c"][0] == version
    assert journal.holds["c"][1] == 100 * SECOND + LEASE_NS_DEFAULT


def test_a_lease_ends_exactly_at_its_time(leases, clock):
    journal = HeldJournal()
    leases.renew(journal, "c", lease_ns=5 * SECOND)
    clock.advance(5 * SECOND - 1)
    assert [consumer.name for consumer in leases.consumers] == ["c"]
    clock.advance(1)
    assert leases.consumers == []
    assert journal.holds == {}


def test_a_renewal_keeps_the_length_of_the_lease_and_the_cursor(leases, clock):
    journal = HeldJournal()
    consumer = leases.renew(journal, "c", lease_ns=5 * SECOND, version=3)
    clock.advance(SECOND)
    leases.keep(consumer)
    assert journal.holds == {"c": (3, 105 * SECOND)}
    clock.advance(3 * SECOND)
    leases.keep(consumer)
    clock.advance(4 * SECOND)
    assert leases.consumers == [consumer]
    assert journal.holds == {"c": (3, 109 * SECOND)}


def test_a_released_consumer_is_not_brought_back_by_its_watch(leases):
    journal = HeldJournal()
    consumer = leases.renew(journal, "c")
    assert leases.release("t", "c")
    leases.keep(consumer)
    assert not leases.release("t", "c")
    assert journal.holds == {}


def test_a_consumer_of_a_history_that_is_gone_begins_anew(leases):
    first, second = HeldJournal(), HeldJournal(durable_version=2)
    old = leases.renew(first, "c", version=9)
    new = leases.renew(second, "c")
    assert (old.version, new.version) == (9, 2)
    leases.keep(old)
    assert leases.consumers == [new]


def test_consumers_of_different_tables_do_not_mix(leases):
    first, second = HeldJournal("a"), HeldJournal("b")
    leases.renew(first, "c", version=1)
    leases.renew(second, "c", version=2)
    leases.release("a", "c")
    assert (first.holds, second.holds["c"][0]) == ({}, 2)


def test_a_hold_that_is_refused_leaves_no_consumer(leases):
    journal = HeldJournal()
    journal.is_full = True
    with pytest.raises(LimitExceededError):
        leases.renew(journal, "c")
    assert leases.consumers == []


def test_consumers_and_groups_are_bounded_together(clock):
    leases = JournalLeases(Limits(journal_consumers_max=2), clock)
    journal = HeldJournal()
    leases.renew(journal, "a", lease_ns=5 * SECOND)
    leases.pin(journal, "g")
    for refused in (lambda: leases.renew(journal, "b"), lambda: leases.pin(journal, "h")):
        with pytest.raises(LimitExceededError, match="is 3 consumers"):
            refused()
    assert leases.renew(journal, "a", version=4).version == 4
    clock.advance(5 * SECOND)
    assert leases.renew(journal, "b")


def test_the_readers_of_a_group_get_the_version_the_first_of_them_got(leases, clock):
    journal = HeldJournal()
    assert leases.pin(journal, "g").version == 10
    journal.durable_version = 20
    clock.advance(GROUP_LEASE_NS - 1)
    assert leases.pin(journal, "g").version == 10
    assert leases.pin(journal, "h").version == 20
    assert sorted(version for version, _ in journal.holds.values()) == [10, 20]
    clock.advance(GROUP_LEASE_NS)
    assert leases.pin(journal, "g").version == 20


def test_a_group_and_a_consumer_of_one_name_hold_for_themselves(leases):
    journal = HeldJournal()
    leases.renew(journal, "x", version=1)
    leases.pin(journal, "x")
    assert len(journal.holds) == 2
    leases.release("t", "x")
    assert [version for version, _ in journal.holds.values()] == [10]
