"""How large the messages of an update get: whoever encodes one keeps an event loop that long."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.limits import Limits
from barrage.rowset import RowSet
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from tests.helpers.frame_factory import full_update

SCHEMA = pa.schema([("text", pa.string())])
TARGET = 10_000


def frame_sizes(cells: list[str]) -> list[int]:
    update = full_update(
        SCHEMA, added=RowSet.of_span(0, len(cells)), values=(pa.array(cells),), is_snapshot=True
    )
    encoder = UpdateEncoder(SCHEMA, EncodeOptions(), Limits(message_bytes_target=TARGET))
    return [len(frame) for frame in encoder.encode(update)]


@pytest.mark.parametrize("count", [2, 50, 512])
def test_few_rows_of_wide_cells_are_not_put_into_one_message(count: int) -> None:
    """Up to 512 rows are tried in one batch, without estimating; there may be megabytes in it."""
    sizes = frame_sizes(["x" * 3000] * count)
    assert max(sizes) <= 4 * TARGET + 1000
    assert len(sizes) >= count * 3000 // (4 * TARGET + 1000)


@pytest.mark.parametrize("at", [0, 1, 700, 4999])
def test_a_cell_larger_than_a_message_should_be_travels_with_few_others(at: int) -> None:
    cells = ["small"] * 5000
    cells[at] = "x" * 60 * TARGET
    sizes = frame_sizes(cells)
    large = [size for size in sizes if size > 4 * TARGET + 1000]
    assert len(large) == 1
    assert large[0] <= 61 * TARGET
    assert len(sizes) < 60
