"""A batch is mapped in turns that are bounded, whatever its payloads are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.limits import Limits
from barrage.wire.payloads.decoding import (
    SPLITS_MAX,
    DecodeTurn,
    PayloadError,
    TurnExceededError,
    decode_payloads,
)
from barrage.wire.payloads.mapping_turns import SUSPECTS_MAX, MappingTurns, TurnPace
from barrage.wire.payloads.payload_batch import PayloadBatch
from barrage.wire.payloads.source_mapping import SourceMapping
from barrage.wire.payloads.text_decoders import JsonLines

LIMITS = Limits()
SCHEMA = pa.schema([("a", pa.int64())])
MAPPING = SourceMapping(program="p", columns={"a": "int64"})


def batch(*payloads: bytes) -> PayloadBatch:
    count = len(payloads)
    return PayloadBatch.of(
        streams=["s"] * count,
        ids=list(range(1, count + 1)),
        event_times=[0] * count,
        keys=[b"k"] * count,
        payloads=list(payloads),
    )


def turns_of(messages, *, mapping=MAPPING, stops=None, limits=LIMITS, pace=None) -> list:
    mapper = mapping.mapper(mapping.new_schema(), limits=limits)
    where = range(1, len(messages) + 1) if stops is None else stops
    turns = MappingTurns(
        mapper,
        messages,
        stops=np.array(where, np.int64),
        pace=pace or TurnPace(),
        limits=limits,
    )
    found = []
    while not turns.is_over:
        found.append(turns.next())
    assert [each.start for each in found] == [0, *(each.stop for each in found[:-1])]
    assert found[-1].stop == len(messages)
    return found


def ids(found) -> tuple[list[int], list[int]]:
    """Of the messages that became rows, and of those that are rejected."""
    good = [number for each in found for number in each.rows.row_ids.to_pylist()]
    bad = [number for each in found for number in each.rows.rejected["message_id"].to_pylist()]
    return good, bad


class Counted(JsonLines):
    """Counts its calls."""

    calls = 0

    def decode(self, payloads):
        self.calls += 1
        return super().decode(payloads)


def test_payloads_of_bad_syntax_cost_two_calls() -> None:
    payloads = [b"x", b'{"a":xxx}', b'{"a":1}', b'{"a":1}\n{', b'{"a":1}{"a":2}'] * 100
    decoder = Counted(SCHEMA)
    done = decode_payloads(decoder, pa.array(payloads, pa.binary()))
    assert decoder.calls == 2
    assert done.rows["a"].to_pylist() == [1] * 100
    assert len(done.rejected) == 400
    # Each is told what it is told alone.
    for at, reason in done.rejected[:4]:
        alone = decode_payloads(decoder, pa.array([payloads[at]], pa.binary()))
        assert alone.rejected == ((0, reason),)


def test_many_payloads_of_wrong_types_cost_a_call_each() -> None:
    decoder = Counted(SCHEMA)
    done = decode_payloads(decoder, pa.array([b'{"a":"x"}'] * 500, pa.binary()))
    assert len(done.rejected) == 500
    assert decoder.calls <= 500 + SPLITS_MAX + 12


def test_calls_of_a_turn_are_bounded() -> None:
    decoder = Counted(SCHEMA)
    turn = DecodeTurn(rows_max=10**6, bytes_max=1 << 30, calls_max=20)
    with pytest.raises(TurnExceededError):
        decode_payloads(decoder, pa.array([b'{"a":"x"}'] * 500, pa.binary()), turn)
    assert decoder.calls == 20


def test_good_payloads_go_together_and_bad_ones_few_at_a_time() -> None:
    pace = TurnPace(8192)
    assert len(turns_of(batch(*[b'{"a":1}'] * 5000), pace=pace)) == 1
    found = turns_of(batch(*[b'{"a":"x"}'] * 500, *[b'{"a":1}'] * 500), pace=pace)
    assert max(each.stop - each.start for each in found[:4]) <= SUSPECTS_MAX
    assert ids(found) == (list(range(501, 1001)), list(range(1, 501)))


def test_rows_of_a_turn_are_bounded() -> None:
    limits = Limits(connector_payload_rows_max=10)
    lines = b"\n".join([b'{"a":1}'] * 4)
    found = turns_of(batch(*[lines] * 7, lines * 4, lines), limits=limits)
    assert max(len(each.rows.rows) for each in found) <= 10
    good, bad = ids(found)
    assert good == [number for number in (*range(1, 8), 9) for _ in range(4)]
    assert bad == [8]


def test_bytes_of_a_turn_are_bounded() -> None:
    limits = Limits(connector_decoded_bytes_max=4000)
    wide = SourceMapping(program="p", columns={f"c{at}": "int64" for at in range(20)})
    found = turns_of(batch(*[b"{}\n{}\n{}"] * 9, b"{}\n" * 60), mapping=wide, limits=limits)
    assert len(found) == 2
    assert max(each.rows.rows.nbytes for each in found) <= 4000
    assert ids(found)[1] == [10]


def test_what_has_no_position_of_its_own_stays_with_what_has() -> None:
    limits = Limits(connector_payload_rows_max=2)
    found = turns_of(batch(*[b'{"a":1}'] * 6), stops=[1, 4, 6], limits=limits)
    assert [each.stop for each in found] == [1, 4, 6]
    good, bad = ids(found)
    assert (good, bad) == ([1, 2, 3, 5, 6], [4])


class Failing:
    """A mapper that fails for a batch with a message it does not like."""

    def __init__(self, mapper, number: int) -> None:
        self.mapper = mapper
        self.number = number
        self.turn_messages = 2
        self.rejected = mapper.rejected

    def map(self, piece, turn):
        if self.number in piece.ids.to_pylist():
            raise MemoryError("none left")
        return self.mapper.map(piece, turn)


def test_a_mapper_that_fails_rejects_the_messages_of_its_turn(caplog) -> None:
    messages = batch(*[b'{"a":1}'] * 6)
    mapper = Failing(MAPPING.mapper(MAPPING.new_schema(), limits=LIMITS), 3)
    stops = np.arange(1, 7)
    turns = MappingTurns(mapper, messages, stops=stops, pace=TurnPace(), limits=LIMITS)
    found = [turns.next() for _ in range(3)]
    assert turns.is_over
    assert ids(found) == ([1, 2, 5, 6], [3, 4])
    assert "MemoryError: none left" in found[1].rows.rejected["reason"][0].as_py()
    assert len(caplog.records) == 1


class Broken(JsonLines):
    """Fails, as no decoder should, of one payload."""

    def decode(self, payloads):
        if b'{"a":7}' in payloads.to_pylist():
            raise MemoryError("none left")
        return super().decode(payloads)


def test_a_decoder_that_fails_rejects_what_it_fails_of(caplog) -> None:
    payloads = [b'{"a":%d}' % number for number in range(20)]
    done = decode_payloads(Broken(SCHEMA), pa.array(payloads, pa.binary()))
    assert done.rows["a"].to_pylist() == [n for n in range(20) if n != 7]
    assert done.rejected == ((7, "the payload could not be decoded: MemoryError: none left"),)
    assert len(caplog.records) == 1


def test_a_function_is_asked_once_more_of_each_when_one_is_bad() -> None:
    calls = []

    def row(payload: bytes) -> dict:
        calls.append(payload)
        return {"a": int(payload)}

    mapping = SourceMapping(program="p", columns={"a": "int64"}, format="python", function=row)
    mapper = mapping.mapper(mapping.new_schema(), limits=LIMITS)
    done = mapper.map(batch(*[b"1", b"x"] * 100))
    assert len(done.rows) == len(done.rejected) == 100
    assert len(calls) <= 400
    with pytest.raises(PayloadError):
        mapper._decoder.decode(pa.array([b"x"], pa.binary()))
