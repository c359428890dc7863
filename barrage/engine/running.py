"""Running values of groups: each row shows what has come of its group's cells up to it.

``cum_sum(column)`` adds up, as numbers of 64 bits or, for floats, of the column's type.
``ema_tick(column, ticks)`` is the exponential moving average: the first cell as it is, then
``a * before + (1 - a) * cell`` with ``a = exp(-1 / ticks)``. Null, and for the average NaN, is
passed over: such a row shows what the row before it shows, or null.

What a row shows is all that the rows after it need to know of those before, so values can be
continued from any row.

Whole numbers are added exactly. Floats are combined over 1, 2, 4, … rows (the sum of eight rows is
that of four and of the four before), so the last digits may differ from those of adding one by one.
Cost: a vector operation for each doubling up to the length of the longest group; groups shorter
than that take no part in it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.aggregation import FUNCTIONS, TEXT_LENGTH_MAX
from barrage.engine.row_runs import places
from barrage.errors import EngineError, ExpressionError, SchemaError, near_miss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from barrage.engine.hashing import Int64Array

    FloatArray = npt.NDArray[np.float64]

RUNNING_FUNCTIONS = ("cum_sum", "ema_tick")

_CALL = re.compile(r"\s*(\w+)\s*\(\s*(?:`([^`]+)`|([^`,()]+?))\s*(?:,\s*([^,()]+?)\s*)?\)\s*")

_LOW = 0xFFFFFFFF


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
        fields.append(pa.field(each.name, like.gives(data_type)))
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
    running: Running, cells: pa.Array, lengths: Int64Array, states: pa.Array
) -> pa.Array:
    """What the rows of groups show.

    ``cells`` are those of one group after another, ``lengths`` rows each; ``states`` is what the
    row before the first one of each group shows, null where there is none or it shows null.
    EngineError: a sum of whole numbers does not fit int64.
    """
    is_present = _mask(cells.is_valid())
    if running.ticks is not None and pa.types.is_floating(cells.type):
        is_present &= ~_mask(pc.fill_null(pc.is_nan(cells), True))
    has_state = _mask(states.is_valid()).astype(np.int64)
    seen = _restarting_sums(is_present.astype(np.int64), lengths)
    before = np.repeat(has_state, lengths)
    ends = np.cumsum(lengths)
    counts = np.zeros(len(lengths), dtype=np.int64)
    is_any = lengths > 0
    counts[is_any] = seen[ends[is_any] - 1]
    steps = counts + has_state
    starts = np.cumsum(steps) - steps
    # The states and the present cells of one group after another, without anything else.
    kind = np.float64 if pa.types.is_floating(states.type) else _whole_type(cells.type)
    inputs: npt.NDArray[np.generic] = np.empty(int(steps.sum()), dtype=kind)
    inputs[starts[has_state > 0]] = _numbers(states, kind)[has_state > 0]
    inputs[places(starts + has_state, counts)] = _numbers(cells, kind)[is_present]
    found = _scanned(inputs, steps, running)
    shown = seen + before
    where = np.repeat(starts, lengths) + shown - 1
    is_null = shown == 0
    results = found[np.where(is_null, 0, where)] if len(found) else np.zeros(len(shown))
    return pa.array(results, mask=is_null).cast(states.type)


def _mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _whole_type(data_type: pa.DataType) -> type:
    return np.uint64 if pa.types.is_uint64(data_type) else np.int64


def _numbers(values: pa.Array, kind: type) -> npt.NDArray[np.generic]:
    plain = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    filled = pc.fill_null(plain, pa.scalar(0).cast(plain.type))
    return np.asarray(filled.to_numpy(zero_copy_only=False)).astype(kind)


def _scanned(
    inputs: npt.NDArray[np.generic], lengths: Int64Array, running: Running
) -> npt.NDArray[np.generic]:
    """The running values of the inputs, group by group; the first of a group is as it is."""
    if inputs.dtype.kind != "f":
        return _whole_sums(inputs, lengths)
    floats = inputs.astype(np.float64)
    decay = 1.0 if running.ticks is None else math.exp(-1.0 / running.ticks)
    is_finite = np.isfinite(floats)
    rank = np.arange(len(floats)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    found = np.where(is_finite, floats, 0.0)
    if running.ticks is not None:
        found[rank > 0] *= -math.expm1(-1.0 / running.ticks)
    # Infinities are put in below; sums of large numbers may give others, as one by one.
    with np.errstate(over="ignore", invalid="ignore"):
        _add_up(found, rank, decay)
    if not is_finite.all():
        _put_specials(found, floats, lengths)
    return found


def _add_up(found: FloatArray, rank: Int64Array, decay: float) -> None:
    """Add what came before in the group, over twice as many rows each time."""
    distance, longest = 1, int(rank.max(initial=0))
    while distance <= longest and decay**distance > 0:
        late = np.flatnonzero(rank >= distance)
        if len(late) * 4 < len(found):
            found[late] += decay**distance * found[late - distance]
        else:
            before = np.where(rank[distance:] >= distance, found[:-distance], 0.0)
            found[distance:] += decay**distance * before
        distance *= 2


def _put_specials(found: FloatArray, inputs: FloatArray, lengths: Int64Array) -> None:
    """From an infinity on a group shows it; from a NaN or the other infinity on, NaN."""
    high = _restarting_sums((inputs == math.inf).astype(np.int64), lengths) > 0
    low = _restarting_sums((inputs == -math.inf).astype(np.int64), lengths) > 0
    is_nan = _restarting_sums(np.isnan(inputs).astype(np.int64), lengths) > 0
    found[high], found[low] = math.inf, -math.inf
    found[is_nan | (high & low)] = math.nan


def _whole_sums(inputs: npt.NDArray[Any], lengths: Int64Array) -> Int64Array:
    """Exact sums, the halves of the numbers by themselves, so that nothing overflows unseen."""
    high = _restarting_sums((inputs >> 32).astype(np.int64), lengths)
    low = _restarting_sums((inputs & _LOW).astype(np.int64), lengths)
    high += low >> 32
    if len(high) and (high.max() >= 1 << 31 or high.min() < -(1 << 31)):
        raise EngineError("a cumulative sum of whole numbers does not fit int64")
    return (high << 32) | (low & _LOW)


def _restarting_sums(values: Int64Array, lengths: Sequence[int] | Int64Array) -> Int64Array:
    """Cumulative sums that begin anew with each group."""
    sums = np.cumsum(values)
    starts = np.cumsum(lengths) - lengths
    bases = np.concatenate(([0], sums))[starts]
    restarted: Int64Array = sums - np.repeat(bases, lengths)
    return restarted
