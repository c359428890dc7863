"""The end of a server by a signal, whichever of its threads the system gives it to."""

from __future__ import annotations

import signal

import pytest

from tests.helpers import warm_python

SENDING = """
import signal, sys, threading

number = int(sys.argv[1])
is_waiting = threading.Event()

def send():
    # To this thread, not to the one that waits.
    is_waiting.wait()
    signal.pthread_kill(threading.get_ident(), number)
    threading.Event().wait()

threading.Thread(target=send, daemon=True).start()
"""
WAITING = """
from barrage.server.serving.stop_signals import StopSignals

with StopSignals() as signals:
    is_waiting.set()
    print(signals.wait(), flush=True)
"""
SERVING = """
from barrage.server import Server

server = Server()
server.start()

def look():
    while server._stop_signals is None:
        threading.Event().wait(0.002)
    is_waiting.set()

threading.Thread(target=look, daemon=True).start()
server.serve_forever()
print(number)
"""


@pytest.mark.parametrize("script", [WAITING, SERVING], ids=["signals", "server"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_another_thread_gets_is_heard(number: int, script: str) -> None:
    done = warm_python.run(["-c", SENDING + script, str(int(number))], timeout=60)
    assert (done.stdout, done.returncode) == (f"{int(number)}\n", 0), done.stderr
