"""Where batches end, so that nothing is copied for them."""

from __future__ import annotations

import pyarrow as pa

from barrage.wire.updates.column_pieces import piece_of, uncopied


def test_a_batch_ends_with_a_chunk_unless_that_halves_it() -> None:
    column = pa.chunked_array([list(range(6)), list(range(10))])
    whole = pa.array(range(16))
    assert uncopied([column], 0, 10) == 6
    assert uncopied([column], 0, 13) == 13
    assert uncopied([column], 6, 8) == 8
    assert uncopied([column, whole], 2, 5) == 4
    assert uncopied([whole], 0, 5) == 5
    assert uncopied([pa.array([], pa.int64()), column], 0, 10) == 6
    assert uncopied([], 0, 3) == 3


def test_pieces_are_the_rows_between() -> None:
    column = pa.chunked_array([[0, 1, 2], [3, 4]])
    assert piece_of(column, 0, 5).to_pylist() == [0, 1, 2, 3, 4]
    assert piece_of(column, 1, 2).to_pylist() == [1, 2]
    assert piece_of(pa.array([5, 6, 7]), 1, 2).to_pylist() == [6, 7]
