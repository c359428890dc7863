"""The producer is fed what a real engine reported at every step and must tell its subscribers what
the real server told them: the same rows, positions and shifts, cut at the same steps."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.propagation.producer import Producer
from barrage.limits import NANOS_PER_MS
from barrage.model.update import FullUpdate, TableUpdate
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet, RowSetShiftData, Shift
from tests.helpers.fake_table import FakeTable

VECTORS = Path(__file__).parents[3] / "vectors" / "barrage" / "conversations"
GROWING = {"growing"}


def conversations():
    for name in ("subscriptions", "natural-tables"):
        document = json.loads((VECTORS / f"{name}.json").read_text())
        for conversation in document["conversations"]:
            yield pytest.param(conversation, id=conversation["name"])


def as_update(engine_update: dict, columns: list[str]) -> TableUpdate:
    modified = RowSet.parse(engine_update["modified"])
    names = engine_update["modified_columns"]
    shifts = [
        Shift(*map(int, part.split(",")))
        for part in engine_update["shifted"].split(";")
        if part.strip()
    ]
    return TableUpdate(
        first_step=engine_update["step"],
        last_step=engine_update["step"],
        removed_keys_pre=RowSet.parse(engine_update["removed"]),
        shifts=RowSetShiftData.from_shifts(shifts),
        added_keys_post=RowSet.parse(engine_update["added"]),
        modified_keys_post=tuple(modified if name in names else RowSet.empty() for name in columns),
    )


def apply_to(table: FakeTable, update: TableUpdate) -> None:
    table.update(
        removed=list(update.removed_keys_pre),
        shifts=list(update.shifts),
        added=list(update.added_keys_post),
    )


def told(message) -> dict:
    """The row sets of a message under the names the recordings use."""
    if isinstance(message, FullUpdate):
        return {
            "added_rows": message.added_keys_post,
            "removed_rows": message.removed_keys_pre,
            "mod_column_nodes": list(message.modified_keys_post),
        }
    return {
        "added_rows": message.added_positions,
        "removed_rows": message.removed_positions,
        "mod_column_nodes": list(message.modified_positions),
    }


def check_same(message, recorded: dict) -> None:
    """Equal to what was recorded. The real server repaints views after several steps, which is
    more than needed; there ours may be less, but must come to the same size."""
    ours = told(message)
    added, removed = RowSet.parse(recorded["added_rows"]), RowSet.parse(recorded["removed_rows"])
    modified = [RowSet.parse(text) for text in recorded["mod_column_nodes"]]
    assert message.table_size == recorded["table_size"]
    assert message.is_effective_reverse == recorded["effective_reverse_viewport"]
    is_coalesced = recorded["first_seq"] != recorded["last_seq"]
    if is_coalesced and not isinstance(message, FullUpdate):
        assert added.contains_all(ours["added_rows"])
        assert removed.contains_all(ours["removed_rows"])
        assert len(added) - len(removed) == len(ours["added_rows"]) - len(ours["removed_rows"])
        return
    assert ours["added_rows"] == added
    assert ours["removed_rows"] == removed
    assert ours["mod_column_nodes"] == modified
    if isinstance(message, FullUpdate):
        assert [list(shift) for shift in message.shifts] == recorded["shift_data"]


@pytest.mark.parametrize("conversation", list(conversations()))
def test_updates_are_those_of_the_real_server(conversation: dict) -> None:
    columns = list(conversation["truth"][0]["columns"])
    schema = pa.schema([(name, pa.int64()) for name in columns])
    request = next(
        m["decoded"]["subscription_request"]
        for m in conversation["messages"]
        if "subscription_request" in m.get("decoded", {})
    )
    recorded = [
        m["decoded"]["update"]
        for m in conversation["messages"]
        if m.get("decoded", {}).get("update")
    ]
    snapshot = recorded.pop(0)
    assert snapshot["is_snapshot"]
    if any(update["is_snapshot"] for update in recorded):
        pytest.skip("the recorded server grew its snapshot; this one never does")
    table = FakeTable(RowSet.parse(conversation["truth"][0]["row_keys"]), schema=schema)
    producer = Producer(table, step=snapshot["first_seq"])
    viewport = None
    if request["viewport"] is not None:
        viewport = Viewport(
            positions=RowSet.parse(request["viewport"]), is_reverse=request["reverse_viewport"]
        )
    spec = SubscriptionSpec(
        columns=None if request["columns"] is None else tuple(request["columns"]),
        viewport=viewport,
        interval_ns=10 * NANOS_PER_MS,
        is_key_space=viewport is None,
        encoding=0,
    )
    producer.add(1, spec, 0)
    (delivery,) = producer.propagate(0)
    assert delivery.message.is_snapshot
    assert delivery.message.first_step == snapshot["first_seq"]
    assert list(delivery.message.effective_columns) == snapshot["effective_column_set"]
    check_same(delivery.message, snapshot)
    waiting = [
        as_update(update, columns)
        for update in conversation["engine_updates"]
        if update["step"] > snapshot["last_seq"]
    ]
    now_ns = 0
    for expected in recorded:
        while waiting and waiting[0].last_step <= expected["last_seq"]:
            update = waiting.pop(0)
            apply_to(table, update)
            producer.record(update, 0)
        now_ns += 1000 * NANOS_PER_MS
        (delivery,) = producer.propagate(now_ns)
        assert delivery.message.first_step == expected["first_seq"]
        assert delivery.message.last_step == expected["last_seq"]
        check_same(delivery.message, expected)
