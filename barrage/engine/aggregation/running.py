"""Running values of groups: each row shows what has come of its group's cells up to it.

``cum_sum(column)`` adds up, as numbers of 64 bits or, for floats, of the column's type.
``ema_tick(column, ticks)`` is the exponential moving average: the first cell as it is, then
``a * before + (1 - a) * cell`` with ``a = exp(-1 / ticks)``. Null, and for the average NaN, is
passed over: such a row shows what the row before it shows, or null.

What a row shows is all that the rows after it need to know of those before, so values can be
continued from any row, and once a row shows what it showed before, so do those after it
(:func:`has_settled`).

Whole numbers are added exactly. Floats are computed in blocks of rows, of which as many as there
are take a step together; what came before a block is added to it afterwards. So the last digits may
differ from those of going row by row, and depend on where values are continued. Cost: a few vector
operations over the rows, and two for each row of a block, whatever groups there are.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.aggregation.aggregation import FUNCTIONS, TEXT_LENGTH_MAX
from barrage.errors import EngineError, ExpressionError, SchemaError, near_miss
from barrage.model.storage import cells_differ

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from barrage.model.storage.hashing import Int64Array

    BoolArray = npt.NDArray[np.bool_]
    FloatArray = npt.NDArray[np.float64]

RUNNING_FUNCTIONS = ("cum_sum", "ema_tick")

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(?:`([^`]+)`|([^`,()]+?))\s*(?:,\s*([^,()]+?)\s*)?\)\s*")

_LOW = 0xFFFFFFFF

BLOCK_ROWS = 256
"""Most rows of a block: enough blocks take a step together that a step costs by the row."""

SETTLED = 2.0**-50
"""Averages that differ by less than this part of them are one: what is left of a change fades, and
a difference in the last digits comes from where values were continued. Each change may leave so
much behind, which fades as the average does: after any number of changes an average over ``n``
ticks is within ``n`` times this of what all rows at once would give."""


@dataclass(frozen=True, slots=True)
class Running:
    """One running value: its name, its function, the column it reads, and for an average the decay
    in ticks."""

    name: str
    function: str
    column: str
    ticks: float | None = None


def parse_running(
    schema: pa.Schema, formulas: Mapping[str, str]
) -> tuple[tuple[Running, ...], list[pa.Field]]:
    """``function(column)`` by the name of the new column, and the fields that result.

    ExpressionError: a text is no such formula. SchemaError: a column does not exist, has another
    type, or its name is taken.
    """
    if not formulas:
        raise ExpressionError("update_by wants a formula, such as total='cum_sum(price)'")
    parsed = tuple(_parse(name, text) for name, text in formulas.items())
    fields = []
    for each in parsed:
        if each.name in schema.names:
            raise SchemaError(f"the result would have two columns {each.name!r}")
        index = schema.get_field_index(each.column)
        if index < 0:
            hint = near_miss(each.column, schema.names)
            raise SchemaError(f"{each.function}: unknown column {each.column!r}{hint}")
        like = FUNCTIONS["sum" if each.function == "cum_sum" else "avg"]
        data_type = schema.field(index).type
        if not like.takes(data_type):
            raise SchemaError(
                f"{each.function} takes {like.wanted}, but column {each.column!r} is {data_type}"
            )
        given = like.gives(data_type)
        # What a row shows is all that the rows after it know: less than 64 bits would stand still.
        fields.append(pa.field(each.name, pa.float64() if pa.types.is_floating(given) else given))
    return parsed, fields


def _parse(name: str, text: str) -> Running:
    if len(text) > TEXT_LENGTH_MAX:
        raise ExpressionError(
            f"formula {name!r} has {len(text)} characters, the limit is {TEXT_LENGTH_MAX}"
        )
    call = _CALL.fullmatch(text)
    if call is None:
        raise ExpressionError(
            f"{text!r} is no running value; write {name}='cum_sum(column)' or "
            f"{name}='ema_tick(column, 10)'"
        )
    function, quoted, plain, ticks = call.groups()
    if function not in RUNNING_FUNCTIONS:
        hint = near_miss(function, RUNNING_FUNCTIONS)
        known = hint or f"; there are {', '.join(RUNNING_FUNCTIONS)}"
        raise ExpressionError(f"unknown function {function!r} for {name!r}{known}")
    if (ticks is None) is (function == "ema_tick"):
        wanted = "a column and a number of ticks" if ticks is None else "one column"
        raise ExpressionError(f"{function} takes {wanted}, not {text!r}")
    return Running(name, function, quoted or plain, None if ticks is None else _ticks(ticks))


def _ticks(text: str) -> float:
    try:
        ticks = float(text)
    except ValueError:
        ticks = math.nan
    if not 0 < ticks < math.inf:
        raise ExpressionError(f"ema_tick decays over a number of ticks above 0, not {text!r}")
    return ticks


def running_values(
    running: Running, cells: pa.Array, lengths: Int64Array, *, states: pa.Array
) -> pa.Array:
    """What the rows of groups show.

    ``cells`` are those of one group after another, ``lengths`` rows each; ``states`` is what the
    row before the first one of each group shows, null where there is none or it shows null.
    EngineError: a sum of whole numbers does not fit int64.
    """
    is_present = _present(running, cells)
    kind = np.float64 if pa.types.is_floating(states.type) else _whole_type(cells.type)
    inputs = _numbers(cells, kind)
    if is_present is None:
        found = _scanned(running, inputs, lengths, states=states)
        return pa.array(found).cast(states.type)
    seen = _restarting_sums(is_present.astype(np.int64), lengths)
    counts = np.zeros(len(lengths), dtype=np.int64)
    is_any = lengths > 0
    counts[is_any] = seen[np.cumsum(lengths)[is_any] - 1]
    found = _scanned(running, inputs[is_present], counts, states=states)
    # Rows before the first present cell of their group show its state.
    known = np.concatenate((found, _numbers(states, found.dtype.type)))
    groups = np.repeat(np.arange(len(lengths)), lengths)
    is_before = seen == 0
    where = np.where(is_before, len(found) + groups, np.cumsum(is_present) - 1)
    is_null = is_before & ~_mask(states.is_valid())[groups]
    return pa.array(known[where], mask=is_null).cast(states.type)


def has_settled(running: Running, shown: pa.Array, now: pa.Array) -> BoolArray:
    """Where rows that showed ``shown`` show the same ``now``, to the last digits: they keep what
    they showed, and so do the rows after them if none of these changed."""
    same = ~cells_differ(shown, now)
    if running.ticks is None or same.all():
        return same
    both = _mask(shown.is_valid()) & _mask(now.is_valid())
    old, new = _numbers(shown, np.float64), _numbers(now, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(new - old) <= SETTLED * np.abs(old)
    settled: BoolArray = same | (both & np.isfinite(old) & near)
    return settled


def _present(running: Running, cells: pa.Array) -> BoolArray | None:
    """Which cells are not passed over; None when all are looked at."""
    is_present = _mask(cells.is_valid()) if cells.null_count else None
    if running.ticks is not None and pa.types.is_floating(cells.type):
        is_number = ~_mask(pc.fill_null(pc.is_nan(cells), True))
        if not is_number.all():
            is_present = is_number
    return is_present


def _mask(values: pa.Array) -> BoolArray:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _whole_type(data_type: pa.DataType) -> type:
    return np.uint64 if pa.types.is_uint64(data_type) else np.int64


def _numbers(values: pa.Array, kind: type) -> npt.NDArray[Any]:
    """The cells as numbers of one kind, 0 for null."""
    plain = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    filled = pc.fill_null(plain, pa.scalar(0).cast(plain.type)) if plain.null_count else plain
    return np.asarray(filled.to_numpy(zero_copy_only=False)).astype(kind, copy=False)


def _scanned(
    running: Running, inputs: npt.NDArray[Any], lengths: Int64Array, *, states: pa.Array
) -> npt.NDArray[Any]:
    """The running values of the inputs, group by group, each from its state on."""
    if inputs.dtype.kind != "f":
        return _whole_sums(inputs, lengths, _numbers(states, np.int64))
    is_any = lengths > 0
    starts = (np.cumsum(lengths) - lengths)[is_any]
    has_state = _mask(states.is_valid())[is_any]
    before = _numbers(states, np.float64)[is_any]
    is_finite = np.isfinite(inputs)
    is_plain = bool(is_finite.all() and np.isfinite(before).all())
    found = inputs.copy() if is_plain else np.where(is_finite, inputs, 0.0)
    known = before if is_plain else np.where(np.isfinite(before), before, 0.0)
    decay = 1.0
    if running.ticks is not None:
        decay, first = math.exp(-1.0 / running.ticks), found[starts]
        found *= -math.expm1(-1.0 / running.ticks)
        found[starts[~has_state]] = first[~has_state]
    # Infinities are put in below; sums of large numbers may give others, as one by one.
    with np.errstate(over="ignore", invalid="ignore"):
        found[starts[has_state]] += decay * known[has_state]
        found = recurrence(found, starts, decay)
    if not is_plain:
        _put_specials(found, inputs, lengths[is_any], states=before)
    return found


def recurrence(inputs: FloatArray, starts: Int64Array, decay: float) -> FloatArray:
    """Each input with ``decay`` times the result before it, anew from each of ``starts`` on.

    The rows are cut into blocks. All blocks take their j-th step together, as if nothing came
    before them; then the blocks learn one after another what did, and it is added where no start
    lies between. Example with decay 0.5 and blocks of two: 8, 4 | 2, 1 | 4, 4 with starts 0 and 4
    gives 8, 8 | 2, 2 | 4, 6 first, then 8 before the second block: 8, 8 | 6, 4 | 4, 6.
    """
    count = len(inputs)
    steps = min(BLOCK_ROWS, math.isqrt(count) + 1)
    blocks = -(-count // steps)
    padded = np.zeros(blocks * steps)
    padded[:count] = inputs
    values = np.ascontiguousarray(padded.reshape(blocks, steps).T)
    block_of, step_of = np.divmod(starts, steps)
    order = np.argsort(step_of, kind="stable")
    cuts = np.searchsorted(step_of[order], np.arange(steps + 1)).tolist()
    begun = block_of[order]
    for step in range(1, steps):
        before = decay * values[step - 1]
        before[begun[cuts[step] : cuts[step + 1]]] = 0.0
        values[step] += before
    first = np.full(blocks, steps)
    np.minimum.at(first, block_of, step_of)
    carried = _carried(values[-1], first == steps, decay**steps)
    is_split = len(starts) > 1
    for step in range(steps):
        before = decay ** (step + 1) * carried
        if is_split:
            before[first <= step] = 0.0
        values[step] += before
    return values.T.reshape(-1)[:count]


def _carried(ends: FloatArray, is_whole: BoolArray, decay: float) -> FloatArray:
    """What comes before each block, given what it ends with by itself, and whether nothing begins
    in it. One step per block."""
    carried, before = [], 0.0
    for end, goes_on in zip(ends.tolist(), is_whole.tolist(), strict=True):
        carried.append(before)
        before = end + decay * before if goes_on else end
    return np.array(carried)


def _put_specials(
    found: FloatArray, inputs: FloatArray, lengths: Int64Array, *, states: FloatArray
) -> None:
    """From an infinity on a group shows it; from a NaN or the other infinity on, NaN."""

    def met(cells: BoolArray, before: BoolArray) -> BoolArray:
        counts = _restarting_sums(cells.astype(np.int64), lengths)
        return (counts > 0) | np.repeat(before, lengths)

    high = met(inputs == math.inf, states == math.inf)
    low = met(inputs == -math.inf, states == -math.inf)
    is_nan = met(np.isnan(inputs), np.isnan(states))
    found[high], found[low] = math.inf, -math.inf
    found[is_nan | (high & low)] = math.nan


def _whole_sums(inputs: npt.NDArray[Any], lengths: Int64Array, states: Int64Array) -> Int64Array:
    """Exact sums. Where they might not fit, the halves of the numbers are added by themselves, so
    that nothing overflows unseen."""
    most = max((abs(int(ends)) for ends in (*_ends(inputs), *_ends(states))), default=0)
    if most * (int(lengths.max(initial=0)) + 1) < 1 << 63:
        sums = _restarting_sums(inputs.astype(np.int64, copy=False), lengths)
        sums += np.repeat(states, lengths)
        return sums
    high = _restarting_sums((inputs >> 32).astype(np.int64), lengths)
    low = _restarting_sums((inputs & _LOW).astype(np.int64), lengths)
    high += np.repeat(states >> 32, lengths)
    low += np.repeat(states & _LOW, lengths)
    high += low >> 32
    if len(high) and (high.max() >= 1 << 31 or high.min() < -(1 << 31)):
        raise EngineError("a cumulative sum of whole numbers does not fit int64")
    return (high << 32) | (low & _LOW)


def _ends(values: npt.NDArray[Any]) -> tuple[Any, ...]:
    return (values.min(), values.max()) if len(values) else ()


def _restarting_sums(values: Int64Array, lengths: Int64Array) -> Int64Array:
    """Cumulative sums that begin anew with each group; the bits beyond int64 are dropped."""
    sums = np.cumsum(values)
    if len(lengths) == 1:
        return sums
    starts = np.cumsum(lengths) - lengths
    bases = np.concatenate(([0], sums))[starts]
    restarted: Int64Array = sums - np.repeat(bases, lengths)
    return restarted
