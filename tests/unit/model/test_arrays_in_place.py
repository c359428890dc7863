"""Arrays with one owner that grow and shrink in place."""

from __future__ import annotations

import numpy as np
import pytest

from barrage.model.storage.growth import SLACK_ROWS_MAX, lengthened, shorten


@pytest.mark.parametrize("filler", [0, -1])
def test_only_the_new_part_is_filled(filler: int) -> None:
    values = np.arange(1, 9)
    longer = lengthened(values, 40, filler)
    assert longer is values
    assert longer[:8].tolist() == list(range(1, 9))
    assert len(longer) >= 40
    assert set(longer[8:].tolist()) == {filler}
    assert lengthened(longer, 40) is longer


def test_what_belongs_to_another_array_is_copied() -> None:
    values = np.arange(8)
    longer = lengthened(values[:4], 6)
    longer[0] = 9
    assert values.tolist() == list(range(8))


def test_large_arrays_get_little_spare_room_and_give_it_back() -> None:
    values = lengthened(np.zeros((0, 2), dtype=np.int64), 10 * SLACK_ROWS_MAX)
    assert values.shape == (11 * SLACK_ROWS_MAX, 2)
    shorten(values, 9 * SLACK_ROWS_MAX)
    assert len(values) == 11 * SLACK_ROWS_MAX
    shorten(values, 5)
    assert 5 <= len(values) < 100
