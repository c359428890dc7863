"""Conditions on rows that somebody else keeps."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.conditions import Condition
from barrage.errors import ExpressionError

ROWS = pa.record_batch({"s": ["a", "b", None], "n": [1, None, 3]})


def test_a_condition_says_which_rows_hold() -> None:
    condition = Condition.of("n > 2", ROWS.schema)
    assert condition(ROWS).to_pylist() == [False, None, True]
    assert Condition.of("s == 'a' or n == 3", ROWS.schema)(ROWS).to_pylist() == [True, None, True]


def test_conditions_of_the_same_text_are_equal() -> None:
    assert Condition.of("n > 2", ROWS.schema) == Condition.of("n > 2", ROWS.schema)


@pytest.mark.parametrize("text", ["n + 1", "m > 1", "n >"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        Condition.of(text, ROWS.schema)
