"""``pytest --cpu-seconds``: where the CPU time of a run goes, by file.

Counted are the process of the tests with all its threads and the children that it has waited for,
so a file's figure holds what its servers and commands cost, and the first test of a shared fixture
has the fixture's cost. What is spent before the first test is importing and collecting; each worker
of a run does that by itself.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import warm_python

OUTSIDE = "(starting, importing, collecting)"
PROPERTY = "cpu_seconds"


def _spent() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return warm_python.cpu_seconds[0] + sum(each.ru_utime + each.ru_stime for each in used)


class CpuSeconds:
    """Measures in the process that runs tests, and adds up where the reports arrive."""

    def __init__(self, *, is_worker: bool) -> None:
        self._is_worker = is_worker
        self._told_of_start = False
        self._by_file: dict[str, float] = defaultdict(float)
        self._by_test: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if not self._told_of_start:
            self._told_of_start = True
            item.user_properties.append((OUTSIDE, _spent()))
        self._before = _spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        now = _spent()
        item.user_properties[:] = [p for p in item.user_properties if p[0] != PROPERTY]
        item.user_properties.append((PROPERTY, now - self._before))
        self._before = now
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, seconds in report.user_properties:
            if name == OUTSIDE and report.when == "setup":
                self._by_file[OUTSIDE] += seconds
            elif name == PROPERTY:
                self._by_file[report.nodeid.partition("::")[0]] += seconds
                self._by_test[report.nodeid] += seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._is_worker:
            return
        total = sum(self._by_file.values())
        terminalreporter.section(f"CPU seconds: {total:.0f}")
        for what in (self._by_file, self._by_test):
            most = sorted(what.items(), key=lambda each: -each[1])
            for name, seconds in most[:60]:
                terminalreporter.write_line(f"{seconds:7.2f}  {name}")
            rest = sum(seconds for _, seconds in most[60:])
            terminalreporter.write_line(f"{rest:7.2f}  the other {len(most[60:])}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", action="store_true", help="CPU seconds of each test file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--cpu-seconds"):
        is_worker = hasattr(config, "workerinput")
        config.pluginmanager.register(CpuSeconds(is_worker=is_worker), "cpu-seconds")
