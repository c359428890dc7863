"""The source that is killed: ``python -m tests.chaos.connector_driver PORT DIALECT LAST FILE``.

Sends messages 1 to LAST of each stream, from wherever the worker says, and connects again when it
loses the connection. The last of them it keeps back until FILE is there. It prints ``ack STREAM
NUMBER`` for everything that is acknowledged and ``done`` when that is all.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from barrage.wire.connector.frame_values import Dialect
from tests.helpers.connector_source import SocketSource

PROGRAM = "feed"
STREAMS = {Dialect.PUBLISHED: (1, 2, 3), Dialect.DRAFT: (11, 12)}
UNSTABLE = 8
KEPT_BACK = 100


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def flags_of(dialect: Dialect, number: int, last: int) -> int:
    """In the draft every fifth message alone is a place to go on from."""
    is_unstable = dialect is Dialect.DRAFT and number % 5 and number < last
    return UNSTABLE if is_unstable else 0


def run(port: int, dialect: Dialect, last: int, may_end: Path) -> None:
    """Until all is acknowledged."""
    while True:
        try:
            source = SocketSource(port, PROGRAM, dialect=dialect)
        except (OSError, EOFError):
            time.sleep(0.02)
            continue
        try:
            feed(source, dialect, last, may_end)
        except (OSError, EOFError):
            continue
        finally:
            source.close()
        say("done")
        return


def feed(source: SocketSource, dialect: Dialect, last: int, may_end: Path) -> None:
    streams = STREAMS[dialect]
    source.announce(*streams)
    following = {stream: (source.opened[stream] or 0) + 1 for stream in streams}
    told = {stream: 0 for stream in streams}
    source.safe = {stream: source.opened[stream] or 0 for stream in streams}
    while min(source.safe[stream] for stream in streams) < last:
        bound = last if may_end.exists() else last - KEPT_BACK
        for stream, number in following.items():
            upto = max(number, min(number + 20, bound + 1))
            for each in range(number, upto):
                source.send(stream, each, flags=flags_of(dialect, each, last))
            following[stream] = upto
        if all(number > last for number in following.values()):
            source.receive()
        elif all(number > bound for number in following.values()):
            time.sleep(0.02)
        for stream, number in source.safe.items():
            if number > told[stream]:
                told[stream] = number
                say(f"ack {stream} {number}")


if __name__ == "__main__":
    run(int(sys.argv[1]), Dialect(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
