"""How many bytes of numpy arrays an object keeps alive."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType

import numpy as np


def retained_bytes(root: object, *, beside: object) -> int:
    """Bytes of all buffers reachable from ``root`` and not from ``beside``."""
    known = {id(buffer) for buffer in _buffers(beside)}
    return sum(each.nbytes for each in _buffers(root) if id(each) not in known)


def _buffers(root: object) -> list[np.ndarray]:
    seen = {id(root)}
    waiting: list[object] = [root]
    found = []
    while waiting:
        each = waiting.pop()
        if isinstance(each, np.ndarray):
            if each.base is None:
                found.append(each)
            elif id(each.base) not in seen:
                seen.add(id(each.base))
                waiting.append(each.base)
            continue
        if isinstance(each, type | ModuleType | FunctionType):
            continue
        slots = [
            getattr(each, name)
            for kind in type(each).__mro__
            for name in getattr(kind, "__slots__", ())
            if isinstance(name, str) and hasattr(each, name)
        ]
        for other in (*gc.get_referents(each), *slots):
            if id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
    return found
