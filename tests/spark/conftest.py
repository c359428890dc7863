"""One Spark session for the whole run; every test here is marked ``spark`` and skipped without
Java."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import barrage
from tests.spark.serving import serving
from tests.spark.session import has_java, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
HAS_SPARK = importlib.util.find_spec("pyspark") is not None and has_java()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is in this directory. Spark's own Python code leaves sockets to the collector and
    uses what pandas and Python deprecate; neither is ours to fail on."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            for ignored in (
                "ignore::ResourceWarning",
                "ignore::DeprecationWarning",
                "ignore::FutureWarning",
                "ignore::UserWarning:pyspark",
                "ignore::pytest.PytestUnraisableExceptionWarning",
            ):
                item.add_marker(pytest.mark.filterwarnings(ignored))
            if not HAS_SPARK:
                item.add_marker(pytest.mark.skip(reason="needs PySpark and Java 17"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session. Tests stop their own queries; a query left over is an error of the next test."""
    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_query_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stop the queries a failed test left, so that it does not slow down or fail the others."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    """A server in this process on a free port of 127.0.0.1, whose tables are journaled in memory
    unless they say otherwise."""
    with serving(journal="memory") as running:
        yield running


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for the checkpoint of one query."""
    return str(tmp_path / "checkpoint")
