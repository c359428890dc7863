"""The past of a table, played: every picture is what the table was."""

from __future__ import annotations

import asyncio
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.command_errors import CommandError
from barrage.cli.main import app
from barrage.cli.replay.replay_moment import parse_moment, parse_speed
from barrage.cli.replay.replay_past import PastTable
from barrage.cli.replay.replay_player import Player
from barrage.cli.watch.grid import GridApp
from barrage.cli.watch.scroller import RowWindow
from barrage.client.tables.history import ChangeOptions
from barrage.model.cursor import Cursor
from tests.end_to_end.resume_scene import AppendWriter, KeyedWriter, ListWriter, Past, rows_of
from tests.helpers.virtual_clock import VirtualClock

SCHEMA = {"k": "int64", "v": "int64", "s": "string"}
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEPS = 25


@pytest.fixture(scope="module")
def server():
    with barrage.Server(port=0, journal="memory") as running:
        yield running


@pytest.fixture(scope="module")
def pasts(server):
    """Tables of every kind with a past; what they were at each version."""
    made = {}
    writers = {"keyed": KeyedWriter, "append_only": AppendWriter, "list": ListWriter}
    for kind, writer in writers.items():
        key = "k" if kind == "keyed" else None
        table = server.create_table(kind, SCHEMA, key=key, kind=None if key else kind)
        made[kind] = Past(table)
        changes = writer(table, made[kind], Random(7))
        for _ in range(STEPS):
            changes.write()
    return made


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["replay", *words])
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


async def a_player(session, name, *, speed=math.inf, clock=None, wait=asyncio.sleep):
    """A player of everything that happened to a table, and what closes its stream."""
    history = session.table(name).history()
    facts = await history.facts()
    cursor = await history.cursor_of(facts.earliest)
    keys, rows = await history.state(cursor, facts, ChangeOptions())
    changes = history.changes(cursor, None, ChangeOptions(row_key=True))
    batches = await changes.__aenter__()
    past = PastTable(rows.schema, keys, rows, kind=facts.kind)
    player = Player(
        past, batches.batches(), facts=facts, version=cursor.version, start_us=None, speed=speed,
        clock=clock or VirtualClock(1), wait=wait,
    )  # fmt: skip
    return player, changes


@pytest.mark.parametrize("kind", ["keyed", "append_only", "list"])
def test_every_commit_leads_to_what_was_there(server, pasts, kind):
    async def test():
        async with barrage.aconnect(server.uri) as session:
            player, changes = await a_player(session, kind)
            seen = []
            await player.play(
                lambda commit: seen.append((commit.version, rows_of(player.past.to_arrow())))
            )
            await changes.__aexit__(None, None, None)
            return seen

    seen = asyncio.run(test())
    past = pasts[kind]
    assert len(seen) >= STEPS - 1
    for version, rows in seen:
        assert rows == past.at(version), version
    assert seen[-1][1] == past.at(10**9)


def test_commits_wait_for_their_time(server, pasts):
    waits = []
    clock = VirtualClock(1)

    async def wait(seconds):
        waits.append(seconds)
        clock.advance(int(seconds * 1e9))

    async def test():
        async with barrage.aconnect(server.uri) as session:
            player, changes = await a_player(session, "keyed", speed=0.5, clock=clock, wait=wait)
            times = []
            await player.play(lambda commit: times.append(commit.time_us))
            await changes.__aexit__(None, None, None)
            return times

    times = asyncio.run(test())
    assert sum(waits) == pytest.approx((times[-1] - times[0]) / 1e6 / 0.5, rel=0.01)


def test_the_grid_shows_the_past(server, pasts):
    async def test():
        async with barrage.aconnect(server.uri) as session:
            player, changes = await a_player(session, "keyed")
            grid = GridApp(player, title="keyed", clock=VirtualClock(1))
            async with grid.run_test(size=(80, 12)) as pilot:
                await player.play()
                grid.redraw()
                await pilot.pause()
                shown = [grid.grid.render_line(y).text for y in range(4)]
            status = player.status()
            await changes.__aexit__(None, None, None)
            return shown, status

    shown, status = asyncio.run(test())
    first = pasts["keyed"].at(10**9)[0]
    assert shown[1].split()[:3] == ["0", str(first[0]), str(first[1])]
    assert status.state.startswith("step ")
    assert status.state.endswith("end")


def test_a_window_is_all_that_is_read(server, pasts):
    async def test():
        async with barrage.aconnect(server.uri) as session:
            player, changes = await a_player(session, "append_only")
            await player.play()
            player.request(RowWindow(start=2, stop=4))
            middle = player.frame()
            player.request(RowWindow(start=0, stop=3, is_reverse=True))
            last = player.frame()
            await changes.__aexit__(None, None, None)
            return middle, last

    middle, last = asyncio.run(test())
    rows = pasts["append_only"].at(10**9)
    assert rows_of(middle.rows) == rows[2:4]
    assert rows_of(last.rows) == rows[-3:]
    assert last.first_row == len(rows) - 3
    assert middle.version != last.version


def test_json_lines_are_the_rows_and_then_their_changes(server, pasts):
    versions = pasts["append_only"]._versions
    words = ["--from", str(versions[3]), "--to", str(versions[5]), "--speed", "max", "--json"]
    lines = [json.loads(line) for line in run(f"{server.uri}/append_only", *words).splitlines()]
    before = pasts["append_only"].at(versions[3])
    kinds = [line["change"] for line in lines]
    assert kinds == ["snapshot"] * len(before) + ["insert"] * (len(kinds) - len(before))
    assert [tuple(line["row"].values()) for line in lines] == pasts["append_only"].at(versions[5])
    assert {line["step"] for line in lines[len(before) :]} == set(versions[4:6])
    assert all(datetime.fromisoformat(line["time"]) for line in lines[len(before) :])


def test_pictures_of_the_beginning_and_the_end(server, pasts):
    out = run(f"{server.uri}/keyed", "--speed", "max", "--rows", "2", "--columns", "v,k")
    pictures = out.strip().split("\n\n")
    assert "step 0, max  0 rows" in pictures[0]
    last = pictures[-1].splitlines()
    assert "end" in last[0]
    assert last[1].split() == ["v", "k"]
    assert last[2].split() == [str(pasts["keyed"].at(10**9)[0][at]) for at in (1, 0)]


def test_a_time_before_the_journal_is_its_beginning(server, pasts):
    result = CliRunner().invoke(
        app, ["replay", f"{server.uri}/list", "--from", "3 hours ago", "--speed", "max", "--json"]
    )
    assert result.exit_code == 0
    assert "begins later" in result.stderr
    assert result.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["nowhere"], "not found", 1),
        (["keyed", "--from", "99999999"], "is lost", 1),
        (["keyed", "--from", "9", "--to", "3"], "backwards", 2),
    ],
)
def test_what_is_not_there_is_said(server, pasts, words, text, code):
    assert text in run(f"{server.uri}/{words[0]}", *words[1:], code=code)


@pytest.mark.parametrize(
    "words",
    [
        ["h:1/t", "--from", "yesterday"],
        ["h:1/t", "--speed", "0"],
        ["h:1/t", "--speed", "fast"],
        ["h:1/t", "--time", "ts"],
        ["h:1/t", "--append"],
        ["f.csv", "h:1/t", "--time", "ts", "--from", "3"],
        ["f.csv", "h:1/t"],
        ["h:1"],
    ],
)
def test_words_that_make_no_sense_are_usage_errors(words):
    run(*words, code=2)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("17", 17),
        (" 0 ", 0),
        ("0123456789abcdef:4", Cursor("0123456789abcdef", 4)),
        ("10 minutes ago", NOW - timedelta(minutes=10)),
        ("90s", NOW - timedelta(seconds=90)),
        ("1.5 h ago", NOW - timedelta(minutes=90)),
        ("2 days", NOW - timedelta(days=2)),
        ("now", NOW),
        ("2026-02-03 04:05+00:00", datetime(2026, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-02-03", datetime(2026, 2, 3)),
    ],
)
def test_moments(text, moment):
    assert parse_moment(text, option="--from", now=NOW) == moment
    elsewhere = NOW.astimezone(timezone(timedelta(hours=5)))
    assert parse_moment(text, option="--from", now=elsewhere) == moment


@pytest.mark.parametrize("text", ["", "x", "10 parsecs ago", "9" * 30, "999999999 days ago"])
def test_what_is_no_moment(text):
    with pytest.raises(CommandError) as caught:
        parse_moment(text, option="--from", now=NOW)
    assert "--from" in str(caught.value)


@pytest.mark.parametrize(("text", "speed"), [("4", 4), ("0.5x", 0.5), ("MAX", math.inf)])
def test_speeds(text, speed):
    assert parse_speed(text) == speed
