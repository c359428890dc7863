"""The code of docs/journal.md runs as it stands, block after block, in one namespace."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import barrage
from tests.unit.cli.test_examples import python_blocks


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with barrage.Server(data="data") as server, barrage.connect(server.uri) as session:
        trades = server.create_table("trades", {"qty": "int64"})
        first = trades.add([{"qty": 1}, {"qty": 2}])
        saved = session.table("trades").snapshot()
        cursor = trades.cursor
        last = trades.add([{"qty": 3}])
        names = {
            "session": session,
            "trades": trades,
            "rows": [{"qty": 4}],
            "saved_cursor": cursor,
            "saved_rows": saved,
            "datetime": datetime,
            "UTC": UTC,
        }
        resume, past, write, files = python_blocks("docs/journal.md")
        now = datetime.now(UTC)
        past = past.replace("datetime(2026, 11, 21, 9, 30, tzinfo=UTC)", repr(now))
        for number, version in (("1042", last), ("1000", first)):
            past = past.replace(number, str(version))
        past = past.replace("datetime.datetime", "datetime").replace("datetime.timezone.utc", "UTC")
        for block in (resume, past, write):
            exec(compile(block, "docs/journal.md", "exec"), names)
        table, batch = names["table"], names["batch"]
        table.wait_ready(60)
        assert table.resumption.startswith("replayed 1 step")
        assert batch.column("qty").to_pylist() == [3]
        table.close()
        assert trades.to_arrow().column("qty").to_pylist() == [1, 2, 3, 4]
        assert trades.position("feed-7") is not None
    assert os.path.exists("data/tables/trades/wal/00000001.arrow")
    exec(compile(files, "docs/journal.md", "exec"), names)
    out = capsys.readouterr().out
    assert out.count("'op'") == 3
    assert "'qty': [1, 2]" in out
