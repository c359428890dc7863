"""Where a body in shared memory is, as 24 bytes."""

from __future__ import annotations

import pytest

from barrage.errors import RemoteProtocolError
from barrage.wire.dissociated.references import REFERENCE_BYTES, BodyReference


def test_the_layout() -> None:
    reference = BodyReference(address=1 << 40 | 64, length=2, generation=2**64 - 1)
    raw = reference.encode()
    assert raw == b"\x40\0\0\0\0\1\0\0" + b"\2" + bytes(7) + b"\xff" * 8
    assert BodyReference.decode(raw) == reference
    assert BodyReference.decode(memoryview(raw)) == reference


@pytest.mark.parametrize("size", [0, 8, REFERENCE_BYTES - 1, REFERENCE_BYTES + 1, 48])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{size} bytes instead of 24"):
        BodyReference.decode(bytes(size))
