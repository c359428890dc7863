"""Resume plans: what is refused, what is shared, and what a subscriber is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, BlinkTable, KeyedTable, RingTable, Table, UpdateGraph
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.operators import derive
from barrage.engine.propagation.open_plans import OPEN_NS, OPEN_PLANS_MAX
from barrage.engine.propagation.producer import Producer
from barrage.engine.resume.replay import RecordedEntry, ReplayTable, rebuilt
from barrage.engine.resume.resume import (
    ResumeBuilder,
    SourceHistory,
    changing_sources,
    plan_resume,
    refusal_of,
)
from barrage.engine.resume.resume_strategies import PresentRows
from barrage.engine.tables.source import sources_of
from barrage.errors import EngineError, ResumeRefusedError, TableFailedError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.helpers.recorded_world import State

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])

FULL = SubscriptionSpec(
    columns=None, viewport=None, interval_ns=1, is_key_space=True, encoding="plain"
)


class Past:
    """A keyed table, its first state, and what happened since."""

    def __init__(self) -> None:
        self.graph = UpdateGraph()
        self.table = KeyedTable(self.graph, SCHEMA, key="k")
        self.table.start_recording()
        self.write([1, 2, 3], [10, 20, 30])
        self.version = self.graph.step
        self.state = State(self.table.row_keys, self.table.to_arrow())
        self.entries: list[RecordedEntry] = []

    def write(self, keys: list[int], values: list[int]) -> None:
        self.table.stage_upsert(pa.table([keys, values], schema=SCHEMA))
        self._cycle()

    def remove(self, key: int) -> None:
        self.table.stage_remove(pa.table({"k": [key]}))
        self._cycle()

    def _cycle(self) -> None:
        self.graph.run_cycle()
        change = self.table.take_change()
        if change is not None and self.graph.step > 1:
            entry = RecordedEntry(update=change.update, added=change.added, after=change.after)
            self.entries.append(entry)

    def history(self, **changes: object) -> dict[Table, SourceHistory]:
        history = SourceHistory(state=self.state, entries=tuple(self.entries))
        return {self.table: replace(history, **changes)}

    def plan(self, table: Table | None = None, **options: object):
        return plan_resume(table or self.table, self.version, self.history(), **options)


@pytest.fixture
def past() -> Past:
    made = Past()
    made.write([2, 9], [21, 90])
    made.remove(1)
    return made


def test_a_source_needs_no_rows_of_then(past: Past) -> None:
    plan = plan_resume(past.table, past.version, past.history(state=None))
    assert plan.size_before == 3
    assert plan.missed_steps == 2
    assert plan.update_count == 1
    update = plan.update
    assert update.removed_keys_pre == RowSet([0])
    assert update.shifts.is_empty
    assert update.added_keys_post == RowSet([3])
    assert update.modified_keys_post[1] == RowSet([1])
    assert (update.first_step, update.last_step) == (2, 3)


def test_sparse_keys_are_told_by_shifts() -> None:
    past = Past()
    past.remove(2)
    first = past.graph.step
    past.entries.clear()
    past.write([1], [11])
    state = State(RowSet([0, 2]), past.state.rows.slice(0, 2))
    plan = plan_resume(past.table, first, past.history(state=state))
    assert plan.size_before == 2
    assert list(plan.update.shifts.apply(RowSet([0, 1]))) == [0, 2]


def test_nothing_missed_is_one_update_that_tells_the_keys(past: Past) -> None:
    past.entries.clear()
    plan = plan_resume(past.table, past.graph.step, past.history(state=None))
    assert plan.missed_steps == 0
    assert list(plan.update.shifts.apply(RowSet([0, 1, 2]))) == list(past.table.row_keys)
    producer = Producer(past.table, step=past.table.changed_step)
    producer.add(1, FULL, 0, resume=plan)
    (told,) = producer.propagate(0)
    assert not told.message.is_snapshot
    assert told.message.last_step == past.table.changed_step
    assert all(len(column) == 0 for column in told.message.added_columns)
    assert producer.propagate(10**9) == []


def test_groups_and_blink_tables_are_refused(past: Past) -> None:
    assert "groups" in (refusal_of(derive.agg_by(past.table, "v", n="count()")) or "")
    assert "groups" in (refusal_of(derive.where(derive.last_by(past.table, "v"), "k > 1")) or "")
    assert refusal_of(derive.sort(derive.where(past.table, "v > 3"), "v")) is None
    blink = BlinkTable(past.graph, SCHEMA)
    assert "one cycle" in (refusal_of(derive.where(blink, "v > 1")) or "")
    growing = AppendOnlyTable(past.graph, SCHEMA)
    assert refusal_of(derive.last_by(derive.where(growing, "v > 3"), "k")) is None
    assert refusal_of(derive.last_by(derive.tail(growing, 3), "k")) is not None
    with pytest.raises(ResumeRefusedError, match="one cycle"):
        ResumeBuilder(blink, 0, {})


def test_missing_pieces_are_refused(past: Past) -> None:
    view = derive.where(past.table, "v > 10")
    with pytest.raises(ResumeRefusedError, match="no history"):
        plan_resume(view, 1, {})
    with pytest.raises(ResumeRefusedError, match="rows of then are not known"):
        plan_resume(view, 1, past.history(state=None))
    with pytest.raises(ResumeRefusedError, match="limit resume_rows_max"):
        past.plan(view, limits=replace(DEFAULT_LIMITS, resume_rows_max=2))
    past.write([1, 2, 3, 4], [0, 0, 0, 0])
    with pytest.raises(ResumeRefusedError, match="too many rows changed"):
        past.plan(steps_for=FULL, limits=replace(DEFAULT_LIMITS, resume_rows_max=3))


def test_a_history_that_does_not_reach_the_present_is_refused(past: Past) -> None:
    short = past.history(entries=past.entries[:1])
    for table in (past.table, derive.sort(past.table, "v")):
        with pytest.raises(ResumeRefusedError, match="ends at step 2, the table is at 3"):
            plan_resume(table, past.version, short)
    with pytest.raises(ResumeRefusedError, match="out of order"):
        plan_resume(past.table, past.version, past.history(entries=past.entries[::-1]))
    with pytest.raises(ResumeRefusedError, match="out of order"):
        plan_resume(past.table, past.graph.step, past.history())


def test_a_history_that_leads_elsewhere_is_refused(past: Past) -> None:
    other = past.history(state=State(RowSet([0, 1]), past.state.rows.slice(0, 2)))
    for view in (derive.where(past.table, "v > 0"), derive.flatten(past.table)):
        with pytest.raises(ResumeRefusedError, match="rows"):
            plan_resume(view, past.version, other)
        with pytest.raises(ResumeRefusedError, match="rows"):
            plan_resume(view, past.version, other, steps_for=FULL)


def test_rows_of_then_that_an_operator_refuses_refuse_the_plan(past: Past) -> None:
    right = KeyedTable(past.graph, SCHEMA, key="k")
    right.start_recording()
    right.stage_upsert(pa.table([[1, 2], [5, 5]], schema=SCHEMA))
    past.graph.run_cycle()
    version, state = past.graph.step, State(right.row_keys, right.to_arrow())
    right.stage_remove(pa.table({"k": [1]}))
    past.graph.run_cycle()
    change = right.take_change()
    assert change is not None
    view = derive.natural_join(past.table, right, ["v"], ["w=k"])
    entry = RecordedEntry(update=change.update, added=change.added, after=change.after)
    histories = {
        past.table: SourceHistory(
            state=State(past.table.row_keys, past.table.to_arrow()), entries=()
        ),
        right: SourceHistory(state=state, entries=(entry,)),
    }
    with pytest.raises(ResumeRefusedError, match="occurs twice on the right"):
        plan_resume(view, version, histories)


def test_only_the_shape_the_steps_were_told_for_may_use_them(past: Past) -> None:
    past.write([5], [50])
    plan = past.plan(steps_for=FULL)
    assert plan.update_count == 3
    producer = Producer(past.table, step=past.table.changed_step)
    window = replace(FULL, viewport=Viewport.of(0, 2), is_key_space=False)
    with pytest.raises(ResumeRefusedError, match="another subscription"):
        producer.add(1, window, 0, resume=plan)
    with pytest.raises(ResumeRefusedError, match="in row keys"):
        producer.add(1, replace(window, is_key_space=True), 0, resume=past.plan())
    with pytest.raises(ResumeRefusedError, match="in row keys"):
        past.plan(steps_for=replace(window, is_key_space=True))
    with pytest.raises(ResumeRefusedError, match="has changed"):
        Producer(derive.where(past.table, "v > 1")).add(1, FULL, 0, resume=plan)
    assert producer.subscription_count == 0
    producer.validate()


def test_a_plan_of_yesterday_is_refused(past: Past) -> None:
    plan = past.plan()
    producer = Producer(past.table, step=past.table.changed_step)
    assert producer._plans.is_usable(plan)
    past.write([7], [70])
    producer.record(past.entries[-1].update, 0)
    assert not producer._plans.is_usable(plan)
    with pytest.raises(ResumeRefusedError, match="has changed"):
        producer.add(1, FULL, 0, resume=plan)


def test_plans_close_after_a_while_and_when_there_are_too_many(past: Past) -> None:
    producer = Producer(past.table, step=past.table.changed_step)
    plans = [past.plan() for _ in range(OPEN_PLANS_MAX + 1)]
    for number, plan in enumerate(plans):
        producer.add(number, FULL, 0, resume=plan)
    producer.propagate(0)
    producer.validate()
    past.write([7], [70])
    producer.record(past.entries[-1].update, 0)
    assert [producer._plans.is_usable(plan) for plan in plans] == [False] + [True] * OPEN_PLANS_MAX
    producer.propagate(OPEN_NS)
    producer.validate()
    assert not any(producer._plans.is_usable(plan) for plan in plans)


def test_who_leaves_before_the_first_update_leaves_nothing(past: Past) -> None:
    past.write([5], [50])
    producer = Producer(past.table, step=past.table.changed_step)
    producer.add(1, FULL, 0, resume=past.plan(steps_for=FULL))
    producer.remove(1)
    producer.validate()
    assert producer.propagate(OPEN_NS) == []
    producer.validate()


def test_a_resumed_view_can_change_at_once(past: Past) -> None:
    window = replace(FULL, viewport=Viewport.of(0, 1), is_key_space=False)
    producer = Producer(past.table, step=past.table.changed_step)
    producer.add(1, window, 0, resume=past.plan())
    producer.change(1, None, Viewport.of(0, 2), now_ns=0)
    first, second = producer.propagate(0)
    assert not first.message.is_snapshot
    assert second.message.is_snapshot
    assert second.message.added_positions == RowSet([1])


def test_tables_that_failed_are_not_resumed(past: Past) -> None:
    plan = past.plan()
    builder = ResumeBuilder(past.table, past.version, past.history())
    producer = Producer(past.table)
    past.table.fail(EngineError("broken"))
    with pytest.raises(TableFailedError):
        builder.plan()
    with pytest.raises(TableFailedError):
        producer.add(1, FULL, 0, resume=plan)


def test_crowded_logs_resynchronise_held_resumed_subscribers(past: Past) -> None:
    limits = replace(DEFAULT_LIMITS, delta_segments_max=1)
    producer = Producer(past.table, limits, step=past.table.changed_step)
    producer.add(1, FULL, 0, resume=past.plan())
    producer.hold(1, 0)
    for number in range(4):
        past.write([40 + number], [0])
        producer.record(past.entries[-1].update, 0)
        producer.add(10 + number, FULL, 0)
        producer.propagate(number)
        producer.hold(10 + number, 0)
        producer.validate()
    producer.release(1)
    (told,) = [each for each in producer.propagate(5) if 1 in each.subscription_ids]
    assert told.message.removed_keys_pre == RowSet.of_span(0, 3)
    assert told.message.added_keys_post == past.table.row_keys
    assert not told.message.is_snapshot


def test_entries_that_do_not_fit_fail_the_replay(past: Past) -> None:
    graph = UpdateGraph()
    state = State(RowSet([5]), past.state.rows.slice(0, 1))
    for entry in past.entries:
        table = ReplayTable(graph, past.table, state)
        table.stage_entry(entry)
        graph.run_cycle()
        assert isinstance(table.failure, EngineError)
    with pytest.raises(EngineError, match="1 row keys but 3 rows"):
        ReplayTable(graph, past.table, State(RowSet([5]), past.state.rows))


def test_static_sources_stand_in_for_themselves(past: Past) -> None:
    from barrage.engine import StaticTable

    names = StaticTable(past.graph, pa.table({"v": [10, 20], "name": ["ten", "twenty"]}))
    view = derive.natural_join(past.table, names, ["v"])
    assert sources_of(view) == [past.table, names]
    plan = past.plan(view)
    assert plan.missed_steps == 2
    graph = UpdateGraph()
    with pytest.raises(EngineError, match="nothing stands in for one of the keyed tables"):
        rebuilt(view, graph, {})


def test_a_ring_that_turned_over_is_all_new() -> None:
    graph = UpdateGraph()
    ring = RingTable(graph, SCHEMA, capacity=3)
    ring.start_recording()
    entries = []
    for start in (0, 10):
        ring.stage_add(pa.table([[start, start + 1, start + 2], [0, 0, 0]], schema=SCHEMA))
        graph.run_cycle()
        change = ring.take_change()
        assert change is not None
        entries.append(RecordedEntry(update=change.update, added=change.added, after=change.after))
    plan = plan_resume(ring, 1, {ring: SourceHistory(state=None, entries=entries[1:])})
    assert plan.update.removed_keys_pre == RowSet.of_span(0, 3)
    assert plan.update.added_keys_post == RowSet.of_span(3, 6)


def test_steps_of_the_graph_only_grow() -> None:
    graph = UpdateGraph(first_step=5)
    assert graph.run_cycle(9).step == 9
    with pytest.raises(EngineError, match="step 9 does not follow step 9"):
        graph.run_cycle(9)
    assert graph.run_cycle().step == 10


# --- while the table goes on ---------------------------------------------------------------------


def beside(past: Past, table: Table, limits: Limits = DEFAULT_LIMITS, **options: object):
    """A builder that has gone up to the rows of now, and those."""
    present = PresentRows(table, changing_sources(table), limits)
    builder = ResumeBuilder(
        table, past.version, past.history(), present=present, limits=limits, **options
    )
    return builder, present


@pytest.mark.parametrize("derived", [lambda table: table, lambda table: derive.sort(table, "-v")])
def test_nothing_is_derived_on_the_engines_thread(
    past: Past, derived: Callable[[Table], Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = derived(past.table)
    builder, present = beside(past, table)
    past.write([5, 9], [50, 91])
    monkeypatch.setattr(UpdateGraph, "run_cycle", None)
    monkeypatch.setattr(KeyedTable, "read_cells", None)
    monkeypatch.setattr(KeyedTable, "take_cells", None)
    builder.check_rest()
    plan = builder.plan()
    assert (plan.missed_steps, plan.step) == (3, table.changed_step)
    assert plan.update.keys_after(RowSet.of_span(0, plan.size_before)) == table.row_keys
    present.close()
    assert not table.trails
    assert not past.table.trails


@pytest.mark.parametrize("steps_for", [None, FULL])
def test_too_much_that_is_left_is_refused(past: Past, steps_for: SubscriptionSpec | None) -> None:
    limits = replace(DEFAULT_LIMITS, turn_work_max=5)
    builder, _ = beside(past, derive.sort(past.table, "-v"), limits, steps_for=steps_for)
    assert builder.is_near()
    builder.check_rest()
    past.write(list(range(10, 90, 2)), list(range(0, 80, 2)))
    assert not builder.is_near()
    with pytest.raises(ResumeRefusedError, match=r"at most 20 may be \(4 times turn_work_max\)"):
        builder.check_rest()
    builder.take()
    builder.follow({past.table: past.entries[-1:]})
    assert builder.is_near()
    builder.check_rest()
    assert builder.plan().missed_steps == 3


def test_what_is_kept_meanwhile_has_a_limit(past: Past) -> None:
    limits = replace(DEFAULT_LIMITS, resume_bytes_max=200)
    builder, _ = beside(past, derive.sort(past.table, "-v"), limits)
    builder.check_rest()
    for number in range(20):
        past.write([number * 3, number * 5 + 100], [number, number])
    with pytest.raises(ResumeRefusedError, match="more than 200 bytes changed meanwhile"):
        builder.check_rest()


def test_several_cycles_at_once_touch_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past()
    for number in range(30):
        past.write([number % 7, number + 20], [number, -number])
        if number % 3 == 0:
            past.remove(number + 20)
    applied = []
    plain = ReplayTable._apply_net
    monkeypatch.setattr(ReplayTable, "_apply", None)
    monkeypatch.setattr(
        ReplayTable,
        "_apply_net",
        lambda self, net: (applied.append(len(net.keys)), plain(self, net)),
    )
    plan = past.plan(derive.sort(past.table, "v"))
    assert applied == [27]
    assert plan.missed_steps == 40
