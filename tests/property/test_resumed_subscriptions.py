"""Subscribers that come back with the rows of an older version are, from then on, where those are
that never left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine import Table
from barrage.engine.changelog.making import Delivery
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.open_plans import ResumePlan
from barrage.engine.propagation.producer import Producer
from barrage.engine.resume.resume import ResumeBuilder, changing_sources
from barrage.engine.resume.resume_strategies import PresentRows
from barrage.limits import DEFAULT_LIMITS, NANOS_PER_MS
from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.helpers import model
from tests.helpers.examples import examples
from tests.helpers.recorded_world import GROWING_VIEWS, VIEWS, RecordedWorld
from tests.helpers.source_edits import KINDS, crowded
from tests.helpers.told import each_told, views_together_from

draws = st.integers(0, 2**48).map(Random)

TURN_NS = 1000 * NANOS_PER_MS

VIEWPORTS = (
    None,
    Viewport.of(0, 5),
    Viewport.of(3, 8),
    Viewport.of(0, 4, is_reverse=True),
    Viewport(positions=RowSet.parse("0-1,3,6-9")),
    Viewport(positions=RowSet.parse("1,4-5"), is_reverse=True),
)

COLUMNS = (None, (0, 2))

CASES = [(kind, view) for kind in KINDS if kind != "blink" for view in VIEWS] + [
    ("append-only", view) for view in GROWING_VIEWS
]


@pytest.fixture(autouse=True, scope="module")
def _every_view_is_told_together() -> Iterator[None]:
    with views_together_from(1):
        yield


def shown(table: pa.Table) -> list[tuple[str, ...]]:
    return [tuple(map(model.canonical, row.values())) for row in table.to_pylist()]


@dataclass
class Subscriber:
    """Somebody with a replica; ``version`` is the step it stands at."""

    spec: SubscriptionSpec
    replica: FullReplica | ViewReplica
    version: int = 0
    messages: int = 0
    snapshots: int = 0

    def receive(self, message: object, seen: dict[int, pa.Table]) -> None:
        self.messages += 1
        self.snapshots += message.is_snapshot
        assert message.first_step <= message.last_step
        self.replica.apply(message)
        self.replica.validate()
        self.version = message.last_step
        self.check(seen[self.version])

    def check(self, rows: pa.Table) -> None:
        """The replica shows these rows, as far as it is subscribed to them."""
        viewport, columns = self.spec.viewport, self.spec.columns
        if viewport is not None:
            picks = viewport.resolve(len(rows)).to_numpy()
            rows = rows.take(picks)
        if columns is not None:
            rows = rows.select(list(columns))
        assert shown(self.replica.to_arrow()) == shown(rows)


def replica_of(spec: SubscriptionSpec, schema: pa.Schema) -> FullReplica | ViewReplica:
    return FullReplica(schema) if spec.viewport is None else ViewReplica(schema)


@dataclass
class Scene:
    """A view with subscribers, and its rows at every step at which it changed."""

    world: RecordedWorld
    table: Table
    producer: Producer
    seen: dict[int, pa.Table]
    subscribers: dict[int, Subscriber] = field(default_factory=dict)
    turns: int = 0

    @classmethod
    def of(cls, kind: str, view: str, draw: Random) -> Scene:
        world = RecordedWorld(kind, draw)
        for _ in range(draw.randrange(3)):
            world.cycle()
        table = {**VIEWS, **GROWING_VIEWS}[view](world.table, world.other)
        producer = Producer(table, step=table.changed_step)
        return cls(world, table, producer, {table.changed_step: table.to_arrow()})

    def subscribe(
        self, viewport: Viewport | None, columns: tuple[int, ...] | None, encoding: str = "plain"
    ) -> int:
        spec = SubscriptionSpec(
            columns=columns,
            viewport=viewport,
            interval_ns=10 * NANOS_PER_MS,
            is_key_space=viewport is None,
            encoding=encoding,
        )
        number = len(self.subscribers)
        self.producer.add(number, spec, self.turns * TURN_NS)
        self.subscribers[number] = Subscriber(spec, replica_of(spec, self.table.schema))
        return number

    def away(self, number: int) -> tuple[SubscriptionSpec, pa.Table, int, int]:
        """What somebody who leaves now keeps: rows without keys, the version, the table's size."""
        one = self.subscribers[number]
        return one.spec, one.replica.to_arrow(), one.version, one.replica.table_size

    def comes_back(
        self, kept: tuple[SubscriptionSpec, pa.Table, int, int], plan: ResumePlan
    ) -> int:
        spec, rows, version, size = kept
        number = len(self.subscribers)
        self.producer.add(number, spec, self.turns * TURN_NS, resume=plan)
        if spec.viewport is None:
            replica = FullReplica.holding(self.table.schema, spec.columns, rows)
        else:
            replica = ViewReplica.holding(self.table.schema, spec.columns, rows, table_size=size)
        self.subscribers[number] = Subscriber(spec, replica, version)
        return number

    def cycle(self) -> None:
        update = self.world.cycle().get(self.table)
        if update is not None:
            self.producer.record(update, 0)
            self.seen[self.table.changed_step] = self.table.to_arrow()

    def propagate(self) -> list[Delivery]:
        self.turns += 1
        told = list(each_told(self.producer.propagate(self.turns * TURN_NS)))
        self.producer.validate()
        for each in told:
            assert isinstance(each, Delivery)
            for number in each.subscription_ids:
                self.subscribers[number].receive(each.message, self.seen)
        return told  # type: ignore[return-value]

    def plan(self, version: int, steps_for: SubscriptionSpec | None) -> ResumePlan:
        """A plan, whose histories come at once or in two parts, or that is made while the table
        goes on."""
        if self.world.draw.random() < 0.5:
            return self.plan_beside(version, steps_for)
        upto = self.world.draw.choice(
            [step for step in self.world.states if step >= version] or [version]
        )
        builder = ResumeBuilder(
            self.table, version, self.world.histories(version, upto), steps_for=steps_for
        )
        now = self.world.graph.step
        builder.extend(
            {source: self.world.entries_of(source, upto, now) for source in self.world.sources}
        )
        return builder.plan()

    def plan_beside(self, version: int, steps_for: SubscriptionSpec | None) -> ResumePlan:
        """A plan that leads to the rows of some moment, and goes on from there."""
        draw, world = self.world.draw, self.world
        present = PresentRows(self.table, changing_sources(self.table), DEFAULT_LIMITS)
        upto = world.graph.step
        histories = world.histories(version, upto)
        self.cycle_some()
        builder = ResumeBuilder(
            self.table, version, histories, steps_for=steps_for, present=present
        )
        for _ in range(draw.randrange(3)):
            self.cycle_some()
            builder.take()
            now = world.graph.step
            entries = {source: world.entries_of(source, upto, now) for source in world.sources}
            upto = now
            self.cycle_some()
            builder.follow(entries)
        self.cycle_some()
        builder.check_rest()
        if steps_for is not None:
            now = world.graph.step
            builder.extend(
                {source: world.entries_of(source, upto, now) for source in world.sources}
            )
        plan = builder.plan()
        present.close()
        assert not any(each.trails for each in (self.table, *world.sources))
        return plan

    def cycle_some(self) -> None:
        for _ in range(self.world.draw.choice([0, 0, 1, 3])):
            self.cycle()

    def check_present(self, number: int) -> None:
        """A subscriber that has been told everything has the rows, and the keys, of the table."""
        one = self.subscribers[number]
        one.check(self.table.to_arrow())
        if isinstance(one.replica, FullReplica):
            assert one.replica.row_keys == self.table.row_keys
        else:
            assert one.replica.table_size == self.table.size


def resumed_and_stayed(kind: str, view: str, draw: Random, *, is_stepwise: bool) -> None:
    scene = Scene.of(kind, view, draw)
    shapes = [(viewport, columns) for viewport in VIEWPORTS for columns in COLUMNS]
    stayed = [scene.subscribe(*shape) for shape in draw.sample(shapes, 4)]
    kept = []
    for _ in range(draw.randrange(1, 7)):
        scene.cycle()
        if draw.random() < 0.7:
            scene.propagate()
            kept += [scene.away(draw.choice(stayed))]
    back: dict[int, tuple[SubscriptionSpec, ResumePlan]] = {}
    for each in draw.sample(kept, min(len(kept), 3)):
        plan = scene.plan(each[2], each[0] if is_stepwise else None)
        assert scene.producer._plans.is_usable(plan)
        number = scene.comes_back(each, plan)
        back[number] = each[0], plan
        if draw.random() < 0.3:
            scene.producer.hold(number)
            scene.cycle()
            scene.propagate()
            assert scene.subscribers[number].messages == 0
            scene.producer.release(number)
        elif draw.random() < 0.3:
            scene.cycle()
    scene.propagate()
    for number, (_, plan) in back.items():
        assert scene.subscribers[number].messages >= plan.update_count
        if not is_stepwise:
            assert plan.update_count == 1
        scene.check_present(number)
    for _ in range(4):
        scene.cycle()
        scene.propagate()
        for number in (*back, *stayed):
            scene.check_present(number)
    assert all(scene.subscribers[number].snapshots == 0 for number in back)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("is_stepwise", [False, True])
@pytest.mark.parametrize(("kind", "view"), CASES)
@examples(1)
@given(draw=draws)
def test_who_comes_back_is_where_the_others_are(
    kind: str, view: str, is_stepwise: bool, draw: Random
) -> None:
    with crowded():
        resumed_and_stayed(kind, view, draw, is_stepwise=is_stepwise)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_stepwise", [False, True])
@examples(8)
@given(draw=draws)
def test_many_of_one_version_share_every_message(is_stepwise: bool, draw: Random) -> None:
    scene = Scene.of("keyed", draw.choice(sorted(VIEWS)), draw)
    leaver = scene.subscribe(draw.choice(VIEWPORTS), draw.choice(COLUMNS))
    scene.cycle()
    scene.propagate()
    kept = scene.away(leaver)
    for _ in range(4):
        scene.cycle()
        scene.propagate()
    plan = scene.plan(kept[2], kept[0] if is_stepwise else None)
    first = [scene.comes_back(kept, plan) for _ in range(20)]
    told = scene.propagate()
    count = Counter(number for each in told for number in each.subscription_ids)
    assert len([each for each in told if set(each.subscription_ids) & set(first)]) == (
        plan.update_count
    )
    assert all(count[number] == plan.update_count for number in first)
    # Others come a moment later: the plan is still open, and they are told the rest with it.
    scene.cycle()
    scene.propagate()
    assert scene.producer._plans.is_usable(plan)
    second = [scene.comes_back(kept, plan) for _ in range(5)]
    told = [each for each in scene.propagate() if set(each.subscription_ids) & set(second)]
    assert len(told) == plan.update_count
    for number in (*first, *second):
        scene.check_present(number)
    scene.cycle()
    for _ in range(8):
        scene.propagate()
    if scene.table.changed_step != plan.step:
        assert not scene.producer._plans.is_usable(plan), "a plan closes after a while"
