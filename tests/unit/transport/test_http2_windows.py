"""Any order of sending, reading and giving window, against h2's client, which raises when a window
is passed or a frame is wrong: all that is sent comes, in order."""

from __future__ import annotations

import h2.settings
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.transport.http2_peer import H2Client, grpc_message, messages_of

NUMBERS = (1, 3, 5)
ENOUGH = 1 << 24


class Crossing:
    """Three calls of one connection with small windows; a method for each step."""

    def __init__(self):
        self.client = H2Client(window=1000, http2_stream_window_bytes=20_000)
        self.server = self.client.server
        self.streams = {number: self.client.open(number) for number in NUMBERS}
        self.sent = dict.fromkeys(NUMBERS, b"")
        self.asked = {number: [] for number in NUMBERS}
        self.read = {number: [] for number in NUMBERS}
        for stream in self.streams.values():
            self.client.respond(stream)

    def try_send(self, number, size):
        content = bytes([size % 251]) * size
        if self.server.try_send(self.streams[number], content):
            self.sent[number] += grpc_message(content)

    def queue(self, number, size):
        content = bytes([size % 251]) * size
        self.server.queue(self.streams[number], content, None)
        self.sent[number] += grpc_message(content)

    def credit(self, number, size):
        self.client.credit(size + 1, number)

    def credit_connection(self, _, size):
        self.client.credit(size + 1)

    def settings(self, _, size):
        self.client.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: size})

    def ask(self, number, size):
        content = bytes([size % 251]) * min(size, 16_379)
        if len(content) + 5 <= self.client.client.local_flow_control_window(number):
            self.client.client.send_data(number, grpc_message(content))
            self.asked[number].append(content)

    def take(self, number, _):
        self.read[number] += messages_of(self.server, self.streams[number])

    def want(self, number, _):
        self.server.want(self.streams[number])

    def pause(self, *_):
        self.server.is_paused = not self.server.is_paused

    def pump(self, _, size):
        self.client.pump(size + 1)

    def settle(self):
        """Give all the window there is, and read everything."""
        self.server.is_paused = False
        for number, stream in self.streams.items():
            self.client.pump()
            self.take(number, 0)
            self.client.credit(ENOUGH, number)
            self.client.end(stream)
        self.client.credit(ENOUGH)
        self.client.pump()


STEPS = [name for name in vars(Crossing) if not name.startswith("_") and name != "settle"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(STEPS),
            st.sampled_from(NUMBERS),
            st.integers(0, 3000) | st.integers(0, 40_000),
        ),
        max_size=60,
    )
)
def test_all_that_is_sent_comes_in_order_whatever_the_windows_do(steps):
    crossing = Crossing()
    for name, number, size in steps:
        getattr(crossing, name)(number, size)
    crossing.settle()
    for number, stream in crossing.streams.items():
        assert crossing.client.received.get(number, b"") == crossing.sent[number]
        assert crossing.read[number] == crossing.asked[number]
        assert stream.is_closed
    assert crossing.server.streams == {}
    assert crossing.server.queued_bytes == crossing.server._partial == 0
