"""JSON of a peer: how deep it may nest, and what no text may hold, said in one place.

Readers of JSON call themselves for each bracket that opens, so whoever nests thousands of them
makes one fail that was not asked first. The text is asked here, by counting, before it is read.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from barrage.limits import JSON_DEPTH_MAX

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""The last one may have no end."""

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


class JsonTextError(ValueError):
    """A text of a peer that is not JSON, or none that is read."""


class DeepJsonError(JsonTextError):
    """It nests deeper than any that is meant."""

    def __init__(self, depth: int) -> None:
        super().__init__(f"it nests {depth} deep, the limit is {JSON_DEPTH_MAX}")


def read_json(text: bytes | memoryview | str) -> Any:
    """The value that a text says; JsonTextError."""
    data = checked_json(text)
    try:
        return msgspec.json.decode(data)
    except ValueError as error:
        raise JsonTextError(str(error)) from None


def checked_json(text: bytes | memoryview | str) -> bytes:
    """The same text in UTF-8, fit for a reader: DeepJsonError, and JsonTextError for a text that
    has none."""
    try:
        data = text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError:
        raise JsonTextError("it has half of a surrogate pair, which is no character") from None
    if data.count(b"[") + data.count(b"{") > JSON_DEPTH_MAX:
        depth = int(_depths(_STRING.sub(b"", data)).max(initial=0))
        if depth > JSON_DEPTH_MAX:
            raise DeepJsonError(depth)
    return data


def outermost(text: bytes | str) -> bytes:
    """The text of an object with 0 for all values in it that have brackets: what a text says that
    is too deep to be read."""
    data = text.encode(errors="replace") if isinstance(text, str) else text
    blank = _STRING.sub(lambda found: b" " * len(found[0]), data)
    depths = _depths(blank)
    before = np.concatenate(([0], depths[:-1]))
    shown = np.frombuffer(data, np.uint8).copy()
    shown[(depths > 1) | (before > 1)] = ord(" ")
    shown[(depths > 1) & (before == 1)] = ord("0")
    return shown.tobytes()


def _depths(data: bytes) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Behind each byte, brackets that are open; strings are left out or blank."""
    return np.cumsum(_STEPS[np.frombuffer(data, np.uint8)], dtype=np.int64)
