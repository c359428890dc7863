"""Row set and shift codecs: recorded vectors, refusals, limits, large inputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.rowset import RowSet, RowSetShiftData
from barrage.wire import decode_row_set, decode_shifts, encode_row_set, encode_shifts
from barrage.wire.row_sets.row_set_codec import _deltas_between, _deltas_of_ranges
from barrage.wire.row_sets.row_set_writer import write_after, write_deltas

VECTORS = Path(__file__).parents[2] / "vectors" / "barrage"
ROW_SETS = json.loads((VECTORS / "rowset.json").read_text())
SHIFTS = json.loads((VECTORS / "shifts.json").read_text())["vectors"]


def by_id(vectors):
    return pytest.mark.parametrize("vector", vectors, ids=[vector["id"] for vector in vectors])


def row_set(flat: list[int]) -> RowSet:
    return RowSet.from_ranges(flat[::2], flat[1::2])


@by_id(ROW_SETS["vectors"])
def test_recorded_row_set_both_ways(vector) -> None:
    rows, encoded = row_set(vector["ranges"]), bytes.fromhex(vector["encoded_hex"])
    assert rows.size == vector["size"]
    assert encode_row_set(rows) == encoded
    assert decode_row_set(encoded) == rows
    assert decode_row_set(bytearray(encoded)) == rows


@by_id(ROW_SETS["vectors"])
def test_every_prefix_of_a_recorded_row_set_is_refused(vector) -> None:
    encoded = bytes.fromhex(vector["encoded_hex"])
    for length in {*range(min(len(encoded), 64)), *range(0, len(encoded), 97), len(encoded) - 1}:
        with pytest.raises(RemoteProtocolError):
            decode_row_set(encoded[:length])


@by_id(ROW_SETS["decode_only"])
def test_recorded_row_set_that_is_not_canonical(vector) -> None:
    assert decode_row_set(bytes.fromhex(vector["hex"])) == row_set(vector["ranges"])


@by_id(ROW_SETS["malformed"])
def test_recorded_row_set_that_must_be_refused(vector) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_row_set(bytes.fromhex(vector["hex"]))


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        ("0cff20", "a range ends that did not start"),
        ("1c0305fefe20", "a range ends that did not start"),
        ("0c050cfe0cfe20", "a range ends that did not start"),
        ("1c03050000" + "20", "does not grow"),
        ("0b" + "ff" * 7 + "7f" + "0c0120", "past 2\\^63-1"),
        ("0b" + "ff" * 7 + "7f" + "0b" + "ff" * 7 + "7f" + "20", "past 2\\^63-1"),
        ("0c05" + "0b" + "00" * 7 + "80" + "20", "past 2\\^63-1"),
        ("1b" + "ff" * 7 + "7f" + "20", "array of 9223372036854775807 x 1 bytes"),
        ("13" + "ff" * 7 + "7f" + "20", "array of 9223372036854775807 x 2 bytes"),
        ("1c0305", "cut off"),
        ("09", "cut off"),
        ("4c0520", "unknown command"),
        ("6020", "unknown command"),
        ("1d0120", "unknown value type"),
    ],
)
def test_other_bytes_that_must_be_refused(encoded: str, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        decode_row_set(bytes.fromhex(encoded))


def test_the_smallest_value_is_refused_even_at_the_start() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_row_set(b"\x0b" + (-(2**63)).to_bytes(8, "little", signed=True) + b"\x20")


def test_limit_on_bytes_and_one_past_it() -> None:
    encoded = encode_row_set(RowSet(range(0, 100, 2)))
    exact = Limits(row_set_bytes_max=len(encoded))
    assert decode_row_set(encoded, exact).size == 50
    with pytest.raises(RemoteProtocolError, match="the limit is"):
        decode_row_set(encoded, Limits(row_set_bytes_max=len(encoded) - 1))


def test_limit_on_ranges_and_one_past_it() -> None:
    encoded = encode_row_set(RowSet(range(0, 100, 2)))
    assert decode_row_set(encoded, Limits(row_set_ranges_max=50)).size == 50
    with pytest.raises(RemoteProtocolError, match="50 ranges, the limit is 49"):
        decode_row_set(encoded, Limits(row_set_ranges_max=49))
    with pytest.raises(RemoteProtocolError, match="more than 48 range ends"):
        decode_row_set(encoded, Limits(row_set_ranges_max=24))
    offsets = b"\x0c\x05" * 5 + b"\x20"
    with pytest.raises(RemoteProtocolError, match="more than 4 range ends"):
        decode_row_set(offsets, Limits(row_set_ranges_max=2))


def random_rows(seed: int) -> list[RowSet]:
    draw = np.random.default_rng(seed)
    count = 20_000

    def keys(gaps: np.ndarray) -> RowSet:
        return RowSet.from_sorted_keys(np.cumsum(gaps))

    firsts = np.cumsum(draw.integers(300, 70_000, count))
    return [
        keys(np.full(count, 2)),
        keys(np.full(count, 40_000)),
        keys(draw.integers(2, 2000, count)),
        keys(draw.integers(2, 2**21, count)),
        keys(draw.integers(2, 2**33, count)),
        keys(draw.choice([2, 2, 2, 2, 2, 200, 70_000], count)),
        RowSet.from_ranges(firsts, firsts + draw.integers(0, 250, count)),
        RowSet.from_keys(draw.integers(0, 2 * count, count)),
    ]


@pytest.mark.parametrize("rows", random_rows(1), ids=lambda rows: f"{rows.range_count}-ranges")
def test_large_row_sets_of_every_shape_round_trip(rows: RowSet) -> None:
    encoded = encode_row_set(rows)
    assert decode_row_set(encoded) == rows
    for cut in range(len(encoded) - 1, 0, -(len(encoded) // 7)):
        with pytest.raises(RemoteProtocolError):
            decode_row_set(encoded[:cut])


def test_illegal_byte_after_many_commands_is_found() -> None:
    rows = random_rows(2)[5]
    encoded = encode_row_set(rows)[:-1]
    with pytest.raises(RemoteProtocolError, match="unknown command"):
        decode_row_set(encoded + b"\x00")
    with pytest.raises(RemoteProtocolError, match="no END"):
        decode_row_set(encoded)


def test_decoded_keys_do_not_depend_on_the_buffer() -> None:
    buffer = bytearray(encode_row_set(RowSet(range(0, 10_000, 3))))
    rows = decode_row_set(buffer)
    buffer[:] = bytes(len(buffer))
    assert rows == RowSet(range(0, 10_000, 3))


@by_id(SHIFTS)
def test_recorded_shifts_both_ways(vector) -> None:
    encoded = bytes.fromhex(vector["encoded_hex"])
    assert encode_shifts(RowSetShiftData.from_shifts(vector["shifts"])) == encoded
    decoded = decode_shifts(encoded)
    assert [list(shift) for shift in decoded] == vector["decoded_shifts"]
    before = vector["example_rows_before"]
    assert decoded.apply_keys(before).tolist() == vector["example_rows_after"]
    assert decoded.apply(RowSet(before)) == RowSet(vector["example_rows_after"])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (((5,), (9,), (5,)), "shift by 0"),
        (((5,), (4,), (7,)), "ends before it starts"),
        (((5, 20), (9, 30), (7,)), "row set 3 of 3 has 1 keys, expected 2"),
        (((5, 20), (9,), (7, 40)), "row set 2 of 3 has 1 keys, expected 2"),
        (((5, 8), (9, 30), (7, 40)), "overlap or do not ascend"),
        (((5, 20), (9, 30), (7, 8)), "overlap or change the order"),
        (((5,), (2**63 - 1,), (6,)), "past 2\\^63-1"),
    ],
)
def test_shift_data_that_must_be_refused(sets, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message):
        decode_shifts(b"".join(encode_row_set(RowSet(keys)) for keys in sets))


def test_shift_data_that_claims_all_keys_is_refused_before_it_is_expanded() -> None:
    everything = encode_row_set(RowSet.of_range(0, 2**63 - 1))
    with pytest.raises(RemoteProtocolError, match="9223372036854775808 keys"):
        decode_shifts(everything * 3)


@pytest.mark.parametrize("longest", [1, 2, 3, 20])
@pytest.mark.parametrize("first", [0, 1, 2**40])
def test_rows_kept_as_bits_are_written_as_their_ranges_are(longest: int, first: int) -> None:
    draw = np.random.default_rng(longest)
    lengths = draw.integers(1, longest, 20_000, endpoint=True)
    firsts = first + np.cumsum(lengths + draw.integers(1, 4, 20_000)) - lengths
    firsts -= firsts[0] - first
    rows = RowSet.from_ranges(firsts, firsts + lengths - 1)
    assert rows.is_bits
    plain = RowSet.from_trusted_ranges(firsts, firsts + lengths - 1, is_touching=False)
    assert not plain.is_bits
    assert encode_row_set(rows) == encode_row_set(plain)
    assert decode_row_set(encode_row_set(rows)) == rows


@pytest.mark.parametrize("first", [0, 127, 128, 32766, 32767, 2**40])
@pytest.mark.parametrize(
    "steps", [[2], [127], [2, 128, 5], [3, 1, 1, 126], [32766, 2], [32767, 2], [1] * 300, [2] * 300]
)
def test_keys_in_small_steps_are_written_as_all_others(first: int, steps: list[int]) -> None:
    keys = np.cumsum([first, *steps], dtype=np.int64)
    narrow = _deltas_between(keys)
    assert (narrow.dtype == np.int16) == (max(steps) <= 32766)
    rows = RowSet.from_sorted_keys(keys)
    encoded = write_after(first, narrow)
    assert encoded == write_deltas(_deltas_of_ranges(rows)) == encode_row_set(rows)
    assert decode_row_set(encoded) == rows


@pytest.mark.parametrize("large", [32767, 65535, 65536, 65538, 2**32 + 2])
@pytest.mark.parametrize("at", [0, 50, 99_999])
def test_one_step_of_more_than_two_bytes_is_noticed(large: int, at: int) -> None:
    """Also where cutting it off gives a step that there could be."""
    steps = np.full(100_000, 2, dtype=np.int64)
    steps[at] = large
    keys = np.concatenate(([5], 5 + np.cumsum(steps)))
    assert _deltas_between(keys).tolist() == steps.tolist()
    rows = RowSet.from_sorted_keys(keys)
    assert encode_row_set(rows) == write_deltas(np.concatenate(([5], steps)))
    assert decode_row_set(encode_row_set(rows)) == rows


@pytest.mark.parametrize("length", [32766, 32767, 40_000])
def test_a_run_between_singles_may_be_longer_than_two_bytes_say(length: int) -> None:
    singles = np.arange(0, 100_000, 2)
    run = np.arange(length + 1) + 200_000
    rows = RowSet.from_sorted_keys(np.concatenate((singles, run)))
    encoded = write_after(0, _deltas_between(rows.to_numpy()))
    assert encoded == write_deltas(_deltas_of_ranges(rows))
    assert decode_row_set(encoded) == rows
