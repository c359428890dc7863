"""The tree keeps its own rules: file and function size, words that do not belong, names of
modules."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
GENERATED = ("_fbs", "_proto")
FORBIDDEN_MODULE_NAMES = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}


def python_files(*tops: str) -> list[Path]:
    return [
        path
        for top in tops
        for path in sorted((ROOT / top).rglob("*.py"))
        if not set(path.relative_to(ROOT).parts) & set(GENERATED)
    ]


PRODUCT = python_files("barrage", "spark_sink", "pyspark_barrage")
EVERYTHING = PRODUCT + python_files("tests", "benchmarks", "examples")


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check() -> None:
    assert len(PRODUCT) > 20


def test_files_stay_under_their_line_cap() -> None:
    lengths = {label(path): len(path.read_text().splitlines()) for path in EVERYTHING}
    assert not {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX}


FLOOR_MAX = 15
"""Modules in one package beside its ``__init__``."""


def test_a_large_floor_has_a_reason() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    floors = Counter(label(path.parent) for path in PRODUCT if path.name != "__init__.py")
    large = {name for name, modules in floors.items() if modules > FLOOR_MAX}
    reasons = page.partition("More than fifteen modules")[2].partition("\n\n")[0]
    assert {name for name in large if f"`{name}`" not in reasons} == set()


class Definition(NamedTuple):
    """A class or function: where it is, what it is called, and how long it is."""

    file: str
    name: str
    is_class: bool
    is_at_the_top: bool
    lines: int


@functools.cache
def definitions() -> list[Definition]:
    """All of the product; the trees, which are large, are gone when they were looked at."""
    return [
        Definition(
            label(path),
            node.name,
            isinstance(node, ast.ClassDef),
            node in tree.body,
            (node.end_lineno or node.lineno) - node.lineno + 1,
        )
        for path in PRODUCT
        for tree in [ast.parse(path.read_text())]
        for node in defined_in(tree)
    ]


def defined_in(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Only statements hold definitions, so expressions are not looked into."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, HOLD_MORE)]


HOLD_MORE = (ast.stmt, ast.excepthandler, ast.match_case)


def test_functions_stay_under_their_line_cap() -> None:
    long = [
        f"{each.file} {each.name}: {each.lines}"
        for each in definitions()
        if not each.is_class and each.lines > FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_catch_all_module_names() -> None:
    assert not [label(path) for path in PRODUCT if path.name in FORBIDDEN_MODULE_NAMES]


def public_classes() -> Iterator[tuple[str, str]]:
    """Name and file of every class at the top of a module, unless it begins with an underscore."""
    for each in definitions():
        if each.is_class and each.is_at_the_top and not each.name.startswith("_"):
            yield each.name, each.file


def test_a_class_has_a_name_of_its_own() -> None:
    files: dict[str, list[str]] = {}
    for name, file in public_classes():
        files.setdefault(name, []).append(file)
    assert not {name: found for name, found in files.items() if len(found) > 1}


def differ_by_one_letter(one: str, other: str) -> bool:
    """Whether a letter more, less or changed makes one name of the other."""
    short, long = sorted((one, other), key=len)
    if len(short) == len(long):
        return sum(map(operator.ne, short, long)) == 1
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def test_names_of_files_differ_by_more_than_a_letter() -> None:
    names = sorted({path.stem for path in PRODUCT if path.name != "__init__.py"})
    alike = {pair for pair in combinations(names, 2) if differ_by_one_letter(*pair)}
    assert not alike


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("session", "sessions", True),
        ("sessions", "session", True),
        ("batch", "watch", True),
        ("row_set", "rowset", True),
        ("query_step", "query_json", False),
        ("feed", "feed", False),
        ("put", "output", False),
        ("ab", "ba", False),
    ],
)
def test_what_a_letter_of_difference_is(one: str, other: str, expected: bool) -> None:
    assert differ_by_one_letter(one, other) is expected


@pytest.mark.parametrize(
    ("word", "allowed"),
    [
        (r"\btime\.time\(", "barrage/clock.py"),
        (r"\bTODO\b(?!.*#\d)", ""),
        (r"except(\s+\w+)?:\s*pass\b", ""),
    ],
)
def test_words_that_do_not_belong(word: str, allowed: str) -> None:
    found = [
        f"{label(path)}:{number}"
        for path in PRODUCT
        if not (allowed and label(path).startswith(allowed))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(word, line.split("#", 1)[0] if "TODO" not in word else line)
    ]
    assert not found


def test_only_commands_print() -> None:
    found = [
        f"{label(path)}:{node.lineno}"
        for path in PRODUCT
        if not label(path).startswith("barrage/cli/") and "print(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not found


STARTED_BY = "barrage/supervision.py"
WORKERS = {"Thread", "ThreadPoolExecutor", "to_thread", "start_new_thread"}
TASKS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
LOOPS_OWN = {"barrage/client/synchronous/sync_loop.py": {"run_coroutine_threadsafe"}}
"""The thread that passes a coroutine on waits for its future there and then."""


def started_without_supervision(name: str, text: str) -> list[str]:
    """Threads and tasks that nobody would be told of if they died.

    A thread or a pool is always started by the supervisor. A task may be started plainly when the
    function that starts it gives it to a local name and awaits it by that name: whatever it raises
    is raised there. Everything that outlives its function is the supervisor's.
    """
    if not any(word in text for word in WORKERS | TASKS):
        return []
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    in_place = {id(call) for function in functions for call in awaited_in_place(function)}
    return [
        f"{name}:{node.lineno} {word}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (word := called(node)) in WORKERS | TASKS
        and word not in LOOPS_OWN.get(name, ())
        and not (word in TASKS and id(node) in in_place)
    ]


def called(call: ast.Call) -> str:
    function = call.func
    return getattr(function, "attr", "") or getattr(function, "id", "")


def awaited_in_place(function: ast.AsyncFunctionDef) -> list[ast.Call]:
    """The calls in a function whose result gets a local name that the function awaits."""
    awaited = {
        name.id
        for node in ast.walk(function)
        if isinstance(node, ast.Await)
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and all(isinstance(target, ast.Name) and target.id in awaited for target in node.targets)
    ]


def test_every_thread_and_lasting_task_is_started_by_the_supervisor() -> None:
    found = [
        line
        for path in PRODUCT
        if label(path) != STARTED_BY
        for line in started_without_supervision(label(path), path.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("def f():\n    threading.Thread(target=g).start()", True),
        ("async def f():\n    task = asyncio.create_task(g())\n    await task", False),
        (
            "async def f():\n    task = asyncio.create_task(g())\n    await asyncio.wait([task])",
            False,
        ),
        ("async def f():\n    task = asyncio.create_task(g())\n    await h()", True),
        ("async def f(self):\n    self.task = asyncio.create_task(g())\n    await self.task", True),
        ("async def f():\n    asyncio.ensure_future(g())", True),
        ("async def f():\n    await asyncio.to_thread(g)", True),
        ("pool = ThreadPoolExecutor(1)", True),
    ],
)
def test_what_the_supervisor_must_start(text: str, is_found: bool) -> None:
    assert bool(started_without_supervision("a.py", text)) is is_found


def test_architecture_fits_on_its_pages() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 200


def test_every_test_that_a_page_names_is_there() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    _, _, rest = text.partition("## What was wrong, and what shows it")
    table, _, _ = rest.partition("\n## ")
    named = re.findall(r"`(tests/[\w/]+\.py)`: ((?:`test_\w+`(?:, )?)+)", table)
    assert len(named) > 30
    for file, tests in named:
        source = (ROOT / file).read_text()
        for test in re.findall(r"`(test_\w+)`", tests):
            assert f"def {test}(" in source, f"{file} has no {test}"
    # Each line names a test, and nothing that looks like one is passed over.
    assert table.count("`test_") == sum(tests.count("`test_") for _, tests in named)
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert all("`: `test_" in line for line in lines)
