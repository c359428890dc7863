"""The row set codec: against a literal copy of the algorithm, round trips, and every prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import RemoteProtocolError
from barrage.rowset import RowSet
from barrage.wire import decode_row_set, encode_row_set
from barrage.wire.row_sets import row_set_codec, row_set_reader, row_set_writer
from tests.helpers.strategies_rows import Cells, cell_pairs, gap_row_sets, key_sets


class LiteralEncoder:
    """barrage-wire.md section 4.2, one delta at a time."""

    def __init__(self, rows: RowSet) -> None:
        self.output = bytearray()
        self.pending: list[int] = []
        self.previous = 0
        for first, last in rows.ranges():
            self.append(first, sign=1)
            if last > first:
                self.append(last, sign=-1)
        self.flush()
        self.output.append(0x20)

    def append(self, key: int, *, sign: int) -> None:
        delta, self.previous = key - self.previous, key
        if delta >= 32767:
            self.flush()
            self.write_value(0x08, sign * delta)
        else:
            self.pending.append(sign * delta)

    def write_value(self, command: int, value: int) -> None:
        for width, value_type in ((1, 4), (2, 1), (4, 2), (8, 3)):
            if -(2 ** (8 * width - 1)) <= value < 2 ** (8 * width - 1):
                self.output.append(command | value_type)
                self.output.extend(value.to_bytes(width, "little", signed=True))
                return

    def emit(self, values: list[int], command: int, width: int) -> None:
        if len(values) == 1:
            self.write_value(0x08, values[0])
        elif values:
            self.write_value(command, len(values))
            for value in values:
                self.output.extend(value.to_bytes(width, "little", signed=True))

    def flush(self) -> None:
        pending, self.pending = self.pending, []
        written = tail = 0
        for index, delta in enumerate(pending):
            if -128 <= delta <= 127:
                tail += 1
                continue
            if tail >= 4:
                self.emit(pending[written : index - tail], 0x10, 2)
                self.emit(pending[index - tail : index], 0x18, 1)
                written = index
            tail = 0
        self.emit(pending[written : len(pending) - tail], 0x10, 2)
        self.emit(pending[len(pending) - tail :], 0x18, 1)


def literal_encoding(rows: RowSet) -> bytes:
    return bytes(LiteralEncoder(rows).output)


@pytest.fixture(
    params=["few ranges", "few commands", "many commands", "many small windows"], scope="module"
)
def path(request) -> None:
    """Each way of writing and reading commands is made to take every input."""
    patch = pytest.MonkeyPatch()
    if request.param != "few ranges":
        patch.setattr(row_set_codec, "RANGES_FEW_MAX", 0)
        patch.setattr(row_set_codec, "ENCODED_BYTES_FEW_MAX", -1)
    if request.param not in ("few ranges", "few commands"):
        patch.setattr(row_set_writer, "_COMMANDS_LOOPED_MAX", 0)
        patch.setattr(row_set_writer, "_DELTAS_PER_COMMAND_LOOPED", 1 << 40)
        patch.setattr(row_set_writer, "_BLOCK_DELTAS", 7)
        patch.setattr(row_set_reader, "_SMALL_COMMANDS_BEFORE_WINDOW", 0)
    if request.param == "many small windows":
        patch.setattr(row_set_reader, "_WINDOW_BYTES", 12)
        patch.setattr(row_set_reader, "_WINDOW_GAIN_BYTES_MIN", 0)
        patch.setattr(row_set_reader, "_UNIFORM_RUN_MIN", 3)
        patch.setattr(row_set_reader, "_UNIFORM_PROBE", 2)
    yield
    patch.undo()


@pytest.mark.usefixtures("path")
class TestEveryPath:
    @given(rows=gap_row_sets())
    def test_bytes_are_those_of_the_literal_algorithm(self, rows: RowSet) -> None:
        assert encode_row_set(rows) == literal_encoding(rows)

    @given(pair=cell_pairs())
    def test_huge_ranges_round_trip(self, pair: tuple[Cells, Cells]) -> None:
        rows = pair[0].row_set()
        encoded = encode_row_set(rows)
        assert encoded == literal_encoding(rows)
        assert decode_row_set(encoded) == rows

    @given(rows=gap_row_sets(), behind=st.binary(max_size=40))
    def test_bytes_behind_the_end_do_not_matter(self, rows: RowSet, behind: bytes) -> None:
        assert decode_row_set(memoryview(b"-" + encode_row_set(rows) + behind)[1:]) == rows

    @given(rows=gap_row_sets())
    def test_no_prefix_is_a_row_set(self, rows: RowSet) -> None:
        encoded = encode_row_set(rows)
        for length in range(len(encoded)):
            with pytest.raises(RemoteProtocolError):
                decode_row_set(encoded[:length])

    @given(keys=key_sets())
    def test_one_wide_offset_per_key_is_legal(self, keys: set[int]) -> None:
        encoded, previous = bytearray(), 0
        for key in sorted(keys):
            encoded += b"\x0b" + (key - previous).to_bytes(8, "little")
            previous = key
        assert decode_row_set(bytes(encoded) + b"\x20") == RowSet(keys)

    @given(data=st.binary(max_size=60))
    def test_any_bytes_are_a_row_set_or_refused(self, data: bytes) -> None:
        try:
            rows = decode_row_set(data)
        except RemoteProtocolError:
            return
        assert decode_row_set(encode_row_set(rows)) == rows
