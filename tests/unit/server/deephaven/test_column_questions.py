"""SeekRow and ComputeColumnStatistics."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from barrage.errors import BarrageError, LimitExceededError, SchemaError, TableNotFoundError
from barrage.server.deephaven.operations.column_statistics import statistics_of
from barrage.server.deephaven.operations.operations import OperationError
from barrage.server.deephaven.operations.seek_row import find_row
from barrage.transport.deephaven_messages import MESSAGES
from tests.unit.server.deephaven.conftest import Bench
from tests.unit.server.deephaven.table_requests import Client, reference, ticket

WORDS = pa.chunked_array([["a", "b"], ["A", None, "ab", "c"]])


def seek(cells: Any, start: int = 0, *, options: str = "", **value: Any) -> int:
    flags = {name: True for name in options.split()}
    request = MESSAGES.new(
        "SeekRowRequest",
        starting_row=start,
        seek_value=MESSAGES.new("Literal", **value),
        **flags,
    )
    column = cells if isinstance(cells, pa.ChunkedArray) else pa.chunked_array([cells])
    return find_row(column, request)


def test_seeking_goes_round_and_comes_to_the_start_last() -> None:
    column = pa.array([1, 2, 1, 2, 1])
    forward = [seek(column, start, long_value=1) for start in (-5, 0, 1, 2, 3, 4, 9)]
    assert forward == [0, 2, 2, 4, 4, 0, 0]
    options = "is_backward"
    back = [seek(column, start, options=options, long_value=1) for start in (-5, 0, 1, 2, 4, 9)]
    assert back == [4, 4, 0, 0, 2, 4]
    assert seek(pa.array([7, 8]), 1, long_value=8) == 1
    assert seek(pa.array([7, 8]), 0, options=options, long_value=7) == 0


@pytest.mark.parametrize(
    ("options", "wanted", "expected"),
    [
        ("", "a", 0),
        ("", "A", 2),
        ("", "z", -1),
        ("insensitive", "a", 2),
        ("contains", "b", 1),
        ("contains", "ab", 4),
        ("contains insensitive", "AB", 4),
    ],
)
def test_seeking_text(options: str, wanted: str, expected: int) -> None:
    start = 0 if expected else 5
    assert seek(WORDS, start, options=options, string_value=wanted) == expected


@pytest.mark.parametrize(
    ("cells", "value", "expected"),
    [
        (pa.array([1, None, 3], pa.int8()), {"long_value": 3}, 2),
        (pa.array([1, None, 3], pa.int8()), {"long_value": 300}, -1),
        (pa.array([1, None, 3], pa.int64()), {"double_value": 3.0}, 2),
        (pa.array([1, None, 3], pa.int64()), {"double_value": 3.5}, -1),
        (pa.array([1, None, 3], pa.int64()), {"double_value": 1e30}, -1),
        (pa.array([1, None, 3], pa.int64()), {"double_value": math.nan}, -1),
        (pa.array([0.1, None, 0.3], pa.float32()), {"double_value": 0.3}, 2),
        (pa.array([0.1, None, 3.0]), {"long_value": 3}, 2),
        (pa.array([True, None, False]), {"bool_value": False}, 2),
        (pa.array([5, None, 7], pa.timestamp("ns", "UTC")), {"nano_time_value": 7}, 2),
        (pa.array([65, None, 66], pa.uint16()), {"string_value": "B"}, 2),
        (pa.array([65, None, 66], pa.uint16()), {"string_value": "b"}, -1),
        (pa.array([65, None, 66], pa.uint16()), {"string_value": "\U0001f600"}, -1),
        (pa.array([], pa.int64()), {"long_value": 3}, -1),
    ],
)
def test_seeking_other_types(cells: pa.Array, value: dict[str, Any], expected: int) -> None:
    assert seek(cells, **value) == expected


def test_seeking_characters_of_any_case() -> None:
    cells = pa.array([65, 98], pa.uint16())
    assert seek(cells, options="insensitive", string_value="B") == 1
    assert seek(cells, 1, options="insensitive", string_value="a") == 0


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        (pa.array([1]), {}),
        (pa.array([1]), {"string_value": "1"}),
        (pa.array([1]), {"bool_value": True}),
        (pa.array(["1"]), {"long_value": 1}),
        (pa.array([1]), {"nano_time_value": 1}),
        (pa.array([1], pa.uint16()), {"string_value": "ab"}),
        (pa.array([1], pa.uint16()), {"long_value": 1}),
        (pa.array([[1]]), {"long_value": 1}),
    ],
)
def test_seeking_what_a_column_cannot_hold(cells: pa.Array, value: dict[str, Any]) -> None:
    with pytest.raises(OperationError, match="seek_row"):
        seek(cells, **value)


def test_seek_row_call(bench: Bench) -> None:
    client = Client(bench)
    source = bench.static(1, pa.table({"d": pa.array(["x", "y"]).dictionary_encode()}))

    def ask(of: bytes, column: str) -> int:
        request = MESSAGES.encode(
            "SeekRowRequest",
            source_id=ticket(of),
            column_name=column,
            seek_value=MESSAGES.new("Literal", string_value="y"),
        )
        answer = MESSAGES.decode("SeekRowResponse", client.ask("SeekRow", request))
        return int(answer.result_row)

    assert ask(source, "d") == 1
    with pytest.raises(SchemaError, match="nope"):
        ask(source, "nope")
    with pytest.raises(TableNotFoundError):
        ask(b"s/nope", "d")


def figures(cells: pa.Array, limit: int | None = None) -> dict[str, Any]:
    [row] = statistics_of(pa.chunked_array([cells]), limit).to_pylist()
    return dict(row)


def test_statistics_of_whole_numbers() -> None:
    found = figures(pa.array([3, None, -4], pa.int8()))
    deviation = found.pop("STD_DEV")
    assert deviation == pytest.approx(4.949747468)
    assert found == {
        "COUNT": 2,
        "SIZE": 3,
        "SUM": -1,
        "SUM_ABS": 7,
        "SUM_SQRD": 25,
        "MIN": -4,
        "MAX": 3,
        "MIN_ABS": 3,
        "MAX_ABS": 4,
        "AVG": -0.5,
        "AVG_ABS": 3.5,
    }


def test_statistics_of_floats() -> None:
    found = figures(pa.array([math.nan, 1.5, -2.5], pa.float32()))
    assert math.isnan(found["SUM"])
    assert math.isnan(found["STD_DEV"])
    assert (found["MIN"], found["MAX"], found["MIN_ABS"], found["MAX_ABS"]) == (-2.5, 1.5, 1.5, 2.5)
    assert math.isnan(figures(pa.array([2.0]))["STD_DEV"])


def test_statistics_of_numbers_that_leave_the_type() -> None:
    found = figures(pa.array([-128, -128], pa.int8()))
    assert (found["MIN"], found["MAX_ABS"], found["SUM_SQRD"]) == (-128, None, 32768)


@pytest.mark.parametrize("cells", [pa.array([], pa.int64()), pa.array([None], pa.float64())])
def test_statistics_of_no_numbers(cells: pa.Array) -> None:
    found = figures(cells)
    assert (found["COUNT"], found["SUM"]) == (0, 0)
    assert all(found[name] is None for name in ("MIN", "MAX", "AVG", "STD_DEV", "MAX_ABS"))


def test_statistics_of_times() -> None:
    found = figures(pa.array([7, None, 3], pa.timestamp("ns", "UTC")))
    assert (found["COUNT"], found["SIZE"]) == (2, 3)
    assert (found["MIN"].value, found["MAX"].value) == (3, 7)


def test_statistics_of_other_columns() -> None:
    assert figures(pa.array(["b", "a", None, "a"])) == {
        "COUNT": 3,
        "SIZE": 4,
        "UNIQUE_VALUES": 2,
        "UNIQUE_KEYS": ["a", "b"],
        "UNIQUE_COUNTS": [2, 1],
    }
    assert figures(pa.array(["b", "a", "a"]), 1)["UNIQUE_KEYS"] == ["a"]
    assert figures(pa.array(["b"]), 0)["UNIQUE_KEYS"] == []
    assert figures(pa.array([66, 65], pa.uint16()))["UNIQUE_KEYS"] == ["B", "A"]
    assert figures(pa.array([True, False, True]))["UNIQUE_KEYS"] == ["true", "false"]
    assert figures(pa.array([[1], [1], None]))["UNIQUE_COUNTS"] == [2]
    assert figures(pa.array([], pa.string()))["UNIQUE_VALUES"] == 0


def test_statistics_call(bench: Bench) -> None:
    client = Client(bench)
    source = bench.static(1, pa.table({"d": pa.array(["x", "y"]).dictionary_encode()}))
    rows = client.of(source, "ComputeColumnStatistics", "ColumnStatisticsRequest", column_name="d")
    assert rows == [(2, 2, 2, ["x", "y"], [1, 1])]


def test_columns_too_long_to_look_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(bench)
    blank = client.new_ticket()
    client.made(blank, "EmptyTable", "EmptyTableRequest", size=bench.limits.created_rows_max)
    column = client.new_ticket()
    client.made(
        column, "View", "SelectOrUpdateRequest", source_id=reference(blank), column_specs=["a = ii"]
    )
    limit = "barrage.server.deephaven.operations.reading.check_count"

    def refuse(what: str, actual: int, maximum: int, unit: str) -> None:
        raise LimitExceededError(what, actual=actual, maximum=maximum, unit=unit)

    monkeypatch.setattr(limit, refuse)
    with pytest.raises(BarrageError, match="column is 16777216 rows"):
        client.of(column, "ComputeColumnStatistics", "ColumnStatisticsRequest", column_name="a")
