"""No module needs itself: packages are read from the bottom up, and that takes a bottom.

Imports that only the type checker sees count like the others. A reader follows both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from pathlib import Path

import grimp
import pytest

PACKAGES = ("barrage", "spark_sink", "pyspark_barrage")

Graph = Mapping[str, Collection[str]]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def circles(graph: Graph) -> list[list[str]]:
    """The sets of more than one node that all reach each other (Tarjan), smallest first."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_nodes: list[str] = []
    found: list[list[str]] = []
    for start in sorted(graph):
        if start in number:
            continue
        waiting: list[tuple[str, Iterator[str]]] = [(start, iter(sorted(graph[start])))]
        number[start] = lowest[start] = len(number)
        open_nodes.append(start)
        while waiting:
            node, following = waiting[-1]
            for other in following:
                if other not in number:
                    number[other] = lowest[other] = len(number)
                    open_nodes.append(other)
                    waiting.append((other, iter(sorted(graph[other]))))
                    break
                if other in open_nodes:
                    lowest[node] = min(lowest[node], number[other])
            else:
                waiting.pop()
                if waiting:
                    before = waiting[-1][0]
                    lowest[before] = min(lowest[before], lowest[node])
                if lowest[node] == number[node]:
                    at = open_nodes.index(node)
                    circle, open_nodes[at:] = open_nodes[at:], []
                    if len(circle) > 1:
                        found.append(sorted(circle))
    return sorted(found, key=lambda circle: (len(circle), circle))


def graph_of(imports: grimp.ImportGraph) -> Graph:
    """What each module imports; a package has what its ``__init__`` imports."""
    return {name: imports.find_modules_directly_imported_by(name) for name in imports.modules}


def described(imports: grimp.ImportGraph, circle: Collection[str]) -> str:
    """The imports that make a circle, each with its line."""
    lines = [f"a circle of {len(circle)} modules:"]
    for importer in sorted(circle):
        for imported in sorted(imports.find_modules_directly_imported_by(importer) & set(circle)):
            details = imports.get_import_details(importer=importer, imported=imported)
            numbers = ", ".join(str(detail["line_number"]) for detail in details)
            lines.append(f"  {importer} (line {numbers}) imports {imported}")
    return "\n".join(lines)


def test_no_module_imports_itself_by_way_of_others(imports: grimp.ImportGraph) -> None:
    found = [described(imports, circle) for circle in circles(graph_of(imports))]
    assert not found, "\n".join(found)


def floors_of(graph: Graph) -> dict[str, Graph]:
    """For each package the graph of what lies in it: a package in it counts as one, with all that
    is deeper. What an ``__init__`` imports is left out: it gathers names for those outside."""
    packages = {name.rpartition(".")[0] for name in graph} - {""}
    floors: dict[str, dict[str, set[str]]] = {}
    for name, imported in graph.items():
        if name in packages:
            continue
        for each in imported:
            pairs = zip(name.split("."), each.split("."), strict=False)
            depth = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            if depth and depth < len(each.split(".")):
                floor = floors.setdefault(".".join(name.split(".")[:depth]), {})
                here, there = (".".join(one.split(".")[: depth + 1]) for one in (name, each))
                floor.setdefault(here, set()).add(there)
                floor.setdefault(there, set())
    return dict(floors)


def test_what_lies_in_a_package_has_an_order(imports: grimp.ImportGraph) -> None:
    floors = floors_of(graph_of(imports))
    assert len(floors) > 20
    found = {name: circles(floor) for name, floor in floors.items()}
    assert {name: found[name] for name in found if found[name]} == {}


def test_what_a_circle_of_packages_is() -> None:
    graph = {"r": "", "r.p": "", "r.p.a": ["r.q.c"], "r.p.b": "", "r.q": "", "r.q.c": ""}
    graph |= {"r.q.d": ["r.p.b", "r.q.c"]}
    assert circles(graph) == []
    found = floors_of(graph)
    assert circles(found["r"]) == [["r.p", "r.q"]]
    assert circles(found["r.q"]) == []


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "a"}, [["a", "b"]]),
        ({"a": "bc", "b": "d", "c": "d", "d": ""}, []),
        ({"a": "b", "b": "c", "c": "ad", "d": "e", "e": "d"}, [["d", "e"], ["a", "b", "c"]]),
        ({"a": "b", "b": "ac", "c": "db", "d": "b"}, [["a", "b", "c", "d"]]),
    ],
)
def test_what_a_circle_is(graph: Graph, expected: list[list[str]]) -> None:
    assert circles(graph) == expected


def test_imports_for_types_alone_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "round_and_round"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "here.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from round_and_round.there import There\n"
    )
    (package / "there.py").write_text(
        "def there():\n    from round_and_round import here\n    return here\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = grimp.build_graph("round_and_round", cache_dir=None)
    [circle] = circles(graph_of(found))
    assert described(found, circle).splitlines()[1:] == [
        "  round_and_round.here (line 3) imports round_and_round.there",
        "  round_and_round.there (line 2) imports round_and_round.here",
    ]
