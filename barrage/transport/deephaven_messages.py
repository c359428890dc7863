"""The messages and services of Deephaven clients, both ways.

Field numbers and types: ``proto_schemas/deephaven_*.proto``. A message is made by its short name:
``MESSAGES.new("Ticket", ticket=b"s/quotes")``, nested ones by their path:
``"AggSpec.AggSpecSum"``.
"""

from __future__ import annotations

from barrage.transport._proto import (
    deephaven_aggregation_descriptor,
    deephaven_console_descriptor,
    deephaven_filter_descriptor,
    deephaven_handle_descriptor,
    deephaven_input_descriptor,
    deephaven_session_descriptor,
    deephaven_storage_descriptor,
    deephaven_table_descriptor,
)
from barrage.transport.protobuf import MessageSet

FILE_DESCRIPTORS = tuple(
    module.FILE_DESCRIPTOR
    for module in (
        deephaven_session_descriptor,
        deephaven_handle_descriptor,
        deephaven_filter_descriptor,
        deephaven_aggregation_descriptor,
        deephaven_table_descriptor,
        deephaven_input_descriptor,
        deephaven_console_descriptor,
        deephaven_storage_descriptor,
    )
)
"""Serialized file descriptors, imported ones first."""

MESSAGES = MessageSet(*FILE_DESCRIPTORS)

_PACKAGE = "io.deephaven.proto.backplane.grpc"

CONFIG_SERVICE = f"{_PACKAGE}.ConfigService"
SESSION_SERVICE = f"{_PACKAGE}.SessionService"
APPLICATION_SERVICE = f"{_PACKAGE}.ApplicationService"
TABLE_SERVICE = f"{_PACKAGE}.TableService"
INPUT_TABLE_SERVICE = f"{_PACKAGE}.InputTableService"
STORAGE_SERVICE = f"{_PACKAGE}.StorageService"
OBJECT_SERVICE = f"{_PACKAGE}.ObjectService"
BROWSER_SERVICE = "io.deephaven.flightjs.protocol.BrowserFlightService"
CONSOLE_SERVICE = "io.deephaven.proto.backplane.script.grpc.ConsoleService"
