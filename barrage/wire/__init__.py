"""Bytes to values and back: Flight messages, Barrage metadata, row sets and columns.

No IO, no state machines, no clock. Decoders raise RemoteProtocolError for anything a peer got
wrong.
"""

from barrage.wire.bitset import decode_bit_set, encode_bit_set
from barrage.wire.flight_data import (
    decode_flight_data,
    encode_flight_data,
)
from barrage.wire.frame import FlightFrame
from barrage.wire.ipc import decode_schema, encapsulate_schema, encode_schema
from barrage.wire.messages import (
    BarrageMessage,
    OpaqueMessage,
    SerializationOptions,
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionOptions,
    SubscriptionRequest,
    UpdateMetadata,
)
from barrage.wire.metadata import (
    WrongMagicError,
    decode_wrapper,
    encode_wrapper,
    peek_message_type,
)
from barrage.wire.revision import WireRevision
from barrage.wire.row_sets.row_set_codec import (
    decode_row_set,
    decode_shifts,
    encode_row_set,
    encode_shifts,
)
from barrage.wire.updates.batch_reader import BatchReader, ReceivedBatch
from barrage.wire.updates.update_assembler import SchemaReceived, UpdateAssembler
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from barrage.wire.wire_schema import wire_schema, with_deephaven_metadata

__all__ = [
    "BarrageMessage",
    "BatchReader",
    "EncodeOptions",
    "FlightFrame",
    "OpaqueMessage",
    "ReceivedBatch",
    "SchemaReceived",
    "SerializationOptions",
    "SnapshotOptions",
    "SnapshotRequest",
    "SubscriptionOptions",
    "SubscriptionRequest",
    "UpdateAssembler",
    "UpdateEncoder",
    "UpdateMetadata",
    "WireRevision",
    "WrongMagicError",
    "decode_bit_set",
    "decode_flight_data",
    "decode_row_set",
    "decode_schema",
    "decode_shifts",
    "decode_wrapper",
    "encapsulate_schema",
    "encode_bit_set",
    "encode_flight_data",
    "encode_row_set",
    "encode_schema",
    "encode_shifts",
    "encode_wrapper",
    "peek_message_type",
    "wire_schema",
    "with_deephaven_metadata",
]
