"""How far queries are behind, out of what Spark reports of each batch.

Spark shows ``reportLatestOffset`` of a Python source as ``latestOffset`` in a query's progress, and
no other metric of it. The reader puts the distance into that offset; the listener here turns it
into numbers, named as Kafka's source names its own.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_sink.offsets import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

QUERIES_KEPT = 1000
"""Queries whose last numbers are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far one source of a query is behind its table, as of one batch. None: not known."""

    query_id: str
    batch: int
    source: int
    """Which of the query's sources, from 0."""
    epoch: str
    version: int
    """Read up to here."""
    versions_behind_latest: int | None
    """Steps of the server between what was read and the newest version."""
    rows_behind_latest: int | None
    """Rows of the change feed not read yet."""
    seconds_behind_latest: float | None
    """Time between the commits of the last version read and of the newest."""

    def as_dict(self) -> dict[str, float | int | None]:
        """The numbers by the names Kafka's users look for."""
        return {
            "versionsBehindLatest": self.versions_behind_latest,
            "rowsBehindLatest": self.rows_behind_latest,
            "secondsBehindLatest": self.seconds_behind_latest,
        }


def lags_of(progress: Any) -> list[Lag]:
    """The lag of every Barrage source in a ``StreamingQueryProgress``."""
    found = []
    for number, source in enumerate(progress.sources):
        latest, end = _json(source.latestOffset), _json(source.endOffset)
        if latest is None or "timestampMs" not in latest:
            continue
        try:
            offset = Offset.of(end)
        except ValueError:
            continue
        found.append(
            Lag(
                query_id=str(progress.id),
                batch=progress.batchId,
                source=number,
                epoch=offset.epoch,
                version=offset.version,
                versions_behind_latest=latest.get("versionsBehindLatest"),
                rows_behind_latest=latest.get("rowsBehindLatest"),
                seconds_behind_latest=latest.get("secondsBehindLatest"),
            )
        )
    return found


def _json(text: Any) -> dict[str, Any] | None:
    """A JSON object in a text, or None: other sources report other things."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError):
        return None
    return found if isinstance(found, dict) else None


class BarrageLagListener(StreamingQueryListener):
    """Keeps the last lag of each query, and tells each to ``tell`` if given::

    listener = BarrageLagListener(lambda lag: gauge.set(lag.rows_behind_latest))
    spark.streams.addListener(listener)
    listener.lags(query.id)
    """

    def __init__(self, tell: Callable[[Lag], None] | None = None) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._lags: OrderedDict[str, list[Lag]] = OrderedDict()

    def lags(self, query_id: str) -> list[Lag]:
        """The last known lags of a query's Barrage sources."""
        with self._lock:
            return list(self._lags.get(str(query_id), ()))

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's names)
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        lags = lags_of(event.progress)
        if not lags:
            return
        with self._lock:
            self._lags[lags[0].query_id] = lags
            self._lags.move_to_end(lags[0].query_id)
            while len(self._lags) > QUERIES_KEPT:
                self._lags.popitem(last=False)
        if self._tell is not None:
            for lag in lags:
                self._tell(lag)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        with self._lock:
            self._lags.pop(str(event.id), None)
