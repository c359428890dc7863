"""The index of a closed segment in a file beside it, so that opening needs not read the segment.

``wal/00000001.index``: a line of JSON (how the segment ends, its frontier, how many entries), the
rows of the index as little-endian int64, and the CRC-32C of both as eight hexadecimal digits. It is
written without a sync and may be missing or torn: then the segment is read instead. It is never
believed against the segment: the size of that and the header of the next must agree with it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.journal.disk.framing import crc_of
from barrage.journal.files.segment import SegmentEnd
from barrage.journal.records.index import INDEX_COLUMNS

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentIndex:
    """What was found when a segment was read, or known when it was closed."""

    end: SegmentEnd
    frontier: int
    rows: npt.NDArray[np.int64]

    def encode(self) -> bytes:
        """The content of the file."""
        facts = {**asdict(self.end), "frontier": self.frontier, "count": len(self.rows)}
        content = json.dumps(facts).encode() + b"\n" + self.rows.astype("<i8").tobytes()
        return content + b"%08x" % crc_of([content])


def decode_segment_index(content: bytes) -> SegmentIndex | None:
    """The index in a file; None when the file is not whole."""
    head, newline, _ = content.partition(b"\n")
    if not newline or b"%08x" % crc_of([content[:-8]]) != content[-8:]:
        return None
    facts = json.loads(head)
    count, frontier = facts.pop("count"), facts.pop("frontier")
    data = content[len(head) + 1 : -8]
    rows = np.frombuffer(data, dtype="<i8").astype(np.int64)
    if len(rows) != count * INDEX_COLUMNS:
        return None
    return SegmentIndex(
        end=SegmentEnd(**facts), frontier=frontier, rows=rows.reshape(count, INDEX_COLUMNS)
    )
