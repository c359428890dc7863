"""What a cycle costs is known before it is run: an operator of a client that would hold all others
up is ended instead, and much that hangs below a table makes the portions of large writes smaller.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, DerivedTable, KeyedTable, Table, UpdateGraph
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.operators import derive
from barrage.engine.operators.snapshot import snapshot
from barrage.engine.planning.cycle_work import CycleWork
from barrage.engine.planning.derivation import Derivation
from barrage.engine.planning.operator_plan import HeavyOperatorError
from barrage.engine.planning.work_meter import TurnBudget, TurnSpentError, WorkMeter
from barrage.engine.propagation.producer import Producer
from barrage.engine.tables.graph import WEIGHED_STEPS
from barrage.engine.tables.work import CHANGED_ROWS, RUN, WEIGHT_MAX, weight_below
from barrage.errors import CycleTooLongError, LimitExceededError, StatusCode
from barrage.limits import Limits

LIMITS = Limits(cycle_work_max=700_000, cycle_work_once_max=700_000, turn_work_max=10**9)
"""A sort of few rows may be made, and takes two thousand that change at once, but not ten."""

SPEC = SubscriptionSpec(
    columns=None, viewport=None, interval_ns=1, is_key_space=True, encoding="plain"
)

SCHEMA = pa.schema([("k", pa.int64()), ("a", pa.int64())])


class Clients:
    """A graph with two tables, and what clients derive of them."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.graph = UpdateGraph(limits)
        self.rows = KeyedTable(self.graph, SCHEMA, key="k")
        self.one = KeyedTable(self.graph, SCHEMA, key="k")
        self.meters: list[WorkMeter] = []
        self.accounts = CycleWork(limits)
        self.put(self.rows, 200)
        self.put(self.one, 1)

    def put(self, table: KeyedTable, count: int, salt: int = 1) -> None:
        columns = {"k": range(count), "a": [(i + 1) * salt % 1_000_003 for i in range(count)]}
        table.stage_upsert(pa.table(columns, schema=SCHEMA))
        self.graph.run_cycle()

    def make(self, derived: object, owner: str = "client", *, is_bounded: bool = True) -> Table:
        accounts = self.accounts if is_bounded else None
        meter = WorkMeter(self.limits, TurnBudget(), accounts, owner=owner)
        self.meters.append(meter)
        with self.graph.metered(meter):
            return derived()  # type: ignore[operator,no-any-return]

    def sorted(self) -> Table:
        return derive.sort(self.rows, "a")


@pytest.fixture
def clients() -> Clients:
    return Clients()


def ended(table: Table) -> CycleTooLongError:
    assert isinstance(table.failure, CycleTooLongError)
    assert table.failure.status_code is StatusCode.ABORTED
    return table.failure


def test_an_operator_of_a_client_is_not_run_where_too_many_rows_change(clients: Clients) -> None:
    found = clients.make(clients.sorted)
    clients.put(clients.rows, 2_000, salt=7)
    assert found.to_arrow()["a"].to_pylist() == sorted(7 * (i + 1) for i in range(2_000))
    clients.put(clients.rows, 10_000, salt=9)
    assert "10,000 changed rows are" in str(ended(found))
    # Who asks for it again gets another one, of the rows as they are.
    again = clients.make(clients.sorted)
    assert again is not found
    assert again.to_arrow().equals(clients.rows.to_arrow().sort_by("a"))
    clients.put(clients.rows, 100, salt=11)
    assert again.failure is None


def test_who_reads_an_ended_table_is_told_to_ask_again(clients: Clients) -> None:
    """Whoever was about to use it has done nothing wrong."""
    found = clients.make(clients.sorted)
    clients.put(clients.rows, 10_000)
    with pytest.raises(CycleTooLongError, match="9,800 changed rows") as told:
        found.to_arrow()
    assert told.value is not found.failure
    with pytest.raises(CycleTooLongError):
        clients.make(lambda: derive.head(found, 3))
    with pytest.raises(CycleTooLongError):
        Producer(found).add(1, SPEC, 0)


def test_an_ended_table_goes_with_who_held_it(clients: Clients) -> None:
    """Not when garbage is collected, on whatever thread: until then it would count."""
    found = clients.make(clients.sorted)
    gc.disable()
    try:
        clients.put(clients.rows, 10_000)
        gone = weakref.ref(found)
        assert ended(found)
        clients.meters.clear()
        del found
        assert gone() is None
        assert clients.accounts.total == 0
    finally:
        gc.enable()


def test_what_hangs_below_it_is_told_the_same(clients: Clients) -> None:
    found = clients.make(lambda: derive.head(clients.sorted(), 3))
    clients.put(clients.rows, 10_000)
    assert "9,800 changed rows" in str(ended(found))


def test_others_of_the_same_cycle_go_on(clients: Clients) -> None:
    filtered = clients.make(lambda: derive.where(clients.rows, "a > 50"))
    clients.make(clients.sorted)
    clients.put(clients.rows, 10_000)
    assert filtered.failure is None
    assert filtered.size == 9_950


def test_one_row_that_all_rows_show_is_as_many_changed_rows(clients: Clients) -> None:
    """A fan-out is known when the join has run, before what hangs below it does."""
    clients.put(clients.rows, 2_000)
    clients.put(clients.rows, 4_000)
    joined = clients.make(
        lambda: derive.natural_join(clients.rows, clients.one, on=[], add=["b=a"])
    )
    found = clients.make(lambda: derive.sort(joined, "b"))
    clients.put(clients.one, 1, salt=5)
    assert "4,000 changed rows" in str(ended(found))
    assert set(joined.to_arrow()["b"].to_pylist()) == {5}


def test_operators_of_one_cycle_count_together(clients: Clients) -> None:
    """Each of them alone would be let in."""
    tables = [
        clients.make(lambda name=name: derive.sort(clients.rows, *name))
        for name in (["a"], ["-a"], ["k", "a"], ["-k", "a"])
    ]
    clients.put(clients.rows, 1_500, salt=3)
    # All rows are other ones: each sort costs half of what there is, or all of it.
    assert [table.failure is None for table in tables] == [True, False, False, False]


def test_what_the_program_that_runs_the_server_derives_is_always_run(clients: Clients) -> None:
    found = clients.sorted()
    clients.put(clients.rows, 10_000)
    assert found.failure is None


def test_what_it_wants_as_well_as_a_client_is_always_run(clients: Clients) -> None:
    of_client = clients.make(clients.sorted)
    assert clients.make(clients.sorted, is_bounded=False) is of_client
    clients.put(clients.rows, 10_000)
    other = clients.make(lambda: derive.sort(clients.rows, "-a"))
    assert derive.sort(clients.rows, "-a") is other
    clients.put(clients.rows, 10_000, salt=9)
    assert of_client.failure is None
    assert other.failure is None


def test_what_the_program_derives_while_it_is_made_for_a_client_is_always_run() -> None:
    """The client's request goes on afterwards, and finds it."""
    clients = Clients(replace(LIMITS, turn_work_max=10_000))
    meter = WorkMeter(clients.limits, TurnBudget(), clients.accounts, owner="client")
    with clients.graph.metered(meter), pytest.raises(HeavyOperatorError) as heavy:
        clients.sorted()
    derivation = Derivation(heavy.value.plan, clients.limits)
    derivation.begin()
    derivation.make()
    own = clients.sorted()
    assert derivation.meet() is own
    derivation.close()
    with clients.graph.metered(meter):
        assert clients.sorted() is own
    assert clients.accounts.of_client("client") > 0
    clients.put(clients.rows, 10_000)
    assert own.failure is None
    assert own.size == 10_000


def test_what_the_program_derives_before_a_client_has_its_turn_is_always_run() -> None:
    clients = Clients()
    budget = TurnBudget()
    budget.spent = clients.limits.turn_work_max
    meter = WorkMeter(clients.limits, budget, clients.accounts, owner="client")
    with clients.graph.metered(meter), pytest.raises(TurnSpentError):
        clients.sorted()
    own = clients.make(clients.sorted, is_bounded=False)
    with clients.graph.metered(meter):
        assert clients.sorted() is own
    clients.put(clients.rows, 10_000)
    assert own.failure is None


def test_what_never_ends_does_so_whoever_asks_for_it_before_or_after(clients: Clients) -> None:
    found = clients.make(clients.sorted)
    assert isinstance(found, DerivedTable)
    found.never_end()
    found.admit(1)
    clients.make(clients.sorted, owner="other")
    clients.put(clients.rows, 10_000)
    assert found.failure is None


def test_an_operator_may_cost_what_it_was_admitted_for(clients: Clients) -> None:
    """However much others take in the same cycle: nobody is ended because of another one's."""
    small = clients.make(lambda: derive.where(clients.rows, "k < 5"))
    large = clients.make(clients.sorted)
    for count in (2_500, 100):
        clients.put(clients.rows, count, salt=count)
    assert small.failure is None
    assert large.failure is None


def test_one_operator_that_no_cycle_has_room_for_is_refused() -> None:
    clients = Clients(replace(LIMITS, cycle_work_once_max=100_000))
    clients.put(clients.rows, 80_000)
    with pytest.raises(LimitExceededError, match="derive it of a snapshot") as refused:
        clients.make(clients.sorted)
    assert refused.value.maximum == 100_000
    static = clients.make(lambda: snapshot(clients.rows))
    assert clients.make(lambda: derive.sort(static, "-a")).size == 80_000


# What a cycle brings that is known only when it runs.

AT_RUN = {
    "the rows behind a change": (
        lambda rows, one: derive.update_by(rows, total="cum_sum(a)"),
        lambda clients: clients.put(clients.rows, 1, salt=9),
    ),
    "the rows of a group that has lost the one it showed": (
        lambda rows, one: derive.agg_by(rows, low="min(a)"),
        lambda clients: clients.rows.stage_remove(pa.table({"k": pa.array([0])})),
    ),
    "the rows that show another row": (
        lambda rows, one: derive.natural_join(rows, one, on=[], add=["b=a"]),
        lambda clients: clients.put(clients.one, 1, salt=9),
    ),
    "the last row of all": (
        lambda rows, one: derive.tail_by(rows, 1),
        lambda clients: clients.rows.stage_remove(pa.table({"k": pa.array([49_999])})),
    ),
}


@pytest.mark.parametrize("what", list(AT_RUN))
def test_an_operator_is_ended_when_it_is_about_to_do_too_much(what: str) -> None:
    make, change = AT_RUN[what]
    clients = Clients(replace(LIMITS, cycle_work_max=260_000, cycle_work_once_max=260_000))
    clients.put(clients.rows, 50_000)
    found = clients.make(lambda: make(clients.rows, clients.one))
    own = make(*(derive.where(table, "k >= 0") for table in (clients.rows, clients.one)))
    change(clients)
    clients.graph.run_cycle()
    assert "1 changed rows are" in str(ended(found))
    assert own.failure is None
    again = clients.make(lambda: make(clients.rows, clients.one))
    assert again.to_arrow().equals(own.to_arrow())


# --- portions -------------------------------------------------------------------------------------


def test_rows_count_for_more_where_much_hangs_below(clients: Clients) -> None:
    assert clients.rows.weight_below == 1
    found = clients.make(clients.sorted)
    one = clients.rows.weight_below
    assert one > 1
    more = [clients.sorted(), derive.sort(clients.rows, "-a"), derive.sort(found, "k", "a")]
    assert clients.rows.weight_below > one
    assert clients.one.weight_below == 1
    clients.meters.clear()
    del found, more
    gc.collect()
    for salt in range(2, WEIGHED_STEPS + 2):
        clients.put(clients.rows, 1, salt=salt)
    assert clients.rows.weight_below == 1


def test_a_join_makes_rows_count_on_both_sides(clients: Clients) -> None:
    joined = derive.natural_join(clients.rows, clients.one, on=[], add=["b=a"])
    of_left, of_right = clients.rows.weight_below, clients.one.weight_below
    kept = derive.sort(joined, "b")
    assert clients.rows.weight_below > of_left
    # One row on the right is 200 changed ones for what hangs below.
    assert clients.one.weight_below > 10 * of_right
    assert clients.one.weight_below > clients.rows.weight_below
    del kept


def test_few_groups_make_few_rows_change_below_them() -> None:
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, SCHEMA)
    table.stage_add(pa.table({"k": [i % 2 for i in range(1_000)], "a": range(1_000)}, SCHEMA))
    graph.run_cycle()
    groups = derive.agg_by(table, "k", n="count()")
    of_groups = table.weight_below
    kept = [derive.sort(groups, *names) for names in (["n"], ["-n"], ["k", "n"])]
    assert table.weight_below == of_groups
    del kept


def test_no_more_rows_change_below_than_there_are() -> None:
    """However often one row is shown by all rows: they would soon be more than a number holds."""
    graph = UpdateGraph()
    one, two = (KeyedTable(graph, SCHEMA, key="k") for _ in range(2))
    two.stage_upsert(pa.table({"k": range(2), "a": range(2)}, SCHEMA))
    one.stage_upsert(pa.table({"k": [0], "a": [0]}, SCHEMA))
    graph.run_cycle()
    found = derive.where(one, "k == 0")
    for number in range(12):
        joined = derive.natural_join(two, found, on=[], add=["b=a"])
        found = derive.where(joined, f"k == 0 and a < {number + 1}")
    assert 1 < one.weight_below < WEIGHT_MAX


def test_the_weight_is_bounded_and_keeps_a_cycle_below_its_bound() -> None:
    assert weight_below(0, 0, 10**7) == 1
    assert weight_below(150, 0, 10**7) == 2
    assert weight_below(0, 5 * 10**6, 10**7) == 2
    assert weight_below(1e12, 0, 10**7) == WEIGHT_MAX
    assert weight_below(0, 10**12, 10**7) == 4
    assert LIMITS.cycle_work_max > CHANGED_ROWS * 100 + RUN
