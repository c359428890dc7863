"""What readers that lag behind cost in bytes, and what happens past the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, UpdateGraph
from barrage.engine.changelog.making import Delivery, Disconnect
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.operators import derive
from barrage.engine.propagation.producer import Producer
from barrage.limits import NANOS_PER_MS, Limits
from barrage.model.viewport import Viewport
from tests.helpers.fake_table import FakeTable
from tests.helpers.receivers import KeyReceiver, ViewReceiver
from tests.helpers.retained import retained_bytes

MS = NANOS_PER_MS
READERS = 64


def spec(viewport: Viewport | None = None, interval_ms: int = 100) -> SubscriptionSpec:
    return SubscriptionSpec(
        columns=None,
        viewport=viewport,
        interval_ns=interval_ms * MS,
        is_key_space=viewport is None,
        encoding="plain",
    )


# --- what a held reader costs ---------------------------------------------------------------------

ROWS = 30_000
CHANGED = 200


def keyed(graph: UpdateGraph) -> KeyedTable:
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
    table = KeyedTable(graph, schema, key="id")
    table.stage_upsert(rows_of(np.arange(ROWS), np.random.default_rng(1)))
    graph.run_cycle()
    return table


def rows_of(ids: np.ndarray, draw: np.random.Generator) -> pa.Table:
    count = len(ids)
    return pa.table({"id": ids, "x": draw.random(count), "y": draw.random(count)})


OPERATORS = {
    "filtered": lambda table: derive.where(table, "x < 0.5"),
    "sorted": lambda table: derive.sort(table, "x"),
    "filtered and sorted": lambda table: derive.sort(derive.where(table, "x < 0.5"), "y"),
    "keyed": lambda table: table,
    "joined": lambda table: derive.natural_join(
        table, derive.select(derive.where(table, "x < 0.5"), "id", z="y"), on=["id"]
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("viewport", [None, Viewport.of(100, 150)])
def test_held_readers_cost_what_changed_whatever_the_operator(
    name: str, viewport: Viewport | None
) -> None:
    """64 readers, each held at a point of its own, of a table of 30,000 rows of which 200 change in
    every cycle. Each costs a few bytes per changed row, and none per row of the table."""
    graph = UpdateGraph()
    source = keyed(graph)
    table = OPERATORS[name](source)
    producer = Producer(table, step=graph.step)
    draw = np.random.default_rng(2)
    for number in range(READERS):
        producer.add(number, spec(viewport), 0)
        producer.propagate(number)
        producer.hold(number, 0)
        source.stage_upsert(rows_of(draw.choice(ROWS, CHANGED, replace=False), draw))
        producer.record(graph.run_cycle().updates[table], number)
    kept = retained_bytes(producer._changelog._log, beside=table)
    one_key_set = table.row_keys.nbytes
    # One set of keys for those in step; the table's own may have been copied in its cycle.
    assert kept - 3 * one_key_set < READERS * CHANGED * 100


# --- the bound ------------------------------------------------------------------------------------


class Scene:
    """Readers of one table, each held one step after the other."""

    def __init__(self, limits: Limits, *, viewport: Viewport | None = None) -> None:
        self.table = FakeTable(range(0, 4000, 2))
        self.producer = Producer(self.table, limits)
        self.viewport = viewport
        self.receivers: dict[int, KeyReceiver | ViewReceiver] = {}
        self.now_ns = 0
        self.ended: list[Disconnect] = []

    def hold_one(self) -> None:
        number = len(self.receivers)
        self.producer.add(number, spec(self.viewport), self.now_ns)
        made = KeyReceiver if self.viewport is None else ViewReceiver
        self.receivers[number] = made(3)
        self.ended += self.propagate()
        self.producer.hold(number, self.now_ns)

    def change(self) -> None:
        """A few rows come, go and change."""
        step = self.table.step
        self.producer.record(
            self.table.update(
                removed=range(8 * step, 8 * step + 6, 2),
                added=range(2001 + 60 * step, 2041 + 60 * step, 2),
                modified=[(key, 1) for key in range(3000, 3200, 2)],
            ),
            self.now_ns,
        )
        self.producer.validate()

    def propagate(self, after_ms: int = 100) -> list[Disconnect]:
        self.now_ns += after_ms * MS
        ended = []
        for item in self.items():
            if isinstance(item, Disconnect):
                ended.append(item)
                continue
            for number in item.subscription_ids:
                self.receivers[number].receive(item.message)
        return ended

    def items(self) -> list[Delivery | Disconnect]:
        """Everything due now; what one propagation leaves, the next one tells."""
        items = self.producer.propagate(self.now_ns)
        self.producer.validate()
        while self.producer.next_due_ns() == 0:
            items += self.producer.propagate(self.now_ns)
            self.producer.validate()
        return items

    def release_all(self) -> None:
        for number in self.receivers:
            self.producer.release(number)

    def check(self, *numbers: int) -> None:
        rows = self.table.rows if self.viewport is None else self.table.row_list()
        for number in numbers:
            self.receivers[number].check(rows)


def run(limits: Limits, *, viewport: Viewport | None = None) -> Scene:
    """Four readers held at four points; then six more steps."""
    scene = Scene(limits, viewport=viewport)
    for _ in range(4):
        scene.hold_one()
        scene.change()
    for _ in range(6):
        scene.change()
    return scene


def most_held(viewport: Viewport | None) -> int:
    """Bytes that :func:`run` keeps at its end without a bound, when everything is merged."""
    scene = run(Limits(), viewport=viewport)
    scene.producer._changelog.fold()
    return scene.producer.held_nbytes


@pytest.mark.parametrize("viewport", [None, Viewport.of(3, 900)])
def test_at_the_bound_of_bytes_nothing_is_forgotten_and_one_past_it_the_oldest_is(viewport) -> None:
    bound = most_held(viewport)
    for held_table_bytes_max, forgotten in ((bound, 0), (bound - 1, 1)):
        limits = replace(Limits(), held_table_bytes_max=held_table_bytes_max)
        scene = run(limits, viewport=viewport)
        scene.producer._held.settle(scene.producer)
        stats = scene.producer._held.stats
        assert scene.producer.held_nbytes <= held_table_bytes_max
        assert stats.nbytes == scene.producer.held_nbytes
        assert (stats.resynchronised > 0, stats.disconnected) == (forgotten > 0, 0)
        scene.release_all()
        assert scene.propagate() == []
        scene.check(*scene.receivers)
        assert scene.producer.held_nbytes == 0 == stats.nbytes


def test_a_reader_whose_changes_were_forgotten_gets_the_whole_table_as_one_update() -> None:
    limits = replace(Limits(), held_table_bytes_max=most_held(None) // 2)
    scene = run(limits)
    before = {n: receiver.messages for n, receiver in scene.receivers.items()}
    assert scene.producer._held.stats.resynchronised > 0
    scene.release_all()
    messages = []
    scene.now_ns += 100 * MS
    for item in scene.items():
        messages.append(item.message)
        for number in item.subscription_ids:
            scene.receivers[number].receive(item.message)
    scene.check(*scene.receivers)
    assert not any(message.is_snapshot for message in messages), "clients take it as a delta"
    assert len(messages[0].added_keys_post) == scene.table.size
    assert len(messages[0].removed_keys_pre) == 2000
    assert all(each.messages == before[n] + 1 for n, each in scene.receivers.items())
    scene.change()
    assert scene.propagate() == []
    scene.check(*scene.receivers)


def test_views_cost_no_bytes_once_their_changes_are_forgotten() -> None:
    scene = run(replace(Limits(), held_table_bytes_max=0), viewport=Viewport.of(3, 900))
    assert scene.producer.held_nbytes == 0
    assert scene.propagate() == []
    assert scene.producer._held.stats.disconnected == 0
    scene.release_all()
    assert scene.propagate() == []
    scene.check(*scene.receivers)


def test_readers_whose_keys_cannot_be_kept_are_ended_one_by_one_and_told_why() -> None:
    """Room for the keys of one or two readers: the ones held longest go, the others stay right."""
    one = run(replace(Limits(), held_table_bytes_max=10**9, delta_segments_max=1))
    keys_of_one = max(known.nbytes for known in one.producer._lagging.known.values())
    scene = run(replace(Limits(), held_table_bytes_max=2 * keys_of_one))
    assert scene.producer.held_nbytes <= 2 * keys_of_one
    ended = scene.ended + scene.propagate()
    assert 1 <= len(ended) <= 3
    assert [each.subscription_id for each in ended] == list(range(len(ended)))
    assert len(ended) == scene.producer._held.stats.disconnected
    for each in ended:
        assert type(each.error).__name__ == "ReaderMemoryError"
        assert each.error.nbytes > each.error.nbytes_max == 2 * keys_of_one
        del scene.receivers[each.subscription_id]
    scene.release_all()
    assert scene.propagate() == []
    scene.check(*scene.receivers)


def test_a_reader_that_leaves_before_it_is_told_takes_no_other_with_it() -> None:
    scene = Scene(replace(Limits(), held_table_bytes_max=0))
    for number in range(3):
        scene.producer.add(number, spec(), 0)
        scene.receivers[number] = KeyReceiver(3)
    scene.propagate()
    for number in range(3):
        scene.producer.hold(number, scene.now_ns)
    scene.change()
    assert scene.producer.next_due_ns() == 0
    scene.producer.remove(0)
    assert [each.subscription_id for each in scene.propagate()] == [1, 2]
    assert scene.producer.next_due_ns() is None


def test_readers_of_long_intervals_are_bounded_too_and_wait_for_their_time() -> None:
    """Nobody holds them, but each stands at a point of its own for as long as it asked for."""
    scene = Scene(replace(Limits(), held_table_bytes_max=4000))
    for number in range(6):
        scene.producer.add(number, spec(interval_ms=60_000), scene.now_ns)
        scene.receivers[number] = KeyReceiver(3)
        assert scene.propagate(1) == []
        scene.change()
    assert scene.producer.held_nbytes <= 4000
    assert scene.producer._held.stats.resynchronised > 0
    due_ns = scene.producer.next_due_ns()
    assert due_ns is not None
    assert due_ns > scene.now_ns
    assert scene.propagate(1000) == []
    assert {receiver.messages for receiver in scene.receivers.values()} == {1}, "snapshots only"
    assert scene.propagate(60_000) == []
    scene.check(*scene.receivers)


def test_readers_that_are_told_soon_are_left_alone() -> None:
    scene = Scene(replace(Limits(), held_table_bytes_max=0))
    scene.producer.add(0, spec(), 0)
    scene.receivers[0] = KeyReceiver(3)
    scene.propagate()
    scene.change()
    assert scene.producer._held.stats.resynchronised == 0
    scene.propagate()
    scene.check(0)


# --- all tables of a server -----------------------------------------------------------------------


def test_past_the_bound_of_the_server_the_table_that_keeps_most_gives_way() -> None:
    from barrage.engine.propagation.held_bytes import HeldBytes

    def two(server_max: int) -> tuple[HeldBytes, list[Scene]]:
        held = HeldBytes(replace(Limits(), held_server_bytes_max=server_max))
        scenes = [Scene(Limits()), Scene(Limits())]
        for scene in scenes:
            scene.producer = Producer(scene.table, Limits(), held=held)
        for scene, readers in zip(scenes, (6, 2), strict=True):
            for _ in range(readers):
                scene.hold_one()
                scene.change()
        return held, scenes

    free, scenes = two(10**9)
    for scene in scenes:
        scene.producer._changelog.fold()
    total = sum(scene.producer.held_nbytes for scene in scenes)
    held, scenes = two(total)
    assert held.stats.resynchronised == free.stats.resynchronised == 0
    held, (large, small) = two(total - 1)
    assert held.stats.nbytes <= total - 1
    assert large.producer._lagging.known
    assert not small.producer._lagging.known
    for scene in (large, small):
        scene.release_all()
        assert scene.propagate() == []
        scene.check(*scene.receivers)
    assert held.stats.nbytes == 0
    for scene in (large, small):
        for number in scene.receivers:
            scene.producer.remove(number)
    assert not held._holders


# --- bringing them to the present -----------------------------------------------------------------


def far_apart(limits: Limits, readers: int = 6) -> Scene:
    """Readers held at as many points, then released at once."""
    scene = Scene(limits)
    for _ in range(readers):
        scene.hold_one()
        scene.change()
    scene.release_all()
    scene.now_ns += 100 * MS
    return scene


def told_each_time(scene: Scene) -> list[list[int]]:
    """Who is told by each propagation until nothing is due."""
    told = []
    while scene.producer.next_due_ns() == 0 or not told:
        items = scene.producer.propagate(scene.now_ns)
        scene.producer.validate()
        told.append([number for item in items for number in item.subscription_ids])
        for item in items:
            for number in item.subscription_ids:
                scene.receivers[number].receive(item.message)
    return told


def test_readers_far_apart_come_to_the_present_one_after_the_other() -> None:
    """The ones nearest to it first."""
    scene = far_apart(replace(Limits(), propagation_bytes_max=0))
    assert told_each_time(scene) == [[5], [4], [3], [2], [1], [0]]
    scene.check(*scene.receivers)


def test_up_to_the_bound_they_come_together() -> None:
    assert told_each_time(far_apart(Limits())) == [[0, 1, 2, 3, 4, 5]]
    work = []
    scene = far_apart(replace(Limits(), propagation_bytes_max=0))
    honest = scene.producer._changelog.messages

    def messages(*arguments):
        answer = honest(*arguments)
        work.append(answer.work_bytes)
        return answer

    scene.producer._changelog.messages = messages
    told_each_time(scene)
    two = work[0] + work[1]
    at_bound = far_apart(replace(Limits(), propagation_bytes_max=two))
    past_it = far_apart(replace(Limits(), propagation_bytes_max=two - 1))
    assert told_each_time(at_bound)[0] == [3, 4, 5]
    assert told_each_time(past_it)[0] == [4, 5]


def test_a_change_in_between_reaches_those_who_still_wait() -> None:
    scene = far_apart(replace(Limits(), propagation_bytes_max=0))
    for _ in range(3):
        for item in scene.producer.propagate(scene.now_ns):
            for number in item.subscription_ids:
                scene.receivers[number].receive(item.message)
    scene.change()
    scene.producer.hold(2, scene.now_ns)
    scene.now_ns += 200 * MS
    assert scene.propagate() == []
    scene.check(0, 1, 3, 4, 5)
    scene.producer.release(2)
    assert scene.propagate() == []
    scene.check(*scene.receivers)


def test_whole_tables_are_told_one_at_a_time() -> None:
    scene = run(replace(Limits(), held_table_bytes_max=most_held(None) // 2))
    given_up = len(scene.producer._lagging.known)
    assert given_up > 1
    scene.release_all()
    scene.now_ns += 100 * MS
    told = told_each_time(scene)
    assert len(told) == given_up
    scene.check(*scene.receivers)
