"""The life of one connection, for both sides: states, what can happen, and what is allowed when."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from barrage.wire.connector.frame_values import (
    Ack,
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

if TYPE_CHECKING:
    from collections.abc import Mapping


class WorkerState(Enum):
    """Where a worker's session stands."""

    CONNECTED = auto()
    """Nothing has come, or part of HELLO."""
    GREETED = auto()
    """HELLO was taken and is not answered; what follows it waits."""
    STREAMING = auto()
    FAILING = auto()
    """An ERROR or a RESTART is the last that is sent. What comes is dropped."""
    CLOSED = auto()


class WorkerInput(Enum):
    """Everything that can happen to a worker's session."""

    HELLO = auto()
    NOTIFY = auto()
    MESSAGE = auto()
    END_OF_STREAM = auto()
    PEER_FAILURE = auto()
    """ERROR of the connector: it ends, and is not answered."""
    WORKERS_FRAME = auto()
    """A frame that only a worker sends."""
    WELCOME = auto()
    """The worker's own: answer HELLO."""
    ACKNOWLEDGE = auto()
    """The worker's own: credits, positions."""
    FAIL = auto()
    """The worker's own: say ERROR or RESTART and end."""
    CLOSE = auto()
    """The connection has ended, or is ended without a word."""


_S, _I = WorkerState, WorkerInput

WORKER_TRANSITIONS: Mapping[tuple[WorkerState, WorkerInput], WorkerState] = {
    (_S.CONNECTED, _I.HELLO): _S.GREETED,
    (_S.CONNECTED, _I.PEER_FAILURE): _S.CLOSED,
    (_S.CONNECTED, _I.FAIL): _S.FAILING,
    (_S.GREETED, _I.WELCOME): _S.STREAMING,
    (_S.GREETED, _I.FAIL): _S.FAILING,
    (_S.STREAMING, _I.NOTIFY): _S.STREAMING,
    (_S.STREAMING, _I.MESSAGE): _S.STREAMING,
    (_S.STREAMING, _I.END_OF_STREAM): _S.STREAMING,
    (_S.STREAMING, _I.PEER_FAILURE): _S.CLOSED,
    (_S.STREAMING, _I.ACKNOWLEDGE): _S.STREAMING,
    (_S.STREAMING, _I.FAIL): _S.FAILING,
    **{(state, _I.CLOSE): _S.CLOSED for state in _S},
}
"""What is not here is an offence: of the connector when it sent a frame, else of our caller. In
FAILING and CLOSED nothing that comes is looked at."""

INPUT_OF_FRAME: Mapping[type, WorkerInput] = {
    Hello: _I.HELLO,
    Notify: _I.NOTIFY,
    SentMessage: _I.MESSAGE,
    EndOfStream: _I.END_OF_STREAM,
    EndedByError: _I.PEER_FAILURE,
    **dict.fromkeys((Welcome, NotifyAck, Ack, Nack, Restart), _I.WORKERS_FRAME),
}


class SenderState(Enum):
    """Where a source's session stands."""

    NEW = auto()
    """Nothing has been sent."""
    GREETING = auto()
    """HELLO is sent and not answered."""
    STREAMING = auto()
    ENDED = auto()
    """The worker has said ERROR or RESTART, or the connection has ended."""


class SenderInput(Enum):
    """Everything that can happen to a source's session."""

    GREET = auto()
    """The source's own: say HELLO."""
    SEND = auto()
    """The source's own: NOTIFY, MESSAGE, EOS_MESSAGE."""
    FAIL = auto()
    """The source's own: say ERROR and end."""
    WELCOME = auto()
    STREAM_ANSWER = auto()
    """NOTIFY_ACK or NACK."""
    ACK = auto()
    WORKER_END = auto()
    """RESTART or ERROR."""
    SOURCES_FRAME = auto()
    """A frame that only a source sends."""
    CLOSE = auto()


_T, _J = SenderState, SenderInput

SOURCE_TRANSITIONS: Mapping[tuple[SenderState, SenderInput], SenderState] = {
    (_T.NEW, _J.GREET): _T.GREETING,
    (_T.GREETING, _J.WELCOME): _T.STREAMING,
    (_T.GREETING, _J.WORKER_END): _T.ENDED,
    (_T.GREETING, _J.FAIL): _T.ENDED,
    (_T.STREAMING, _J.SEND): _T.STREAMING,
    (_T.STREAMING, _J.FAIL): _T.ENDED,
    (_T.STREAMING, _J.STREAM_ANSWER): _T.STREAMING,
    (_T.STREAMING, _J.ACK): _T.STREAMING,
    (_T.STREAMING, _J.WORKER_END): _T.ENDED,
    **{(state, _J.CLOSE): _T.ENDED for state in _T},
}

SOURCE_INPUT_OF_FRAME: Mapping[type, SenderInput] = {
    Welcome: _J.WELCOME,
    NotifyAck: _J.STREAM_ANSWER,
    Nack: _J.STREAM_ANSWER,
    Ack: _J.ACK,
    EndedByError: _J.WORKER_END,
    Restart: _J.WORKER_END,
    **dict.fromkeys((Hello, Notify, SentMessage, EndOfStream), _J.SOURCES_FRAME),
}
