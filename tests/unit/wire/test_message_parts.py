"""A message in parts is the message, and its large parts are where they were."""

import numpy as np
import pyarrow as pa

from barrage.wire.message_parts import MessageParts


def test_small_parts_are_put_together_and_large_ones_left_where_they_are():
    large = np.arange(1000)
    buffer = pa.py_buffer(bytes(range(256)) * 32)
    message = MessageParts([b"a", b"", memoryview(b"bc"), large, buffer, b"d" * 4095, b"e"])
    assert bytes(message) == b"abc" + large.tobytes() + buffer.to_pybytes() + b"d" * 4095 + b"e"
    assert len(message) == 3 + 8000 + 8192 + 4096
    assert [len(view) for view in message.views] == [3, 8000, 8192, 4096]
    large[0] = 7
    assert bytes(message)[3] == 7


def test_a_message_of_nothing_has_no_parts():
    message = MessageParts([b"", np.empty(0)])
    assert (len(message), message.views, bytes(message)) == (0, [], b"")
