"""Encoding once for many streams, with bounded memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.engine.changelog.making import Delivery, Disconnect
from barrage.errors import EngineError, RemoteProtocolError, SlowConsumerError
from barrage.limits import Limits
from barrage.rowset import RowSet
from barrage.server.bodies.body_frames import LooseFrame
from barrage.server.exchange import lazy_update
from barrage.server.exchange.delivery import convert
from barrage.server.exchange.exchange_messages import EncodedUpdate, PlannedUpdate, StreamEnded
from barrage.server.exchange.lazy_update import LazyUpdate
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.updates.update_codec import BEGINNING, EncodeOptions, Mark, UpdateEncoder
from tests.helpers.frame_factory import full_update


class FakeEncoder:
    """Frames are given; counts how many were made. Its own plan, whose marks are their numbers."""

    def __init__(self, frames: list[bytes], error: Exception | None = None) -> None:
        self.frames = frames
        self.error = error
        self.encoded = 0

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.frames))

    def plan(self, _message: object) -> FakeEncoder:
        if self.error is not None:
            raise self.error
        return self

    def frame_at(self, mark: Mark) -> tuple[bytes, Mark | None]:
        self.encoded += 1
        following = mark.start + 1
        is_last = following == len(self.frames)
        return self.frames[mark.start], None if is_last else Mark(0, following, 0)


def frames_of(count: int, size: int = 3) -> list[bytes]:
    return [bytes([number % 256]) * size for number in range(count)]


def converted(encoder: FakeEncoder, ids: tuple[int, ...]) -> list:
    """What streams get of an update: the loop makes the object they share."""
    events = convert(Delivery(message=None, subscription_ids=ids, encoding=encoder))
    return [LazyUpdate(each) if isinstance(each, PlannedUpdate) else each for each in events]


def test_one_frame_is_encoded_at_once_for_everybody():
    encoder = FakeEncoder(frames_of(1))
    [item] = converted(encoder, (1, 2, 3))
    assert isinstance(item, EncodedUpdate)
    assert (item.stream_ids, item.frames, item.byte_count) == ((1, 2, 3), (b"\0\0\0",), 3)


def test_several_frames_are_encoded_when_needed_and_once():
    encoder = FakeEncoder(frames_of(10))
    [item] = converted(encoder, (1, 2))
    assert isinstance(item, LazyUpdate)
    assert encoder.encoded == 1
    readers = [item.frames(), item.frames()]
    received = [[next(reader) for reader in readers] for _ in range(10)]
    assert [pair[0] for pair in received] == [pair[1] for pair in received] == frames_of(10)
    assert encoder.encoded == 10
    assert not item._frames
    assert all(next(reader, None) is None for reader in readers)


def test_a_reader_far_behind_encodes_for_itself(monkeypatch):
    monkeypatch.setattr(lazy_update, "WINDOW_BYTES_MAX", 12)
    encoder = FakeEncoder(frames_of(20))
    [item] = converted(encoder, (1, 2))
    fast, slow = item.frames(), item.frames()
    beginning = [next(slow) for _ in range(2)]
    assert list(fast) == frames_of(20)
    assert item._window_bytes <= 12
    assert beginning + list(slow) == frames_of(20)
    # Two it had at once, the last four are in the window: the others are encoded once more.
    assert encoder.encoded == 20 + 14


def test_a_frame_larger_than_the_window_is_kept_alone(monkeypatch):
    monkeypatch.setattr(lazy_update, "WINDOW_BYTES_MAX", 2)
    [item] = converted(FakeEncoder(frames_of(4)), (1, 2))
    first, second = item.frames(), item.frames()
    assert list(first) == frames_of(4)
    assert len(item._frames) == 1
    assert list(second) == frames_of(4)
    assert not item._frames


def test_frames_with_a_body_apart_have_a_larger_window(monkeypatch):
    monkeypatch.setattr(lazy_update, "WINDOW_BYTES_MAX", 12)
    monkeypatch.setattr(lazy_update, "OUTSIDE_WINDOW_BYTES_MAX", 48)
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
    assert encoder.encoded == 20 + 8


@pytest.mark.parametrize("error", [RemoteProtocolError("no such thing"), EngineError("broken")])
def test_an_update_that_cannot_be_encoded_ends_its_streams(error):
    items = converted(FakeEncoder([b"x"], error), (4, 5))
    assert items == [StreamEnded(stream_id=4, error=error), StreamEnded(stream_id=5, error=error)]


def test_an_unexpected_error_is_logged_under_an_id(caplog):
    [item] = converted(FakeEncoder([b"x"], ZeroDivisionError("secret")), (4,))
    assert "secret" not in str(item.error)
    assert str(item.error).rsplit(" ", 1)[1] in caplog.text


def test_a_disconnect_ends_one_stream():
    error = SlowConsumerError(stalled_ns=2, stall_ns_max=1)
    ended = StreamEnded(stream_id=9, error=error)
    assert list(convert(Disconnect(subscription_id=9, error=error))) == [ended]


class Encodings:
    """Counts the messages a real encoder makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        honest = UpdateEncoder._finish

        def counted(encoder: UpdateEncoder, *parts):
            self.count += 1
            return honest(encoder, *parts)

        monkeypatch.setattr(UpdateEncoder, "_finish", counted)


@pytest.mark.parametrize("behind", [1, 2, 400, 900])
def test_a_reader_that_falls_out_of_the_window_encodes_one_frame_per_step(
    monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """It goes on where it is, not from the beginning: all streams wait meanwhile."""
    schema = pa.schema([("n", pa.int64()), ("color", pa.dictionary(pa.int8(), pa.string()))])
    colors = pa.array(["red", "green", "blue", None]).dictionary_encode().cast(schema.types[1])
    columns = (pa.array(range(20_000)), pa.concat_arrays([colors] * 5000))
    rows = RowSet.of_span(0, 20_000)
    update = full_update(schema, added=rows, values=columns, is_snapshot=True)
    monkeypatch.setattr(lazy_update, "WINDOW_BYTES_MAX", 10_000)
    encoder = UpdateEncoder(schema, EncodeOptions(), Limits(message_bytes_target=180))
    [event] = convert(Delivery(message=update, subscription_ids=(1, 2), encoding=encoder))
    item = LazyUpdate(event)
    expected = list(encoder.encode(update))
    assert len(expected) > 950
    encodings = Encodings(monkeypatch)
    fast, slow = item.frames(), item.frames()
    together = [(next(slow), next(fast)) for _ in range(behind)]
    received = [frame for frame, _ in together]
    assert received + list(fast) == expected
    steps = []
    while True:
        before = encodings.count
        frame = next(slow, None)
        steps.append(encodings.count - before)
        if frame is None:
            break
        received.append(frame)
    assert received == expected
    assert max(steps) == 1


def test_a_reader_that_catches_up_shares_the_window_again(monkeypatch) -> None:
    monkeypatch.setattr(lazy_update, "WINDOW_BYTES_MAX", 12)
    encoder = FakeEncoder(frames_of(20))
    [item] = converted(encoder, (1, 2))
    ahead, behind = item.frames(), item.frames()
    received = [[next(ahead) for _ in range(8)], [next(behind) for _ in range(8)]]
    encoded = encoder.encoded
    assert encoded > 8, "it had fallen out of the window"
    for reader, frames in zip((behind, ahead), received, strict=True):
        frames += list(reader)
        assert frames == frames_of(20)
    assert encoder.encoded == encoded + 12 + 8, "the one that is behind now falls out in its turn"


def test_a_reader_out_of_the_window_plans_nothing_again() -> None:
    """Dictionaries and row sets are made once per update, whoever encodes."""
    encoder = FakeEncoder(frames_of(30, size=lazy_update.WINDOW_BYTES_MAX))
    update = PlannedUpdate(stream_ids=(1, 2), plan=encoder.plan(None), mark=BEGINNING)
    item = LazyUpdate(update)
    encoder.error = EngineError("planned again")
    first, second = item.frames(), item.frames()
    assert list(first) == list(second) == encoder.frames
