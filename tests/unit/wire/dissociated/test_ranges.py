"""Bodies of type 1: lists of addresses and lengths, and what is given back."""

from __future__ import annotations

import struct

import pytest

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.wire.dissociated.ranges import (
    BodyRange,
    BodyRanges,
    RangePlan,
    decode_addresses,
    decode_ranges,
    encode_addresses,
    encode_ranges,
    plan_ranges,
)

LIMITS = Limits(message_bytes_max=1000, body_ranges_max=4)
U64 = 2**64 - 1


def message(total: int, *numbers: int, count: int | None = None) -> bytes:
    """The bytes of a list, right or wrong."""
    count = len(numbers) // 2 if count is None else count
    return struct.pack(f"<QQ{len(numbers)}Q", total, count, *numbers)


def test_the_layout_is_total_count_and_pairs() -> None:
    ranges = [BodyRange(0x100, 8), BodyRange(0x200, 64)]
    assert encode_ranges(ranges) == message(72, 0x100, 8, 0x200, 64)
    assert encode_ranges(ranges, 128) == message(128, 0x100, 8, 0x200, 64)


def test_a_list_reads_as_it_was_written() -> None:
    ranges = (BodyRange(64, 8), BodyRange(0, 0), BodyRange(0, 64))
    assert decode_ranges(encode_ranges(ranges), LIMITS) == BodyRanges(72, ranges)
    assert decode_ranges(memoryview(encode_ranges(ranges, 80)), LIMITS).total == 80


def test_a_body_without_buffers() -> None:
    assert decode_ranges(message(0), LIMITS) == BodyRanges(0, ())


@pytest.mark.parametrize("size", range(16 + 2 * 16))
def test_every_cut_is_refused(size: int) -> None:
    whole = message(16, 0, 8, 8, 8)
    with pytest.raises(RemoteProtocolError):
        decode_ranges(whole[:size], LIMITS)


def test_bytes_behind_the_list_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="list of 1 ranges has 33 bytes"):
        decode_ranges(message(8, 0, 8) + b"\0", LIMITS)


@pytest.mark.parametrize("count", [5, 2**32, 2**60, U64])
def test_the_count_is_limited_before_anything_is_done_with_it(count: int) -> None:
    with pytest.raises(RemoteProtocolError, match="the limit is 4"):
        decode_ranges(message(8, 0, 8, count=count), LIMITS)


def test_the_total_is_limited() -> None:
    assert decode_ranges(message(1000, 0, 1000), LIMITS).total == 1000
    with pytest.raises(RemoteProtocolError, match="limit is 1000 bytes"):
        decode_ranges(message(1001, 0, 1001), LIMITS)


@pytest.mark.parametrize(
    "numbers",
    [(0, 9), (0, 4, 4, 5), (0, U64), (0, U64, 5, U64), (0, 2**63, 2**63, 2**63)],
    ids=["one", "two", "huge", "sum past 2^64", "sum of 2^64"],
)
def test_ranges_have_no_more_than_the_total(numbers: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="more than the 8 bytes"):
        decode_ranges(message(8, *numbers), LIMITS)


def test_a_range_may_not_pass_the_end_of_the_address_space() -> None:
    assert decode_ranges(message(8, U64 - 8, 8), LIMITS).ranges == (BodyRange(U64 - 8, 8),)
    with pytest.raises(RemoteProtocolError, match="address space"):
        decode_ranges(message(8, U64 - 7, 8), LIMITS)


@pytest.mark.parametrize(
    "numbers",
    [(100, 8, 107, 8), (107, 8, 100, 8), (100, 8, 100, 8), (100, 20, 105, 2), (0, 9, 8, 1, 20, 3)],
)
def test_ranges_that_share_bytes_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="share bytes"):
        decode_ranges(message(50, *numbers), LIMITS)


def test_ranges_may_touch_and_empty_ones_may_be_anywhere() -> None:
    numbers = (108, 8, 100, 8, 104, 0, 100, 0)
    assert len(decode_ranges(message(16, *numbers), LIMITS).ranges) == 4


class TestPlan:
    def test_each_range_goes_where_the_header_says(self) -> None:
        body = BodyRanges(24, (BodyRange(0x10, 8), BodyRange(0, 0), BodyRange(0x40, 16)))
        assert plan_ranges(body, (0, 8, 8, 0, 8, 12), 24) == [
            RangePlan(0x10, 0, 8),
            RangePlan(0x40, 8, 12),
        ]

    def test_one_range_per_buffer(self) -> None:
        with pytest.raises(RemoteProtocolError, match="1 ranges for a message of 2 buffers"):
            plan_ranges(BodyRanges(8, (BodyRange(0, 8),)), (0, 8, 8, 0), 8)

    @pytest.mark.parametrize("buffers", [(0, 9), (-8, 8), (8, 8), (0, -1), (2**63, 2**63)])
    def test_buffers_are_in_the_body(self, buffers: tuple[int, int]) -> None:
        with pytest.raises(RemoteProtocolError, match="lies outside 8 bytes"):
            plan_ranges(BodyRanges(8, (BodyRange(0, 8),)), buffers, 8)

    @pytest.mark.parametrize(("length", "fits"), [(7, False), (8, True), (71, True), (72, False)])
    def test_a_range_is_as_long_as_its_buffer_or_padded(self, length: int, fits: bool) -> None:
        body = BodyRanges(length, (BodyRange(0, length),))
        if fits:
            assert plan_ranges(body, (0, 8), 8) == [RangePlan(0, 0, 8)]
            return
        with pytest.raises(RemoteProtocolError, match=f"range of {length} bytes"):
            plan_ranges(body, (0, 8), 8)


class TestAddresses:
    def test_plain_numbers(self) -> None:
        assert encode_addresses([1, U64]) == b"\1" + bytes(7) + b"\xff" * 8
        assert decode_addresses(b"\1" + bytes(7) + b"\xff" * 8, LIMITS) == (1, U64)

    @pytest.mark.parametrize("size", [0, 1, 7, 9, 15])
    def test_sizes_that_are_no_numbers(self, size: int) -> None:
        with pytest.raises(RemoteProtocolError, match=f"has {size} bytes"):
            decode_addresses(bytes(size), LIMITS)

    def test_their_count_is_limited(self) -> None:
        assert len(decode_addresses(bytes(32), LIMITS)) == 4
        with pytest.raises(RemoteProtocolError, match="5 addresses, the limit is 4"):
            decode_addresses(bytes(40), LIMITS)
