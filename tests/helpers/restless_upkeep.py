"""``RESTLESS_SUITE=1``: what servers do now and then they do all the time.

Statistics appear and change, sessions are swept, files of users and rules are looked at: a test
that is green only while it is done before the first of that fails here, not once in twenty runs of
a busy machine. ``make restless`` runs the default suite so.
"""

from __future__ import annotations

import os
from importlib import import_module

INTERVALS = {
    "barrage.relay.relay_statistics": "INTERVAL_S",
    "barrage.server.alerting.alert_statistics": "INTERVAL_S",
    "barrage.server.serving.spare_memory": "INTERVAL_S",
    "barrage.server.statistics.body_statistics": "INTERVAL_S",
    "barrage.server.statistics.caller_statistics": "INTERVAL_S",
    "barrage.server.statistics.connector_statistics": "INTERVAL_S",
    "barrage.server.statistics.journal_statistics": "INTERVAL_S",
    "barrage.server.statistics.server_statistics": "INTERVAL_S",
    "barrage.server.statistics.thread_statistics": "INTERVAL_S",
}
RESTLESS_S = 0.03


def pytest_configure() -> None:
    if not os.environ.get("RESTLESS_SUITE"):
        return
    for module, name in INTERVALS.items():
        assert getattr(import_module(module), name) > RESTLESS_S
        setattr(import_module(module), name, RESTLESS_S)
    import_module("barrage.server.serving.app").SWEEP_INTERVAL_MS_MAX = int(RESTLESS_S * 1000)
