"""How much work it is to make an operator, told before anything is done.

The unit is one *row operation*: what one kernel does to one row, about ten nanoseconds on the
machines of today. The numbers below are rough and err upwards; `benchmarks/never_blocked.py`
measures the operators they stand for. Work is rows times operations, so it is known from the sizes
of the parents and the text of the request.

A :class:`WorkMeter` is asked before each operator is made. It ends the attempt where the work is
too much for one turn of the engine thread (:class:`TurnSpentError`: go on in the next), for the
engine thread at all (:class:`HeavyOperatorError`: make it beside,
:mod:`barrage.engine.derivation`), or for the server (LimitExceededError).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barrage.engine.expression import row_operations
from barrage.engine.standing_work import of_standing
from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from barrage.engine.expression import BoundExpression
    from barrage.engine.operator_plan import OperatorPlan
    from barrage.engine.operators.convert import ColumnConversion
    from barrage.engine.operators.select import Selection
    from barrage.engine.operators.sort import SortKey
    from barrage.engine.standing_work import StandingWork
    from barrage.engine.table import DerivedTable, Table
    from barrage.limits import Limits

Result = TypeVar("Result")

SORT_COLUMN = 100
"""Row operations per row and column of a sort of 10^6 rows."""

KEY_COLUMN = 150
"""Row operations per row and key column of what brings equal rows together: hashing, probing,
comparing. Texts take twice as long as numbers."""

AGGREGATION = 50
"""Row operations per row of one aggregation."""

CONVERSION = 50
"""Row operations per row of one conversion that may fail, which is tried on every row."""

RUNNING = 150
"""Row operations per row of one running value."""

LIST = 50
"""Row operations per row of reading a column of lists for their lengths."""

OPERATOR = 20_000
"""What making any operator costs besides, in row operations."""


def of_expression(bound: BoundExpression) -> int:
    """Row operations per row of a filter or a formula."""
    return max(1, row_operations(bound.root))


def of_selection(selection: Selection) -> int:
    """Computed columns are tried on every row when they are made, others are not read."""
    computed = [output.computed for output in selection.outputs if output.computed is not None]
    return sum(map(of_expression, computed))


def of_sort(keys: Sequence[SortKey]) -> int:
    return SORT_COLUMN * len(keys)


def of_keys(count: int) -> int:
    return KEY_COLUMN * max(1, count)


def of_aggregations(count: int) -> int:
    return AGGREGATION * count


def of_running(count: int) -> int:
    return SORT_COLUMN + RUNNING * count


def of_lists(count: int) -> int:
    return LIST * count


def of_conversions(conversions: Mapping[int, ColumnConversion]) -> int:
    return CONVERSION * sum(entry.may_fail for entry in conversions.values())


READING = 40
"""Row operations of finding a row in each table it is looked up in."""

CELL = 4
"""Row operations of copying one cell from its place."""

RANGE = 3
"""Row operations of encoding one range of a row set."""

COPIED_BYTES = 32
"""Bytes of cells in a row that are copied by one row operation."""


COLUMN = 1_000
"""Row operations of reading and encoding a column, however few its rows are."""

COLUMNS_FREE = 100
"""So many columns are paid for with their message."""


def of_reading(table: Table, *, rows: int, columns: int, ranges: int) -> int:
    """Row operations of reading rows, which lie in so many ranges, and of encoding them. The cells
    of a source are handed out as they are where they are never overwritten and lie in a row."""
    wide = max(0, columns - COLUMNS_FREE) * COLUMN
    if not rows:
        return ranges * RANGE + wide
    if table.reading > 1:
        work = (table.reading - 1) * rows * (READING + columns * CELL)
    elif ranges > 1:
        work = rows * columns * CELL
    else:
        work = table.overwritten_nbytes * rows // max(table.size, 1) // COPIED_BYTES + 1
    return work + ranges * RANGE + wide


MERGED_BYTES = 3
"""Bytes of row sets that one row operation merges: about 30 ns a range of eight bytes."""

PLACED = 2
"""Row operations per range of a table's row keys of looking up positions in them."""

PLACED_CHANGE = 5
"""Row operations per changed range of looking up its positions."""

UNDONE = 12
"""Row operations per range of a table's row keys of working out those of before."""

UNDONE_CHANGE = 5
"""Row operations per changed range of taking it back."""


def of_placing(table: Table, *, changed: int, is_undone: bool) -> int:
    """Row operations of finding the positions of so many changed ranges, at most, in a table;
    ``is_undone`` when its row keys of before have to be worked out."""
    ranges = table.row_keys.range_count
    if ranges <= 1:
        return 0
    work = ranges * PLACED + changed * PLACED_CHANGE
    return work + ranges * UNDONE + changed * UNDONE_CHANGE if is_undone else work


BINDING = 500
"""What reading the text of one operation and fitting it to a table costs, in row operations."""


TEXT_BYTE = 5_000
"""What reading a byte of an expression and fitting it to a table costs, in row operations."""

TEXT_BYTES_FREE = 40
"""Shorter texts are paid for with their operator."""

TEXT_BYTES_HERE = 400
"""Longer texts are read and bound beside the engine thread."""


class NotHereError(Exception):
    """Not an error: a request has to go on later, or elsewhere."""


class TurnSpentError(NotHereError):
    """Enough was done for one turn of the engine thread; what was made is kept."""


class HeavyOperatorError(NotHereError):
    """An operator is too much work for the engine thread."""

    def __init__(self, plan: OperatorPlan) -> None:
        super().__init__(f"{plan.work} row operations")
        self.plan = plan


@dataclass(slots=True, eq=False)
class Preparation(Generic[Result]):
    """What follows from the texts of a request and a schema, and from nothing else."""

    key: Hashable
    prepare: Callable[[], Result]
    result: Result | None = None

    def make(self) -> None:
        """Any thread."""
        self.result = self.prepare()

    def begin(self) -> None:
        """Nothing is pinned: no table is looked at."""

    def follow(self) -> None:
        """There is nothing that changes meanwhile."""

    def give_up(self) -> None:
        """It takes seconds at most."""

    def close(self) -> None:
        """Nothing was pinned."""


class HeavyPreparationError(NotHereError):
    """The texts of a request are too long to be read on the engine thread."""

    def __init__(self, preparation: Preparation[Any]) -> None:
        super().__init__("long texts")
        self.preparation = preparation


class TurnBudget:
    """Row operations that requests have spent in the present turn of the engine thread."""

    def __init__(self) -> None:
        self.spent = 0


class WorkMeter:
    """The account of one request. Its operators live as long as it does, so that an attempt that
    was ended finds them when it is made again."""

    def __init__(
        self,
        limits: Limits,
        budget: TurnBudget,
        standing: StandingWork | None = None,
        owner: Hashable = None,
    ) -> None:
        """What is made counts in ``standing`` for ``owner`` as long as it lives; without it, for
        nobody."""
        self._limits = limits
        self._budget = budget
        self._standing = standing
        self._owner = owner
        self._to_enter: dict[Hashable, int] = {}
        self._largest = 0
        self._kept: dict[int, DerivedTable] = {}
        self._refused: dict[Hashable, BaseException] = {}
        self._prepared: dict[Hashable, Any] = {}
        self.total = 0
        """Row operations admitted so far, those of operators made beside included."""

    def admit(self, plan: OperatorPlan) -> None:
        """Let an operator be made here and now, or raise why not."""
        refusal = self._refused.get(plan.key)
        if refusal is not None:
            raise refusal
        work, limits = plan.work, self._limits
        check_work(self.total + work, limits)
        self._admit_standing(plan)
        if work > limits.turn_work_max:
            if any(parent.is_blink for parent in plan.parents):
                raise LimitExceededError(
                    "query of a blink table, whose rows are new in every cycle",
                    actual=work,
                    maximum=limits.turn_work_max,
                    unit="row operations",
                )
            raise HeavyOperatorError(plan)
        spent = self._budget.spent
        if spent and spent + work > limits.turn_work_max:
            raise TurnSpentError
        self._budget.spent += work + OPERATOR + plan.per_row * BINDING
        self.total += work

    def _admit_standing(self, plan: OperatorPlan) -> None:
        standing = of_standing(plan)
        if self._standing is not None and standing:
            self._standing.check(self._owner, spared=self._largest)
            self._to_enter[plan.key] = standing
            self._largest = max(self._largest, standing)

    def prepared(self, key: Hashable, byte_count: int, prepare: Callable[[], Result]) -> Result:
        """What ``prepare`` makes of texts of so many bytes: once, here and now, or not here."""
        refusal = self._refused.get(key)
        if refusal is not None:
            raise refusal
        if key in self._prepared:
            known: Result = self._prepared[key]
            return known
        if byte_count > TEXT_BYTES_HERE:
            raise HeavyPreparationError(Preparation(key, prepare))
        work = max(0, byte_count - TEXT_BYTES_FREE) * TEXT_BYTE
        spent = self._budget.spent
        if work and spent and spent + work > self._limits.turn_work_max:
            raise TurnSpentError
        self._budget.spent += work
        made = self._prepared[key] = prepare()
        return made

    def know(self, preparation: Preparation[Any]) -> None:
        """Something has been prepared beside."""
        self._prepared[preparation.key] = preparation.result

    def made_beside(self, plan: OperatorPlan) -> None:
        """Count an operator that was not made here."""
        self.total += plan.work

    def refuse(self, key: Hashable, error: BaseException) -> None:
        """An operator could not be made beside: tell why when it is asked for again."""
        self._refused[key] = error

    def keep(self, table: DerivedTable) -> None:
        """Let a table live as long as this account."""
        self._kept[table.serial] = table
        if self._standing is not None and self._to_enter:
            standing = self._to_enter.pop(key_of(table), 0)
            if standing:
                self._standing.enter(table, self._owner, standing)

    def close(self) -> None:
        """Let go of all tables. On the engine thread."""
        self._kept.clear()
        self._refused.clear()
        self._prepared.clear()
        self._to_enter.clear()


def key_of(table: DerivedTable) -> Hashable:
    """The key of the plan that an operator was made by."""
    first, *others = table.parents
    description: Hashable = table.description
    if others:
        description = description, tuple(other.serial for other in others)
    return first.serial, description


def check_work(work: int, limits: Limits) -> None:
    """LimitExceededError for more than one request may cost."""
    if work > limits.query_work_max:
        raise LimitExceededError(
            "work of a query", actual=work, maximum=limits.query_work_max, unit="row operations"
        )
