"""What one cycle may change of a durable table at most, so that it fits in a record."""

from __future__ import annotations

import pyarrow as pa
import pytest

import barrage
from barrage.errors import (
    BarrageError,
    HistoryLostError,
    LimitExceededError,
    RecordRefusedError,
    TableFailedError,
)
from barrage.journal.records import extents
from barrage.journal.records.numbering import EntryBuilder
from barrage.server import Server

LABELS = pa.schema([("s", pa.dictionary(pa.int32(), pa.string()))])
TEXTS = pa.schema([("k", pa.int64()), ("s", pa.string())])


@pytest.fixture(autouse=True)
def _small_records(monkeypatch):
    monkeypatch.setattr(extents, "EXTENT_MAX", 10_000)


def labels(rows: int, size: int = 100) -> pa.RecordBatch:
    """Few bytes that are many once written out."""
    cells = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * size])
    return pa.record_batch([cells], schema=LABELS)


def texts(keys: range, size: int = 100) -> pa.RecordBatch:
    rows = [[*keys], [str(k % 10) * size for k in keys]]
    return pa.record_batch([pa.array(each) for each in rows], schema=TEXTS)


def test_an_upload_too_large_for_a_record_is_refused(tmp_path):
    with Server(data=tmp_path) as server:
        table, other = server.create_table("d", LABELS), server.create_table("o", {"a": "int64"})
        with pytest.raises(LimitExceededError, match=r"'s' .*'d'.* 10100 .* 10000"):
            table.add(labels(101), producer="w", sequence=1)
        table.add(labels(100), producer="w", sequence=1)
        table.add(labels(100), producer="w", sequence=2)
        other.add({"a": [1]})
    with Server(data=tmp_path) as server:
        assert len(server.table("d")) == 200
        assert server.table("o").to_arrow().to_pylist() == [{"a": 1}]


def test_what_one_cycle_takes_is_counted_together(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("d", LABELS)
        with pytest.raises(LimitExceededError), server.transaction() as transaction:  # noqa: PT012
            transaction.add(table, labels(60))
            transaction.add(table, labels(60))
        assert len(table) == 0
        table.add(labels(60))
        table.add(labels(60))


def test_small_writes_to_a_large_table_are_counted_one_by_one(tmp_path):
    with Server(data=tmp_path) as server:
        keyed = server.create_table("k", TEXTS, key="k")
        listed = server.create_table("l", TEXTS, kind="list")
        for start in range(0, 240, 60):
            keyed.upsert(texts(range(start, start + 60)))
            listed.add(texts(range(start, start + 60)))
        with server.transaction() as transaction:
            for start in (0, 20, 0, 20, 0):
                transaction.upsert(keyed, texts(range(start, start + 10)))
            for _ in range(4):
                transaction.delete(listed, 0, 20)
            transaction.insert(listed, 3, texts(range(10)))
        assert (len(keyed), len(listed)) == (240, 170)
        with pytest.raises(LimitExceededError), server.transaction() as transaction:  # noqa: PT012
            for start in (0, 20, 40):
                transaction.upsert(keyed, texts(range(start, start + 20)))
        with pytest.raises(LimitExceededError), server.transaction() as transaction:  # noqa: PT012
            for _ in range(6):
                transaction.delete(listed, 0, 20)
        assert (len(keyed), len(listed)) == (240, 170)


def test_a_table_is_not_made_with_more_than_fits(tmp_path):
    with Server(data=tmp_path) as server:
        data = pa.table([labels(101).column(0)], schema=LABELS)
        for kind in ("append_only", "static"):
            with pytest.raises(LimitExceededError):
                server.create_table("d", data=data, kind=kind)
        assert "d" not in server.table_names()
        server.create_table("m", data=data, journal="none")
        server.create_table("d", data=data.slice(1), kind="static")


def test_cells_that_go_count_with_those_that_come(tmp_path):
    with Server(data=tmp_path) as server:
        table = server.create_table("d", TEXTS, key="k")
        for start in range(0, 240, 60):
            table.upsert(texts(range(start, start + 60)))
        with pytest.raises(LimitExceededError):
            table.replace(texts(range(1)))
        with pytest.raises(LimitExceededError):
            table.upsert(texts(range(60), size=101))
        with pytest.raises(LimitExceededError):
            table.remove([*range(110)])
        assert len(table) == 240
        table.upsert(texts(range(40), size=101))
        table.upsert(texts(range(300, 360)))
        table.remove([*range(90)])
        assert len(table) == 210


def test_rows_of_lists_and_rings_that_go_count(tmp_path):
    with Server(data=tmp_path) as server:
        listed = server.create_table("l", TEXTS, kind="list")
        ring = server.create_table("r", TEXTS, capacity=120)
        for start in (0, 60):
            listed.add(texts(range(start, start + 60)))
            ring.add(texts(range(start, start + 60)))
        with pytest.raises(LimitExceededError):
            listed.delete(0, 101)
        with pytest.raises(LimitExceededError):
            listed.replace(texts(range(1)))
        listed.delete(10, 110)
        assert len(listed) == 20
        with pytest.raises(LimitExceededError):
            ring.add(texts(range(60)))
        ring.add(texts(range(50)))
        assert len(ring) == 120


@pytest.mark.parametrize(
    "cells",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([101], pa.int32()), ["x" * 100]),
        pa.array([["x" * 50, "x" * 50]] * 101),
        pa.array([{"a": "x" * 100}] * 101),
        pa.array(["x" * 100] * 101, pa.string_view()),
        pa.array([b"x" * 100] * 101),
    ],
    ids=lambda cells: str(cells.type),
)
def test_every_kind_of_cells_is_counted(tmp_path, cells):
    schema = pa.schema([("s", cells.type)])
    with Server(data=tmp_path) as server:
        table = server.create_table("d", schema)
        with pytest.raises(LimitExceededError):
            table.add(pa.record_batch([cells], schema=schema))
        table.add(pa.record_batch([cells.slice(1)], schema=schema))
        assert len(table) == 100


def test_columns_without_32_bit_offsets_are_not_bounded(tmp_path):
    with Server(data=tmp_path) as server:
        schema = pa.schema([("n", pa.int64()), ("s", pa.large_string())])
        table = server.create_table("d", schema)
        table.add(pa.table([pa.array(range(3000)), pa.array(["x" * 10] * 3000)], schema=schema))
        assert len(table) == 3000


def test_a_table_in_memory_goes_on_without_its_history(monkeypatch):
    def refuse(self, pending):
        raise pa.ArrowInvalid("offset overflow")

    monkeypatch.setattr(EntryBuilder, "build", refuse)
    with Server(journal="memory") as server:
        table = server.create_table("m", LABELS)
        for count in range(1, 4):
            step = table.add(labels(200))
            assert len(table) == 200 * count
        with pytest.raises(HistoryLostError):
            table.as_of(step)


def test_a_table_whose_change_cannot_be_recorded_fails_alone(tmp_path, monkeypatch):
    build = EntryBuilder.build

    def refuse(self, pending):
        if "bad" in self._schema.names and pending.change.update.added_keys_post.size == 2:
            raise pa.ArrowInvalid("offset overflow")
        return build(self, pending)

    monkeypatch.setattr(EntryBuilder, "build", refuse)
    with Server(data=tmp_path) as server:
        bad, good = (server.create_table(name, {name: "int64"}) for name in ("bad", "good"))
        bad.add({"bad": [1]})
        view = bad.where("bad > 0")
        with barrage.connect(server.uri) as session:
            watched = session.table("bad").subscribe()
            with pytest.raises(RecordRefusedError, match="'bad' could not be recorded"):
                bad.add({"bad": [2, 3]}, producer="w", sequence=1)
            with pytest.raises(BarrageError, match="could not be recorded"):
                list(watched.updates(timeout=60))
        with pytest.raises(TableFailedError):
            bad.add({"bad": [4]})
        with pytest.raises(TableFailedError):
            view.to_arrow()
        good.add({"good": [1]})
    with Server(data=tmp_path) as server:
        assert server.table("bad").to_arrow().column(0).to_pylist() == [1]
        assert server.table("good").to_arrow().column(0).to_pylist() == [1]
        with pytest.raises(RecordRefusedError):
            server.table("bad").add({"bad": [2, 3]}, producer="w", sequence=1)
        server.table("good").add({"good": [2]})
