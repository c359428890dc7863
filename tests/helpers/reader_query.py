"""A stream reader driven as Spark drives it, without Spark: one asks, a pickled copy reads, and an
oracle applies the feed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark_barrage import DefaultSource
from spark_sink.types import arrow_target
from tests.helpers.server_process import wait_until
from tests.spark.feeds import apply_feed


class Query:
    """A reader with the offset it is at and the table its feed describes."""

    def __init__(self, uri: str, location: Path, table: str = "trades", **options: str) -> None:
        self.given = {"uri": uri, "table": table, "journalLocation": str(location), **options}
        self.state: dict[int, dict] = {}
        self.offset: dict | None = None
        self.kinds: list[str] = []
        self.open()

    def open(self) -> None:
        source = DefaultSource(self.given)
        self.schema = source.schema()
        self.reader = source.streamReader(self.schema)
        self.copy = pickle.loads(pickle.dumps(self.reader))
        self.offset = self.offset or self.reader.initialOffset()

    def target(self) -> Any:
        """The Arrow schema of the feed."""
        return arrow_target(self.schema)

    def batch(self, *, is_committed: bool = True) -> bool:
        end = self.reader.latestOffset(self.offset, None)
        if end == self.offset:
            return False
        feed: list[dict] = []
        for partition in self.reader.partitions(self.offset, end):
            for rows in self.copy.read(pickle.loads(pickle.dumps(partition))):
                assert rows.schema.equals(arrow_target(self.schema))
                feed += rows.to_pylist()
        self.kinds = [row["_change_type"] for row in feed]
        apply_feed(self.state, feed)
        self.offset = end
        if is_committed:
            self.reader.commit(end)
        return True

    def values(self) -> list[dict]:
        return sorted(self.state.values(), key=repr)

    def follow(self, table: Any, timeout: float = 10.0) -> None:
        """Read until the rows are those of the table."""
        self.follow_to(lambda: table.to_arrow().to_pylist(), timeout)

    def follow_to(self, rows: Callable[[], list[dict]], timeout: float = 10.0) -> None:
        """Read until the rows are these."""

        def is_equal() -> bool:
            self.batch()
            return self.values() == sorted(rows(), key=repr)

        wait_until(is_equal, timeout)
