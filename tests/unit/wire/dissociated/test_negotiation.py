"""Offer, answer, claim and outcome of the way bodies take."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from barrage.errors import RemoteProtocolError
from barrage.wire.dissociated.negotiation import (
    JSON_BYTES_MAX,
    REASON_CHARS_MAX,
    SETTINGS_MAX,
    TEXT_CHARS_MAX,
    Answer,
    Claim,
    ClaimOutcome,
    ConnectionTerms,
    HostIdentity,
    Offer,
    printable,
)
from barrage.wire.dissociated.ways import BodyWay

ID = "0123456789abcdef" * 2
SHM = Answer(
    way=BodyWay.SHM, channel_id=ID, arena="barrage-1", window_bytes=2**26, window_count=256
)
UCX = Answer(way=BodyWay.UCX, channel_id=ID, location="ucx://h:1?want_data=1", ticket=b"\0\xff")


class TestOffer:
    @pytest.mark.parametrize(
        "offer",
        [
            Offer(),
            Offer(shm=HostIdentity(boot_id="b", user_id=0), order=(BodyWay.SHM,)),
            Offer(
                shm=HostIdentity(boot_id="", user_id=1000),
                terms={BodyWay.UCX: ConnectionTerms(release="1.22.0", settings={"TLS": "tcp"})},
                order=(BodyWay.UCX, BodyWay.SHM, BodyWay.INLINE),
            ),
        ],
    )
    def test_an_offer_reads_as_it_was_written(self, offer: Offer) -> None:
        assert Offer.from_json(offer.to_json()) == offer
        assert Offer.from_json(memoryview(offer.to_json())) == offer

    def test_what_a_later_release_adds_is_skipped(self) -> None:
        said = b'{"order": ["rdma", "shm", "shm", 7, [], {}, "ucx"], "rdma": {"x": 1}}'
        assert Offer.from_json(said) == Offer(order=(BodyWay.SHM, BodyWay.UCX))

    @pytest.mark.parametrize(
        "content",
        [
            [],
            "shm",
            None,
            {"order": "shm"},
            {"order": {}},
            {"shm": []},
            {"shm": {}},
            {"shm": {"boot_id": 1, "user_id": 1}},
            {"shm": {"boot_id": "b", "user_id": "1"}},
            {"shm": {"boot_id": "b", "user_id": -1}},
            {"shm": {"boot_id": "b", "user_id": True}},
            {"shm": {"boot_id": "b", "user_id": 1.5}},
            {"shm": {"boot_id": "b", "user_id": 2**80}},
            {"shm": {"boot_id": "b" * (TEXT_CHARS_MAX + 1), "user_id": 1}},
            {"ucx": 1},
            {"ucx": {"settings": {}}},
            {"ucx": {"release": "1", "settings": []}},
            {"ucx": {"release": "1", "settings": {"TLS": 1}}},
            {"ucx": {"release": "1", "settings": {"T" * (TEXT_CHARS_MAX + 1): "1"}}},
            {"ucx": {"release": "1", "settings": {str(i): "" for i in range(SETTINGS_MAX + 1)}}},
        ],
    )
    def test_what_does_not_fit_is_refused(self, content: object) -> None:
        with pytest.raises(RemoteProtocolError):
            Offer.from_json(json.dumps(content).encode())

    @pytest.mark.parametrize(
        "raw", [b"", b"{", b"\xff\xfe", b"[" * 10_000, b'{"order": [' + b"[" * 5000]
    )
    def test_what_is_no_json_is_refused(self, raw: bytes) -> None:
        with pytest.raises(RemoteProtocolError):
            Offer.from_json(raw)

    def test_as_much_as_is_allowed_is_read(self) -> None:
        text = "x" * TEXT_CHARS_MAX
        settings = {str(i): "" for i in range(SETTINGS_MAX - 1)} | {text: text}
        ucx = ConnectionTerms(release=text, settings=settings)
        offer = Offer(shm=HostIdentity(boot_id=text, user_id=2**62), terms={BodyWay.UCX: ucx})
        assert Offer.from_json(offer.to_json()) == offer

    def test_its_length_is_limited(self) -> None:
        said = b"{}" + b" " * (JSON_BYTES_MAX - 2)
        assert Offer.from_json(said) == Offer()
        with pytest.raises(RemoteProtocolError, match="limit"):
            Offer.from_json(said + b" ")


class TestAnswer:
    @pytest.mark.parametrize("answer", [Answer(way=BodyWay.INLINE, reason="other host"), SHM, UCX])
    def test_an_answer_reads_as_it_was_written(self, answer: Answer) -> None:
        assert Answer.from_json(answer.to_json()) == answer

    @pytest.mark.parametrize(
        "changes",
        [
            {"way": "rdma"},
            {"way": None},
            {"way": ["shm"]},
            {"channel_id": ""},
            {"channel_id": ID[1:]},
            {"channel_id": ID + "0"},
            {"channel_id": ID.upper()},
            {"channel_id": ID + "\n"},
            {"channel_id": 5},
            {"arena": None},
            {"arena": ""},
            {"arena": 5},
            {"arena": "a" * (TEXT_CHARS_MAX + 1)},
            {"window_bytes": -1},
            {"window_count": 1.5},
            {"window_count": 2**63},
            {"reason": 5},
            {"ticket": "xyz"},
            {"ticket": "é"},
            {"location": 5},
            {"location": "u" * 8193},
            {"way": "ucx"},
            {"way": "ucx", "location": "ucx://h:1?want_data=1"},
            {"way": "ucx", "ticket": "00"},
        ],
    )
    def test_what_does_not_fit_is_refused(self, changes: dict[str, object]) -> None:
        content = {**json.loads(SHM.to_json()), **changes}
        with pytest.raises(RemoteProtocolError):
            Answer.from_json(json.dumps(content).encode())

    def test_as_much_as_is_allowed_is_read(self) -> None:
        answer = replace(UCX, arena="a" * TEXT_CHARS_MAX, location="u" * 8192)
        answer = replace(answer, ticket=bytes(TEXT_CHARS_MAX), window_count=2**62)
        assert Answer.from_json(answer.to_json()) == answer

    def test_an_inline_answer_needs_nothing_else(self) -> None:
        assert Answer.from_json(b'{"way": "inline"}') == Answer(way=BodyWay.INLINE)

    def test_reasons_are_made_fit_to_be_shown(self) -> None:
        said = json.dumps({"way": "inline", "reason": "no\n\x1b[2Jé"}).encode()
        assert Answer.from_json(said).reason == "no??[2J?"


class TestClaim:
    @pytest.mark.parametrize("proof", [None, b"\0", bytes(range(16))])
    def test_a_claim_reads_as_it_was_written(self, proof: bytes | None) -> None:
        claim = Claim(channel_id=ID, proof=proof)
        assert Claim.parse(claim.header()) == claim

    def test_the_text(self) -> None:
        assert Claim(channel_id=ID).header() == f"{ID} -"
        assert Claim(channel_id=ID, proof=b"\x0a\xff").header() == f"{ID} 0aff"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            " ",
            "-",
            ID,
            f"{ID} ",
            f"{ID}  -",
            f"{ID} --",
            f"{ID} 0",
            f"{ID} 0g",
            f"{ID} 00 00",
            f"{ID} AB",
            f"{ID} " + "00" * 65,
            f"{ID[1:]} -",
            f"{ID}0 -",
            f"{ID} -\n",
            f"{ID} 00\n",
        ],
    )
    def test_anything_else_is_no_claim(self, text: str) -> None:
        assert Claim.parse(text) is None


class TestOutcome:
    @pytest.mark.parametrize(
        ("outcome", "text"),
        [
            (ClaimOutcome(way=BodyWay.SHM), "shm"),
            (ClaimOutcome(way=BodyWay.UCX), "ucx"),
            (ClaimOutcome(way=BodyWay.INLINE), "inline"),
            (ClaimOutcome(way=BodyWay.INLINE, reason="wrong proof"), "inline wrong proof"),
        ],
    )
    def test_an_outcome_reads_as_it_was_written(self, outcome: ClaimOutcome, text: str) -> None:
        assert outcome.header() == text
        assert ClaimOutcome.parse(text) == outcome

    @pytest.mark.parametrize("text", [None, "", "rdma", "SHM", " shm"])
    def test_whatever_is_not_understood_is_inline_with_a_reason(self, text: str | None) -> None:
        outcome = ClaimOutcome.parse(text)
        assert outcome.way is BodyWay.INLINE
        assert outcome.reason

    def test_a_reason_is_fit_for_a_header(self) -> None:
        text = ClaimOutcome(way=BodyWay.INLINE, reason="é\r\nx-evil: 1" + "x" * 1000).header()
        assert text.startswith("inline ???x-evil: 1")
        assert len(text) == len("inline ") + REASON_CHARS_MAX
        assert printable(text) == text[:REASON_CHARS_MAX]
