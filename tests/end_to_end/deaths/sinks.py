"""Workers of the Spark source and sink."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from barrage.errors import WorkerDiedError
from spark_sink import table_follower
from spark_sink.connection import ServerConnection
from spark_sink.fetch import StallGuard
from spark_sink.table_follower import TableFollower
from spark_sink.ticking_table import TickingTableError, TickingView
from spark_sink.watch import TableWatch
from tests.end_to_end.deaths.killing import HANG_SECONDS, Killing, die, kills, refusal


@kills("barrage-follow")
def follow(killing: Killing) -> None:
    killing.patches.setattr(table_follower, "open_session", die)
    told: list[Exception] = []
    has_failed = threading.Event()

    def fail(error: Exception) -> None:
        told.append(error)
        has_failed.set()

    options: Any = SimpleNamespace(connection=None, table="t")
    TableFollower(options, lambda *_: None, fail)
    assert has_failed.wait(HANG_SECONDS)
    assert [type(error) for error in told] == [WorkerDiedError]


@kills("barrage-watch")
def watch(killing: Killing) -> None:
    killing.patches.setattr(TableWatch, "_follow", die)
    connection = ServerConnection.of({"uri": "grpc://127.0.0.1:1", "fetchTimeoutMs": "60000"})
    watching = TableWatch(connection, "t", consumer="me", lease_ms=1000)
    assert isinstance(refusal(watching.newest), WorkerDiedError)
    watching.close()


@kills("barrage-view")
def view(killing: Killing) -> None:
    killing.patches.setattr(TickingView, "_watch", die)
    plan: Any = SimpleNamespace(
        root=str(killing.directory), feed=None, table="t", checkpoint=str(killing.directory)
    )
    patches = killing.patches
    patches.setattr("spark_sink.ticking_table.BatchApplier", lambda _: None)
    patches.setattr("spark_sink.ticking_table.StateReader", lambda *_: None)
    ticking = TickingView(Anything(), plan, view="t", is_temporary=False)
    ticking._start(Anything(), {})
    with pytest.raises(TickingTableError, match="barrage-view has died"):
        ticking.wait_for(1, HANG_SECONDS)
    ticking.stop()


class Anything:
    """A query that runs and never fails."""

    isActive = True  # noqa: N815

    def exception(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name == "_jsparkSession":
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


class Odd(float):
    """A number of seconds that cannot be divided."""

    __truediv__ = die  # type: ignore[assignment]


@kills("barrage-stall")
def stall(killing: Killing) -> None:
    cancelled = []
    guard = StallGuard(SimpleNamespace(cancel=lambda: cancelled.append(True)), Odd(1))
    guard._thread.join(HANG_SECONDS)
    assert cancelled == [True]
