"""A source without a server: a table of generated rows of which only the requested window
exists."""

from __future__ import annotations

import pyarrow as pa

from barrage.cli.watch.scroller import RowWindow
from barrage.cli.watch.window_source import Frame, SourceStatus
from barrage.client import BodyCount, BodyStats, BodyStatus, BodyWay

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.float64())])


class FakeFeed:
    """Answers every request at once; ``tick`` changes the price of a row."""

    def __init__(self, table_size: int, *, key_columns: tuple[str, ...] = ()) -> None:
        self.schema = SCHEMA
        self.key_columns = key_columns
        self.table_size = table_size
        self.requests: list[RowWindow] = []
        self.prices: dict[int, float] = {}
        self.state = "live"
        self.lag_ms: float | None = 12.0
        self.bodies: BodyStatus | None = BodyStatus(BodyWay.SHM)
        self.failure: Exception | None = None
        self._version = 1
        self._window = RowWindow(start=0, stop=100)

    def request(self, window: RowWindow) -> None:
        if not self.requests or self.requests[-1] != window:
            self.requests.append(window)
            self._window = window
            self._version += 1

    def tick(self, row: int, price: float) -> None:
        self.prices[row] = price
        self._version += 1

    def append(self, rows: int) -> None:
        self.table_size += rows
        self._version += 1

    def frame(self) -> Frame:
        first = self._window.first_row(self.table_size)
        stop = (
            self.table_size if self._window.is_reverse else min(self._window.stop, self.table_size)
        )
        if self._window.is_reverse:
            stop = self.table_size - self._window.start
        ids = list(range(first, max(first, stop)))
        rows = pa.table(
            {
                "id": ids,
                "name": [f"row-{i}" for i in ids],
                "price": [self.prices.get(i, 1.0) for i in ids],
            },
            schema=SCHEMA,
        )
        return Frame(version=self._version, rows=rows, first_row=first, table_size=self.table_size)

    def status(self) -> SourceStatus:
        return SourceStatus(
            state=self.state,
            is_live=self.state == "live",
            updates_per_second=9.5,
            lag_ms=self.lag_ms,
            bodies=self.bodies,
            body_stats=BodyStats(inline=BodyCount(1, 80), shm=BodyCount(2, 70_000)),
            failure=self.failure,
        )
