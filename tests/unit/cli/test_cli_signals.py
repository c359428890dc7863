"""The end of a server by a signal, whichever of its threads the system gives it to."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import signal, sys, threading
from barrage.cli.running_server import StopSignals

number = int(sys.argv[1])
is_waiting = threading.Event()

def send():
    # To this thread, not to the one that waits.
    is_waiting.wait()
    signal.pthread_kill(threading.get_ident(), number)
    threading.Event().wait()

with StopSignals() as signals:
    threading.Thread(target=send, daemon=True).start()
    is_waiting.set()
    print(signals.wait(), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_another_thread_gets_is_heard(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(int(number))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == (f"{int(number)}\n", 0), done.stderr
