"""The measured process's side of the JSON lines. Needs nothing but Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any


def say(**answer: Any) -> None:
    """One answer to the parent."""
    print(json.dumps(answer), flush=True)


def commands() -> Iterator[list[Any]]:
    """The parent's commands until it goes away."""
    for line in sys.stdin:
        yield json.loads(line)
