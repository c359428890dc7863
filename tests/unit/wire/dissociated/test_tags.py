"""Tags and sequence numbers: both forms of type 1, reserved bits, the roll-over."""

from __future__ import annotations

import pytest

from barrage.errors import RemoteProtocolError
from barrage.wire.dissociated.tags import (
    BodyTag,
    BodyType,
    decode_tag,
    distance,
    encode_tag,
    next_sequence,
)

LAST = 0xFFFFFFFF


@pytest.mark.parametrize("sequence", [0, 1, 2**31, LAST])
def test_a_packed_body_has_its_number_for_a_tag(sequence: int) -> None:
    assert encode_tag(BodyType.PACKED, sequence) == sequence
    assert decode_tag(sequence) == BodyTag(BodyType.PACKED, sequence)


@pytest.mark.parametrize("sequence", [0, 1, 2**31, LAST])
def test_ranges_set_bit_56(sequence: int) -> None:
    tag = encode_tag(BodyType.RANGES, sequence)
    assert tag == 0x0100_0000_0000_0000 + sequence
    assert decode_tag(tag) == BodyTag(BodyType.RANGES, sequence)


def test_bit_55_alone_is_read_as_ranges_too() -> None:
    assert decode_tag(1 << 55 | 7) == BodyTag(BodyType.RANGES, 7)


@pytest.mark.parametrize("bit", [*range(32, 55), *range(57, 64)])
def test_every_other_upper_bit_is_refused(bit: int) -> None:
    with pytest.raises(RemoteProtocolError, match="reserved bits"):
        decode_tag(1 << bit | 7)
    with pytest.raises(RemoteProtocolError, match="reserved bits"):
        decode_tag(1 << bit | 1 << 56 | 7)


def test_both_forms_of_type_1_at_once_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="0x0180000000000007"):
        decode_tag(1 << 55 | 1 << 56 | 7)


def test_a_number_past_32_bits_rolls_over() -> None:
    assert encode_tag(BodyType.PACKED, 2**32) == 0
    assert next_sequence(LAST) == 0
    assert next_sequence(41) == 42


def test_distance_goes_round() -> None:
    assert distance(LAST, 1) == 2
    assert distance(1, LAST) == LAST - 1
