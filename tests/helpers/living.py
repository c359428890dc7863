"""How many objects of a class there are.

Asking the garbage collector (``gc.get_objects``) is not safe beside other threads: it hands out
tuples that are still being made. Here every instance is counted when it is made and by the end of
a weak reference, which is never followed: following one could make this thread the last user of
what another thread is to free.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any


class Living:
    """Counts the instances of ``kind`` that were made since."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._made = kind.__init__
        self._references: dict[int, weakref.ref[Any]] = {}

    def __len__(self) -> int:
        return len(self._references)

    def begin(self) -> Living:
        made, references = self._made, self._references

        @functools.wraps(made)
        def init(instance: Any, *arguments: Any, **named: Any) -> None:
            identity = id(instance)  # Nobody else's for as long as it is in there.
            references[identity] = weakref.ref(instance, lambda _: references.pop(identity, None))
            made(instance, *arguments, **named)

        self._kind.__init__ = init  # type: ignore[misc]
        return self

    def end(self) -> None:
        self._kind.__init__ = self._made  # type: ignore[misc]


@contextlib.contextmanager
def living(kind: type) -> Iterator[Living]:
    """Counts while the block runs."""
    counted = Living(kind).begin()
    try:
        yield counted
    finally:
        counted.end()
