"""What producers say, one message at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from barrage.engine.changelog import reader, table_changelog
from barrage.engine.changelog.making import Delivery, Disconnect, Making, Told, ViewDelivery


def each_told(items: Iterable[Told]) -> Iterator[Delivery | Disconnect | Making]:
    """The same with views that are told together taken apart."""
    for item in items:
        if isinstance(item, ViewDelivery):
            yield from item.deliveries()
        else:
            yield item


@contextlib.contextmanager
def views_together_from(count: int) -> Iterator[None]:
    """Tell so many views of one kind, and more, together."""
    before = table_changelog.VIEWS_TOGETHER_MIN
    table_changelog.VIEWS_TOGETHER_MIN = count
    try:
        yield
    finally:
        table_changelog.VIEWS_TOGETHER_MIN = before


@contextlib.contextmanager
def arrays_of_bytes(count: int) -> Iterator[None]:
    """No array of values holds more bytes."""
    before = reader.ARRAY_BYTES_MAX
    reader.ARRAY_BYTES_MAX = count
    try:
        yield
    finally:
        reader.ARRAY_BYTES_MAX = before
