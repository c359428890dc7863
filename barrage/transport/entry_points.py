"""Entry points of installed packages, and of this checkout.

The metadata of an editable checkout may be older than the checkout, so what that declares in its
``pyproject.toml`` counts as well. Imported when a backend is asked for that is not of this package:
reading metadata takes longer than connecting.
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = "barrage"
_CHECKOUT = Path(__file__).resolve().parents[2]


def entry_points(group: str) -> dict[str, EntryPoint]:
    """Those of a group by their names. Of one name that is ours, else the first on the path, as
    with imports."""
    installed = sorted(metadata.entry_points(group=group), key=_is_foreign)
    found: dict[str, EntryPoint] = {}
    for each in (*_of_checkout(group), *installed):
        found.setdefault(each.name, each)
    return found


def _is_foreign(entry_point: EntryPoint) -> bool:
    return entry_point.dist is None or entry_point.dist.name != _OURS


def _of_checkout(group: str) -> Iterator[EntryPoint]:
    """The entry points of this very checkout; none where this package is installed."""
    file = _CHECKOUT / "pyproject.toml"
    if not file.is_file():
        return
    project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") == _OURS:
        for name, value in project.get("entry-points", {}).get(group, {}).items():
            yield EntryPoint(name=name, value=value, group=group)


def wanted(plug_in: EntryPoint) -> str:
    """What ``pip`` is to install for a plug-in: its distribution, with the extras that the entry
    point names."""
    distribution = _OURS if plug_in.dist is None else plug_in.dist.name
    is_read = EntryPoint.pattern.match(plug_in.value) is not None
    extras = ",".join(plug_in.extras) if is_read else ""
    return f"'{distribution}[{extras}]'" if extras else distribution
