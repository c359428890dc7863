"""Every test here is marked ``ucx`` and skipped where no UCX library can be opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from barrage.client.bodies import body_routes
from barrage.errors import TransportUnavailableError
from barrage.transport.ucx import UcxLibrary, load_library

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ucx)


@pytest.fixture(scope="session", autouse=True)
def library() -> UcxLibrary:
    """The one library of this process (``BARRAGE_UCX_LIBRARY``)."""
    try:
        return load_library()
    except TransportUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client goes inline when connecting takes a second. On a busy machine it may, and then
    nothing of what these tests are about would be tested."""
    monkeypatch.setattr(body_routes, "CONNECT_SECONDS_MAX", 30.0)


@pytest.fixture(autouse=True)
def nothing_is_left(library: UcxLibrary) -> Iterator[None]:
    """Contexts, workers and operations of a test end with it."""
    yield
    assert not library.contexts
    assert not library.workers
    assert not library.operations
