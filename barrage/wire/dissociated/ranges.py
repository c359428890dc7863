"""Bodies of type 1: addresses and lengths of the body's buffers instead of its bytes.

Source: Arrow's Dissociated IPC Protocol. The total size of the body, the number of buffers, then an
address and a length for each of them, all unsigned little-endian 64-bit numbers. The buffers are
those the Arrow header names, in its order. What is given back is a plain list of addresses.

Cost: a few numpy passes over at most ``body_ranges_max`` pairs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from barrage.limits import Limits

_HEAD = struct.Struct("<QQ")
_HEAD_BYTES = _HEAD.size
_PAIR_BYTES = 16
_ADDRESS_BYTES = 8
_ADDRESS_MAX = 2**64 - 1


class BodyRange(NamedTuple):
    """One buffer: where it begins and how many bytes it has."""

    address: int
    length: int


class BodyRanges(NamedTuple):
    """All buffers of one body. ``total`` is at least the sum of their lengths: padding between them
    may count."""

    total: int
    ranges: tuple[BodyRange, ...]


class RangePlan(NamedTuple):
    """Where one range belongs in a packed body."""

    address: int
    offset: int
    length: int


def encode_ranges(ranges: Sequence[BodyRange], total: int | None = None) -> bytes:
    """The message for ``ranges``; ``total`` is their sum unless it is given."""
    if total is None:
        total = sum(each.length for each in ranges)
    flat = [number for each in ranges for number in each]
    return struct.pack(f"<QQ{len(flat)}Q", total, len(ranges), *flat)


def decode_ranges(
    buffer: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS
) -> BodyRanges:
    """Read a peer's list. RemoteProtocolError when it is cut off or too long, when its total is
    past ``limits.message_bytes_max`` or under the sum, when a range passes the end of the address
    space or two of them share bytes."""
    size = len(buffer)
    if size < _HEAD_BYTES:
        raise RemoteProtocolError(f"list of ranges has {size} bytes, fewer than {_HEAD_BYTES}")
    total, count = _HEAD.unpack_from(buffer)
    if count > limits.body_ranges_max:
        raise RemoteProtocolError(f"{count} ranges, the limit is {limits.body_ranges_max}")
    if size != _HEAD_BYTES + _PAIR_BYTES * count:
        raise RemoteProtocolError(f"list of {count} ranges has {size} bytes")
    if total > limits.message_bytes_max:
        raise RemoteProtocolError(
            f"a body of {total} bytes, the limit is {limits.message_bytes_max} bytes"
        )
    numbers = np.frombuffer(buffer, "<u8", count=2 * count, offset=_HEAD_BYTES)
    addresses, lengths = numbers[0::2], numbers[1::2]
    _check_lengths(addresses, lengths, total)
    _check_disjoint(addresses, lengths)
    pairs = zip(addresses.tolist(), lengths.tolist(), strict=True)
    return BodyRanges(total, tuple(BodyRange(*pair) for pair in pairs))


def _check_lengths(addresses: NDArray[np.uint64], lengths: NDArray[np.uint64], total: int) -> None:
    if not len(lengths):
        return
    # Each length is compared first: the sum could otherwise pass 2^64 and look small.
    if int(lengths.max()) > total or int(lengths.sum(dtype=np.uint64)) > total:
        raise RemoteProtocolError(f"ranges have more than the {total} bytes of their body")
    if bool((addresses > np.uint64(_ADDRESS_MAX) - lengths).any()):
        raise RemoteProtocolError("a range passes the end of the address space")


def _check_disjoint(addresses: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> None:
    held = np.flatnonzero(lengths)
    order = held[np.argsort(addresses[held], kind="stable")]
    starts = addresses[order]
    stops = starts + lengths[order]
    if bool((stops[:-1] > starts[1:]).any()):
        raise RemoteProtocolError("two ranges of a body share bytes")


def plan_ranges(body: BodyRanges, buffers: Sequence[int], body_bytes: int) -> list[RangePlan]:
    """Where each range belongs in a packed body of ``body_bytes``.

    ``buffers`` are the header's flat pairs of offset and length. RemoteProtocolError unless there
    is one range per buffer, as long as the header says or up to the padding longer, and all fit.
    """
    if len(buffers) != 2 * len(body.ranges):
        raise RemoteProtocolError(
            f"{len(body.ranges)} ranges for a message of {len(buffers) // 2} buffers"
        )
    plans = []
    pairs = zip(buffers[0::2], buffers[1::2], body.ranges, strict=True)
    for offset, length, each in pairs:
        if not 0 <= offset <= offset + length <= body_bytes:
            raise RemoteProtocolError(f"buffer {offset}+{length} lies outside {body_bytes} bytes")
        if not length <= each.length <= length + 63:
            raise RemoteProtocolError(f"range of {each.length} bytes for a buffer of {length}")
        if length:
            plans.append(RangePlan(each.address, offset, length))
    return plans


def encode_addresses(addresses: Sequence[int]) -> bytes:
    """What is given back: any number of addresses (or, over UCX, sequence numbers)."""
    return struct.pack(f"<{len(addresses)}Q", *addresses)


def decode_addresses(
    buffer: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS
) -> tuple[int, ...]:
    """Read what a peer gives back; the numbers are not checked."""
    size = len(buffer)
    if size == 0 or size % _ADDRESS_BYTES:
        raise RemoteProtocolError(f"a list of addresses has {size} bytes")
    count = size // _ADDRESS_BYTES
    if count > limits.body_ranges_max:
        raise RemoteProtocolError(f"{count} addresses, the limit is {limits.body_ranges_max}")
    return struct.unpack(f"<{count}Q", buffer)
