"""What users get wrong with the Python client, and the errors they read."""

from __future__ import annotations

import pytest

import barrage
from barrage.errors import ConfigError


@pytest.fixture
def server():
    with barrage.Server() as running:
        running.create_table("t", data={"x": list(range(10)), "y": ["a"] * 10})
        yield running


def test_an_unknown_revision_names_the_known_ones(server):
    with pytest.raises(ConfigError, match=r"'1999' is not one of 1\.0\.0, 2020"):
        barrage.connect(server.uri, revision="1999")
