"""Channels for bodies: claims, ages and numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barrage.limits import DEFAULT_LIMITS
from barrage.server.bodies.body_channels import BodyChannels, ClaimRefusedError
from barrage.server.identity.caller import ANYBODY, Caller, Proof
from barrage.wire.dissociated.negotiation import Claim
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.virtual_clock import VirtualClock

LIMITS = replace(DEFAULT_LIMITS, body_channels_max=3, body_ticket_ns=100)
PROOF = b"p" * 16


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def channels(clock) -> BodyChannels:
    return BodyChannels(LIMITS, clock)


def claim_of(channel, proof: bytes | None = PROOF) -> Claim:
    return Claim(channel_id=channel.channel_id, proof=proof)


def test_shared_memory_is_claimed_by_many_who_know_the_proof(channels, clock):
    channel = channels.add(BodyWay.SHM, ANYBODY)
    for wrong in (None, b"", b"p" * 15, b"q" * 16):
        with pytest.raises(ClaimRefusedError, match="proof"):
            channels.claim(claim_of(channel, wrong), PROOF, ANYBODY)
    assert channels.claim(claim_of(channel), PROOF, ANYBODY) is channel
    clock.advance(1000)
    assert channels.claim(claim_of(channel), PROOF, ANYBODY) is channel
    assert channel.stream_count == 2
    assert channels.take_expired() == []


def test_a_connection_is_claimed_once_and_only_when_it_is_there(channels):
    early, good = channels.add(BodyWay.UCX, ANYBODY), channels.add(BodyWay.UCX, ANYBODY)
    good.connection = object()
    with pytest.raises(ClaimRefusedError, match="no connection"):
        channels.claim(claim_of(early, None), b"", ANYBODY)
    assert channels.claim(claim_of(good, None), b"", ANYBODY) is good
    for used in (early, good):
        with pytest.raises(ClaimRefusedError, match="unknown"):
            channels.claim(claim_of(used, None), b"", ANYBODY)
    assert len(channels) == 0


def test_what_nobody_claims_in_time_is_forgotten(channels, clock):
    channel = channels.add(BodyWay.SHM, ANYBODY)
    clock.advance(99)
    assert channels.take_expired() == []
    clock.advance(1)
    # Also before anybody has looked.
    with pytest.raises(ClaimRefusedError, match="time is up"):
        channels.claim(claim_of(channel), PROOF, ANYBODY)
    assert channels.take_expired() == [channel]
    assert not channels.is_known(channel)


def test_their_number_is_bounded_and_idle_ones_make_room_oldest_first(channels):
    first, second, third = (channels.add(BodyWay.SHM, ANYBODY) for _ in range(3))
    assert channels.add(BodyWay.SHM, ANYBODY) is None
    for channel in (first, second, first):
        channels.claim(claim_of(channel), PROOF, ANYBODY)
    assert channels.add(BodyWay.SHM, ANYBODY) is None
    first.stream_count = second.stream_count = 0
    assert channels.add(BodyWay.UCX, ANYBODY) is not None
    assert [channels.is_known(each) for each in (first, second, third)] == [True, False, True]
    assert (channels.count(BodyWay.SHM), channels.count(BodyWay.UCX)) == (2, 1)


def test_ids_are_random_and_all_can_be_taken_back(channels):
    made = [channels.add(way, ANYBODY) for way in (BodyWay.SHM, BodyWay.UCX)]
    assert len({channel.channel_id for channel in made}) == 2
    assert all(len(bytes.fromhex(channel.channel_id)) == 16 for channel in made)
    channels.discard(made[0])
    channels.discard(made[0])
    assert channels.take_all() == made[1:]
    assert len(channels) == 0


EVE = Caller(name="eve", proof=Proof.PASSWORD)


def test_channels_of_a_caller_that_is_none_any_more_are_for_no_further_stream(channels):
    hers, his = channels.add(BodyWay.SHM, EVE), channels.add(BodyWay.SHM, ANYBODY)
    assert channels.claim(claim_of(hers), PROOF, EVE) is hers
    assert channels.take_of(lambda caller: caller.name == "eve") == [hers]
    with pytest.raises(ClaimRefusedError, match="unknown"):
        channels.claim(claim_of(hers), PROOF, EVE)
    assert channels.claim(claim_of(his), PROOF, ANYBODY) is his


def test_a_channel_is_its_callers_whoever_knows_its_number(channels):
    channel = channels.add(BodyWay.SHM, ANYBODY)
    with pytest.raises(ClaimRefusedError, match="unknown"):
        channels.claim(claim_of(channel), PROOF, EVE)
    assert channels.claim(claim_of(channel), PROOF, ANYBODY) is channel
