"""The lake tables: equal to the feed's replay, once per batch, readable without us."""

from __future__ import annotations

import datetime
import pickle
import random

import pyarrow as pa
import pytest

from barrage.errors import ConfigError
from spark_sink.lake import lake_of, last_changes

CHANGES = pa.schema(
    [
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_row_id", pa.int64()),
        ("a b", pa.int64()),
        ("at", pa.timestamp("us", "Europe/Berlin")),
        ("name", pa.large_string()),
    ]
)
ROWS = pa.schema([field for field in CHANGES if field.name not in CHANGES.names[:2]])
NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path):
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[request.param])
    if request.param == "iceberg":
        pytest.importorskip("sqlalchemy")
    return lake_of(request.param, str(tmp_path / "lake"), name="trades", catalog=None)


def read(lake) -> list[dict]:
    """What a reader that knows nothing of us sees."""
    if type(lake).__name__ == "DeltaLake":
        from deltalake import DeltaTable

        table = DeltaTable(lake.location).to_pyarrow_table()
    else:
        table = lake._catalog().load_table("barrage.trades").scan().to_arrow()
    return table.sort_by("_row_id").to_pylist()


def row(i: int, value: int) -> dict:
    return {"_row_id": i, "a b": value, "at": NOON, "name": f"n{value}"}


def table_of(rows: dict[int, int]) -> pa.Table:
    return pa.Table.from_pylist([row(i, v) for i, v in sorted(rows.items())], ROWS)


def test_random_changes_batch_by_batch(lake):
    chance = random.Random(5)
    rows = {i: i for i in range(5)}
    assert lake.last_batch("q/1") is None
    lake.replace(table_of(rows), history="q/1", batch=0, cursor="e:1")
    version, fresh = 1, 5
    for batch in range(1, 6):
        changes = []
        for _ in range(3):
            version += 1
            kind = chance.choice(["insert", "update_postimage", "delete"])
            i = fresh if kind == "insert" else chance.choice(sorted(rows))
            fresh += kind == "insert"
            value = chance.randrange(100)
            changes.append({"_change_type": kind, "_commit_version": version, **row(i, value)})
            rows.pop(i, None)
            if kind != "delete":
                rows[i] = value
        chance.shuffle(changes)
        feed = pa.Table.from_pylist(changes, CHANGES)
        lake.merge(feed, history="q/1", batch=batch, cursor=f"e:{version}")
        assert read(lake) == table_of(rows).to_pylist()
        assert lake.last_batch("q/1") == batch
    assert lake.last_batch("q/2") is None
    lake.replace(table_of({7: 7}), history="q/2", batch=9, cursor="e:99")
    assert read(lake) == [row(7, 7)]
    assert lake.last_batch("q/2") == 9


def test_a_batch_without_changes_changes_nothing(lake):
    lake.replace(table_of({}), history="q/1", batch=0, cursor="e:1")
    lake.merge(CHANGES.empty_table(), history="q/1", batch=1, cursor="e:2")
    assert lake.last_batch("q/1") in (0, 1), "Delta makes no commit of nothing"
    assert read(lake) == []


def test_a_lake_travels(lake):
    lake.replace(table_of({1: 2}), history="q/1", batch=3, cursor="e:1")
    assert pickle.loads(pickle.dumps(lake)).last_batch("q/1") == 3


def test_columns_that_come_later_are_added(lake):
    lake.replace(table_of({1: 2}), history="q/1", batch=0, cursor="e:1")
    wider = table_of({1: 2}).append_column("more", pa.array([5]))
    lake.replace(wider, history="q/2", batch=0, cursor="f:1")
    assert read(lake) == [{**row(1, 2), "more": 5}]


def test_the_last_change_of_each_row_counts():
    feed = pa.Table.from_pylist(
        [
            {"_change_type": "delete", "_commit_version": 9, "_row_id": 1},
            {"_change_type": "insert", "_commit_version": 8, "_row_id": 2},
            {"_change_type": "insert", "_commit_version": 7, "_row_id": 1},
        ],
        pa.schema(list(CHANGES)[:3]),
    )
    found = last_changes(feed)
    assert sorted(zip(found["_row_id"].to_pylist(), found["_change_type"].to_pylist(),
                      strict=True)) == [(1, "delete"), (2, "insert")]  # fmt: skip
    assert last_changes(feed.slice(0, 1)).num_rows == 1


def test_what_is_no_format(tmp_path):
    assert lake_of("parquet", str(tmp_path), name="t", catalog=None) is None
    with pytest.raises(ConfigError, match="format is one of parquet, delta, iceberg, not 'hudi'"):
        lake_of("hudi", str(tmp_path), name="t", catalog=None)
