"""A real pydeephaven does every table operation here and at a real server, with the same results.

The cases are in ``pydeephaven_operations.py``, which runs once per server in a process of its own.
What the results must be is worked out by Arrow as well where that takes a line, so that much of it
is checked where there is no real server.
"""

from __future__ import annotations

import json
import pathlib
import subprocess

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.interop.driven_server import DrivenServer
from tests.interop.operation_tables import SECTORS, TRADES, TWICE
from tests.interop.processes import ROOT, deephaven_python, environment_with

pytestmark = pytest.mark.interop

SCRIPT = pathlib.Path(__file__).with_name("pydeephaven_operations.py")
TIMEOUT_SECONDS = 240

ANSWERED_BETTER = {
    "seek_fraction_in_ints": "a real server cuts the fraction off and finds another number",
    "source_that_fails": "a real server lets the waiting call wait",
    "batch_without_source": "a real server cancels the call",
    "preview": "a real server gives the texts a class of its own, which no client knows",
}
"""Cases whose results differ on purpose."""

SIGNIFICANT_DIGITS = 9
"""Sums of squares lose the others."""


def run_cases(server: DrivenServer) -> dict[str, dict]:
    python = deephaven_python("pydeephaven")
    if python is None:
        pytest.skip("pydeephaven is not installed (extra: interop)")
    ended = subprocess.run(
        [python, str(SCRIPT), str(server.port)],
        cwd=ROOT,
        env=environment_with(server.login()),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert told, ended.stderr
    return {entry.pop("case"): entry for entry in told}


@pytest.fixture(scope="module")
def ours(our_server) -> dict[str, dict]:
    return run_cases(our_server)


@pytest.fixture(scope="module")
def theirs(real_server) -> dict[str, dict]:
    return run_cases(real_server)


def rows_of(found: dict) -> list[list]:
    return found["result"]["rows"]


def cells(table: pa.Table) -> list[list]:
    """Rows in the form the script tells them in."""
    return [
        [repr(cell) if isinstance(cell, float) else cell for cell in row.values()]
        for row in table.to_pylist()
    ]


def rounded(value: object) -> object:
    """Floats, which come as text, to the digits that must agree."""
    if isinstance(value, list):
        return [rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    try:
        return f"{float(value):.{SIGNIFICANT_DIGITS}g}" if isinstance(value, str) else value
    except ValueError:
        return value


def test_same_results_as_a_real_server(ours, theirs):
    assert ours.keys() == theirs.keys()
    differing = {
        name: (ours[name], theirs[name])
        for name in ours
        if "result" in theirs[name]
        and name not in ANSWERED_BETTER
        and rounded(ours[name]) != rounded(theirs[name])
    }
    assert differing == {}


def test_refusals_of_a_real_server(ours, theirs):
    """What the real server refuses is refused here, as the client's fault."""
    refused = [n for n in theirs if "status" in theirs[n] and n not in ANSWERED_BETTER]
    assert len(refused) > 20
    for name in refused:
        assert "status" in ours[name], (name, ours[name])
        assert ours[name]["status"] in ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND")
        assert "internal error" not in ours[name]["text"]


def test_no_case_breaks_the_client(ours):
    broken = {name: entry for name, entry in ours.items() if "error" in entry}
    assert broken.keys() == {"query_with_error"}  # It does not say which status a batch ended with.


def test_rows_are_those_arrow_finds(ours):
    trades = TRADES.select(["Sym", "Size", "Price"])
    positive = trades.filter(pc.greater(trades["Size"], 0))
    bigger = TRADES.filter(pc.greater(TRADES["Size"], 1))
    expected = {
        "view": pa.table(
            {
                "Twice": pc.multiply(TRADES["Size"], 2),
                "Sym": TRADES["Sym"],
                "More": pc.add(pc.multiply(TRADES["Size"], 2), 1),
                "Copy": TRADES["Price"],
            }
        ),
        "select": pa.table(
            {"Sym": TRADES["Sym"], "Value": pc.multiply(TRADES["Price"], TRADES["Size"])}
        ),
        "sum_by_none": pa.table(
            {"Size": [pc.sum(TRADES["Size"])], "Price": [pc.sum(TRADES["Price"])]}
        ),
        "count_by_nothing": pa.table({"n": [len(TRADES)]}),
        "merge": pa.concat_tables([SECTORS, TWICE, SECTORS]),
        "query": positive.sort_by("Price").select(["Sym", "Price"]).slice(0, 3),
    }
    for name, table in expected.items():
        assert rows_of(ours[name]) == cells(table), name
    ids = {name: [row[0] for row in rows_of(ours[name])] for name in ("head", "tail", "where_in")}
    assert ids == {"head": [0, 1], "tail": [4, 5, 6], "where_in": [0, 1, 2, 4, 6]}
    assert [row[0] for row in rows_of(ours["row_variables"])] == bigger["Id"].to_pylist()
    assert [row[-2:] for row in rows_of(ours["row_variables"])] == [
        [0, 0],
        [1, 10],
        [2, 20],
        [3, 30],
    ]


def test_null_is_smallest_and_nan_largest(ours):
    assert [row[0] for row in rows_of(ours["sort_ascending"])] == [3, 4, 5, 0, 2, 6, 1]
    assert [row[0] for row in rows_of(ours["sort_descending"])] == [1, 2, 6, 0, 5, 4, 3]


def test_a_failed_operation_fails_what_needs_it_and_nothing_else(ours):
    assert ours["batch_with_failure"]["result"] == {
        "answers": sorted(
            [
                [0, True, False, True],
                [1, False, True, False],
                ["ticket", False, True, False],
                ["ticket", True, False, True],
            ],
            key=str,
        ),
        "status": "INVALID_ARGUMENT",
    }


def test_a_source_may_come_later(ours):
    assert ours["source_still_to_come"]["result"] == {"size": 2}
    assert ours["source_that_fails"]["result"] == {"status": "INVALID_ARGUMENT"}
