"""What scanning a torn tail costs: bytes are counted, not time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from barrage.journal.disk import framing
from barrage.journal.disk.framing import CONTINUATION
from barrage.journal.files import segment
from tests.unit.journal.stores import Bench

TAIL_BYTES = 1 << 18


class Counter:
    """Bytes that were copied, or went into a CRC."""

    def __init__(self) -> None:
        self.byte_count = 0


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    counter = Counter()
    root_table, crc_of = framing.root_table, framing.crc_of

    def counted_root_table(buffer):
        if isinstance(buffer, bytes):
            counter.byte_count += len(buffer)
        return root_table(buffer)

    def counted_crc_of(pieces, crc=0):
        pieces = list(pieces)
        counter.byte_count += sum(len(piece) for piece in pieces)
        return crc_of(pieces, crc)

    monkeypatch.setattr(framing, "root_table", counted_root_table)
    monkeypatch.setattr(framing, "crc_of", counted_crc_of)
    return counter


def forged(count: int) -> bytes:
    """A record over and over, each claiming all that follows as its body, none undamaged."""
    bench = Bench()
    bench.write(2)
    content = bytes(bench.storage.files["tables/t/wal/00000001.arrow"].content)
    start = content.rindex(CONTINUATION)
    while start % 8:
        start = content.rindex(CONTINUATION, 0, start)
    header_bytes = int.from_bytes(content[start + 4 : start + 8], "little")
    header = bytearray(content[start : start + 8 + header_bytes])
    table = framing.root_table(bytes(header[8:]))
    body_at = 8 + table._field(10, 8)
    pieces = []
    for number in range(count):
        behind = (count - number - 1) * len(header)
        header[body_at : body_at + 8] = behind.to_bytes(8, "little")
        pieces.append(bytes(header))
    return b"".join(pieces)


def test_words_that_look_like_a_beginning_are_not_copied(counter: Counter) -> None:
    words = np.full(TAIL_BYTES // 4, 0xFFFFFFFF, dtype="<u4")
    # Each length fits, so that each header would be all that follows.
    words[1::2] = (TAIL_BYTES - 16 - 8 * np.arange(TAIL_BYTES // 8)).clip(8) // 8 * 8
    assert framing.next_message(pa.py_buffer(words.tobytes()), 0) is None
    assert counter.byte_count <= 4 * TAIL_BYTES


def test_forged_messages_that_overlap_are_read_a_bounded_number_of_times(counter: Counter) -> None:
    tail = forged(400)
    counter.byte_count = 0
    # It cannot be told from damage, so nothing is cut off.
    assert segment._is_hole(pa.py_buffer(tail), 0)
    assert counter.byte_count <= 6 * len(tail) + (1 << 18)
