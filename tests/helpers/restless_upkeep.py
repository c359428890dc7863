"""``RESTLESS_SUITE=1``: what servers do now and then they do all the time.

Statistics appear and change, sessions are swept, files of users and rules are looked at: a test
that is green only while it is done before the first of that fails here, not once in twenty runs of
a busy machine. ``make restless`` runs the default suite so.
"""

from __future__ import annotations

import os
from importlib import import_module

KEEPERS = (
    "barrage.relay.relay_statistics",
    "barrage.server.alerting.alert_statistics",
    "barrage.server.serving.spare_memory",
    "barrage.server.statistics.body_statistics",
    "barrage.server.statistics.caller_statistics",
    "barrage.server.statistics.connector_statistics",
    "barrage.server.statistics.journal_statistics",
    "barrage.server.statistics.server_statistics",
    "barrage.server.statistics.thread_statistics",
)
"""Modules with an ``INTERVAL_S``."""
RESTLESS_S = 0.03


def pytest_configure() -> None:
    if not os.environ.get("RESTLESS_SUITE"):
        return
    for keeper in map(import_module, KEEPERS):
        assert keeper.INTERVAL_S > RESTLESS_S
        keeper.INTERVAL_S = RESTLESS_S
    import_module("barrage.server.serving.upkeep").INTERVAL_MS_MAX = int(RESTLESS_S * 1000)
