"""How much work it is to make an operator, told before anything is done.

The unit is one *row operation*: what one kernel does to one row, about ten nanoseconds on the
machines of today. The numbers below are rough and err upwards; `benchmarks/never_blocked.py`
measures the operators they stand for. Work is rows times operations, so it is known from the sizes
of the parents and the text of the request.

As long as anybody holds an operator it is also run in each cycle that changes its parents, and all
others wait for it. So its price has a second part, what such a cycle costs. It is charged to those
who hold it, for a cycle of few rows (:mod:`barrage.engine.planning.cycle_work`); it decides how
many rows of a large write come into one cycle (:func:`weight_below`); and an operator of a client
that a cycle would cost more than all of them may is not run (:mod:`barrage.engine.tables.graph`).

Everything here is arithmetic with numbers: an operator says what there is of what it does, a table
how much there is to be read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from barrage.errors import LimitExceededError

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.rowset import RowSet


@dataclass(frozen=True, slots=True)
class Price:
    """What an operator costs, in row operations."""

    per_row: int = 0
    """Per row of its parents when it is made, besides reading them."""
    per_changed: int = 0
    """Per row of its parents that changes in a cycle."""
    per_standing: int = 0
    """Per row that its parents have, in a cycle that changes any of them."""
    fixed: int = 0
    """Per cycle that changes its parents, besides running it at all."""
    reserved: int = 0
    """Per row that its parents have, for what a cycle may bring besides: it tells that itself when
    it runs."""

    def of_cycle(self, changed: int, standing: int) -> int:
        """Of a cycle that changes so many rows of its parents, which have so many."""
        moving = self.per_changed * changed + self.per_standing * standing
        return RUN + self.fixed + moving

    def admitted(self, standing: int) -> int:
        """Of a cycle of few rows, as far as that is known before there is one."""
        return self.of_cycle(CHANGED_ROWS, standing) + self.reserved * standing


FREE = Price()
"""Of an operator that looks at no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one operator upon its parents as they are will cost, in row operations."""

    making: int
    """Computing it of the rows there are."""
    binding: int
    """Making it besides, however few they are."""
    per_cycle: int
    """A cycle that changes its parents."""
    is_of_blink: bool
    """Whether the rows are other ones before it could be made beside the engine thread."""


OPERATOR = 20_000
"""What making any operator costs besides, in row operations."""

BINDING = 500
"""What reading the text of one operation and fitting it to a table costs, in row operations."""

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

RUN = 10_000
"""Row operations of running any operator in a cycle."""

CHANGED_ROWS = 100
"""Rows that are taken to change in a cycle."""

TERM = 750
"""Row operations of evaluating one term of a filter or formula, however few the rows are."""

GROUPED = 30_000
"""What it takes more to find the groups or partners of rows that changed."""

SORTED_ROW = 1
"""Row operations per row of a sorted table of moving others into its order: 2 ns where few rows
come, 6 where many do."""

CHANGED_SORTED = 150
"""Row operations of bringing a changed row into its place, and for each column that is compared
CHANGED_COLUMN more: 2 to 3 microseconds where they are scattered over 4 * 10^6 rows."""

CHANGED_COLUMN = 100

CHANGED_KEY = 100
"""Row operations per changed row and key column of finding its group, which may be another now."""

CHANGED_CELL = 5
"""Row operations per changed row of each aggregation or running value."""

AGGREGATED = 300
"""Row operations of each aggregation in a cycle, however few rows change."""

FOUND_ROW = 1
"""Row operations per row of a table with running values of finding the rows of some groups."""

BEHIND = 12
"""Row operations per row and running value of computing, comparing and keeping what rows behind a
change show. How many there are is known when a cycle runs."""

RESERVED_BEHIND = 3
"""That a quarter of all rows are behind a change is taken for a cycle of few rows."""

TOLD = 5
"""Row operations of telling that a row of a join shows other cells."""

LOOKED_THROUGH = 5
"""Row operations of looking at one row of a group that has lost the row it showed, or digits."""

CONVERTED = 10
"""Row operations of looking through one column that may not fit another type, by what a row of it
costs: it is one call, however few the rows are."""


WRITTEN_ROW = 150
"""Row operations of applying one row that is written to a table with a key."""

WEIGHT_MAX = 64
"""For so many rows one counts at most, whatever hangs below its table: of smaller portions every
cycle costs more than its rows."""

STANDING_PART = 0.75
"""Of what a cycle may cost, so much at most is taken for what it costs in any case."""


def weight_below(per_row: float, standing: int, cycle_work_max: int) -> int:
    """For how many rows of a large write one counts, when what hangs below its table costs so many
    row operations per row, and in each cycle. Where clients may keep nothing, whatever hangs there
    takes all that is given to it."""
    room = 1 - min(standing / max(cycle_work_max, 1), STANDING_PART)
    return min(math.ceil((WRITTEN_ROW + per_row) / WRITTEN_ROW / room), WEIGHT_MAX)


def of_terms(operations: int) -> Price:
    """A filter or formulas of so many row operations per row, which are evaluated for every row
    when they are made."""
    return Price(operations, operations, fixed=TERM * operations)


def of_sort(columns: int) -> Price:
    """A sort."""
    changed = CHANGED_SORTED + CHANGED_COLUMN * columns
    return Price(SORT_COLUMN * columns, changed, SORTED_ROW)


def of_groups(keys: int, more: int = 0, changed: int = 0) -> Price:
    """What brings rows together whose cells in so many columns are equal (none: all rows), and does
    so many row operations ``more`` with each when it is made, or ``changed`` when it changes."""
    keys = max(1, keys)
    return Price(KEY_COLUMN * keys + more, CHANGED_KEY * keys + changed, fixed=GROUPED)


def of_aggregations(keys: int, count: int) -> Price:
    """So many aggregations of groups."""
    made = of_groups(keys, AGGREGATION * count, CHANGED_CELL * count)
    return replace(made, fixed=made.fixed + AGGREGATED * count)


def of_group_ends(keys: int) -> Price:
    """The first or last rows of groups, which are put in order."""
    return of_groups(keys, SORT_COLUMN, CHANGED_KEY // 2)


def of_running(keys: int, count: int, *, is_appended: bool) -> Price:
    """So many running values of groups, whose rows are put in order. All rows there are may have a
    change in front of them, unless rows are only appended: then they are computed again."""
    made = of_groups(keys, SORT_COLUMN + RUNNING * count, CHANGED_CELL * count)
    if is_appended:
        return made
    return replace(made, per_standing=FOUND_ROW, reserved=RESERVED_BEHIND * count)


def of_lists(count: int) -> Price:
    """Rows for the places of lists in so many columns."""
    per_row = LIST * count
    return Price(per_row, per_row, fixed=GROUPED * bool(per_row))


def of_conversions(count: int) -> Price:
    """Conversions, so many of which may fail and are therefore tried."""
    per_row = CONVERSION * count
    return Price(per_row, fixed=CONVERTED * per_row)


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


class Readable(Protocol):
    """What the price of reading a table depends on."""

    reading: int
    """Row operations of reading one row."""

    @property
    def size(self) -> int:
        """Number of rows."""

    @property
    def row_keys(self) -> RowSet:
        """Keys of all rows."""

    @property
    def overwritten_nbytes(self) -> int:
        """Bytes of cells that reading copies."""


def of_reading(table: Readable, *, rows: int, columns: int, ranges: int) -> int:
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


def of_placing(table: Readable, *, changed: int, is_undone: bool) -> int:
    """Row operations of finding the positions of so many changed ranges, at most, in a table;
    ``is_undone`` when its row keys of before have to be worked out."""
    ranges = table.row_keys.range_count
    if ranges <= 1:
        return 0
    work = ranges * PLACED + changed * PLACED_CHANGE
    return work + ranges * UNDONE + changed * UNDONE_CHANGE if is_undone else work


TEXT_BYTE = 5_000
"""What reading a byte of an expression and fitting it to a table costs, in row operations."""

TEXT_BYTES_FREE = 40
"""Shorter texts are paid for with their operator."""

TEXT_BYTES_HERE = 400
"""Longer texts are read and bound beside the engine thread."""


class NotHereError(Exception):
    """Not an error: a request has to go on later, or elsewhere."""


def check_work(work: int, limits: Limits) -> None:
    """LimitExceededError for more than one request may cost."""
    if work > limits.query_work_max:
        raise LimitExceededError(
            "work of a query", actual=work, maximum=limits.query_work_max, unit="row operations"
        )
