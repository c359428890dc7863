"""Tickets and descriptors, the unary messages, and the descriptor compiled into the package."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import BarrageError, RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.ingest.upload import PutCommand
from barrage.server.tables.tickets import (
    table_name_of_descriptor,
    table_name_of_ticket,
    ticket_of,
)
from barrage.transport import flight_messages
from barrage.transport.flight_messages import Descriptor

ROOT = Path(__file__).resolve().parents[3]


@given(st.text(min_size=1, max_size=50))
def test_a_ticket_names_its_table(name):
    if name.encode("utf-8", "ignore").decode() == name:
        assert table_name_of_ticket(ticket_of(name), DEFAULT_LIMITS) == name


@given(st.binary(max_size=60))
def test_any_bytes_as_a_ticket_give_a_name_or_one_of_our_errors(ticket):
    with contextlib.suppress(BarrageError):
        assert table_name_of_ticket(ticket, DEFAULT_LIMITS)


@given(st.binary(max_size=80))
def test_any_bytes_as_a_message_parse_or_are_a_protocol_error(buffer):
    for parse in (
        Descriptor.decode,
        flight_messages.decode_ticket,
        flight_messages.decode_action,
        flight_messages.decode_criteria,
        flight_messages.decode_handshake,
        flight_messages.decode_basic_auth,
    ):
        with contextlib.suppress(RemoteProtocolError):
            parse(buffer)


@given(st.binary(max_size=80))
def test_any_bytes_as_a_put_command_are_read_or_refused(command):
    with contextlib.suppress(BarrageError):
        assert PutCommand.parse(Descriptor(command=command), DEFAULT_LIMITS).table


@pytest.mark.parametrize(
    "descriptor",
    [Descriptor(path=("a",)), Descriptor(path=("scope", "a")), Descriptor(command=b"s/a")],
)
def test_descriptors_survive_the_wire(descriptor):
    again = Descriptor.decode(descriptor.encode())
    assert again == descriptor
    assert table_name_of_descriptor(again, DEFAULT_LIMITS) == "a"


def test_a_path_element_at_the_limit_and_one_past_it():
    longest = "x" * DEFAULT_LIMITS.ticket_bytes_max
    assert table_name_of_descriptor(Descriptor(path=(longest,)), DEFAULT_LIMITS) == longest
    with pytest.raises(BarrageError, match="the limit is 4096"):
        table_name_of_descriptor(Descriptor(path=(longest + "x",)), DEFAULT_LIMITS)


@pytest.mark.further
def test_another_copy_of_flight_in_the_process_does_not_collide():
    script = (
        "from google.protobuf import descriptor_pb2, descriptor_pool\n"
        "from barrage.transport._proto.flight_descriptor import FILE_DESCRIPTOR\n"
        "file = descriptor_pb2.FileDescriptorProto.FromString(FILE_DESCRIPTOR)\n"
        "file.name = 'Flight.proto'\n"
        "descriptor_pool.Default().AddSerializedFile(file.SerializeToString())\n"
        "import barrage.server.serving.app\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_the_compiled_descriptors_match_their_sources():
    pytest.importorskip("grpc_tools")
    sys.path.insert(0, str(ROOT / "proto_schemas"))
    try:
        import generate
    finally:
        sys.path.pop(0)
    assert len(generate.SOURCES) == 9
    for source in generate.SOURCES:
        assert generate.target_of(source).read_text() == generate.module_text(source)
