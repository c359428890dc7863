"""Large messages are made beside the engine thread: what their subscribers get is the same."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, UpdateGraph
from barrage.engine.changelog.making import Delivery, Disconnect, Making, MakingRoom
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.operators import derive
from barrage.engine.propagation.producer import Producer
from barrage.errors import EngineError, SlowConsumerError
from barrage.limits import Limits
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet

ROWS = 200
WHOLE = 40 * ROWS
"""Less work than reading all rows of the sorted table, more than a few."""

MS = 1_000_000


class Scene:
    """A sorted table of ``ROWS`` rows, whose producer has whole tables made beside."""

    def __init__(self, **limits: int) -> None:
        self.limits = Limits(**{"turn_work_max": WHOLE // 2, **limits})
        self.graph = UpdateGraph(self.limits)
        self.room = MakingRoom(self.limits)
        self.source = AppendOnlyTable(self.graph, pa.schema([("x", pa.int64())]))
        self.tables = [derive.sort(self.source, "-x"), derive.sort(self.source, "x")]
        self.producers: list[Producer] = []
        self.now_ns = 0
        self.add(range(ROWS))

    def producer(self, number: int = 0) -> Producer:
        made = Producer(self.tables[number], self.limits, step=self.graph.step, room=self.room)
        self.producers.append(made)
        return made

    def add(self, values: Sequence[int]) -> None:
        self.source.stage_add(pa.table({"x": pa.array(values, pa.int64())}))
        result = self.graph.run_cycle()
        for producer in self.producers:
            if producer.table in result.updates:
                producer.record(result.updates[producer.table], 0)

    def propagate(self, producer: Producer) -> list[Delivery | Disconnect | Making]:
        self.now_ns += 2000 * MS
        self.room.begin_turn()
        told = producer.propagate(self.now_ns)
        producer.validate()
        return told


def spec(rows: RowSet | None = None) -> SubscriptionSpec:
    return SubscriptionSpec(
        columns=None,
        viewport=None if rows is None else Viewport(positions=rows),
        interval_ns=10 * MS,
        is_key_space=rows is None,
        encoding="any",
    )


def values(message: FullUpdate | ViewUpdate) -> list[int]:
    return message.added_columns[0].to_pylist()


def only(told: Sequence[object], kind: type) -> object:
    [found] = told
    assert isinstance(found, kind)
    return found


def begun(scene: Scene, producer: Producer, number: int = 1) -> Making:
    producer.add(number, spec(), scene.now_ns)
    making = only(scene.propagate(producer), Making)
    assert isinstance(making, Making)
    return making


def test_a_large_snapshot_shows_the_moment_it_was_asked_for_and_then_all_that_came_since() -> None:
    scene = Scene()
    producer = scene.producer()
    making = begun(scene, producer)
    scene.add([1000])
    assert scene.propagate(producer) == []
    [snapshot] = making.deliveries()
    assert snapshot.subscription_ids == (1,)
    assert values(snapshot.message) == list(reversed(range(ROWS)))
    assert snapshot.message.table_size == ROWS
    assert producer.made(making) == []
    assert producer.next_due_ns() == 0
    scene.add([1001])
    delta = only(scene.propagate(producer), Delivery)
    assert isinstance(delta, Delivery)
    assert values(delta.message) == [1001, 1000]
    assert delta.message.first_step == snapshot.message.last_step + 1
    assert producer.next_due_ns() is None


def test_a_small_snapshot_is_made_at_once() -> None:
    scene = Scene()
    producer = scene.producer()
    producer.add(1, spec(RowSet.of_span(0, 3)), 0)
    told = only(scene.propagate(producer), Delivery)
    assert isinstance(told, Delivery)
    assert values(told.message) == [199, 198, 197]


def test_snapshots_that_are_too_much_together_are_made_in_several_turns() -> None:
    scene = Scene()
    producer = scene.producer()
    for number in range(4):
        producer.add(number, spec(RowSet.of_span(number, number + 40)), 0)
    turns = []
    while producer.next_due_ns() is not None:
        told = scene.propagate(producer)
        assert all(isinstance(each, Delivery) for each in told)
        turns.append(len(told))
    assert turns == [2, 2]


def test_equal_snapshots_are_made_once() -> None:
    scene = Scene()
    producer = scene.producer()
    producer.add(7, spec(), 0)
    making = begun(scene, producer)
    [delivery] = making.deliveries()
    assert delivery.subscription_ids == (7, 1)


def test_who_leaves_meanwhile_is_forgotten() -> None:
    scene = Scene()
    producer = scene.producer()
    making = begun(scene, producer)
    producer.remove(1)
    producer.validate()
    assert producer.made(making) == []
    producer.validate()
    assert producer.next_due_ns() is None


def test_what_cannot_be_made_ends_its_subscriptions_and_no_other() -> None:
    scene = Scene()
    producer = scene.producer()
    making = begun(scene, producer)
    producer.add(2, spec(RowSet.of_span(0, 3)), 0)
    assert len(scene.propagate(producer)) == 1
    error = EngineError("broken")
    assert producer.made(making, error) == [Disconnect(subscription_id=1, error=error)]
    producer.validate()
    assert producer.subscription_count == 1
    assert begun(scene, producer, 3)


def test_who_is_held_meanwhile_gets_the_message_and_the_rest_when_it_is_released() -> None:
    scene = Scene()
    producer = scene.producer()
    making = begun(scene, producer)
    producer.hold(1, scene.now_ns)
    producer.hold(1, scene.now_ns)
    scene.add([1000])
    assert scene.propagate(producer) == []
    assert producer.made(making) == []
    assert scene.propagate(producer) == []
    producer.release(1)
    told = only(scene.propagate(producer), Delivery)
    assert isinstance(told, Delivery)
    assert values(told.message) == [1000]


def test_who_is_held_and_released_meanwhile_flows_again() -> None:
    scene = Scene()
    producer = scene.producer()
    making = begun(scene, producer)
    producer.hold(1, scene.now_ns)
    producer.release(1)
    producer.release(1)
    scene.add([1000])
    assert producer.made(making) == []
    assert len(scene.propagate(producer)) == 1


def test_who_takes_nothing_is_ended_meanwhile() -> None:
    scene = Scene(stall_ns_max=1000 * MS)
    producer = scene.producer()
    making = begun(scene, producer)
    producer.hold(1, scene.now_ns)
    ended = only(scene.propagate(producer), Disconnect)
    assert isinstance(ended, Disconnect)
    assert isinstance(ended.error, SlowConsumerError)
    assert producer.made(making) == []


@pytest.mark.parametrize("is_reverse", [False, True])
def test_a_large_change_of_a_viewport_is_made_beside_and_the_next_one_after_it(is_reverse) -> None:
    scene = Scene()
    producer = scene.producer()
    producer.add(1, spec(RowSet.of_span(0, 3)), 0)
    scene.propagate(producer)
    large = Viewport(positions=RowSet.of_span(0, ROWS), is_reverse=is_reverse)
    producer.change(1, None, large, now_ns=scene.now_ns)
    making = only(scene.propagate(producer), Making)
    assert isinstance(making, Making)
    producer.change(1, None, Viewport(positions=RowSet.of_span(5, 7)), now_ns=scene.now_ns)
    scene.add([1000])
    assert scene.propagate(producer) == []
    [snapshot] = making.deliveries()
    assert snapshot.message.effective_viewport == large.positions
    assert len(values(snapshot.message)) == (ROWS if is_reverse else ROWS - 3)
    producer.made(making)
    delta, answer = scene.propagate(producer)
    assert isinstance(delta, Delivery)
    assert values(delta.message) == ([] if is_reverse else [1000])
    assert isinstance(answer, Delivery)
    assert answer.message.effective_viewport == RowSet.of_span(5, 7)


def test_a_large_delta_is_made_beside() -> None:
    scene = Scene(turn_work_max=WHOLE // 8)
    producer = scene.producer()
    producer.made(begun(scene, producer))
    scene.propagate(producer)
    scene.add(range(1000, 1000 + ROWS))
    making = only(scene.propagate(producer), Making)
    assert isinstance(making, Making)
    scene.add([5000])
    [delta] = making.deliveries()
    assert values(delta.message) == list(reversed(range(1000, 1000 + ROWS)))
    assert not delta.message.is_snapshot
    producer.made(making)
    assert len(scene.propagate(producer)) == 1


def test_a_whole_view_for_a_reader_whose_changes_were_given_up_is_made_beside() -> None:
    scene = Scene(held_table_bytes_max=0)
    producer = scene.producer()
    producer.add(1, spec(RowSet.of_span(0, ROWS)), 0)
    making = only(scene.propagate(producer), Making)
    assert isinstance(making, Making)
    scene.add([1000])  # Given up already while its snapshot is made.
    producer.made(making)
    making = only(scene.propagate(producer), Making)
    assert isinstance(making, Making)
    scene.add([1001])
    [resync] = making.deliveries()
    assert not resync.message.is_snapshot
    assert isinstance(resync.message, ViewUpdate)
    assert resync.message.removed_positions == RowSet.of_span(0, ROWS)
    assert values(resync.message) == [1000, *reversed(range(1, ROWS))]


def test_tables_take_turns_for_room_and_nothing_is_due_without() -> None:
    scene = Scene(makings_max=1)
    first, second = scene.producer(0), scene.producer(1)
    making = begun(scene, first)
    first.add(2, spec(RowSet.of_span(0, ROWS)), 0)
    second.add(3, spec(), 0)
    assert scene.propagate(second) == scene.propagate(first) == []
    assert second.next_due_ns() is first.next_due_ns() is None
    first.made(making)
    # Both may be asked in any order: the one that has waited longest is due.
    assert scene.propagate(first) == []
    making = only(scene.propagate(second), Making)
    assert isinstance(making, Making)
    assert first.next_due_ns() is None
    second.made(making)
    assert isinstance(only(scene.propagate(first), Making), Making)


def test_who_does_not_wait_for_room_any_more_is_in_nobodys_way() -> None:
    scene = Scene(makings_max=1)
    first, second = scene.producer(0), scene.producer(1)
    making = begun(scene, first)
    second.add(3, spec(), 0)
    assert scene.propagate(second) == []
    second.remove(3)
    first.add(2, spec(RowSet.of_span(0, ROWS)), 0)
    assert scene.propagate(first) == []
    first.made(making)
    assert isinstance(only(scene.propagate(first), Making), Making)


def test_without_room_a_producer_makes_everything_itself() -> None:
    scene = Scene()
    producer = Producer(scene.tables[0], scene.limits)
    producer.add(1, spec(), 0)
    assert isinstance(only(producer.propagate(0), Delivery), Delivery)
