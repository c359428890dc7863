"""A worker's session: every (state, input) pair, recorded sessions, bad input, credits, owners."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from barrage.errors import LocalProtocolError
from barrage.limits import Limits
from barrage.proto.connector.session_states import WORKER_TRANSITIONS, WorkerInput, WorkerState
from barrage.proto.connector.stream_desk import StreamDesk
from barrage.proto.connector.worker_session import WorkerSession
from barrage.wire.connector.codec import encode_frame
from barrage.wire.connector.frame_reader import ConnectorFrames
from barrage.wire.connector.frame_values import (
    DRAFT_VERSION,
    NONE_SEEN,
    Ack,
    Dialect,
    EndedByError,
    EndOfStream,
    Hello,
    Nack,
    Notify,
    NotifyAck,
    Restart,
    SentMessage,
    Welcome,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "connector"
LIMITS = Limits(connector_credits_max=10)
PUBLISHED, DRAFT = Dialect.PUBLISHED, Dialect.DRAFT
BOUNDARY, EOS, EPHEMERAL, UNSTABLE = 2, 4, 1, 8


def frames(session, dialect=PUBLISHED) -> list:
    """What the session has to say."""
    reader = ConnectorFrames(dialect, 1 << 24)
    reader.feed(session.data_to_send())
    return list(iter(reader.next_frame, None))


def hello(dialect=PUBLISHED, **changed) -> Hello:
    version = "0.0.1" if dialect is PUBLISHED else DRAFT_VERSION
    return replace(Hello(version=version, cookie="", program="p", instance="i"), **changed)


class Peer:
    """A connector's frames to one session."""

    def __init__(self, desk=None, dialect=PUBLISHED, limits=LIMITS) -> None:
        self.dialect = dialect
        self.desk = desk or StreamDesk("p", {}, limits=limits)
        self.session = WorkerSession(limits=limits)
        self.send(hello(dialect))
        self.session.welcome(self.desk)
        self.welcome = self.told()[0]

    def send(self, *sent) -> None:
        raw = b"".join(encode_frame(frame, self.dialect) for frame in sent)
        self.session.receive_data(raw)

    def told(self) -> list:
        return frames(self.session, self.dialect)

    def asked(self, *sent) -> list:
        self.send(*sent)
        return self.told()

    def refused(self, *sent) -> str:
        """The text of the ERROR that ends the session."""
        last = self.asked(*sent)[-1]
        assert isinstance(last, EndedByError)
        assert self.session.state is WorkerState.FAILING
        return last.message


def notify(stream=1, point=0, name=b"s") -> Notify:
    return Notify(stream=stream, name=name, point=point)


def message(number, stream=1, payload=b"x", flags=0, key=None) -> SentMessage:
    return SentMessage(stream, number, None, key, payload, flags)


def settled(desk) -> list:
    """Everything taken becomes safe; the batches."""
    batches = list(iter(desk.take_batch, None))
    for batch in batches:
        desk.settle(batch)
    return batches


def ids_of(batch) -> list[int]:
    """Of messages with a payload: what becomes a row wherever messages land as they are."""
    messages = batch.messages()
    if messages is None:
        return []
    both = zip(messages.ids.to_pylist(), messages.payloads.to_pylist(), strict=True)
    return [number for number, payload in both if payload]


def rows(batches) -> list[int]:
    return [number for batch in batches for number in ids_of(batch)]


# --- the table ---


def session_in(state: WorkerState) -> WorkerSession:
    session = WorkerSession(limits=LIMITS)
    if state is WorkerState.CONNECTED:
        return session
    session.receive_data(encode_frame(hello(), PUBLISHED))
    if state is WorkerState.GREETED:
        return session
    session.welcome(StreamDesk("p", {}, limits=LIMITS))
    if state is WorkerState.FAILING:
        session.fail("x")
    elif state is WorkerState.CLOSED:
        session.close()
    elif state is WorkerState.STREAMING:
        session.receive_data(encode_frame(notify(), PUBLISHED))
    assert session.state is state
    session.data_to_send()
    return session


FROM_CONNECTOR = {
    WorkerInput.HELLO: [hello()],
    WorkerInput.NOTIFY: [notify(2)],
    WorkerInput.MESSAGE: [message(1)],
    WorkerInput.END_OF_STREAM: [EndOfStream(1)],
    WorkerInput.PEER_FAILURE: [EndedByError("bye")],
    WorkerInput.WORKERS_FRAME: [
        Welcome(credits=1),
        Ack(credits=1),
        NotifyAck(is_accepted=True, stream=1, point=0),
        Restart(),
    ],
}


@pytest.mark.parametrize(("state", "happened"), list(product(WorkerState, FROM_CONNECTOR)))
def test_every_frame_in_every_state(state, happened) -> None:
    for frame in FROM_CONNECTOR[happened]:
        session = session_in(state)
        session.receive_data(encode_frame(frame, PUBLISHED))
        wanted = WORKER_TRANSITIONS.get((state, happened))
        if state in (WorkerState.GREETED, WorkerState.FAILING, WorkerState.CLOSED):
            # What follows HELLO waits; what comes after the end is dropped.
            assert session.state is state
            assert session.data_to_send() == b""
        elif wanted is None:
            assert session.state is WorkerState.FAILING
            assert isinstance(frames(session)[-1], EndedByError)
        else:
            assert session.state is wanted


@pytest.mark.parametrize("state", WorkerState)
def test_what_a_worker_does_in_every_state(state) -> None:
    desk = StreamDesk("q", {}, limits=LIMITS)
    session = session_in(state)
    if (state, WorkerInput.WELCOME) in WORKER_TRANSITIONS:
        session.welcome(desk)
        assert session.state is WorkerState.STREAMING
    else:
        with pytest.raises(LocalProtocolError):
            session.welcome(desk)
    has_ended = state in (WorkerState.FAILING, WorkerState.CLOSED)
    session = session_in(state)
    session.fail("x")
    no_dialect = state is WorkerState.CONNECTED
    closed = WorkerState.CLOSED if no_dialect else WorkerState.FAILING
    assert session.state is (state if has_ended else closed)
    session = session_in(state)
    session.remind()
    assert bool(session.data_to_send()) == (state is WorkerState.STREAMING)
    session = session_in(state)
    session.close()
    assert session.state is WorkerState.CLOSED
    session = session_in(state)
    session.restart("h:1")
    if state is WorkerState.STREAMING:
        assert frames(session) == [Restart("h:1")]
        assert session.state is WorkerState.FAILING
    else:
        assert session.state is WorkerState.CLOSED


def test_frames_that_follow_hello_wait_for_ok() -> None:
    session = WorkerSession(limits=LIMITS)
    session.receive_data(b"".join(encode_frame(f, PUBLISHED) for f in (hello(), notify())))
    assert session.state is WorkerState.GREETED
    assert session.data_to_send() == b""
    session.welcome(StreamDesk("p", {1: 7}, limits=LIMITS))
    ok, answer, ack = frames(session)
    assert ok == Welcome(credits=10)
    assert answer == NotifyAck(is_accepted=True, stream=1, point=7)
    assert ack == Ack(credits=1)


# --- the vectors ---


def published(name: str) -> dict:
    told = json.loads((VECTORS / f"published_{name}.json").read_text())
    assert isinstance(told, dict)
    return told


TRANSCRIPTS = published("sessions")["transcripts"]


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda each: each["name"])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_recorded_sessions(transcript, piece) -> None:
    is_resumed = transcript["name"] == "resume in a new session"
    is_owned = transcript["name"] == "stream owned elsewhere"
    desk = StreamDesk("p", {1: 3} if is_resumed else {}, limits=LIMITS, newest_owns=False)
    if is_owned:
        Peer(desk).send(notify())
    session = WorkerSession(limits=LIMITS, cookie="cookie")
    said, wanted, written = [], [], []
    for step in transcript["steps"]:
        raw = bytes.fromhex(step["hex"])
        if step["dir"] == "down":
            reader = ConnectorFrames(PUBLISHED, 1 << 20)
            reader.feed(raw)
            wanted.append(reader.next_frame())
            continue
        for at in range(0, len(raw), piece):
            session.receive_data(raw[at : at + piece])
        if session.state is WorkerState.GREETED:
            session.welcome(desk)
        written += rows(settled(desk))
        said += frames(session)
    assert [f for f in said if not isinstance(f, Ack)] == [
        f for f in wanted if not isinstance(f, Ack)
    ]
    acks = [frame for frame in said if isinstance(frame, Ack)]
    credits = sum(frame.credits for frame in wanted if isinstance(frame, Ack))
    assert 0 < sum(ack.credits for ack in acks) <= credits
    if not is_owned:
        assert acks[-1].positions == wanted[-1].positions
        assert written == ([4] if is_resumed else [1, 2, 3])


CASES = published("bad_input")["cases"]
OTHER_FORMATS = {"payload that the table format rejects"}
"""Any bytes are a payload here."""


@pytest.mark.parametrize("case", CASES, ids=lambda each: each["name"])
def test_bad_input(case) -> None:
    desk = StreamDesk("p", {}, limits=LIMITS)
    session = WorkerSession(limits=LIMITS, cookie="cookie")

    def take(text: str) -> list:
        session.receive_data(bytes.fromhex(text))
        if session.state is WorkerState.GREETED:
            session.welcome(desk)
        return frames(session)

    for each in case["before"]:
        take(each)
    before = rows(settled(desk))
    session.data_to_send()
    if case["name"] in OTHER_FORMATS:
        assert not any(isinstance(frame, EndedByError) for frame in take(case["send"]))
        return
    told = take(case["send"])
    expected = case["expect"]
    if expected == "close" and "middle of a frame" in case["name"]:
        session.close()
    has_failed = bool(told) and isinstance(told[-1], EndedByError)
    after = rows(settled(desk))
    if expected.startswith("error+close"):
        assert has_failed
        assert session.state is WorkerState.FAILING
        assert "cookie" not in told[-1].message.replace("bad cookie", "")
        assert desk.session_count == 0
    elif expected == "close":
        assert not has_failed
        assert session.state is WorkerState.CLOSED
        assert after == []
    elif expected == "notify_ack false":
        assert told[0] == NotifyAck(is_accepted=False, stream=1, point=0)
        assert session.state is WorkerState.STREAMING
    elif expected in ("ignored", "discarded"):
        assert not has_failed
        assert after == []
        if expected == "ignored":
            assert before == [5]
            assert sum(frame.credits for frame in told) == 1
    else:
        assert expected == "no row, id advances"
        assert after == []
        assert desk.last_safe(1) == 5


def test_garbage_is_not_answered() -> None:
    for raw in (b"GET / HTTP/1.1", b"\0\0\0\x05\x0a", b"\xff" * 5):
        session = WorkerSession(limits=LIMITS)
        session.receive_data(raw)
        assert session.state is WorkerState.CLOSED
        assert session.data_to_send() == b""


def test_a_cookie_nobody_asked_for_is_refused() -> None:
    session = WorkerSession(limits=LIMITS)
    session.receive_data(encode_frame(hello(cookie="x"), PUBLISHED))
    assert frames(session) == [EndedByError("bad cookie")]


# --- positions, owners, ends ---


def test_ids_go_up_to_the_last_but_one_of_64_bits() -> None:
    peer = Peer()
    peer.send(notify(), message(0), message(2**64 - 2))
    assert rows(settled(peer.desk)) == [0, 2**64 - 2]
    assert peer.told()[-1].positions == ((1, 2**64 - 2),)
    assert "stands for none" in peer.refused(message(2**64 - 1))


def test_only_what_is_safe_is_acknowledged() -> None:
    peer = Peer()
    assert peer.asked(notify())[0].point == NONE_SEEN
    assert peer.asked(message(1), message(2)) == []
    first = peer.desk.take_batch()
    peer.send(message(3))
    second = peer.desk.take_batch()
    assert (first.positions, second.positions) == ({1: (1, 2)}, {1: (3, 3)})
    peer.desk.settle(first)
    assert peer.told() == [Ack(credits=2, positions=((1, 2),))]
    peer.desk.settle(second)
    assert peer.told() == [Ack(credits=1, positions=((1, 3),))]


def test_the_newest_connection_owns_a_stream() -> None:
    old = Peer()
    old.send(notify(), message(1), message(2))
    old.told()
    new = Peer(old.desk)
    assert new.asked(notify())[0] == NotifyAck(is_accepted=True, stream=1, point=NONE_SEEN)
    assert "newer connection" in old.told()[-1].message
    assert old.session.state is WorkerState.FAILING
    # What the old one sent is written; the new one is told no more than it has sent itself.
    new.send(message(1))
    assert rows(settled(new.desk)) == [1, 2]
    assert [frame.positions for frame in new.told() if frame.positions] == [((1, 1),)]
    new.send(message(2), message(3))
    assert rows(settled(new.desk)) == [3]
    assert new.told()[-1].positions == ((1, 3),)


def test_or_the_oldest_where_that_is_wanted() -> None:
    old = Peer(StreamDesk("p", {}, limits=LIMITS, newest_owns=False))
    old.send(notify())
    new = Peer(old.desk)
    assert new.asked(notify(point=9))[0] == NotifyAck(is_accepted=False, stream=1, point=9)
    assert new.session.has_refused
    new.session.remind()
    assert new.told() == [Ack(credits=0)]
    old.session.close()
    assert new.asked(notify())[0].is_accepted


def test_an_end_is_acknowledged_when_all_is_safe_and_lets_go() -> None:
    peer = Peer()
    peer.send(notify(), message(1), EndOfStream(1))
    assert peer.session.stream_count == 1
    settled(peer.desk)
    assert peer.told()[-1].positions == ((1, 1),)
    assert peer.session.stream_count == 0
    # Once more, with nothing new: the id it had is told again.
    assert peer.asked(notify())[0].point == 1
    assert peer.asked(EndOfStream(1))[-1].positions == ((1, 1),)


def test_streams_are_not_forgotten_and_a_further_one_is_refused() -> None:
    limits = replace(LIMITS, connector_streams_max=2)
    peer = Peer(limits=limits)
    peer.send(notify(1), notify(2), message(1), message(1, stream=2))
    settled(peer.desk)
    peer.told()
    assert not peer.asked(notify(3))[0].is_accepted
    peer.session.close()
    again = Peer(peer.desk, limits=limits)
    assert [again.asked(notify(n))[0].is_accepted for n in (3, 1, 2)] == [False, True, True]


def test_streams_that_never_had_a_row_are_forgotten() -> None:
    limits = replace(LIMITS, connector_streams_max=2)
    desk = StreamDesk("p", {}, limits=limits)
    for number in range(10):
        peer = Peer(desk, limits=limits)
        assert peer.asked(notify(number))[0].is_accepted
        peer.session.close()


def test_names_that_are_too_long_or_no_text() -> None:
    longest = LIMITS.connector_name_bytes_max
    peer = Peer()
    assert peer.asked(notify(1, name=bytes(longest)))[0].is_accepted
    assert "name" in peer.refused(notify(2, name=bytes(longest + 1)))
    peer = Peer()
    peer.send(notify(1, name=b"\xff"), notify(2, name=b""), message(1), message(1, stream=2))
    assert peer.desk.take_batch().messages().streams.to_pylist() == ["\\xff", "2"]


def test_a_batch_that_cannot_be_written_ends_every_session_without_a_word() -> None:
    one = Peer()
    two = Peer(one.desk)
    one.send(notify(), message(1))
    batch = one.desk.take_batch()
    one.send(message(2))
    for peer in (one, two):
        peer.told()
    one.desk.fail(batch)
    for peer in (one, two):
        assert peer.session.state is WorkerState.CLOSED
        assert peer.told() == []
    assert not one.desk.is_open
    assert one.desk.take_batch() is None


# --- credits ---


def test_credits_come_back_when_rows_are_safe() -> None:
    peer = Peer()
    assert peer.welcome.credits == 10
    assert peer.asked(notify())[-1] == Ack(credits=1)
    for number in range(1, 11):
        assert peer.asked(message(number)) == []
    settled(peer.desk)
    assert peer.told() == [Ack(credits=10, positions=((1, 10),))]
    # Replays cost nothing.
    assert peer.asked(message(3), message(10)) == [Ack(credits=2)]


def test_a_full_engine_gives_no_credits() -> None:
    peer = Peer()
    peer.desk.is_full = True
    peer.send(notify(), message(1))
    settled(peer.desk)
    assert [frame for frame in peer.told() if isinstance(frame, Ack)] == [
        Ack(credits=0, positions=((1, 1),))
    ]
    late = Peer(peer.desk)
    assert late.welcome.credits == 0
    peer.desk.is_full = False
    peer.desk.give_credits()
    assert peer.told() == [Ack(credits=2)]
    assert late.told() == [Ack(credits=10)]


def test_bytes_under_way_hold_credits_back_and_end_who_goes_on() -> None:
    limits = replace(LIMITS, connector_room_bytes=10, connector_unsafe_bytes_max=20)
    peer = Peer(limits=limits)
    peer.send(notify())
    peer.told()
    assert peer.asked(message(1, payload=bytes(10)), message(1)) == []
    assert peer.asked(message(2, payload=bytes(10))) == []
    assert "under way" in peer.refused(message(3))


def test_debt_is_bounded() -> None:
    peer = Peer()
    peer.desk.is_full = True
    for number in range(10 + 64):
        assert not any(isinstance(f, EndedByError) for f in peer.asked(notify(number)))
    assert "credits exceeded" in peer.refused(notify(1000))


def test_connectors_of_a_program_share_its_credits() -> None:
    limits = replace(LIMITS, connector_source_credits_max=12, connector_credits_min=2)
    one = Peer(limits=limits)
    others = [Peer(one.desk, limits=limits) for _ in range(5)]
    assert [one.welcome.credits, *(other.welcome.credits for other in others)] == [
        *(10, 6, 4, 3, 2, 2)
    ]
    # Who has more than its share gets back less than it spends.
    assert one.asked(notify()) == [NotifyAck(is_accepted=True, stream=1, point=NONE_SEEN)]
    for other in others:
        other.session.close()
    one.desk.give_credits()
    assert one.told() == [Ack(credits=1)]


# --- the draft ---


def draft_peer(positions=None, **options) -> Peer:
    return Peer(StreamDesk("p", positions or {}, limits=LIMITS, **options), DRAFT)


def test_ok_of_the_draft_lists_what_is_known() -> None:
    peer = draft_peer({2: 9, 1: 5})
    assert peer.welcome == Welcome(credits=10, positions=((1, 5), (2, 9)))
    assert peer.asked(notify(point=5), message(5), message(6)) == [Ack(credits=2)]
    assert rows(settled(peer.desk)) == [6]


def test_a_gap_is_rewound_and_messages_are_dropped_until_the_next_notify() -> None:
    peer = draft_peer({1: 5})
    assert peer.asked(notify(point=6), message(7), message(8)) == [
        Nack(credits=0, stream=1, point=5),
        Ack(credits=3),
    ]
    assert peer.asked(notify(point=9)) == [Nack(credits=0, stream=1, point=5), Ack(credits=1)]
    peer.send(notify(point=5), notify(point=5), message(6))
    assert rows(settled(peer.desk)) == [6]
    assert Peer(StreamDesk("p", {}, limits=LIMITS), DRAFT).asked(notify(point=1))[0].point == 0


def test_ephemeral_messages_move_nothing() -> None:
    peer = draft_peer({1: 5})
    peer.send(notify(), message(3, flags=EPHEMERAL), message(3, flags=EPHEMERAL))
    batches = settled(peer.desk)
    assert rows(batches) == [3, 3]
    assert batches[0].positions == {}
    assert peer.desk.last_safe(1) == 5
    assert peer.told()[-1] == Ack(credits=2, positions=((1, 3),))
    # Nor is a stream known that had nothing else.
    peer.send(notify(2), message(1, stream=2, flags=EPHEMERAL))
    settled(peer.desk)
    peer.session.close()
    assert draft_peer().desk.safe_positions() == ()
    assert peer.desk.safe_positions() == ((1, 5),)


def test_unstable_messages_are_written_with_the_next_stable_one() -> None:
    peer = draft_peer()
    peer.send(notify(), message(1), message(2, flags=UNSTABLE), message(3, flags=UNSTABLE))
    assert rows(settled(peer.desk)) == [1]
    assert peer.desk.last_safe(1) == 1
    assert sum(frame.credits for frame in peer.told()) == 4
    peer.send(message(4, payload=b"", flags=BOUNDARY))
    (batch,) = settled(peer.desk)
    assert (ids_of(batch), batch.positions) == ([2, 3], {1: (4, 4)})
    # With the session they are gone, and come again.
    peer.send(message(5, flags=UNSTABLE))
    peer.session.close()
    again = Peer(peer.desk, DRAFT)
    again.send(notify(point=4), message(5, flags=UNSTABLE), message(6))
    assert rows(settled(peer.desk)) == [5, 6]


def test_unstable_messages_are_bounded() -> None:
    limits = replace(LIMITS, connector_unstable_bytes_max=2 * 65)
    peer = Peer(dialect=DRAFT, limits=limits)
    peer.send(notify(), message(1, flags=UNSTABLE), message(2, flags=UNSTABLE))
    assert peer.session.state is WorkerState.STREAMING
    assert "wait for" in peer.refused(message(3, flags=UNSTABLE))


@pytest.mark.parametrize("flags", [EOS, EOS | BOUNDARY, EOS | UNSTABLE, EOS | EPHEMERAL])
def test_the_last_message_ends_a_stream_of_the_draft(flags) -> None:
    peer = draft_peer()
    payload = b"" if flags & BOUNDARY else b"x"
    peer.send(notify(), message(1), message(2, payload=payload, flags=flags))
    settled(peer.desk)
    last = 1 if flags & EPHEMERAL else 2
    assert (1, last) in peer.told()[-1].positions
    assert peer.session.stream_count == 0
    assert "unregistered" in peer.refused(message(3))


def test_a_stream_of_the_draft_in_use() -> None:
    owner = draft_peer(newest_owns=False)
    owner.send(notify())
    assert "in use" in Peer(owner.desk, DRAFT).refused(notify())


def test_both_dialects_share_a_desk() -> None:
    one = Peer()
    one.send(notify(), message(1))
    settled(one.desk)
    two = Peer(one.desk, DRAFT)
    assert two.welcome.positions == ((1, 1),)
    two.send(notify(point=1), message(1), message(2))
    assert rows(settled(two.desk)) == [2]
