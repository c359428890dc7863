"""Headers and bodies that come apart: any order, roll-over, ends that overtake, bounds."""

from __future__ import annotations

from itertools import permutations

import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.wire.dissociated.reassembly import AHEAD_MAX, Reassembly
from barrage.wire.frame import FlightFrame
from barrage.wire.ipc import encode_record_header

LIMITS = Limits(body_window_bytes=1000, body_window_count=3, message_bytes_max=3000)
ROUND = 2**32


def bare(body_bytes: int, metadata: bytes | None = None) -> FlightFrame:
    """A message whose body of ``body_bytes`` is elsewhere."""
    header = encode_record_header(0, [], [], body_bytes=body_bytes)
    return FlightFrame(header=header, metadata=metadata, body_reference=b"r")


def whole(text: bytes) -> FlightFrame:
    """A message that is complete; what is in it does not matter."""
    return FlightFrame(metadata=text)


def header(made: Reassembly, sequence: int, body_bytes: int, now_ns: int = 0) -> None:
    made.receive_header(sequence, bare(body_bytes), expects_body=True, now_ns=now_ns)
    made.validate()


def body(made: Reassembly, sequence: int, content: bytes) -> None:
    made.receive_body(sequence, content, 0)
    made.validate()


def bodies(made: Reassembly) -> list[bytes | None]:
    taken = made.take()
    made.validate()
    return [None if frame.body is None else bytes(frame.body) for frame in taken]


class TestOrder:
    def test_a_message_without_a_body_elsewhere_passes_as_it_is(self) -> None:
        made = Reassembly()
        frame = FlightFrame(header=b"junk", body=b"inline")
        made.receive_header(0, frame, expects_body=False, now_ns=0)
        assert made.take() == [frame]
        assert made.take() == []
        assert made.next_number == 1

    def test_body_and_header_meet_whichever_comes_first(self) -> None:
        made = Reassembly()
        header(made, 0, 3)
        assert made.take() == []
        body(made, 0, b"abc")
        assert bodies(made) == [b"abc"]
        body(made, 1, b"de")
        assert made.take() == []
        header(made, 1, 2)
        assert bodies(made) == [b"de"]

    def test_what_leaves_has_its_body_and_no_reference(self) -> None:
        made = Reassembly()
        made.receive_header(0, bare(3, b"metadata"), expects_body=True, now_ns=0)
        made.receive_body(0, b"abc", 0)
        (frame,) = made.take()
        assert frame == FlightFrame(header=bare(3).header, metadata=b"metadata", body=b"abc")
        assert not frame.is_detached

    def test_a_body_of_no_bytes_is_a_message_like_any_other(self) -> None:
        made = Reassembly()
        header(made, 0, 0)
        assert made.take() == [], "an empty body is still to come"
        assert made.waiting_since_ns == 0
        body(made, 0, b"")
        (frame,) = made.take()
        assert frame.body == b""
        assert not frame.is_detached

    def test_bodies_are_handed_out_without_a_copy(self) -> None:
        made = Reassembly()
        content = pa.py_buffer(b"0123456789")
        header(made, 0, 10)
        made.receive_body(0, content, 0)
        (frame,) = made.take()
        assert frame.body is content

    def test_a_late_message_holds_back_those_after_it(self) -> None:
        made = Reassembly()
        header(made, 1, 1)
        body(made, 1, b"b")
        made.receive_header(2, whole(b"c"), expects_body=False, now_ns=0)
        assert made.take() == []
        assert made.pending_count == 2
        header(made, 0, 1)
        assert made.take() == []
        body(made, 0, b"a")
        assert bodies(made) == [b"a", b"b", None]
        assert made.pending_count == 0

    @pytest.mark.parametrize("first", [0, ROUND - 1, ROUND - 2])
    def test_every_order_gives_the_same_messages_also_around_the_roll_over(
        self, first: int
    ) -> None:
        numbers = [(first + i) % ROUND for i in range(3)]
        stimuli = [("header", n) for n in numbers] + [("body", n) for n in numbers] + [("end", 0)]
        for order in permutations(stimuli):
            made = Reassembly(first=first)
            taken: list[bytes | None] = []
            for kind, number in order:
                if kind == "header":
                    header(made, number, 4)
                elif kind == "body":
                    body(made, number, number.to_bytes(4, "little"))
                else:
                    made.receive_end((first + 3) % ROUND)
                taken += bodies(made)
            assert taken == [number.to_bytes(4, "little") for number in numbers]
            assert made.is_complete


class TestWaiting:
    def test_the_oldest_header_without_a_body_counts(self) -> None:
        made = Reassembly()
        assert made.waiting_since_ns is None
        header(made, 5, 1, now_ns=10)
        header(made, 0, 1, now_ns=20)
        assert made.waiting_since_ns == 10
        body(made, 5, b"x")
        assert made.waiting_since_ns == 20
        body(made, 0, b"x")
        assert made.waiting_since_ns is None

    def test_a_header_that_comes_after_its_body_waits_for_nothing(self) -> None:
        made = Reassembly()
        body(made, 0, b"x")
        assert made.waiting_since_ns is None
        header(made, 0, 1, now_ns=10)
        assert made.waiting_since_ns is None


class TestEnd:
    def test_the_end_may_overtake_headers_and_bodies(self) -> None:
        made = Reassembly()
        made.receive_end(2)
        assert not made.is_complete
        header(made, 1, 1)
        body(made, 1, b"b")
        header(made, 0, 1)
        body(made, 0, b"a")
        assert not made.is_complete, "nothing was taken yet"
        assert bodies(made) == [b"a", b"b"]
        assert made.is_complete

    def test_a_stream_with_a_hole_is_not_complete(self) -> None:
        made = Reassembly()
        made.receive_header(1, whole(b"b"), expects_body=False, now_ns=0)
        made.receive_end(2)
        assert not made.is_complete
        assert made.next_number == 0

    def test_a_stream_without_an_end_is_not_complete(self) -> None:
        assert not Reassembly().is_complete

    def test_an_empty_stream(self) -> None:
        made = Reassembly()
        made.receive_end(0)
        assert made.is_complete

    def test_nothing_may_come_behind_the_end(self) -> None:
        for number in (2, 3, 100):
            made = Reassembly()
            made.receive_end(2)
            with pytest.raises(RemoteProtocolError, match="ends before 2"):
                header(made, number, 1)
            with pytest.raises(RemoteProtocolError, match="ends before 2"):
                body(made, number, b"x")

    def test_an_end_before_what_has_come_is_refused(self) -> None:
        made = Reassembly()
        header(made, 2, 1)
        with pytest.raises(RemoteProtocolError, match="ends before 2"):
            made.receive_end(2)
        made = Reassembly()
        body(made, 2, b"x")
        with pytest.raises(RemoteProtocolError, match="ends before 1"):
            made.receive_end(1)

    def test_an_end_before_what_was_taken_is_refused(self) -> None:
        made = Reassembly()
        made.receive_header(0, whole(b"a"), expects_body=False, now_ns=0)
        assert len(made.take()) == 1
        with pytest.raises(RemoteProtocolError, match="far from 1"):
            made.receive_end(0)

    def test_a_stream_ends_once(self) -> None:
        made = Reassembly()
        made.receive_end(1)
        with pytest.raises(RemoteProtocolError, match="ended twice"):
            made.receive_end(1)


class TestRefused:
    def test_a_number_comes_once(self) -> None:
        made = Reassembly()
        header(made, 0, 1)
        with pytest.raises(RemoteProtocolError, match="two headers have the number 0"):
            header(made, 0, 1)
        body(made, 0, b"x")
        with pytest.raises(RemoteProtocolError, match="two bodies have the number 0"):
            body(made, 0, b"x")

    def test_a_number_that_was_taken_does_not_come_again(self) -> None:
        made = Reassembly(first=ROUND - 1)
        made.receive_header(ROUND - 1, whole(b"a"), expects_body=False, now_ns=0)
        assert len(made.take()) == 1
        for late in (ROUND - 1, ROUND - 2):
            with pytest.raises(RemoteProtocolError, match=f"header {late} is not one of"):
                header(made, late, 1)
            with pytest.raises(RemoteProtocolError, match=f"body {late} is not one of"):
                body(made, late, b"x")

    @pytest.mark.parametrize("content", [b"ab", b"abcd", b""])
    def test_a_body_is_as_long_as_its_header_says(self, content: bytes) -> None:
        made = Reassembly()
        header(made, 0, 3)
        with pytest.raises(RemoteProtocolError, match="its header says 3"):
            body(made, 0, content)

    @pytest.mark.parametrize("content", [b"ab", b"abcd", b""])
    def test_a_header_says_how_long_the_body_is_that_has_come(self, content: bytes) -> None:
        made = Reassembly()
        body(made, 0, content)
        with pytest.raises(RemoteProtocolError, match="its header says 3"):
            header(made, 0, 3)

    def test_a_complete_message_gets_no_body(self) -> None:
        made = Reassembly()
        made.receive_header(1, whole(b"a"), expects_body=False, now_ns=0)
        with pytest.raises(RemoteProtocolError, match="has no body elsewhere"):
            body(made, 1, b"x")

    def test_a_message_whose_body_has_come_is_not_complete_without_it(self) -> None:
        made = Reassembly()
        body(made, 1, b"x")
        with pytest.raises(RemoteProtocolError, match="has no body elsewhere"):
            made.receive_header(1, whole(b"a"), expects_body=False, now_ns=0)

    @pytest.mark.parametrize("said", [-1, 3001, 2**62])
    def test_the_length_a_header_says_is_checked(self, said: int) -> None:
        with pytest.raises(RemoteProtocolError, match=f"a body of {said} bytes"):
            header(Reassembly(LIMITS), 0, said)

    @pytest.mark.parametrize("raw", [None, b"", b"abc", b"\xff" * 64])
    def test_a_header_that_cannot_be_read_is_refused(self, raw: bytes | None) -> None:
        frame = FlightFrame(header=raw, metadata=b"m")
        with pytest.raises(RemoteProtocolError):
            Reassembly().receive_header(0, frame, expects_body=True, now_ns=0)


class TestBounds:
    def test_numbers_far_ahead_are_refused(self) -> None:
        made = Reassembly()
        header(made, AHEAD_MAX - 1, 1)
        body(made, AHEAD_MAX - 1, b"x")
        with pytest.raises(RemoteProtocolError, match=f"header {AHEAD_MAX} is not one of"):
            header(made, AHEAD_MAX, 1)
        with pytest.raises(RemoteProtocolError, match=f"body {AHEAD_MAX} is not one of"):
            body(made, AHEAD_MAX, b"x")
        with pytest.raises(RemoteProtocolError, match="far from 0"):
            made.receive_end(AHEAD_MAX + 1)
        made.receive_end(AHEAD_MAX)

    def test_bodies_before_their_turn_fit_the_window(self) -> None:
        made = Reassembly(LIMITS)
        body(made, 1, bytes(600))
        assert made.has_room(2, 400)
        assert not made.has_room(2, 401)
        with pytest.raises(RemoteProtocolError, match="2 bodies of 1001 bytes"):
            body(made, 2, bytes(401))
        body(made, 2, bytes(399))
        body(made, 3, bytes(1))
        with pytest.raises(RemoteProtocolError, match="4 bodies of 1000 bytes"):
            body(made, 4, b"")

    def test_the_body_whose_turn_it_is_may_be_larger_than_the_window(self) -> None:
        made = Reassembly(LIMITS)
        body(made, 1, bytes(1000))
        header(made, 1, 1000)
        assert made.has_room(0, 3000)
        assert not made.has_room(0, 3001)
        body(made, 0, bytes(3000))
        header(made, 0, 3000)
        assert list(map(len, filter(None, bodies(made)))) == [3000, 1000]
        with pytest.raises(RemoteProtocolError, match="past the window"):
            body(made, 2, bytes(3001))

    def test_what_was_taken_makes_room(self) -> None:
        made = Reassembly(LIMITS)
        body(made, 1, bytes(900))
        header(made, 1, 900)
        assert not made.has_room(2, 900)
        made.receive_header(0, whole(b""), expects_body=False, now_ns=0)
        assert len(made.take()) == 2
        assert made.has_room(3, 900)

    def test_messages_that_wait_for_a_body_are_bounded(self) -> None:
        made = Reassembly(LIMITS)
        complete = {"expects_body": False, "now_ns": 0}
        made.receive_header(1, FlightFrame(body=bytes(1000)), **complete)
        assert not made.is_crowded
        made.receive_header(2, FlightFrame(metadata=bytes(1)), **complete)
        assert made.is_crowded, "a reader that rests now is never refused"
        made.receive_header(3, FlightFrame(body=bytes(2999)), **complete)
        with pytest.raises(RemoteProtocolError, match="over 4000 bytes"):
            made.receive_header(4, FlightFrame(header=b"x"), **complete)
        made.receive_header(0, FlightFrame(), **complete)
        assert len(made.take()) == 4
        assert not made.is_crowded
        made.validate()

    @pytest.mark.parametrize(
        "field",
        ["descriptor", "metadata", "body", "body_reference", "released", "inline_reason"],
    )
    def test_every_field_of_a_waiting_message_counts(self, field: str) -> None:
        made = Reassembly(LIMITS)
        header(made, 0, 1)
        frame = FlightFrame(**{field: bytes(1400)})
        for number in (1, 2):
            made.receive_header(number, frame, expects_body=False, now_ns=0)
        with pytest.raises(RemoteProtocolError, match="over 4000 bytes"):
            made.receive_header(3, frame, expects_body=False, now_ns=0)

    def test_many_messages_are_a_crowd_too(self) -> None:
        made = Reassembly()
        for number in range(1, AHEAD_MAX // 2 + 1):
            made.receive_header(number, FlightFrame(), expects_body=False, now_ns=0)
        assert not made.is_crowded
        made.receive_header(AHEAD_MAX - 1, FlightFrame(), expects_body=False, now_ns=0)
        assert made.is_crowded
