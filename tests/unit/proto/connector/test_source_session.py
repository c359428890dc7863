"""A source's session: every (state, input) pair, and what it may send when."""

from __future__ import annotations

from itertools import product

import pytest

from barrage.errors import LocalProtocolError, RemoteProtocolError
from barrage.limits import Limits
from barrage.proto.connector.session_states import SOURCE_TRANSITIONS, SenderInput, SenderState
from barrage.proto.connector.source_session import (
    Acknowledged,
    RestartAsked,
    SourceSession,
    StreamOpened,
    StreamRefused,
    StreamRewound,
    Welcomed,
    WorkerFailed,
)
from barrage.wire.connector.codec import encode_frame
from barrage.wire.connector.frame_values import (
    NONE_SEEN,
    Ack,
    Dialect,
    EndedByError,
    EndOfStream,
    Nack,
    Notify,
    NotifyAck,
    Restart,
    SentMessage,
    Welcome,
)

LIMITS = Limits()
PUBLISHED, DRAFT = Dialect.PUBLISHED, Dialect.DRAFT


def take(session, *frames, dialect=PUBLISHED) -> list:
    return session.receive_data(b"".join(encode_frame(frame, dialect) for frame in frames))


def session_in(state: SenderState) -> SourceSession:
    session = SourceSession(limits=LIMITS)
    if state is SenderState.NEW:
        return session
    session.greet("p")
    if state is SenderState.GREETING:
        return session
    take(session, Welcome(credits=3))
    session.announce(7, b"seven")
    if state is SenderState.ENDED:
        session.close()
    assert session.state is state
    return session


FRAMES = {
    SenderInput.WELCOME: [Welcome(credits=1)],
    SenderInput.STREAM_ANSWER: [NotifyAck(is_accepted=True, stream=7, point=0)],
    SenderInput.ACK: [Ack(credits=1)],
    SenderInput.WORKER_END: [Restart(), EndedByError("x")],
    SenderInput.SOURCES_FRAME: [
        Notify(stream=1, name=b"", point=0),
        SentMessage(1, 1, 0, b"", b""),
        EndOfStream(1),
    ],
}


@pytest.mark.parametrize(("state", "happened"), list(product(SenderState, FRAMES)))
def test_every_frame_in_every_state(state, happened) -> None:
    for frame in FRAMES[happened]:
        session = session_in(state)
        wanted = SOURCE_TRANSITIONS.get((state, happened))
        if state is SenderState.ENDED:
            assert take(session, frame) == []
        elif wanted is None:
            with pytest.raises(RemoteProtocolError):
                take(session, frame)
            assert session.state is SenderState.ENDED
        else:
            assert len(take(session, frame)) == 1
            assert session.state is wanted


@pytest.mark.parametrize("state", SenderState)
def test_what_a_source_does_in_every_state(state) -> None:
    does = {
        SenderInput.GREET: lambda session: session.greet("p"),
        SenderInput.SEND: lambda session: session.announce(1, b"one"),
        SenderInput.FAIL: lambda session: session.fail("x"),
        SenderInput.CLOSE: lambda session: session.close(),
    }
    for happened, do in does.items():
        session = session_in(state)
        wanted = SOURCE_TRANSITIONS.get((state, happened))
        if wanted is None:
            with pytest.raises(LocalProtocolError):
                do(session)
            assert session.state is state
        else:
            do(session)
            assert session.state is wanted


def test_streams_and_credits_of_the_published_dialect() -> None:
    session = SourceSession(limits=LIMITS)
    session.greet("p", instance="i", cookie="c")
    assert take(session, Welcome(credits=2)) == [Welcomed(())]
    assert session.announce(1, b"one") == []
    with pytest.raises(LocalProtocolError, match="announced already"):
        session.announce(1, b"one")
    with pytest.raises(LocalProtocolError, match="not open"):
        session.send(SentMessage(1, 1, 0, b"", b"x"))
    answer = NotifyAck(is_accepted=True, stream=1, point=NONE_SEEN)
    assert take(session, answer) == [StreamOpened(1, None)]
    session.send(SentMessage(1, 1, 0, b"", b"x"))
    with pytest.raises(LocalProtocolError, match="no credits"):
        session.send(SentMessage(1, 2, 0, b"", b"x"))
    assert take(session, Ack(credits=2, positions=((1, 1),))) == [Acknowledged(((1, 1),))]
    with pytest.raises(LocalProtocolError, match="at most"):
        session.send(SentMessage(1, NONE_SEEN, 0, b"", b"x"))
    assert session.credits == 2
    session.end(1)
    with pytest.raises(LocalProtocolError, match="not open"):
        session.end(1)
    session.announce(2, b"two", last=4)
    refused = NotifyAck(is_accepted=False, stream=2, point=4)
    assert take(session, refused) == [StreamRefused(2)]
    with pytest.raises(RemoteProtocolError, match="not announced"):
        take(session, refused)


def test_ends_told_by_the_worker() -> None:
    for frame, event in (
        (Restart("h:1"), RestartAsked("h:1")),
        (EndedByError("why"), WorkerFailed("why")),
    ):
        assert take(session_in(SenderState.STREAMING), frame, Ack(credits=1)) == [event]


def test_streams_of_the_draft_are_open_at_once_and_may_be_rewound() -> None:
    session = SourceSession(limits=LIMITS, dialect=DRAFT)
    session.greet("p")
    known = ((1, 9),)
    welcome = Welcome(credits=4, positions=known)
    assert take(session, welcome, dialect=DRAFT) == [Welcomed(known)]
    assert session.announce(1, b"one", last=11) == [StreamOpened(1, 11)]
    session.send(SentMessage(1, 12, None, None, b"x"))
    nack = Nack(credits=2, stream=1, point=9)
    assert take(session, nack, dialect=DRAFT) == [StreamRewound(1, 9)]
    assert not session.is_open(1)
    assert session.credits == 4
    session.announce(1, b"one", last=9)
    session.send(SentMessage(1, 10, None, None, b"x", 4))
    assert not session.is_open(1)
    with pytest.raises(LocalProtocolError):
        session.end(1)


def test_a_frame_that_no_worker_takes_is_not_sent() -> None:
    session = session_in(SenderState.STREAMING)
    take(session, NotifyAck(is_accepted=True, stream=7, point=0))
    session.data_to_send()
    with pytest.raises(LocalProtocolError, match="at most"):
        session.send(SentMessage(7, 1, 0, b"", bytes(LIMITS.connector_frame_bytes_max)))
    assert session.data_to_send() == b""
    assert session.credits == 2
