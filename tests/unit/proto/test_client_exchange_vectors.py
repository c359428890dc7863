"""Every recorded conversation with a real server, through exchange and replica, to the recorded
truth.

The truth was taken inside the server at the step each update leads to; see
tests/vectors/barrage/README.md.
"""

from __future__ import annotations

import datetime
import decimal
import math

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError, StatusCode
from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.snapshot_parts import SnapshotParts
from barrage.model.viewport import Viewport
from barrage.proto.client_events import ExchangeEnded, SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange, ClientState
from barrage.rowset import RowSet
from barrage.transport.status import error_from_status
from barrage.wire.messages import SnapshotRequest
from barrage.wire.metadata import decode_wrapper
from barrage.wire.revision import WireRevision
from tests.helpers.conversations import all_conversations, conversation, conversations

SUBSCRIPTIONS = [
    entry
    for entry in all_conversations()
    if entry.file != "errors"
    and entry.rpc == "DoExchange"
    and any((m.decoded or {}).get("subscription_request") for m in entry.requests)
]


class Player:
    """Plays one conversation: sends what the recorded client sent, receives what it received."""

    def __init__(self, entry):
        self.entry = entry
        self.exchange = ClientExchange()
        self.replica = None
        self.parts = None
        self.consistent = []

    def play(self):
        """Yields (index of the message that completed it, event) for every update."""
        for message in self.entry.messages:
            if message.frame is None:
                continue
            if message.is_request:
                if message.frame.metadata:
                    self.request(decode_wrapper(message.frame.metadata, WireRevision.R1_0_0))
                continue
            if self.exchange.state is ClientState.IDLE:
                self.exchange.take_snapshot(b"")
            for event in self.exchange.receive_frame(message.raw):
                if isinstance(event, SchemaArrived):
                    self.begin(event.schema)
                else:
                    self.apply(event)
                    yield event

    def request(self, request):
        viewport = None
        if request.viewport is not None:
            viewport = Viewport(positions=request.viewport, is_reverse=request.is_reverse)
        if isinstance(request, SnapshotRequest):
            self.exchange.take_snapshot(
                request.ticket, columns=request.columns, viewport=viewport, options=request.options
            )
            self.columns = request.columns
        elif self.exchange.state is ClientState.IDLE:
            self.exchange.subscribe(
                request.ticket, columns=request.columns, viewport=viewport, options=request.options
            )
        else:
            self.exchange.change(columns=request.columns, viewport=viewport)

    def begin(self, schema):
        self.schema = schema
        if self.exchange.state is ClientState.RECEIVING:
            self.parts = SnapshotParts(schema, getattr(self, "columns", None))
        elif self.exchange.has_view_positions:
            self.replica = ViewReplica(schema)
        else:
            self.replica = FullReplica(schema)

    def apply(self, event):
        assert isinstance(event, UpdateArrived)
        if self.parts is not None:
            self.parts.add(event.message)
            return
        self.replica.apply(event.message)
        self.replica.validate()


def plain_cells(column):
    """Cells as the truth writes them: timestamps as numbers, odd floats as text, bytes as hex."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        column = pa.chunked_array([*column.chunks], type=kind).cast(pa.list_(pa.int64()))
    if kind == pa.uint16():
        return [None if v is None else chr(v) for v in column.to_pylist()]
    if pa.types.is_list(kind) and kind.value_type == pa.uint16():
        return [
            None if row is None else [None if v is None else chr(v) for v in row]
            for row in column.to_pylist()
        ]
    return [plain(cell) for cell in column.to_pylist()]


def plain(cell):
    if isinstance(cell, float):
        if math.isnan(cell):
            return "NaN"
        if math.isinf(cell):
            return "Infinity" if cell > 0 else "-Infinity"
    if isinstance(cell, bytes):
        return {"hex": cell.hex()}
    if isinstance(cell, list):
        return [plain(item) for item in cell]
    return cell


def expected_cells(truth, keys):
    """Per column the cells of the rows ``keys``."""
    rows = RowSet.parse(truth["row_keys"])
    positions = list(rows.positions_of(keys))
    return {
        name: [cells[position] for position in positions]
        for name, cells in truth["columns"].items()
    }


def assert_rows(table, truth, keys):
    expected = expected_cells(truth, keys)
    for name in table.column_names:
        assert plain_cells(table[name]) == expected[name], name


@pytest.mark.parametrize("entry", SUBSCRIPTIONS, ids=lambda entry: entry.name)
def test_every_update_leads_to_the_recorded_rows(entry):
    player = Player(entry)
    count = 0
    for count, event in enumerate(player.play(), start=1):
        if not entry.updates:
            continue
        recorded = entry.updates[count - 1]
        truth = entry.truth(recorded["truth_step"])
        if "view_row_keys" in recorded:
            keys = RowSet(recorded["view_row_keys"])
            assert player.replica.table_size == len(RowSet.parse(truth["row_keys"]))
        else:
            keys = RowSet.parse(truth["row_keys"])
            assert player.replica.row_keys == keys
            if event.message.is_snapshot:
                part = event.message.effective_viewport
            if part is not None:
                keys = keys.keys_at(part)
            assert player.replica.present_keys == keys
        assert_rows(player.replica.to_arrow(), truth, keys)
        assert len(player.replica) == len(keys)
    assert count >= max(len(entry.updates), 1)
    assert player.exchange.state is ClientState.LIVE


@pytest.mark.parametrize("entry", SUBSCRIPTIONS, ids=lambda entry: entry.name)
def test_a_state_is_consistent_when_it_holds_all_rows_of_a_request(entry):
    """Not while it grows; then for the rest of the conversation unless another request grows."""
    player = Player(entry)
    wanted = [m.decoded["subscription_request"] for m in entry.requests]
    for event in player.play():
        message = event.message
        if message.is_snapshot:
            echoed = message.effective_viewport
            asked = [
                None if request["viewport"] is None else RowSet.parse(request["viewport"])
                for request in wanted
            ]
            assert event.is_consistent == (echoed in asked)
        if event.is_current:
            assert event.is_consistent


def test_a_burst_is_answered_by_the_answer_to_its_last_request():
    player = Player(conversation("requests-in-a-burst"))
    events = list(player.play())
    assert [event.is_current for event in events] == [True, True]
    assert events[0].message.effective_viewport == RowSet.parse("9-11")


def test_changes_make_the_state_outdated_until_they_are_answered():
    player = Player(conversation("viewport-changes"))
    flags = [(event.is_consistent, event.is_current) for event in player.play()]
    assert all(is_consistent for is_consistent, _ in flags)
    assert not all(is_current for _, is_current in flags)
    assert flags[-1] == (True, True)


SNAPSHOTS = [
    ("snapshot-static-full", slice(None)),
    ("snapshot-static-viewport", slice(0, 4)),
    ("snapshot-static-reverse", slice(16, 20)),
    ("snapshot-static-columns", slice(None)),
    ("snapshot-static-past-end", slice(0, 0)),
    ("snapshot-static-empty-viewport", slice(0, 0)),
    ("snapshot-static-empty-table", slice(0, 0)),
    ("snapshot-no-options", slice(None)),
    ("snapshot-refreshing-full", slice(None)),
    ("snapshot-refreshing-viewport", slice(4, 10)),
    ("snapshot-refreshing-reverse", slice(-5, None)),
    ("snapshot-batch-3", slice(0, 10)),
    ("snapshot-max-message", slice(None)),
    ("java-client-snapshot", slice(None)),
    ("doget", slice(None)),
]


@pytest.mark.parametrize(("name", "rows"), SNAPSHOTS, ids=[name for name, _ in SNAPSHOTS])
def test_snapshots_hold_the_rows_asked_for(name, rows):
    player = Player(conversation(name))
    list(player.play())
    truth = player.entry.document["truth"][0]
    table = player.parts.to_arrow()
    keys = RowSet.parse(truth["row_keys"])
    start, stop, _ = rows.indices(len(keys))
    assert_rows(table, truth, keys.slice(start, stop))
    assert table.num_rows == stop - start
    assert player.exchange.receive_end(None) == [ExchangeEnded(error=None)]
    assert player.exchange.receive_end(None) == []


@pytest.mark.parametrize(
    ("name", "start", "stop"),
    [
        ("snapshot-static-large", 0, 14_000),
        ("snapshot-static-large-viewport", 100, 9_100),
        ("snapshot-static-large-reverse", 5_000, 14_000),
    ],
)
def test_large_snapshots_are_put_together_from_parts(name, start, stop):
    player = Player(conversation(name))
    assert len(list(player.play())) == 2
    table = player.parts.to_arrow()
    expected = {
        "A": np.arange(start, stop).astype(np.int16).tolist(),
        "B": [i % 100 for i in range(start, stop)],
    }
    assert {n: table[n].to_pylist() for n in table.column_names} == {
        n: expected[n] for n in table.column_names
    }


@pytest.mark.parametrize(
    ("name", "rows"), [("growing-static-full", 20_000), ("batch-minus-one", 14_000)]
)
def test_a_static_table_grows_to_all_its_rows(name, rows):
    player = Player(conversation(name))
    list(player.play())
    table = player.replica.to_arrow()
    assert table["B"].to_pylist() == [i % 100 for i in range(rows)]
    if "A" in table.column_names:
        assert table["A"].to_pylist() == list(range(rows))


def test_a_large_viewport_is_complete():
    player = Player(conversation("large-viewport"))
    list(player.play())
    assert len(player.replica) == 15_000
    assert player.exchange.state is ClientState.LIVE


@pytest.mark.parametrize(
    ("name", "states"),
    [
        (
            "blink-full",
            [[], [0, 1, 2, 3, 4, 5, 6, 7], [], [100, 101], [], list(range(200, 208)), []],
        ),
        ("blink-viewport", [[], [0, 1, 2, 3], [], [100, 101], [], [], [201, 202, 203, 204, 205]]),
    ],
)
def test_blink_rows_are_replaced(name, states):
    player = Player(conversation(name))
    seen = [player.replica.to_arrow()["X"].to_pylist() for _ in player.play()]
    assert seen[: len(states)] == states


# --- types ---------------------------------------------------------------------------------------


def nanoseconds(text):
    """A time of day with nine digits after the second."""
    clock, _, fraction = text.partition(".")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return (hours * 3600 + minutes * 60 + seconds) * 10**9 + int(fraction.ljust(9, "0") or 0)


def zoned(text):
    moment, _, _ = text.partition("[")
    stamp, _, fraction = moment[:-6].partition(".")
    utc = datetime.datetime.fromisoformat(stamp + moment[-6:]).astimezone(datetime.UTC)
    seconds = int((utc - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)).total_seconds())
    return seconds * 10**9 + int(fraction.ljust(9, "0") or 0)


def months(text):
    """Days are lost on the wire."""
    years, _, rest = text[1:].partition("Y")
    return int(years) * 12 + (int(rest.partition("M")[0]) if "M" in rest else 0)


def unscaled(text):
    number = decimal.Decimal(text)
    sign, digits, exponent = (number.normalize() if number else decimal.Decimal(0)).as_tuple()
    value = int("".join(map(str, digits))) * (-1 if sign else 1)
    return (-exponent).to_bytes(4, "little", signed=True) + big_endian(value)


def big_endian(value):
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


AS_TEXT = {
    "Ld": (pa.int64(), lambda t: (datetime.date.fromisoformat(t) - datetime.date(1970, 1, 1)).days
           * 86_400_000),
    "Lt": (pa.int64(), nanoseconds),
    "Du": (pa.int64(), lambda t: round(decimal.Decimal(t[2:-1]) * 10**9)),
    "Zd": (pa.int64(), zoned),
}  # fmt: skip
AS_BYTES = {"Bd": unscaled, "Bi": lambda text: big_endian(int(text))}


def comparable(name, column, cells):
    """(actual, expected) of a column whose truth is text."""
    if name in AS_TEXT:
        kind, convert = AS_TEXT[name]
        return column.cast(kind).to_pylist(), [None if t is None else convert(t) for t in cells]
    if name in AS_BYTES:
        return column.to_pylist(), [None if t is None else AS_BYTES[name](t) for t in cells]
    if name == "Pe":
        chunk = column.combine_chunks()
        chunk = chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
        raw = np.frombuffer(chunk.buffers()[1], np.int32, len(chunk), chunk.offset * 4).tolist()
        valid = chunk.is_valid().to_pylist()
        actual = [value if is_set else None for value, is_set in zip(raw, valid, strict=True)]
        return actual, [None if text is None else months(text) for text in cells]
    return plain_cells(column), cells


@pytest.mark.parametrize("entry", conversations("types"), ids=lambda entry: entry.name)
def test_every_type_arrives(entry):
    player = Player(entry)
    list(player.play())
    table = player.replica.to_arrow()
    truth = entry.document["truth"][0]
    assert table.num_rows == len(RowSet.parse(truth["row_keys"]))
    for name, cells in truth["columns"].items():
        actual, expected = comparable(name, table[name], cells)
        assert actual == expected, name


@pytest.mark.parametrize(("name", "limit"), [("preview-list-2", 2), ("preview-list--2", -2)])
def test_lists_are_cut_and_nothing_else(name, limit):
    player = Player(conversation(name))
    list(player.play())
    table = player.replica.to_arrow()
    truth = player.entry.document["truth"][0]["columns"]
    cut = slice(limit) if limit > 0 else slice(limit, None)
    assert table["L"].to_pylist() == [None if c is None else c[cut] for c in truth["L"]]
    assert plain_cells(table["B"]) == truth["B"]
    assert plain_cells(table["S"]) == truth["S"]


# --- errors --------------------------------------------------------------------------------------

ERRORS = {
    "unknown-name": "TableNotFoundError",
    "unknown-route": "TicketError",
    "empty-ticket": "RequestRefusedError",
    "not-a-table": "TicketError",
    "full-to-viewport": "RequestRefusedError",
    "blink-reverse": "RequestRefusedError",
    "snapshot-unknown-name": "TableNotFoundError",
    "snapshot-zero-length-viewport": "RequestRefusedError",
    "no-authorization": "AuthenticationError",
    "bad-authorization": "AuthenticationError",
    "table-fails": "RequestRefusedError",
    "table-already-failed": "TableFailedError",
}


@pytest.mark.parametrize(("name", "expected"), ERRORS.items())
def test_the_status_at_the_end_becomes_an_error(name, expected):
    player = Player(conversation(name))
    # What was wrong with the request does not matter here; the answer does.
    is_snapshot = name.startswith("snapshot")
    ask = player.exchange.take_snapshot if is_snapshot else player.exchange.subscribe
    ask(b"s/t")
    for message in player.entry.answers:
        player.exchange.receive_frame(message.raw)
    end = player.entry.document["end"]
    error = error_from_status(StatusCode[end["status"]], end["details"], table="t")
    assert type(error).__name__ == expected
    assert player.exchange.receive_end(error) == [ExchangeEnded(error=error)]
    assert player.exchange.state is ClientState.ENDED
    with pytest.raises(RemoteProtocolError):
        player.exchange.receive_frame(b"")
