"""Every command against a real server on a loopback socket."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.data_file import read_data_file
from barrage.cli.main import app
from barrage.cli.target import parse_table
from barrage.cli.watch.run import open_source
from barrage.cli.watch.scroller import RowWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from barrage.cli.watch.session_source import SessionSource
    from barrage.cli.watch.window_source import Frame

ROWS = 1000
SECONDS_MAX = 60
TRADES = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "symbol": [f"S{i % 7}" for i in range(ROWS)],
        "price": [i / 4 for i in range(ROWS)],
    }
)


@pytest.fixture(scope="module")
def server() -> Iterator[barrage.Server]:
    with barrage.Server(port=0) as running:
        running.create_table("trades", TRADES.schema, key="id", data=TRADES)
        running.create_table("empty", TRADES.schema)
        yield running


@pytest.fixture(scope="module")
def address(server: barrage.Server) -> str:
    return server.uri.partition("://")[2]


def run(*words: str, code: int = 0) -> str:
    """stdout of a command that ends with ``code``; its stderr when that is an error."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.stderr
    return result.stderr if code else result.stdout


def test_ls_shows_tables_and_says_them_in_json(address: str) -> None:
    lines = run("ls", address).splitlines()
    assert lines[0].split() == ["name", "rows", "columns", "kind", "key", "ticking"]
    assert ["trades", "1,000", "3", "keyed", "id", "yes"] in [line.split() for line in lines]
    facts = {entry["name"]: entry for entry in json.loads(run("ls", address, "--json"))}
    assert facts["trades"] == {
        "name": "trades",
        "rows": ROWS,
        "columns": 3,
        "kind": "keyed",
        "key": ["id"],
        "ticking": True,
    }


def test_schema_shows_columns(address: str) -> None:
    assert run("schema", f"{address}/trades").splitlines() == [
        "column  type",
        "id      int64",
        "symbol  string",
        "price   double",
    ]
    assert json.loads(run("schema", f"{address}/trades", "--json"))[1]["type"] == "string"


def test_snapshot_in_a_pipe_is_csv(address: str) -> None:
    lines = run("snapshot", f"{address}/trades").splitlines()
    assert lines[0] == '"id","symbol","price"'
    assert len(lines) == ROWS + 1
    assert run("snapshot", f"{address}/empty").splitlines() == ['"id","symbol","price"']


def test_snapshot_of_rows_and_columns(address: str) -> None:
    words = ("snapshot", f"{address}/trades", "--columns", "symbol,id", "--rows", "5-6", "--json")
    assert [json.loads(line) for line in run(*words).splitlines()] == [
        {"symbol": "S5", "id": 5},
        {"symbol": "S6", "id": 6},
    ]
    last = run(*words[:4], "--rows", "0-0", "--reverse", "--json")
    assert json.loads(last) == {"symbol": "S5", "id": ROWS - 1}


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".csv"])
def test_snapshot_to_a_file(address: str, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    run("snapshot", f"{address}/trades", "--out", str(path), "--quiet")
    assert read_data_file(path).equals(TRADES)


@pytest.mark.parametrize("command", ["schema", "snapshot", "watch"])
def test_a_wrong_table_name_gets_a_hint(address: str, command: str) -> None:
    error = run(command, f"{address}/trade", code=1)
    assert "table 'trade' not found; did you mean 'trades'?" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["snapshot", "watch"])
def test_a_wrong_column_name_lists_the_columns(address: str, command: str) -> None:
    error = run(command, f"{address}/trades", "--columns", "prize", code=1)
    assert "'prize'" in error
    assert "id, symbol, price" in error


def test_put_creates_appends_and_upserts(address: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(TRADES.slice(0, 10), file)
    table = f"{address}/put_plain"
    assert json.loads(run("put", str(file), table, "--json")) == {"table": "put_plain", "rows": 10}
    assert "use --append" in run("put", str(file), table, code=1)
    run("put", str(file), table, "--append")
    assert len(run("snapshot", table).splitlines()) == 21

    keyed = f"{address}/put_keyed"
    run("put", str(file), keyed, "--key", "id")
    pq.write_table(TRADES.slice(5, 10), file)
    run("put", str(file), keyed, "--key", "id", "--append")
    assert len(run("snapshot", keyed).splitlines()) == 16


@pytest.mark.parametrize("command", [("put",), ("replay", "--time", "id", "--speed", "inf")])
def test_append_wants_a_table_that_exists(
    server: barrage.Server, address: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(TRADES.slice(0, 10), file)
    name, *options = command
    error = run(name, str(file), f"{address}/trads", *options, "--append", code=1)
    assert "did you mean 'trades'" in error
    assert "trads" not in server.table_names()


def test_a_put_refused_from_its_first_row_on_leaves_no_table(
    server: barrage.Server, address: str, tmp_path: Path
) -> None:
    """So that the corrected file can be put under the same name."""
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [1, 1]}), file)
    assert "twice" in run("put", str(file), f"{address}/put_twice", "--key", "id", code=1)
    assert "put_twice" not in server.table_names()
    pq.write_table(pa.table({"id": [1, 2]}), file)
    run("put", str(file), f"{address}/put_twice", "--key", "id")
    pq.write_table(pa.table({"id": [3, 3]}), file)
    run("put", str(file), f"{address}/put_twice", "--key", "id", "--append", code=1)
    assert len(server.table("put_twice")) == 2


def test_put_of_a_file_without_rows_makes_the_table(address: str, tmp_path: Path) -> None:
    file = tmp_path / "none.parquet"
    pq.write_table(TRADES.slice(0, 0), file)
    run("put", str(file), f"{address}/put_none")
    assert run("snapshot", f"{address}/put_none").splitlines() == ['"id","symbol","price"']


def test_replay_keeps_time_order(address: str, tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    file.write_text("ts,n\n2026-01-01 00:00:02,2\n2026-01-01 00:00:00,0\n2026-01-01 00:00:01,1\n")
    out = run(
        "replay", str(file), f"{address}/replayed", "--time", "ts", "--speed", "100", "--json"
    )
    assert json.loads(out) == {"table": "replayed", "rows": 3}
    rows = run("snapshot", f"{address}/replayed", "--columns", "n", "--json").splitlines()
    assert [json.loads(row)["n"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize("speed", ["100", "max"])
def test_replay_of_a_key_that_changes_again_and_again(
    address: str, tmp_path: Path, speed: str
) -> None:
    file = tmp_path / "quotes.csv"
    lines = [f"2026-01-01 00:00:{second:02},{'AB'[second % 2]},{second}" for second in range(10)]
    file.write_text("\n".join(["ts,symbol,price", *lines]))
    target = f"{address}/quotes_{speed}"
    words = ["--time", "ts", "--speed", speed, "--key", "symbol", "--json"]
    assert json.loads(run("replay", str(file), target, *words))["rows"] == 10
    rows = [json.loads(row) for row in run("snapshot", target, "--json").splitlines()]
    assert {row["symbol"]: row["price"] for row in rows} == {"A": 8, "B": 9}


def test_watch_prints_lines_in_a_pipe(address: str) -> None:
    lines = run("watch", f"{address}/trades", "--once", "--rows", "2").splitlines()
    assert "live  1,000 rows" in lines[0]
    assert [line.split() for line in lines[1:4]] == [
        ["id", "symbol", "price"],
        ["0", "S0", "0.0"],
        ["1", "S1", "0.25"],
    ]
    shown = json.loads(
        run("watch", f"{address}/trades", "--once", "--json", "--rows", "1", "--columns", "price")
    )
    assert (shown["table_size"], shown["rows"]) == (ROWS, [{"price": 0.0}])


def with_feed(address: str, name: str, steps: Callable) -> None:
    """Run ``steps(source)`` over a source of the first ten rows of a table."""

    async def session() -> None:
        async with open_source(
            parse_table(f"{address}/{name}"),
            token=None,
            columns=None,
            interval_ms=10,
            window=RowWindow(start=0, stop=10),
        ) as source:
            await steps(source)

    asyncio.run(asyncio.wait_for(session(), SECONDS_MAX))


async def until(source: SessionSource, is_right: Callable[[Frame], bool]) -> Frame:
    """The first frame for which ``is_right``."""
    while True:
        frame = source.frame()
        if frame is not None and is_right(frame):
            return frame
        await asyncio.sleep(0.005)


async def state_with(source: SessionSource, words: str) -> str:
    """The first state that says ``words``."""
    while True:
        if words in (state := source.status().state):
            return state
        await asyncio.sleep(0.005)


def test_the_feed_moves_its_window_and_knows_where_it_is(address: str) -> None:
    async def steps(source: SessionSource) -> None:
        assert source.key_columns == ("id",)
        frame = await until(source, lambda frame: frame.rows.num_rows == 10)
        assert (frame.first_row, frame.table_size) == (0, ROWS)
        # Many wishes at once: only the last one counts, and each frame says the truth about itself.
        for start in range(0, 900, 7):
            source.request(RowWindow(start=start, stop=start + 20))
            await asyncio.sleep(0)
        frame = await until(source, lambda frame: frame.first_row == 896)
        assert frame.rows.column("id").to_pylist() == list(range(896, 916))
        source.request(RowWindow(start=0, stop=5, is_reverse=True))
        frame = await until(source, lambda frame: frame.first_row == ROWS - 5)
        assert frame.rows.column("id").to_pylist() == list(range(ROWS - 5, ROWS))

    with_feed(address, "trades", steps)


def test_the_feed_follows_changes_and_tells_rate_and_lag(
    server: barrage.Server, address: str
) -> None:
    table = server.create_table("moving", TRADES.schema, key="id", data=TRADES.slice(0, 20))

    async def steps(source: SessionSource) -> None:
        await until(source, lambda frame: frame.rows.num_rows == 10)
        table.upsert({"id": [3], "symbol": ["S3"], "price": [99.5]})
        frame = await until(source, lambda frame: frame.rows.column("price")[3].as_py() == 99.5)
        assert frame.version > 1
        status = source.status()
        assert status.is_live
        assert status.updates_per_second >= 0
        assert status.lag_ms is not None
        assert status.lag_ms < 60_000

    with_feed(address, "moving", steps)


def test_the_feed_tells_that_its_table_was_dropped_and_keeps_the_rows(
    server: barrage.Server, address: str
) -> None:
    server.create_table("doomed", TRADES.schema, data=TRADES)

    async def steps(source: SessionSource) -> None:
        server.drop_table("doomed")
        # The table may come back, as after a restart of its server; until then the rows stay.
        assert "reconnecting" in await state_with(source, "'doomed' not found")
        assert not source.status().is_live
        assert source.frame().rows.num_rows == 10

    with_feed(address, "doomed", steps)
