"""SipHash of whole columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.server.policy.keyed_hash import can_be_hashed, hashed_cells, siphash

KEY = bytes(range(16))
VECTORS = """
310e0edd47db6f72 fd67dc93c539f874 5a4fa9d909806c0d 2d7efbd796666785 b7877127e09427cf
8da699cd64557618 cee3fe586e46c9cb 37d1018bf50002ab 6224939a79f5f593 b0e4a90bdf82009e
f3b9dd94c5bb5d7a a7ad6b22462fb3f4 fbe50e86bc8f1e75 903d84c02756ea14 eef27a8e90ca23f7
e545be4961ca29a1
"""
"""Of the paper's reference implementation: texts of the bytes 0, 1, 2, ..., of 0 to 15 of them."""


def test_the_authors_vectors_all_at_once() -> None:
    lengths = np.arange(len(VECTORS.split()))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    data = np.concatenate([np.arange(length, dtype=np.uint8) for length in lengths])
    told = siphash(KEY, data, offsets)
    assert [int(each).to_bytes(8, "little").hex() for each in told] == VECTORS.split()


@pytest.mark.parametrize(
    "cells",
    [
        pa.array(["a", None, "a", "longer than eight bytes", ""]),
        pa.array(["a", None, "a", "b"]).dictionary_encode(),
        pa.array([1, None, 1, 2]),
        pa.array([b"\x00\xff", None, b"\x00\xff"]),
        pa.array([1.5, None, 1.5]),
        pa.array([True, False, None]),
        pa.array([0, None, 0], pa.timestamp("ns", "UTC")),
        pa.array(["x", "y", "x"], pa.string_view()),
    ],
    ids=str,
)
def test_cells_of_any_type(cells: pa.Array) -> None:
    assert can_be_hashed(cells.type)
    told = hashed_cells(cells, KEY).to_pylist()
    plain = cells.to_pylist()
    assert [each is None for each in told] == [each is None for each in plain]
    assert all(len(each) == 16 for each in told if each is not None)
    pairs = {(one, other) for one, other in zip(plain, told, strict=True)}
    assert len(pairs) == len(set(plain)) == len(set(told))
    # A part of a column says the same, and another key something else.
    assert hashed_cells(cells[1:], KEY).to_pylist() == told[1:]
    other = hashed_cells(cells, bytes(16)).to_pylist()
    assert not {*other, *told} - {None} & {*other} & {*told} - {None}


def test_no_cells_and_types_without_a_text() -> None:
    assert len(hashed_cells(pa.array([], pa.string()), KEY)) == 0
    assert not can_be_hashed(pa.list_(pa.string()))
    assert not can_be_hashed(pa.dictionary(pa.int32(), pa.list_(pa.string())))
