"""A test that hangs shows where every thread stands, and its process ends.

pytest's own ``faulthandler_timeout`` does that with a thread for each test, which it starts and
waits for: beside busy loops that costs more than most tests do. Here one timer is put off from time
to time.
"""

from __future__ import annotations

import faulthandler
import os
import time

import pytest

HANGS_AFTER_S = 600
PUT_OFF_S = 60
"""A test is given up to that much more, and costs nothing."""


class HangingTests:
    def __init__(self) -> None:
        # pytest takes the descriptor itself while a test runs.
        self._stderr = os.dup(2)
        self._put_off_at = -float(PUT_OFF_S)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        if time.monotonic() - self._put_off_at < PUT_OFF_S:
            return
        self._put_off_at = time.monotonic()
        faulthandler.dump_traceback_later(HANGS_AFTER_S + PUT_OFF_S, file=self._stderr, exit=True)

    def pytest_enter_pdb(self) -> None:
        faulthandler.cancel_dump_traceback_later()

    def pytest_unconfigure(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.close(self._stderr)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(HangingTests())
