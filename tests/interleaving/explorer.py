"""Finds the modules of ``objects/`` and runs seeds of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tests.interleaving import objects

CANARY_SEEDS = 400
"""Within so many a fault put back has to be found. The rarest is in one of fifty."""

Canary = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Explored:
    """An object with more than one caller."""

    name: str
    explore: Callable[[int], None]
    canaries: dict[str, Canary]
    is_whole: bool
    """Whether a run has a whole server, which takes some 50 ms."""


def explored_objects() -> dict[str, Explored]:
    """By name, which is that of the module."""
    found = {}
    for module_info in sorted(pkgutil.iter_modules(objects.__path__), key=lambda each: each.name):
        module = importlib.import_module(f"{objects.__name__}.{module_info.name}")
        canaries = {each.__name__: each for each in getattr(module, "CANARIES", ())}
        found[module_info.name] = Explored(
            module_info.name, module.explore, canaries, is_whole=hasattr(module, "run_whole")
        )
    return found


def first_failure(explore: Callable[[int], None], seeds: range) -> tuple[int, BaseException] | None:
    """The first of ``seeds`` that fails, and with what."""
    for seed in seeds:
        try:
            explore(seed)
        except Exception as error:
            return seed, error
    return None
