"""The fuzzer itself: every decoder takes samples, nothing unexpected comes out of a few hundred
inputs, and a decoder that is broken is found."""

from __future__ import annotations

import pytest

from barrage.errors import BarrageError, RemoteProtocolError
from barrage.wire import decode_row_set
from barrage.wire.dissociated.references import BodyReference
from tests.fuzz.__main__ import fuzzed
from tests.fuzz.decoders import LIMITS, Decoder, decoders

INPUTS = 300


def takes(decoder: Decoder, sample: bytes) -> bool:
    try:
        decoder.decode(sample)
    except (BarrageError, *decoder.refusals):
        return False
    return True


@pytest.mark.further
def test_every_decoder_takes_a_sample_and_refuses_what_is_mutated_by_typed_errors() -> None:
    found = {}
    for name, decoder in decoders().items():
        assert any(takes(decoder, sample) for sample in decoder.samples), name
        inputs = INPUTS // 10 if name == "journal segment" else INPUTS
        found[name] = fuzzed(decoder, name, inputs, seed=1)
    assert {name: each["failure"] for name, each in found.items() if each["failure"]} == {}


def unchecked_row_set(raw: bytes) -> object:
    """Its refusals are those of Python."""
    try:
        return decode_row_set(raw, LIMITS)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error


def unchecked_reference(raw: bytes) -> object:
    """Believes in a length it has not looked at."""
    return raw[0], BodyReference.decode(raw), [raw[at] for at in range(24)]


@pytest.mark.parametrize("canary", [unchecked_row_set, unchecked_reference])
def test_a_broken_decoder_is_found(canary: object) -> None:
    name = "row set" if canary is unchecked_row_set else "body reference"
    broken = Decoder(canary, decoders()[name].samples)  # type: ignore[arg-type]
    assert fuzzed(broken, name, 2000, seed=1)["failure"]
