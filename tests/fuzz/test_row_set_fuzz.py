"""Mutated recorded row sets, shifts and bit sets: decoded or refused, never anything else."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.rowset import RowSet
from barrage.wire import (
    decode_bit_set,
    decode_row_set,
    decode_shifts,
    encode_bit_set,
    encode_row_set,
    encode_shifts,
)

VECTORS = Path(__file__).parents[1] / "vectors" / "barrage"
ROW_SETS = json.loads((VECTORS / "rowset.json").read_text())
SEEDS = [bytes.fromhex(vector["encoded_hex"]) for vector in ROW_SETS["vectors"]]
SEEDS += [bytes.fromhex(vector["hex"]) for vector in ROW_SETS["decode_only"]]
SHIFT_SEEDS = [
    bytes.fromhex(vector["encoded_hex"])
    for vector in json.loads((VECTORS / "shifts.json").read_text())["vectors"]
]
LIMITS = Limits(row_set_ranges_max=100_000)
COMMANDS = bytes(command | kind for command in (0x08, 0x10, 0x18, 0x20) for kind in range(8))


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A recorded encoding with a few bytes changed, cut, repeated or inserted."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "command", "cut", "insert", "repeat", "extreme"))):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "command" if at < len(data):
                data[at] = draw(st.sampled_from(COMMANDS))
            case "cut":
                del data[at : at + draw(st.integers(1, 9))]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "repeat":
                data[at:at] = data[max(0, at - 20) : at] * draw(st.integers(1, 30))
            case "extreme":
                data[at : at + 8] = draw(
                    st.sampled_from((b"\xff" * 7 + b"\x7f", b"\0" * 7 + b"\x80"))
                )
    return bytes(data)


@given(data=mutated(SEEDS))
def test_mutated_row_sets(data: bytes) -> None:
    try:
        rows = decode_row_set(data, LIMITS)
    except RemoteProtocolError:
        return
    firsts, lasts = rows.firsts.tolist(), rows.lasts.tolist()
    assert all(0 <= first <= last for first, last in zip(firsts, lasts, strict=True))
    assert RowSet.from_ranges(firsts, lasts) == rows
    assert decode_row_set(encode_row_set(rows)) == rows


@given(data=mutated(SHIFT_SEEDS))
def test_mutated_shifts(data: bytes) -> None:
    try:
        shifts = decode_shifts(data, LIMITS)
    except RemoteProtocolError:
        return
    assert decode_shifts(encode_shifts(shifts)) == shifts


@given(parts=st.lists(mutated(SEEDS), min_size=1, max_size=4))
def test_row_sets_in_place_of_shifts(parts: list[bytes]) -> None:
    try:
        shifts = decode_shifts(b"".join(parts), LIMITS)
    except RemoteProtocolError:
        return
    assert decode_shifts(encode_shifts(shifts)) == shifts


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_bit_set(data: bytes) -> None:
    columns = decode_bit_set(data)
    assert encode_bit_set(columns) == data.rstrip(b"\0")
