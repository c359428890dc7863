"""Measures in the formats of Prometheus: its text format, and OpenMetrics for who asks for it.

Needs ``prometheus_client``, which is imported when metrics are first asked for.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from barrage.errors import ConfigError
from barrage.histogram import BOUNDS_S
from barrage.server.statistics.server_measures import MEASURES, MeasureKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.server.statistics.server_measures import Measure

PREFIX = "barrage_"
NEEDED = 'metrics need the package prometheus_client: pip install "barrage[metrics]"'


def check_available() -> None:
    """ConfigError when the package is not there."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigError(NEEDED) from None


def exposition(measures: Iterable[Measure], accept: str = "") -> tuple[bytes, str]:
    """The measures as text, and what kind of text that is; ``accept`` is the header of the request.
    Beside them stands what the process costs. Any thread."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    found = _Collected(list(measures))
    return encode(found), content_type


class _Collected:
    """What the encoders take for a registry."""

    def __init__(self, measures: list[Measure]) -> None:
        self._measures = measures

    def collect(self) -> Iterable[Any]:
        """The families, each with all of its samples."""
        from prometheus_client.core import InfoMetricFamily
        from prometheus_client.process_collector import ProcessCollector

        by_name: dict[str, list[Measure]] = {}
        for measure in self._measures:
            by_name.setdefault(measure.name, []).append(measure)
        for name, values in by_name.items():
            yield _family(name, values)
        yield InfoMetricFamily(
            f"{PREFIX}build",
            "Versions.",
            value={"version": version("barrage"), "python": platform.python_version()},
        )
        yield from ProcessCollector(registry=None).collect()


def _family(name: str, values: list[Measure]) -> Any:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    info = MEASURES[name]
    labels = [info.label] if info.label else []
    if info.kind is MeasureKind.HISTOGRAM:
        family = HistogramMetricFamily(PREFIX + name, info.text)
        for measure in values:
            assert measure.reading is not None
            bounds = [*(repr(bound) for bound in BOUNDS_S), "+Inf"]
            buckets = list(zip(bounds, measure.reading.cumulative, strict=True))
            family.add_metric([], buckets, sum_value=measure.reading.total_ns / 1e9)
        return family
    kind = CounterMetricFamily if info.kind is MeasureKind.COUNTER else GaugeMetricFamily
    plain = kind(PREFIX + name, info.text, labels=labels)
    for measure in values:
        plain.add_metric([measure.label] if labels else [], measure.value)
    return plain
