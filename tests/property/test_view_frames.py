"""Messages of many views laid out together say what each view's own message says."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.model.update import ViewUpdate
from barrage.model.view_updates import ViewRows, ViewUpdates
from barrage.rowset import RowSet
from barrage.rowset.many_sets import ManyRowSets
from barrage.wire import EncodeOptions, UpdateEncoder, WireRevision, decode_flight_data
from barrage.wire.updates.view_frames import view_frames
from tests.helpers.frame_factory import assembler_for

SCHEMA = pa.schema(
    [
        ("long", pa.int64()),
        ("short", pa.int16()),
        ("float", pa.float32()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("bytes", pa.large_binary()),
        ("time", pa.timestamp("ns", tz="UTC")),
        ("millis", pa.timestamp("ms")),
    ]
)
ROWS = 40
VIEW_ROWS = 9


def cell(kind: pa.DataType, number: int, *, factor: int = 1) -> object:
    """``factor``: how many times longer texts and bytes are."""
    if pa.types.is_boolean(kind):
        return number % 3 == 0
    if pa.types.is_string(kind):
        return "é" * (number % 5 * factor)
    if pa.types.is_large_binary(kind):
        return bytes((number,)) * (number % 4 * factor)
    if pa.types.is_timestamp(kind):
        tz = UTC if kind.tz else None
        return datetime(2026, 1, 1, tzinfo=tz).replace(microsecond=number * 1000)
    return number


@st.composite
def columns(draw: st.DrawFn, count: int) -> tuple[pa.Array, ...]:
    found = []
    for field in SCHEMA:
        has_nulls = draw(st.booleans())
        factor = draw(st.sampled_from([1, 100]))
        values = [
            None
            if has_nulls and draw(st.integers(0, 3)) == 0
            else cell(field.type, number, factor=factor)
            for number in range(count)
        ]
        before = draw(st.integers(0, 3))
        array = pa.array([None] * before + values, field.type)
        found.append(array.slice(before))
    return tuple(found)


def as_many(sets: list[RowSet]) -> ManyRowSets:
    none = np.empty(0, dtype=np.int64)
    return ManyRowSets(
        firsts=np.concatenate([none, *(each.firsts for each in sets)]),
        lasts=np.concatenate([none, *(each.lasts for each in sets)]),
        stops=np.cumsum([each.range_count for each in sets], dtype=np.int64),
    )


@st.composite
def group(draw: st.DrawFn, rows: list[RowSet], members: tuple[int, ...]) -> ViewRows:
    """Rows of each view, whose values may be those of other views as well."""
    values = draw(columns(ROWS))
    sizes = np.array([len(each) for each in rows], dtype=np.int64)
    low = [draw(st.integers(0, ROWS - size)) for size in sizes.tolist()]
    return ViewRows(
        columns=members,
        rows=as_many(rows),
        sizes=sizes,
        low=np.array(low, dtype=np.int64),
        values=tuple(values[column] for column in members),
    )


any_rows = st.sets(st.integers(0, VIEW_ROWS - 1)).map(RowSet)
some_rows = st.sets(st.integers(0, VIEW_ROWS - 1), min_size=1).map(RowSet)


def updates(**fields: object) -> ViewUpdates:
    defaults = {
        "first_step": 4,
        "last_step": 6,
        "count": 1,
        "is_snapshot": False,
        "is_effective_reverse": False,
        "effective_columns": None,
        "effective_viewports": None,
        "table_size": 1000,
        "source_time_ns": 77,
        "no_values": tuple(pa.nulls(0, field.type) for field in SCHEMA),
        "removed": None,
        "added": None,
        "modified": (),
        "modified_rows": None,
    }
    return ViewUpdates(**{**defaults, **fields})  # type: ignore[arg-type]


@st.composite
def deltas(draw: st.DrawFn) -> ViewUpdates:
    count = draw(st.integers(1, 6))
    every = [draw(st.one_of(st.just(RowSet.empty()), some_rows)) for _ in range(count)]
    order = draw(st.permutations(range(len(SCHEMA))))
    cuts = sorted(draw(st.sets(st.integers(1, len(SCHEMA)), max_size=3)))
    parts = [tuple(sorted(order[a:b])) for a, b in zip([0, *cuts], cuts, strict=False)]
    groups = []
    for members in parts:
        rows = [draw(st.sampled_from([each, RowSet.empty(), None])) for each in every]
        own = [
            draw(st.sets(st.sampled_from([*every[i], -1])).map(lambda rows: RowSet(rows - {-1})))
            if each is None
            else each
            for i, each in enumerate(rows)
        ]
        groups.append(draw(group(own, members)))
    removed = added = None
    if draw(st.booleans()):
        removed = as_many([draw(any_rows) for _ in range(count)])
        added = draw(group([draw(any_rows) for _ in range(count)], tuple(range(len(SCHEMA)))))
    return updates(
        count=count,
        removed=removed,
        added=added,
        modified=tuple(groups),
        modified_rows=as_many(every),
        is_effective_reverse=draw(st.booleans()),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> ViewUpdates:
    count = draw(st.integers(1, 6))
    members = tuple(sorted(draw(st.sets(st.integers(0, len(SCHEMA) - 1), min_size=1))))
    sizes = [draw(st.integers(0, VIEW_ROWS)) for _ in range(count)]
    starts = [draw(st.sampled_from([0, 7, 127, 128, 40_000, 2**40])) for _ in range(count)]
    return updates(
        count=count,
        is_snapshot=True,
        effective_columns=members,
        effective_viewports=as_many([RowSet.of_span(a, a + VIEW_ROWS) for a in starts]),
        added=draw(group([RowSet.of_span(0, size) for size in sizes], members)),
    )


options = st.builds(
    EncodeOptions, use_deephaven_nulls=st.booleans(), sends_source_time=st.booleans()
)


def assert_same(ours: ViewUpdate, alone: ViewUpdate) -> None:
    for name in ViewUpdate.__dataclass_fields__:
        mine, other = getattr(ours, name), getattr(alone, name)
        if name.endswith("_columns") and name != "effective_columns":
            assert [each.to_pylist() for each in mine] == [each.to_pylist() for each in other]
        else:
            assert mine == other, name


@given(found=st.one_of(deltas(), snapshots()), options=options, data=st.data())
def test_they_say_the_same(found: ViewUpdates, options: EncodeOptions, data: st.DataObject) -> None:
    encoder = UpdateEncoder(SCHEMA, options)
    order = data.draw(st.permutations(range(len(found))))
    which = np.array(order[: data.draw(st.integers(1, len(found)))], dtype=np.int64)
    for view, frame in zip(which.tolist(), view_frames(encoder, found, which), strict=True):
        told = found.view(view)
        alone = list(encoder.encode(told))
        is_added, is_modified = (
            any(map(len, columns)) for columns in (told.added_columns, told.modified_columns)
        )
        assert (frame is None) == (is_added and is_modified)
        if frame is not None:
            assert abs(len(frame) - len(b"".join(alone))) <= 64
            schema = encoder.schema_frame()
            assert_same(received([schema, frame], options), received([schema, *alone], options))


def received(frames: list[bytes], options: EncodeOptions) -> ViewUpdate:
    assembler = assembler_for(options, is_viewport=True)
    *_, last = [assembler.receive_frame(decode_flight_data(frame)) for frame in frames]
    assert isinstance(last, ViewUpdate)
    assert assembler.is_between_updates
    return last


def one_view(rows: int) -> ViewUpdates:
    values = pa.array(range(rows), pa.int64())
    sets = ManyRowSets.of_spans(np.zeros(1, np.int64), np.array([rows]))
    return updates(
        no_values=(pa.nulls(0, pa.int64()),),
        modified=(
            ViewRows(
                columns=(0,),
                rows=sets,
                sizes=np.array([rows]),
                low=np.zeros(1, np.int64),
                values=(values,),
            ),
        ),
        modified_rows=sets,
    )


@pytest.mark.parametrize(
    ("options", "rows", "is_made"),
    [
        (EncodeOptions(), 512, True),
        (EncodeOptions(), 513, False),
        (EncodeOptions(batch_rows_max=4), 4, True),
        (EncodeOptions(batch_rows_max=4), 5, False),
        (EncodeOptions(message_bytes_max=1000), 50, True),
        (EncodeOptions(message_bytes_max=1000), 150, False),
        (EncodeOptions(columns_as_list=True), 1, False),
        (EncodeOptions(revision=WireRevision.DRAFT_2020), 1, False),
    ],
)
def test_what_is_large_or_special_is_left_to_the_encoder(options, rows, is_made) -> None:
    encoder = UpdateEncoder(pa.schema([("a", pa.int64())]), options)
    [frame] = view_frames(encoder, one_view(rows), np.zeros(1, dtype=np.int64))
    assert (frame is not None) == is_made


@pytest.mark.parametrize("over", [0, 1])
def test_a_message_is_no_longer_than_its_reader_takes(over: int) -> None:
    schema = pa.schema([("a", pa.int64())])
    which = np.zeros(1, dtype=np.int64)
    found = one_view(100)
    [whole] = view_frames(UpdateEncoder(schema, EncodeOptions()), found, which)
    assert whole is not None
    # The body alone fits in either case.
    encoder = UpdateEncoder(schema, EncodeOptions(message_bytes_max=len(whole) - over))
    assert encoder.target_bytes >= 800
    assert view_frames(encoder, found, which) == ([None] if over else [whole])


def views_of_texts(lengths: list[int]) -> tuple[UpdateEncoder, ViewUpdates]:
    """One row for each view, with a text of so many bytes."""
    schema = pa.schema([("a", pa.string())])
    count = len(lengths)
    sets = ManyRowSets.of_spans(np.zeros(count, np.int64), np.ones(count, np.int64))
    rows = ViewRows(
        columns=(0,),
        rows=sets,
        sizes=np.ones(count, np.int64),
        low=np.arange(count),
        values=(pa.array(["x" * length for length in lengths]),),
    )
    found = updates(
        count=count,
        no_values=(pa.nulls(0, pa.string()),),
        modified=(rows,),
        modified_rows=sets,
    )
    return UpdateEncoder(schema, EncodeOptions()), found


def test_long_bodies_are_left_to_the_encoder_and_the_others_are_not() -> None:
    offsets = 8
    lengths = [5, (1 << 16) - offsets, (1 << 16) - offsets + 1, 0, 1 << 20, 300]
    encoder, found = views_of_texts(lengths)
    which = np.array([5, 4, 3, 2, 1, 0])
    frames = view_frames(encoder, found, which)
    assert [frame is None for frame in frames] == [False, True, False, True, False, False]
    schema = encoder.schema_frame()
    for view, frame in zip(which.tolist(), frames, strict=True):
        if frame is not None:
            told = received([schema, frame], encoder.options)
            assert told.modified_columns[0].to_pylist() == ["x" * lengths[view]]


def test_no_byte_of_a_long_body_is_gathered() -> None:
    """With two indices for each byte they took seventeen times their size, for nothing."""
    encoder, found = views_of_texts([1 << 20] * 8)
    tracemalloc.start()
    try:
        assert view_frames(encoder, found, np.arange(8)) == [None] * 8
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_many_bytes_take_no_indices() -> None:
    encoder, found = views_of_texts([60_000] * 50)
    tracemalloc.start()
    try:
        assert None not in view_frames(encoder, found, np.arange(50))
        # Bodies and messages.
        assert tracemalloc.get_traced_memory()[1] < 3 * 60_000 * 50
    finally:
        tracemalloc.stop()


def test_columns_that_cannot_be_cut_are_left_to_the_encoder() -> None:
    schema = pa.schema([("a", pa.list_(pa.int64()))])
    found = one_view(3)
    lists = pa.array([[1], [2], [3]], schema.field(0).type)
    [group] = found.modified
    changed = updates(
        no_values=(lists.slice(0, 0),),
        modified=(
            ViewRows(
                columns=(0,), rows=group.rows, sizes=group.sizes, low=group.low, values=(lists,)
            ),
        ),
        modified_rows=found.modified_rows,
    )
    assert view_frames(
        UpdateEncoder(schema, EncodeOptions()), changed, np.zeros(1, dtype=np.int64)
    ) == [None]
