"""Frames of the connector protocol: every vector both ways, in any pieces, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import LocalProtocolError, RemoteProtocolError
from barrage.wire.connector.codec import decode_frame, encode_frame, failure_reason
from barrage.wire.connector.frame_reader import ConnectorFrames, UnknownDialectError
from barrage.wire.connector.frame_values import (
    DRAFT_VERSION,
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
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
PAIRS = st.lists(st.tuples(U64, U64), max_size=5).map(tuple)


def vectors(dialect: Dialect):
    told = json.loads((VECTORS / f"{dialect.value}_frames.json").read_text())
    return [(dialect, each["name"], each) for each in told["frames"]]


ALL = [*vectors(Dialect.PUBLISHED), *vectors(Dialect.DRAFT)]


def frame_of(kind: str, fields: dict, dialect: Dialect):
    """The value that a vector describes in words."""
    if kind == "HELLO":
        return Hello(
            version=fields.get("version", fields.get("version_hex")),
            cookie=fields["cookie"],
            program=fields["program_name"],
            instance=fields["instance_name"],
        )
    if kind == "MESSAGE":
        is_draft = dialect is Dialect.DRAFT
        return SentMessage(
            fields["stream_id"],
            fields["message_id"],
            fields["event_time"],
            None if is_draft else bytes.fromhex(fields["key_hex"]),
            bytes.fromhex(fields["payload_hex"]),
            fields["flags"] & ~16 if is_draft else 0,
        )
    pairs = fields.get("acks", fields.get("points_of_reference", []))
    positions = tuple(tuple(pair) for pair in pairs)
    made = {
        "OK": lambda: Welcome(credits=fields["initial_credits"], positions=positions),
        "ERROR": lambda: EndedByError(fields["message"]),
        "NOTIFY": lambda: Notify(
            stream=fields["stream_id"],
            name=fields["stream_name"].encode(),
            point=fields["point_of_ref"],
        ),
        "NOTIFY_ACK": lambda: NotifyAck(
            is_accepted=fields["success"], stream=fields["stream_id"], point=fields["point_of_ref"]
        ),
        "ACK": lambda: Ack(credits=fields["credits"], positions=positions),
        "NACK": lambda: Nack(
            credits=fields["credits"], stream=fields["stream_id"], point=fields["point_of_ref"]
        ),
        "RESTART": lambda: Restart(fields["address"]),
        "EOS_MESSAGE": lambda: EndOfStream(fields["stream_id"]),
    }
    return made[kind]()


@pytest.mark.parametrize(("dialect", "name", "vector"), ALL, ids=lambda each: str(each)[:40])
def test_vectors_both_ways(dialect, name, vector) -> None:
    raw = bytes.fromhex(vector["hex"])
    frame = frame_of(vector["type"], vector["fields"], dialect)
    assert encode_frame(frame, dialect) == raw, name
    assert decode_frame(raw[4:], dialect) == frame
    reader = ConnectorFrames(dialect, 1 << 20)
    for at in range(len(raw) - 1):
        reader.feed(raw[at : at + 1])
        assert reader.next_frame() is None
    reader.feed(raw[-1:])
    assert reader.next_frame() == frame
    assert len(reader) == 0


def test_there_are_all_the_vectors() -> None:
    assert len(vectors(Dialect.PUBLISHED)) == 32
    assert len(vectors(Dialect.DRAFT)) == 18


def test_the_fifth_byte_tells_the_dialect() -> None:
    for dialect in Dialect:
        version = "0.0.1" if dialect is Dialect.PUBLISHED else DRAFT_VERSION
        hello = Hello(version=version, cookie="", program="p", instance="i")
        reader = ConnectorFrames(None, 1 << 20)
        reader.feed(encode_frame(hello, dialect))
        assert reader.next_frame() == hello
        assert reader.dialect is dialect
    reader = ConnectorFrames(None, 1 << 20)
    reader.feed(b"GET /")
    with pytest.raises(UnknownDialectError):
        reader.next_frame()


@pytest.mark.parametrize("dialect", Dialect)
def test_the_length_is_checked_before_the_frame_is_there(dialect) -> None:
    order = "big" if dialect is Dialect.PUBLISHED else "little"
    fine = ConnectorFrames(dialect, 1000)
    fine.feed((1000).to_bytes(4, order))
    assert fine.next_frame() is None
    for length in (0, 1001, 2**32 - 1):
        reader = ConnectorFrames(dialect, 1000)
        reader.feed(length.to_bytes(4, order))
        with pytest.raises(RemoteProtocolError, match="length"):
            reader.next_frame()


@pytest.mark.parametrize("flags", range(64))
def test_flags_of_the_draft(flags) -> None:
    """All 64 values of the five flags and one that is reserved."""
    body = b"M" + flags.to_bytes(2, "little") + bytes(8) + bytes(8)
    body += bytes(8) if flags & 16 else b""
    is_wrong = flags & 32 or (flags & 1 and flags & 10) or (flags & 2 and flags & 8)
    if is_wrong:
        with pytest.raises(RemoteProtocolError):
            decode_frame(body, Dialect.DRAFT)
        return
    message = decode_frame(body, Dialect.DRAFT)
    assert isinstance(message, SentMessage)
    assert message.flags == flags & ~16
    assert (message.event_time is None) == (not flags & 16)
    if flags & 2:
        with pytest.raises(RemoteProtocolError, match="payload"):
            decode_frame(body + b"x", Dialect.DRAFT)


def test_lists_whose_length_is_a_lie() -> None:
    with pytest.raises(RemoteProtocolError, match="short"):
        decode_frame(bytes.fromhex("0600000000ffffffff"), Dialect.PUBLISHED)
    with pytest.raises(RemoteProtocolError, match="no pair"):
        decode_frame(b"A" + bytes(4) + bytes(15), Dialect.DRAFT)
    with pytest.raises(RemoteProtocolError, match="short"):
        decode_frame(bytes.fromhex("07ffffffff61"), Dialect.PUBLISHED)


def test_what_a_dialect_does_not_have_is_not_encoded() -> None:
    nack = Nack(credits=0, stream=1, point=0)
    refused = [
        (nack, Dialect.PUBLISHED),
        (EndOfStream(1), Dialect.DRAFT),
        (Welcome(credits=1, positions=((1, 1),)), Dialect.PUBLISHED),
        (SentMessage(1, 1, 0, b"k", b""), Dialect.DRAFT),
        (SentMessage(1, 1, 0, b"", b"", 1), Dialect.PUBLISHED),
        (SentMessage(1, 2**64, 0, b"", b""), Dialect.PUBLISHED),
        (SentMessage(1, 1, -1, None, b""), Dialect.DRAFT),
        (SentMessage(1, 1, 0, bytes(65_536), b""), Dialect.PUBLISHED),
        (SentMessage(1, 1, None, None, b"x", 2), Dialect.DRAFT),
        (Hello(version="00", cookie="", program="", instance=""), Dialect.DRAFT),
    ]
    for frame, dialect in refused:
        with pytest.raises(LocalProtocolError):
            encode_frame(frame, dialect)


def test_reasons_are_cut_at_a_character() -> None:
    assert failure_reason("short") == "short"
    cut = failure_reason("é" * 40_000)
    assert cut == "é" * 32_767
    encode_frame(EndedByError(cut), Dialect.PUBLISHED)


FRAMES = {
    Dialect.PUBLISHED: st.one_of(
        st.tuples(U64, U64, I64, st.binary(), st.binary()).map(lambda fields: SentMessage(*fields)),
        st.builds(Ack, credits=U32, positions=PAIRS),
        st.builds(Notify, stream=U64, name=st.binary(), point=U64),
        st.builds(EndOfStream, U64),
        st.builds(EndedByError, st.text()),
        st.builds(Restart, st.text()),
    ),
    Dialect.DRAFT: st.one_of(
        st.builds(
            SentMessage,
            U64,
            U64,
            st.none() | st.integers(0, 2**63 - 1),
            st.none(),
            st.binary(),
            st.sampled_from([0, 1, 4, 5, 8, 12]),
        ),
        st.builds(Ack, credits=U32, positions=PAIRS),
        st.builds(Welcome, credits=U32, positions=PAIRS),
        st.builds(Nack, credits=U32, stream=U64, point=U64),
    ),
}


@given(st.data())
def test_any_frames_in_any_pieces(data) -> None:
    dialect = data.draw(st.sampled_from(Dialect))
    frames = data.draw(st.lists(FRAMES[dialect], max_size=8))
    raw = b"".join(encode_frame(frame, dialect) for frame in frames)
    reader = ConnectorFrames(dialect, 1 << 20)
    found, at = [], 0
    while at < len(raw):
        size = data.draw(st.integers(1, len(raw) - at))
        reader.feed(raw[at : at + size])
        at += size
        while (frame := reader.next_frame()) is not None:
            found.append(frame)
    assert found == frames
