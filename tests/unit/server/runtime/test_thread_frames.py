"""Asking where threads are never stops the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

from barrage.server.runtime import thread_frames as module
from barrage.server.runtime.thread_frames import thread_frames

HANG_SECONDS = 120

LOOKING_WHILE_THREADS_BEGIN_AND_END = """
import gc, os, sys, threading
from barrage.server.runtime.thread_frames import thread_frames

is_over = threading.Event()

def begin_and_end():
    while not is_over.is_set():
        begun = threading.Thread(target=int)
        begun.start()
        begun.join()

gc.callbacks.append(lambda *_: sum(range(20)))
sys.setswitchinterval(1e-6)
for _ in range(3):
    threading.Thread(target=begin_and_end, daemon=True).start()
gc.set_threshold(1)
for _ in range(300_000):
    thread_frames()
os._exit(7)
"""


@pytest.mark.further
def test_nobody_waits_for_ever_when_garbage_is_collected_meanwhile():
    """With ``sys._current_frames`` itself, Python 3.11 stands still within some 100,000 looks."""
    program = [sys.executable, "-c", LOOKING_WHILE_THREADS_BEGIN_AND_END]
    assert subprocess.run(program, timeout=HANG_SECONDS).returncode == 7


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_is_as_it_was(monkeypatch, is_on, fails):
    def asked():
        assert not gc.isenabled()
        if fails:
            raise MemoryError
        return {}

    monkeypatch.setattr(module, "COLLECTS_WITHIN", True)
    monkeypatch.setattr(sys, "_current_frames", asked)
    before = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        if fails:
            with pytest.raises(MemoryError):
                thread_frames()
        else:
            assert thread_frames() == {}
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if before else gc.disable)()


def test_frames_are_those_of_this_moment(monkeypatch):
    for collects_within in (True, False):
        monkeypatch.setattr(module, "COLLECTS_WITHIN", collects_within)
        frame = thread_frames()[threading.get_ident()]
        while frame.f_code.co_name != "test_frames_are_those_of_this_moment":
            assert frame.f_back is not None
            frame = frame.f_back
