"""Floats as keys: one zero, one NaN."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from barrage.engine.keys.key_numbers import KeyNumbers

_OTHER_NAN = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)[0]


def test_both_zeros_and_all_nans_are_one_key_each():
    cells = pa.array(np.array([0.0, -0.0, np.nan, _OTHER_NAN, 1.0]))
    numbers = KeyNumbers([pa.float64()])
    assert numbers.of([cells]).tolist() == [0, 0, 1, 1, 2]
    assert numbers.of([pa.array([None, -0.0], pa.float64())]).tolist() == [3, 0]


def test_the_same_holds_inside_dictionaries():
    cells = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 1], pa.int32()), pa.array([0.0, -0.0])
    )
    numbers = KeyNumbers([cells.type])
    assert numbers.of([cells]).tolist() == [0, 0, 1, 0]


def test_a_forgotten_zero_is_found_by_the_other_one():
    numbers = KeyNumbers([pa.float32()])
    assert numbers.of([pa.array([-0.0], pa.float32())]).tolist() == [0]
    numbers.forget(np.array([0]))
    assert numbers.of([pa.array([0.0, -0.0], pa.float32())]).tolist() == [1, 1]
