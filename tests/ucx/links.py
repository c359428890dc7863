"""Links between network namespaces."""

from __future__ import annotations

import subprocess
import time

SECONDS_MAX = 30.0


def wait_until_up(space: str | None, device: str) -> None:
    """Until a new link carries packets, which the kernel says a little after it was switched on:
    UCX 1.13 takes a device that does not yet for one that is not there."""
    within = [] if space is None else ["-n", space]
    command = ["ip", *within, "-o", "link", "show", "dev", device]
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
        if " state UP " in shown.stdout:
            return
        time.sleep(0.02)
    raise AssertionError(f"{device} does not come up: {shown.stdout}")
