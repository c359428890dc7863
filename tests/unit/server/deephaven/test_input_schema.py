"""Schemas of Deephaven clients: which types are taken, and what becomes of their metadata."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError, SchemaError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.presentation.deephaven_input_schema import read_schema, stored_schema
from tests.unit.server.deephaven.arrow_samples import sample_columns


def described(kind: pa.DataType) -> pa.Schema:
    metadata = {"deephaven:type": "int", "deephaven:inputtable.isKey": "true"}
    return pa.schema(
        [pa.field("a", kind, metadata=metadata)],
        metadata={"deephaven:attribute.AppendOnly": "true", "own": "kept"},
    )


@pytest.mark.parametrize("name", sample_columns())
def test_every_type_clients_send_is_taken_as_it_is(name):
    kind = sample_columns()[name].type
    stored = read_schema(described(kind).serialize().to_pybytes(), DEFAULT_LIMITS)
    assert stored.field("a").type == kind
    assert stored.field("a").metadata is None
    assert stored.metadata == {b"own": b"kept"}


def test_other_metadata_of_a_field_stays():
    field = pa.field("a", pa.int8(), metadata={"deephaven:type": "byte", "unit": "m"})
    stored = stored_schema(pa.schema([field]), DEFAULT_LIMITS)
    assert stored.field("a").metadata == {b"unit": b"m"}
    assert stored.metadata is None


def test_nullability_and_order_stay():
    schema = pa.schema([pa.field("b", pa.int8(), nullable=False), pa.field("a", pa.string())])
    assert stored_schema(schema, DEFAULT_LIMITS) == schema


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([("x", pa.int64())]),
        pa.list_(pa.struct([("x", pa.int64())])),
    ],
)
def test_a_type_no_table_can_have_is_refused_with_its_column(kind):
    with pytest.raises(SchemaError, match=r"column 'a'|struct"):
        stored_schema(described(kind), DEFAULT_LIMITS)


def test_too_many_columns_are_refused():
    limits = dataclasses.replace(DEFAULT_LIMITS, columns_max=2)
    two = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    assert len(stored_schema(two, limits)) == 2
    with pytest.raises(SchemaError, match="the limit is 2"):
        stored_schema(two.append(pa.field("c", pa.int8())), limits)


@pytest.mark.parametrize("cut", [0, 3, 8, 20, 100])
def test_bytes_that_are_no_schema_message(cut):
    message = described(pa.int64()).serialize().to_pybytes()
    with pytest.raises(RemoteProtocolError):
        read_schema(message[:cut], DEFAULT_LIMITS)


def test_a_record_batch_message_is_no_schema():
    batch = pa.record_batch({"a": [1]})
    with pytest.raises(RemoteProtocolError):
        read_schema(batch.serialize().to_pybytes(), DEFAULT_LIMITS)
