"""Large messages of uploads, and those of many columns, are checked, decompressed and converted
beside the event loop, one at a time (:mod:`barrage.server.runtime.aside`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError
from barrage.model.storage.expanded_bytes import expanded_bytes, keeps_its_bytes
from barrage.server.runtime.aside import aside

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.server.ingest.upload import UploadReader
    from barrage.wire.frame import FlightFrame

ROW_WEIGHT = 8
"""How many bytes a row is worth at least."""

HEADER_WEIGHT = 8
"""How many bytes of a body a byte of a header is worth: it describes columns, of which each takes
as long as many values."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A record batch of an upload."""

    batch: pa.RecordBatch
    nbytes: int
    """Of its cells, which takes a look at every column."""
    weight: int
    """What :func:`aside` is told by who goes through all of it once more."""
    expanded_bytes: int
    """What its cells take in a table (:mod:`barrage.model.storage.expanded_bytes`)."""

    @property
    def cast_weight(self) -> int:
        """What :func:`aside` is told by who casts it: a few bytes of run-ends or nulls can stand
        for many rows."""
        return max(self.weight, self.expanded_bytes, int(self.batch.num_rows) * ROW_WEIGHT)

    @property
    def table_bytes(self) -> int:
        """Of the cells, here or in a table, where there are more."""
        return max(self.nbytes, self.expanded_bytes)

    def check_expanded(self, what: str, bytes_max: int) -> None:
        """LimitExceededError for what becomes more than so many bytes in a table, and is less as
        it came: that has passed the limits of messages. Nothing has been cast yet."""
        if self.expanded_bytes > max(bytes_max, self.nbytes):
            raise LimitExceededError(
                what, actual=self.expanded_bytes, maximum=bytes_max, unit="bytes"
            )


async def unpacked(
    batches: UploadReader, frame: FlightFrame, into: pa.Schema | None = None
) -> Unpacked | None:
    """The batch that :meth:`UploadReader.read` gives for a frame, if any; the same errors. It goes
    into a table of the schema ``into``, or of its own."""

    def work() -> Unpacked | None:
        batch = batches.read(frame)
        if batch is None:
            return None
        given, nbytes = batch.schema, batch.nbytes
        wanted = given if into is None else into
        expanded = nbytes if keeps_its_bytes(given, wanted) else expanded_bytes(batch, wanted)
        return Unpacked(batch, nbytes, weight, expanded)

    weight = batches.unpacked_bytes(frame) + HEADER_WEIGHT * len(frame.header or b"")
    return await aside(weight, work)
