"""The test over all roles there are."""

from __future__ import annotations

import importlib

import pytest

from barrage.supervision import roles
from tests.end_to_end.deaths import clients, doors, relays, servers, sinks, ucx_streams
from tests.end_to_end.deaths.killing import SCENARIOS, Killing
from tests.helpers.held_up import load_everything

for module in ("fetch", "table_follower", "ticking_table", "watch"):
    importlib.import_module(f"spark_sink.{module}")
load_everything()

MADE_BY = (clients, doors, relays, servers, sinks, ucx_streams)
ROLES = sorted(name for name in roles() if name != "test")
"""All but the one that the supervisor's own tests declare."""


@pytest.mark.parametrize("role", ROLES)
def test_whatever_dies_is_missed_at_once_and_by_nobody_else(role, monkeypatch, caplog, tmp_path):
    assert role in SCENARIOS, "a worker needs a scenario in which it is killed"
    killing = Killing(role, monkeypatch, caplog, tmp_path)
    SCENARIOS[role](killing)
    killing.check()


def test_every_scenario_kills_a_role_that_there_is():
    assert sorted(SCENARIOS) == ROLES
