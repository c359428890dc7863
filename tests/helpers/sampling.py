"""Of a test with very many cases the default run has some: ``@pytest.mark.sampled(3)`` above its
parameters keeps every third and marks the others ``further``, which ``make test-further`` runs.

A number that divides how many values one parameter has would keep the same value of it every time.
"""

from __future__ import annotations

from collections import Counter

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None:
            continue
        test = item.nodeid.partition("[")[0]
        if seen[test] % mark.args[0]:
            item.add_marker("further")
        seen[test] += 1
