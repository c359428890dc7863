"""Column bit sets: recorded vectors, trailing zeros, refusals, limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.wire import decode_bit_set, encode_bit_set

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "barrage" / "bitsets.json").read_text()
)["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
def test_recorded_bit_set_both_ways(vector) -> None:
    columns, encoded = tuple(vector["columns"]), bytes.fromhex(vector["encoded_hex"])
    assert encode_bit_set(columns) == encoded
    assert decode_bit_set(encoded) == columns
    assert decode_bit_set(memoryview(encoded)) == columns


def test_trailing_zero_bytes_are_legal_but_not_written() -> None:
    assert decode_bit_set(b"\x05\x00\x00") == (0, 2)
    assert decode_bit_set(b"\x00") == ()


def test_order_and_repeats_do_not_matter_to_the_encoder() -> None:
    assert encode_bit_set((9, 0, 2, 9)) == encode_bit_set((0, 2, 9))


@pytest.mark.parametrize("columns", [(-1,), (0, 2**40)])
def test_indices_that_cannot_be_are_refused(columns: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="column indices"):
        encode_bit_set(columns)


def test_limit_and_one_past_it() -> None:
    limits = Limits(column_bit_set_bytes_max=2)
    assert decode_bit_set(b"\x00\x80", limits) == (15,)
    with pytest.raises(RemoteProtocolError, match="3 bytes, the limit is 2"):
        decode_bit_set(b"\x00\x80\x00", limits)
