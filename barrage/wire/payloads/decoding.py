"""Many payloads to rows at once, whichever of them can be decoded.

A decoder does a whole batch or refuses it. What it refuses is halved until the payloads are found
that cannot be decoded, so that ``k`` bad ones among ``n`` cost about ``k log n`` further calls, and
good ones go the fast way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from barrage.errors import RemoteProtocolError

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

REASON_CHARS_MAX = 500
"""Of what is kept about a payload that cannot be decoded."""


class PayloadError(RemoteProtocolError):
    """Payloads that are not what the mapping of their table says."""


class PayloadDecoder(Protocol):
    """Makes rows of payloads. Knows nothing of messages and tables."""

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


def decode_payloads(decoder: PayloadDecoder, payloads: pa.BinaryArray) -> DecodedPayloads:
    """The rows of all payloads that can be decoded."""
    tables: list[pa.Table] = []
    origins: list[Int64Array] = []
    rejected: list[tuple[int, str]] = []
    waiting = [(0, len(payloads))]
    while waiting:
        start, stop = waiting.pop()
        if start == stop:
            continue
        try:
            rows, found = decoder.decode(payloads[start:stop])
        except RemoteProtocolError as error:
            if stop - start == 1:
                rejected.append((start, short(str(error))))
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
            continue
        tables.append(rows)
        origins.append(found + start)
    if not tables:
        return DecodedPayloads(decoder.schema.empty_table(), np.empty(0, np.int64), tuple(rejected))
    return DecodedPayloads(pa.concat_tables(tables), np.concatenate(origins), tuple(rejected))


def short(reason: str) -> str:
    """A reason as it is kept: one line, of bounded length."""
    return " ".join(reason.split())[:REASON_CHARS_MAX]


def one_each(count: int) -> Int64Array:
    """Where rows come from when every payload is one."""
    return np.arange(count, dtype=np.int64)
