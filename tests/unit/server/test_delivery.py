"""Encoding once for many streams, with bounded memory."""

from __future__ import annotations

import pytest

from barrage.engine.producer import Delivery, Disconnect
from barrage.errors import EngineError, RemoteProtocolError, SlowConsumerError
from barrage.server import delivery
from barrage.server.body_frames import LooseFrame
from barrage.server.delivery import EncodedUpdate, LazyUpdate, StreamEnded, convert
from barrage.wire.dissociated.detached import DetachedFrame


class FakeEncoder:
    """Frames are given; counts how many were made."""

    def __init__(self, frames: list[bytes], error: Exception | None = None) -> None:
        self.frames = frames
        self.error = error
        self.encoded = 0

    def schema_frame(self) -> bytes:
        return b"schema"

    def estimate_bytes(self, _message: object) -> int:
        return sum(map(len, self.frames))

    def encode(self, _message: object):
        if self.error is not None:
            raise self.error
        for frame in self.frames:
            self.encoded += 1
            yield frame


def frames_of(count: int, size: int = 3) -> list[bytes]:
    return [bytes([number % 256]) * size for number in range(count)]


def converted(encoder: FakeEncoder, ids: tuple[int, ...]) -> list:
    return list(convert(Delivery(message=None, subscription_ids=ids, encoding=encoder)))


def test_one_frame_is_encoded_at_once_for_everybody():
    encoder = FakeEncoder(frames_of(1))
    [item] = converted(encoder, (1, 2, 3))
    assert isinstance(item, EncodedUpdate)
    assert (item.subscription_ids, item.frames, item.byte_count) == ((1, 2, 3), (b"\0\0\0",), 3)


def test_several_frames_are_encoded_when_needed_and_once():
    encoder = FakeEncoder(frames_of(10))
    [item] = converted(encoder, (1, 2))
    assert isinstance(item, LazyUpdate)
    assert encoder.encoded == 2
    readers = [item.frames(), item.frames()]
    received = [[next(reader) for reader in readers] for _ in range(10)]
    assert [pair[0] for pair in received] == [pair[1] for pair in received] == frames_of(10)
    assert encoder.encoded == 10
    assert not item._frames
    assert all(next(reader, None) is None for reader in readers)


def test_a_reader_far_behind_encodes_for_itself(monkeypatch):
    monkeypatch.setattr(delivery, "WINDOW_BYTES_MAX", 12)
    encoder = FakeEncoder(frames_of(20))
    [item] = converted(encoder, (1, 2))
    fast, slow = item.frames(), item.frames()
    beginning = [next(slow) for _ in range(2)]
    assert list(fast) == frames_of(20)
    assert item._window_bytes <= 12
    assert beginning + list(slow) == frames_of(20)
    assert encoder.encoded == 40


def test_a_frame_larger_than_the_window_is_kept_alone(monkeypatch):
    monkeypatch.setattr(delivery, "WINDOW_BYTES_MAX", 2)
    [item] = converted(FakeEncoder(frames_of(4)), (1, 2))
    first, second = item.frames(), item.frames()
    assert list(first) == frames_of(4)
    assert len(item._frames) == 1
    assert list(second) == frames_of(4)


def test_frames_with_a_body_apart_have_a_larger_window(monkeypatch):
    monkeypatch.setattr(delivery, "WINDOW_BYTES_MAX", 12)
    monkeypatch.setattr(delivery, "OUTSIDE_WINDOW_BYTES_MAX", 48)
    frames = [LooseFrame(DetachedFrame(b"h", (b"bodybod",), 7)) for _ in range(20)]
    encoder = FakeEncoder(frames)
    [item] = converted(encoder, (1, 2))
    fast, slow = item.frames(), item.frames()
    beginning = [next(slow)]
    for number in range(6):
        assert next(fast) is frames[number]
    # The slow one is five frames behind, and they are all there for it.
    beginning += [next(slow) for _ in range(5)]
    assert encoder.encoded == 6
    assert list(fast) == frames[6:]
    assert item._window_bytes <= 48
    assert beginning + list(slow) == frames
    assert encoder.encoded == 40


@pytest.mark.parametrize("error", [RemoteProtocolError("no such thing"), EngineError("broken")])
def test_an_update_that_cannot_be_encoded_ends_its_streams(error):
    items = converted(FakeEncoder([b"x"], error), (4, 5))
    assert items == [StreamEnded(4, error), StreamEnded(5, error)]


def test_an_unexpected_error_is_logged_under_an_id(caplog):
    [item] = converted(FakeEncoder([b"x"], ZeroDivisionError("secret")), (4,))
    assert "secret" not in str(item.error)
    assert str(item.error).rsplit(" ", 1)[1] in caplog.text


def test_a_disconnect_ends_one_stream():
    error = SlowConsumerError(stalled_ns=2, stall_ns_max=1)
    assert list(convert(Disconnect(subscription_id=9, error=error))) == [StreamEnded(9, error)]
