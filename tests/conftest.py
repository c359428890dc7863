"""Hypothesis profiles, what the default run does not even look at, and fixtures every test may
use."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.helpers.cpu_seconds",
    "tests.helpers.hanging_tests",
    "tests.helpers.restless_upkeep",
    "tests.helpers.sampling",
]

EXAMPLES = 5
"""Of each property in the default run, the same ones every time; the profile ``ci`` has other ones
and more, ``nightly`` (``make property``) thousands. See :mod:`tests.helpers.examples` for what is
expensive."""

settings.register_profile(
    "default-run",
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
for _name, _count in (("ci", 100), ("nightly", 5000)):
    settings.register_profile(
        _name, max_examples=_count, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default-run"))

_MARKED = {
    **{name: name for name in ("chaos", "connectors", "interop", "spark", "ucx", "web")},
    "flight_js": "npm",
}
"""Directories in which every test has one mark."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules of which no test would be selected: each worker of a run collects all
    there is by itself."""
    mark = _MARKED.get(collection_path.name)
    if mark is None or collection_path.parent != Path(__file__).parent:
        return None
    chosen = config.option.markexpr
    if not chosen or Expression.compile(chosen).evaluate(lambda name, **_: name == mark):
        return None
    return True


def pytest_collection_finish() -> None:
    """Thousands of tests and the modules they import are there until the end: a pass of the garbage
    collector is not to walk through them each time."""
    gc.collect()
    gc.freeze()
