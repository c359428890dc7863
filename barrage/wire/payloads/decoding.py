"""Many payloads to rows at once, whichever of them can be decoded.

A decoder does a whole batch or refuses it. Of what it refuses the payloads are set aside that it
can tell are none by a look, and the rest is halved until the others are found, so that ``k`` bad
ones among ``n`` cost about ``k log n`` further calls, and good ones go the fast way; after
:data:`SPLITS_MAX` in vain each of the rest is decoded alone. Who has no time for that says how many
calls there may be.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import RemoteProtocolError
from barrage.wire.payloads.decoded_sizes import row_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

log = logging.getLogger(__name__)

REASON_CHARS_MAX = 500
"""Of what is kept about a payload that cannot be decoded."""

SPLITS_MAX = 32
"""Batches that are halved; more bad payloads than that are found faster one by one."""


class PayloadError(RemoteProtocolError):
    """Payloads that are not what the mapping of their table says."""


class TurnExceededError(Exception):
    """The payloads are too many for one turn: at most ``count`` of them go, or, when that is None,
    some of them cannot be decoded and fewer are to be looked at."""

    def __init__(self, count: int | None) -> None:
        super().__init__("too many payloads for one turn")
        self.count = count


@dataclass(frozen=True, slots=True, eq=False)
class PayloadSizes:
    """Of each payload."""

    rows: Int64Array
    byte_counts: Int64Array
    """What its rows take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTurn:
    """What may be decoded at once."""

    rows_max: int
    bytes_max: int
    """What the rows may take."""
    calls_max: int | None = None
    """Calls of the decoder. None when it is to take what it takes."""
    is_last: bool = False
    """Whether there can be no fewer payloads; what does not fit is rejected."""


class PayloadDecoder(Protocol):
    """Makes rows of payloads. Knows nothing of messages and tables."""

    turn_messages: int
    """So many payloads take some milliseconds, when they are short."""

    def sizes(self, payloads: pa.BinaryArray) -> PayloadSizes:
        """How much would come of each payload, found without making it; nothing of one that cannot
        be decoded. Never raises for what they say."""
        ...

    def faults(self, payloads: pa.BinaryArray) -> Mapping[int, str]:
        """Payloads that a look at each shows to be none, with the reason; not all of them."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Of the rows it makes."""
        ...

    def decode(self, payloads: pa.BinaryArray) -> tuple[pa.Table, Int64Array]:
        """The rows of all payloads, and for each row the position of its payload, ascending.
        PayloadError when there is one that cannot be decoded, or that it cannot do together with
        the others; for a single one what it says is the reason."""
        ...


@dataclass(frozen=True, slots=True)
class DecodedPayloads:
    """What became of a batch."""

    rows: pa.Table
    origins: Int64Array
    """Of each row, the position of its payload."""
    rejected: tuple[tuple[int, str], ...]
    """Positions of payloads that cannot be decoded, ascending, each with the reason."""


def decode_payloads(
    decoder: PayloadDecoder, payloads: pa.BinaryArray, turn: DecodeTurn | None = None
) -> DecodedPayloads:
    """The rows of all payloads that can be decoded. TurnExceededError when they are more than goes
    in a turn."""
    search = _Search(decoder, payloads, None if turn is None else turn.calls_max)
    if turn is not None and len(payloads):
        search.rejected |= _misfits(decoder.sizes(payloads), turn)
    return search.found()


def _misfits(sizes: PayloadSizes, turn: DecodeTurn) -> dict[int, str]:
    """What does not fit in a turn, even without all others."""
    told = f"{turn.rows_max} rows or {turn.bytes_max} bytes of rows"
    is_large = (sizes.rows > turn.rows_max) | (sizes.byte_counts > turn.bytes_max)
    rejected = {int(at): f"the payload has more than {told}" for at in np.flatnonzero(is_large)}
    rows = np.cumsum(np.where(is_large, 0, sizes.rows))
    bytes_ = np.cumsum(np.where(is_large, 0, sizes.byte_counts))
    over = np.flatnonzero((rows > turn.rows_max) | (bytes_ > turn.bytes_max))
    if not len(over):
        return rejected
    if not turn.is_last:
        raise TurnExceededError(int(over[0]))
    reason = f"the payloads of one position have more than {told}"
    return {int(at): reason for at in over} | rejected


class _Search:
    """For those of a batch that can be decoded."""

    def __init__(
        self, decoder: PayloadDecoder, payloads: pa.BinaryArray, calls_max: int | None
    ) -> None:
        self._decoder = decoder
        self._payloads = payloads
        self._calls_left = calls_max
        self._splits = 0
        self._has_looked = False
        self._has_told = False
        self.rejected: dict[int, str] = {}

    def found(self) -> DecodedPayloads:
        tables: list[pa.Table] = []
        origins: list[Int64Array] = []
        waiting = [np.delete(one_each(len(self._payloads)), sorted(self.rejected))]
        while waiting:
            chosen = waiting.pop()
            if not len(chosen):
                continue
            answer = self._decoded(chosen)
            if isinstance(answer, str):
                waiting += self._parts(chosen, answer)
                continue
            rows, places = answer
            tables.append(rows)
            origins.append(chosen[places])
        rejected = tuple((at, short(why)) for at, why in sorted(self.rejected.items()))
        if not tables:
            nothing = self._decoder.schema.empty_table()
            return DecodedPayloads(nothing, np.empty(0, np.int64), rejected)
        return DecodedPayloads(pa.concat_tables(tables), np.concatenate(origins), rejected)

    def _decoded(self, chosen: Int64Array) -> tuple[pa.Table, Int64Array] | str:
        """Rows, or why there are none."""
        if self._calls_left is not None:
            if not self._calls_left:
                raise TurnExceededError(None)
            self._calls_left -= 1
        try:
            return self._decoder.decode(self._chosen(chosen))
        except RemoteProtocolError as error:
            return str(error)
        except Exception as error:
            if not self._has_told:
                log.exception("a decoder of payloads has failed")
            self._has_told = True
            return f"the payload could not be decoded: {type(error).__name__}: {error}"

    def _chosen(self, chosen: Int64Array) -> pa.BinaryArray:
        first, last = int(chosen[0]), int(chosen[-1])
        if last - first + 1 == len(chosen):
            return self._payloads.slice(first, len(chosen))
        return self._payloads.take(pa.array(chosen))

    def _parts(self, chosen: Int64Array, reason: str) -> list[Int64Array]:
        """What of those that are refused together is to be tried next, the last one first."""
        if len(chosen) == 1:
            self.rejected[int(chosen[0])] = reason
            return []
        if not self._has_looked:
            self._has_looked = True
            faults = self._faults(chosen)
            if faults:
                self.rejected |= {int(chosen[at]): why for at, why in faults.items()}
                return [np.delete(chosen, sorted(faults))]
        self._splits += 1
        if self._splits > SPLITS_MAX:
            return [chosen[at : at + 1] for at in range(len(chosen) - 1, -1, -1)]
        middle = len(chosen) // 2
        return [chosen[middle:], chosen[:middle]]

    def _faults(self, chosen: Int64Array) -> Mapping[int, str]:
        try:
            return self._decoder.faults(self._chosen(chosen))
        except Exception:
            log.exception("a decoder of payloads could not look at them")
            return {}


def short(reason: str) -> str:
    """A reason as it is kept: one line, of bounded length."""
    return " ".join(reason.split())[:REASON_CHARS_MAX]


def one_each(count: int) -> Int64Array:
    """Where rows come from when every payload is one."""
    return np.arange(count, dtype=np.int64)


def row_sizes(
    schema: pa.Schema, payloads: pa.BinaryArray, rows: Int64Array | None = None
) -> PayloadSizes:
    """Of payloads whose values take about what their texts do, each with so many rows, or one."""
    counts = np.ones(len(payloads), np.int64) if rows is None else rows.astype(np.int64)
    lengths = pc.binary_length(payloads).to_numpy(zero_copy_only=False).astype(np.int64)
    return PayloadSizes(counts, counts * row_width(schema) + lengths)
