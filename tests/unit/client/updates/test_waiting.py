"""Waits of the main thread end when a signal came, whichever thread the kernel gave it to."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from barrage.client.updates.waiting import SECONDS_IN_ONE_GO, wait_in_turns

WAITS = {
    "an iterator": """
async def made():
    return UpdateQueue(4)
queue = asyncio.run(made())
wait = lambda: queue.next_blocking(None)
""",
    "a call": """
loop = LoopThread("calls")
wait = lambda: loop.call(asyncio.sleep(3600), None)
""",
}

INTERRUPTED = """
import asyncio, signal, threading, time
from barrage.client.synchronous.sync_loop import LoopThread
from barrage.client.updates.update_queue import UpdateQueue
# Whoever starts the tests in the background of a shell has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
{wait}
def interrupt():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    threading.Event().wait()
threading.Thread(target=interrupt, daemon=True).start()
try:
    wait()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("wait", WAITS)
def test_an_interrupt_given_to_another_thread_ends_a_wait(wait):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(wait=WAITS[wait])],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


class Event:
    """Comes at the nth look."""

    def __init__(self, comes: int) -> None:
        self.asked: list[float | None] = []
        self._comes = comes

    def wait(self, seconds: float | None) -> bool:
        self.asked.append(seconds)
        return len(self.asked) == self._comes


def test_the_main_thread_waits_in_turns_until_it_comes():
    event = Event(comes=3)
    assert wait_in_turns(event.wait, None)
    assert event.asked == [SECONDS_IN_ONE_GO] * 3


def test_other_threads_wait_in_one_go():
    event = Event(comes=2)
    told: list[bool] = []
    thread = threading.Thread(target=lambda: told.append(wait_in_turns(event.wait, 7.0)))
    thread.start()
    thread.join()
    assert (told, event.asked) == ([False], [7.0])


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_left_is_one_look(timeout):
    event = Event(comes=1)
    assert wait_in_turns(event.wait, timeout)
    assert event.asked == [0]


def test_a_timeout_shorter_than_a_turn_is_one_wait():
    event = Event(comes=9)
    assert not wait_in_turns(event.wait, SECONDS_IN_ONE_GO / 2)
    assert len(event.asked) == 1
    assert 0 <= event.asked[0] <= SECONDS_IN_ONE_GO / 2
