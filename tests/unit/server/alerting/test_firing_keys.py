"""What becomes of edges: conditions that must hold for a while, ends that are told, first rows."""

from __future__ import annotations

import itertools
import json
from random import Random

import pytest

from barrage.limits import NANOS_PER_MS
from barrage.server import Alert
from barrage.server.alerting.alert import DURATION_MS_MAX
from barrage.server.alerting.event_queue import EventQueue
from barrage.server.alerting.firing_keys import DUE_MAX, ENDED_MAX, AlertEvent, FiringKeys
from barrage.server.alerting.iso_time import iso_time

URL = "https://example.org"


class Kept:
    """Keys of an alert at a time that the test moves."""

    def __init__(self, *, event_bytes_max=10_000, held_bytes_max=1_000_000, **options):
        alert = Alert(name="a", table="t", where="x > 1", url=URL, **options)
        ids = map(str, itertools.count(1))
        self.keys = FiringKeys(
            alert, ids, event_bytes_max=event_bytes_max, held_bytes_max=held_bytes_max
        )
        self.now_ms = 0

    @property
    def now(self):
        return self.now_ms * NANOS_PER_MS

    def begin(self, *numbers, is_initial=False):
        rows = [({"k": n}, {"k": n, "x": 2**63 - 1}) for n in numbers]
        return self.told(
            self.keys.begin(numbers, rows, at_ns=self.now, wall_ns=self.now, is_initial=is_initial)
        )

    def end(self, *numbers, reason=None):
        return self.told(self.keys.end(numbers, at_ns=self.now, wall_ns=self.now, reason=reason))

    def due(self):
        return self.told(self.keys.due(now_ns=self.now, wall_ns=self.now))

    def told(self, events):
        return [json.loads(event.text) for event in events]


def test_an_event_says_who_when_and_which_row():
    [told] = Kept().begin(1)
    assert told == {
        "id": "1",
        "status": "firing",
        "key": {"k": 1},
        "row": {"k": 1, "x": 2**63 - 1},
        "since": "1970-01-01T00:00:00.000000000Z",
        "at": "1970-01-01T00:00:00.000000000Z",
        "initial": False,
    }


def test_ends_are_told_where_that_is_asked_for():
    kept = Kept(resolved=True)
    kept.begin(1)
    kept.now_ms = 5
    [told] = kept.end(1, reason="why")
    assert (told["status"], told["firing_id"], told["reason"]) == ("resolved", "1", "why")
    assert (told["since"], told["at"]) == (iso_time(0), iso_time(5 * NANOS_PER_MS))
    kept = Kept()
    kept.begin(1)
    assert kept.keys.firing_count == 1
    assert kept.end(1) == []
    assert kept.keys.firing_count == 0


@pytest.mark.parametrize(("held_ms", "is_told"), [(99, False), (100, True)])
def test_a_condition_that_must_hold_is_told_once_it_has(held_ms, is_told):
    kept = Kept(for_ms=100, resolved=True)
    assert kept.begin(1) == []
    assert (kept.keys.pending_count, kept.keys.next_due_ns) == (1, 100 * NANOS_PER_MS)
    kept.now_ms = held_ms
    assert [told["status"] for told in kept.due()] == ["firing"] * is_told
    assert [told["status"] for told in kept.end(1)] == ["resolved"] * is_told
    assert kept.keys.pending_count == 0


def test_so_many_that_are_due_are_told_at_a_time():
    kept = Kept(for_ms=5, held_bytes_max=100_000_000)
    kept.begin(*range(DUE_MAX + 1))
    kept.now_ms = 5
    assert [len(kept.due()) for _ in range(3)] == [DUE_MAX, 1, 0]


def test_one_that_held_for_long_enough_while_nobody_looked_is_told():
    kept = Kept(for_ms=100, resolved=True)
    kept.begin(1)
    kept.now_ms = 150
    firing, resolved = kept.end(1)
    assert firing["at"] == iso_time(100 * NANOS_PER_MS)
    assert resolved["at"] == iso_time(150 * NANOS_PER_MS)
    assert kept.due() == []


@pytest.mark.parametrize("initial", [True, False])
def test_first_rows_are_told_or_not(initial):
    kept = Kept(initial=initial, resolved=True)
    assert [told["initial"] for told in kept.begin(1, is_initial=True)] == [True] * initial
    assert [told["status"] for told in kept.end(1)] == ["resolved"] * initial
    assert [told["initial"] for told in kept.begin(2)] == [False]


def test_a_key_that_flutters_gathers_nothing():
    kept = Kept(for_ms=DURATION_MS_MAX)
    for number in range(5_000):
        kept.begin(number)
        kept.end(number)
    assert len(kept.keys._waiting) <= ENDED_MAX + 2
    kept.begin(-1)
    kept.now_ms = DURATION_MS_MAX
    assert [told["key"] for told in kept.due()] == [{"k": -1}]


def test_a_long_row_is_left_out():
    kept = Kept(event_bytes_max=160)
    [told] = kept.begin(1)
    assert (told["row"], told["key"]) == (None, {"k": 1})
    [told] = Kept(event_bytes_max=10).begin(1)
    assert (told["row"], told["key"]) == (None, None)


def test_cells_are_kept_for_what_is_told_later_as_far_as_there_is_room():
    cells = len('{"k":1}') + len('{"k":1,"x":9223372036854775807}')
    # Nothing is told later.
    kept = Kept(held_bytes_max=cells)
    assert kept.begin(1)[0]["row"]
    assert kept.keys.held_bytes == 0
    # The end is.
    kept = Kept(held_bytes_max=cells + len('{"k":1}') - 1, resolved=True)
    assert all(told["row"] and told["key"] for told in kept.begin(1, 2))
    assert kept.keys.held_bytes == cells
    first, second = kept.end(1, 2)
    assert (first["key"], first["row"]["x"]) == ({"k": 1}, 2**63 - 1)
    assert (second["key"], second["row"]) == (None, None)
    assert kept.keys.held_bytes == 0
    # So is what must hold for a while; the key has room where the row has none.
    kept = Kept(held_bytes_max=2 * cells - 1, for_ms=5)
    assert kept.begin(1, 2) == []
    kept.now_ms = 5
    assert [(told["key"], told["row"] is None) for told in kept.due()] == [
        ({"k": 1}, False),
        ({"k": 2}, True),
    ]
    assert kept.keys.held_bytes == 0
    kept.begin(3)
    assert kept.end(3) == []
    assert kept.keys.held_bytes == 0


def test_random_edges_with_a_time_to_hold_against_a_naive_log():
    """A key fires when it has held for `for_ms` without a break, once per time it held."""
    for seed in range(100):
        random = Random(seed)
        kept, log, expected = Kept(for_ms=20, resolved=True), [], []
        since, number_of, number = {}, {}, 0
        for kept.now_ms in range(0, 200, 2):
            name = random.choice("ABC")
            if random.random() < 0.5:
                log += kept.due()
            if random.random() < 0.3 and name not in since:
                since[name], number_of[name] = kept.now_ms, number
                log += kept.begin(number)
                number += 1
            elif random.random() < 0.3 and name in since:
                began, ended = since.pop(name), number_of.pop(name)
                log += kept.end(ended)
                if kept.now_ms - began >= 20:
                    expected += [(ended, "firing", began + 20), (ended, "resolved", kept.now_ms)]
        found = [(told["key"]["k"], told["status"]) for told in log]
        over = [each for each in found if each[0] not in number_of.values()]
        assert sorted(over) == sorted(each[:2] for each in expected)


# --- the queue ---


def events(*sizes):
    return [AlertEvent(bytes([n]) * size) for n, size in enumerate(sizes)]


@pytest.mark.parametrize(("count", "dropped"), [(3, 0), (4, 1)])
def test_the_oldest_is_dropped_past_the_limit(count, dropped):
    queue = EventQueue(events_max=3, bytes_max=1000)
    put = events(*[1] * count)
    queue.put(put)
    assert queue.take(count_max=9, bytes_max=9) == put[dropped:]
    assert (queue.untold_dropped, queue.dropped_in_all, queue.nbytes) == (dropped, dropped, 0)


@pytest.mark.parametrize(("size", "dropped"), [(5, 0), (6, 1)])
def test_the_same_holds_for_bytes(size, dropped):
    queue = EventQueue(events_max=9, bytes_max=10)
    queue.put(events(5, size))
    assert (len(queue), queue.dropped_in_all) == (2 - dropped, dropped)


def test_one_event_that_is_longer_than_all_may_be_is_kept():
    queue = EventQueue(events_max=9, bytes_max=10)
    queue.put(events(50))
    assert len(queue.take(count_max=9, bytes_max=1)) == 1


def test_what_is_put_back_is_the_oldest_again():
    queue = EventQueue(events_max=3, bytes_max=100)
    first, second, third, fourth = put = events(1, 1, 1, 1)
    queue.put(put[:2])
    taken = queue.take(count_max=2, bytes_max=100)
    queue.put([third])
    queue.put_back(taken)
    assert queue.take(count_max=9, bytes_max=2) == [first, second]
    queue.put_back([first, second])
    queue.put([fourth])
    assert queue.take(count_max=9, bytes_max=9) == [second, third, fourth]
    assert queue.untold_dropped == 1
    queue.told_dropped(1)
    assert (queue.untold_dropped, queue.dropped_in_all) == (0, 1)
