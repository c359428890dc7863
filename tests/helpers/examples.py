"""How many examples an expensive property gets."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

_DEFAULT = settings.get_profile("default-run").max_examples


def examples(count: int, **options: Any) -> settings:
    """``count`` examples in the default run, and as many times more as the profile has more of any
    other property, though no more than twenty times: an example here is a whole table's life."""
    factor = min(settings().max_examples // _DEFAULT, 20)
    return settings(max_examples=count * max(factor, 1), **options)
