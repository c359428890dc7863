"""A server under attack: a table that ticks, a subscriber who must not notice anything, and a count
of what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import barrage
from barrage.errors import BarrageError
from barrage.limits import Limits
from barrage.server.access.exports import Export
from barrage.server.settings.config import ServerConfig
from barrage.server.tables.table_lease import TableLease
from tests.helpers.living import Living, living
from tests.helpers.server_process import wait_until

ROWS = 10
SMALL = pa.table(
    {
        "a": pa.array(range(ROWS), pa.int64()),
        "i32": pa.array(range(ROWS), pa.int32()),
        "s": [f"t{i}" for i in range(ROWS)],
        "b": [i % 2 == 0 for i in range(ROWS)],
        "d": [float(i) for i in range(ROWS)],
        "f": pa.array(range(ROWS), pa.float32()),
        "c": pa.array(range(ROWS), pa.uint16()),
        "l": [[i] for i in range(ROWS)],
        "t": pa.array(range(ROWS), pa.timestamp("ns", "UTC")),
        "bin": [b"x"] * ROWS,
    }
)
LIMITS = Limits(export_wait_ns_max=50_000_000)


class Scene:
    """A server with a table that ticks, and a subscriber who must not notice anything."""

    def __init__(self, server: barrage.Server, exports: Living, leases: Living) -> None:
        self.server = server
        self._exports = exports
        self._leases = leases
        self.app: Any = server._app
        self._pause = threading.Event()
        self._ticks = server.create_table("ticks", {"x": "int64"}, is_read_only=True)
        server.create_table("full", key="k", data={"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]})
        server.create_table("small", data=SMALL)
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()
        self._session = barrage.connect(server.uri)
        self._live = self._session.table("ticks").subscribe(interval_ms=20)
        self._live.wait_ready(60)

    def _tick(self) -> None:
        number = 0
        while not self._pause.wait(0.01):
            with contextlib.suppress(BarrageError):
                self._ticks.add({"x": [number]})
            number += 1

    def end_ticking(self) -> None:
        self._pause.set()
        self._ticker.join()

    def check_the_subscriber(self) -> None:
        """It has every row, and no second subscription was needed for that."""
        self.end_ticking()
        rows = self.server.table("ticks").to_arrow()
        wait_until(lambda: len(self._live.to_arrow()) == len(rows))
        assert self._live.to_arrow()["x"].to_pylist() == list(range(len(rows)))

    def close(self) -> None:
        self.end_ticking()
        self._session.close()

    def remains(self) -> dict[str, int]:
        """What there is besides the subscriber's own stream."""
        counted = asyncio.run_coroutine_threadsafe(self._counted(), self.app._loop_of_test)
        found = counted.result(60)
        gc.collect()
        found["exports alive"] = len(self._exports)
        found["leases alive"] = len(self._leases)
        return {what: count for what, count in found.items() if count}

    async def _counted(self) -> dict[str, int]:
        app = self.app
        return {
            "sessions": len(app.sessions),
            "streams": app.stream_count - 1,
            "producers": len(app._runtime._producers) - 1,
            "shared": app._resolver.shared_count,
            "waiting for the end": len(app._deephaven._session._waiting),
            "followers": app._deephaven._application._watch.follower_count,
            "time tables": app._deephaven._tables._time_tables.ticking_count,
        }


@contextlib.contextmanager
def scene_of(**config: Any) -> Iterator[Scene]:
    config.setdefault("limits", LIMITS)
    with (
        living(Export) as exports,
        living(TableLease) as leases,
        barrage.Server(config=ServerConfig(**config)) as server,
    ):
        server._app._loop_of_test = server._loop  # type: ignore[union-attr]
        scene = Scene(server, exports, leases)
        try:
            yield scene
        finally:
            scene.close()
