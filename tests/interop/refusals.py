"""Bad input: each case makes its calls in a session of its own and gives the last call's status."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from barrage import wire
from barrage.rowset import RowSet
from barrage.transport.deephaven_messages import (
    APPLICATION_SERVICE,
    INPUT_TABLE_SERVICE,
    MESSAGES,
    SESSION_SERVICE,
    TABLE_SERVICE,
)
from tests.interop.raw_calls import (
    FLIGHT_SERVICE,
    SHORT_SECONDS,
    RawSession,
    command_frame,
    export,
    flight_frame,
    ipc_messages,
    metadata_frame,
    reference,
    ticket,
)

if TYPE_CHECKING:
    from tests.interop.driven_server import DrivenServer

Case: TypeAlias = "Callable[[DrivenServer], str]"
CASES: dict[str, Case] = {}


def case(call: Callable[[RawSession], str]) -> Callable[[RawSession], str]:
    """A case that needs one session."""

    def run(server: DrivenServer) -> str:
        session = RawSession(server)
        try:
            return call(session)
        finally:
            session.close()

    CASES[call.__name__] = run
    return call


def fetching(name: str, value: bytes) -> None:
    CASES[f"fetch_{name}"] = _one(lambda session: session.fetch(value))


def getting(name: str, value: bytes) -> None:
    CASES[f"get_{name}"] = _one(
        lambda session: session.call(FLIGHT_SERVICE, "DoGet", ticket(value))
    )


def _one(call: Callable[[RawSession], str]) -> Case:
    def run(server: DrivenServer) -> str:
        session = RawSession(server)
        try:
            return call(session)
        finally:
            session.close()

    return run


# --- tickets ---

TICKETS = {
    "an_unknown_name": b"s/nope",
    "an_unknown_route": b"x/keyed",
    "an_empty_ticket": b"",
    "a_route_only": b"s",
    "an_unknown_application": b"a/nope/f/keyed",
    "an_application_without_field": b"a/nope",
    "an_unknown_shared_ticket": b"h0123456789abcdef",
    "a_short_export_ticket": b"e\x01",
    "a_long_export_ticket": b"e\x01\0\0\0\0",
    "a_name_that_is_no_text": b"s/\xff\xfe",
}
for _name, _value in TICKETS.items():
    fetching(_name, _value)
    getting(_name, _value)


@case
def fetch_without_source(session: RawSession) -> str:
    return session.table("FetchTable")


@case
def fetch_without_result_ticket(session: RawSession) -> str:
    request = MESSAGES.new("FetchTableRequest", source_id=reference(b"s/keyed"))
    return session.call(TABLE_SERVICE, "FetchTable", request)


@case
def fetch_to_a_result_ticket_that_is_a_name(session: RawSession) -> str:
    request = MESSAGES.new(
        "FetchTableRequest", source_id=reference(b"s/keyed"), result_id=ticket(b"s/mine")
    )
    return session.call(TABLE_SERVICE, "FetchTable", request)


@case
def fetch_to_a_result_ticket_in_use(session: RawSession) -> str:
    value = session.opened("keyed")
    request = MESSAGES.new(
        "FetchTableRequest", source_id=reference(b"s/grown"), result_id=ticket(value)
    )
    return session.call(TABLE_SERVICE, "FetchTable", request)


@case
def fetch_to_a_negative_export(session: RawSession) -> str:
    request = MESSAGES.new(
        "FetchTableRequest", source_id=reference(b"s/keyed"), result_id=ticket(export(-5))
    )
    return session.call(TABLE_SERVICE, "FetchTable", request)


@case
def fetch_with_garbage_as_request(session: RawSession) -> str:
    return session.call(TABLE_SERVICE, "FetchTable", b"\xff\xff\xff\xff")


@case
def an_unknown_method(session: RawSession) -> str:
    return session.call(TABLE_SERVICE, "NoSuchMethod")


@case
def an_unknown_service(session: RawSession) -> str:
    return session.call("no.such.Service", "Method")


@case
def an_export_of_another_session(session: RawSession) -> str:
    """Exports are private: the other session's number names nothing here, so the call waits."""
    theirs = session.opened("keyed")
    request = MESSAGES.new(
        "FetchTableRequest", source_id=reference(theirs), result_id=ticket(export(9))
    )
    other = RawSession(session.server)
    try:
        return other.call(TABLE_SERVICE, "FetchTable", request, seconds=SHORT_SECONDS)
    finally:
        other.close()


# --- sessions ---


@case
def a_call_without_token(session: RawSession) -> str:
    session.authorization = None
    return session.fetch(b"s/keyed")


@case
def a_foreign_token(session: RawSession) -> str:
    session.authorization = "Bearer 3f0c1b0e-7f0e-4d0c-9a53-5e8c1b2f4a6d"
    return session.fetch(b"s/keyed")


@case
def a_token_that_is_no_uuid(session: RawSession) -> str:
    session.authorization = "Bearer !!"
    return session.fetch(b"s/keyed")


@case
def unknown_credentials(session: RawSession) -> str:
    session.authorization = "some.Handler secret"
    return session.fetch(b"s/keyed")


@case
def a_token_after_the_session_was_closed(session: RawSession) -> str:
    token = session.authorization
    request = MESSAGES.new("HandshakeRequest", payload=token.encode())
    assert session.call(SESSION_SERVICE, "CloseSession", request) == "OK"
    session.authorization = token
    return session.fetch(b"s/keyed")


@case
def a_foreign_token_on_an_exchange(session: RawSession) -> str:
    session.authorization = "Bearer 3f0c1b0e-7f0e-4d0c-9a53-5e8c1b2f4a6d"
    return session.exchange(subscription(b"s/keyed"))


@case
def a_foreign_token_on_list_fields(session: RawSession) -> str:
    session.authorization = "Bearer 3f0c1b0e-7f0e-4d0c-9a53-5e8c1b2f4a6d"
    return session.call(APPLICATION_SERVICE, "ListFields", seconds=SHORT_SECONDS)


# --- releases, shared tickets ---


@case
def release_of_an_export_never_defined(session: RawSession) -> str:
    return session.release(export(77))


@case
def release_twice(session: RawSession) -> str:
    value = session.opened("keyed")
    assert session.release(value) == "OK"
    return session.release(value)


@case
def release_of_a_name(session: RawSession) -> str:
    return session.release(b"s/keyed")


@case
def use_after_release(session: RawSession) -> str:
    value = session.opened("keyed")
    assert session.release(value) == "OK"
    request = MESSAGES.new(
        "FetchTableRequest", source_id=reference(value), result_id=ticket(session.new_export())
    )
    return session.call(TABLE_SERVICE, "FetchTable", request, seconds=SHORT_SECONDS)


@case
def publish_to_a_shared_ticket_in_use(session: RawSession) -> str:
    request = MESSAGES.new(
        "PublishRequest", source_id=ticket(session.opened("keyed")), result_id=ticket(b"hused")
    )
    assert session.call(SESSION_SERVICE, "PublishFromTicket", request) == "OK"
    return session.call(SESSION_SERVICE, "PublishFromTicket", request)


@case
def publish_a_name(session: RawSession) -> str:
    request = MESSAGES.new(
        "PublishRequest", source_id=ticket(b"s/keyed"), result_id=ticket(b"hname")
    )
    return session.call(SESSION_SERVICE, "PublishFromTicket", request)


# --- operations ---


def operation(name: str, method: str, table: str = "keyed", **fields: object) -> None:
    def run(session: RawSession) -> str:
        source = reference(session.opened(table))
        return session.table(method, source_id=source, **fields)

    CASES[name] = _one(run)


operation("a_filter_that_does_not_parse", "UnstructuredFilter", filters=["V >"])
operation("a_filter_of_an_unknown_column", "UnstructuredFilter", filters=["Nope > 3"])
operation("a_filter_of_no_condition", "UnstructuredFilter", filters=["V + 1"])
operation("a_filter_of_wrong_types", "UnstructuredFilter", filters=["S > 3"])
operation("a_condition_that_is_empty", "Filter", filters=[MESSAGES.new("Condition")])
operation(
    "a_condition_of_an_unknown_column",
    "Filter",
    filters=[
        MESSAGES.new(
            "Condition",
            is_null=MESSAGES.new(
                "IsNullCondition", reference=MESSAGES.new("Reference", column_name="Nope")
            ),
        )
    ],
)
operation(
    "a_comparison_without_sides",
    "Filter",
    filters=[MESSAGES.new("Condition", compare=MESSAGES.new("CompareCondition"))],
)
operation(
    "a_sort_by_an_unknown_column",
    "Sort",
    sorts=[MESSAGES.new("SortDescriptor", column_name="Nope", direction=1)],
)
operation(
    "a_sort_without_direction",
    "Sort",
    sorts=[MESSAGES.new("SortDescriptor", column_name="V", direction=0)],
)
operation("a_negative_head", "Head", num_rows=-1)
operation("a_view_of_an_unknown_column", "View", column_specs=["Nope"])
operation("a_view_that_does_not_parse", "View", column_specs=["X = V +"])
operation("a_drop_of_an_unknown_column", "DropColumns", column_names=["Nope"])
operation("select_distinct_of_an_unknown_column", "SelectDistinct", column_names=["Nope"])


@case
def an_aggregation_of_nothing(session: RawSession) -> str:
    source = reference(session.opened("keyed"))
    return session.table("Aggregate", source_id=source, group_by_columns=["K"])


@case
def an_aggregation_by_an_unknown_column(session: RawSession) -> str:
    count = MESSAGES.new(
        "Aggregation", count=MESSAGES.new("Aggregation.AggregationCount", column_name="n")
    )
    source = reference(session.opened("keyed"))
    return session.table(
        "Aggregate", source_id=source, group_by_columns=["Nope"], aggregations=[count]
    )


@case
def a_join_on_an_unknown_column(session: RawSession) -> str:
    return session.table(
        "NaturalJoinTables",
        left_id=reference(session.opened("keyed")),
        right_id=reference(session.opened("extra")),
        columns_to_match=["Nope"],
    )


@case
def a_batch_whose_second_operation_fails(session: RawSession) -> str:
    first = MESSAGES.new(
        "BatchTableRequest.Operation",
        fetch_table=MESSAGES.new(
            "FetchTableRequest",
            source_id=reference(b"s/keyed"),
            result_id=ticket(session.new_export()),
        ),
    )
    second = MESSAGES.new(
        "BatchTableRequest.Operation",
        unstructured_filter=MESSAGES.new(
            "UnstructuredFilterTableRequest",
            source_id=MESSAGES.new("TableReference", batch_offset=0),
            result_id=ticket(session.new_export()),
            filters=["Nope > 3"],
        ),
    )
    return session.call(
        TABLE_SERVICE, "Batch", MESSAGES.new("BatchTableRequest", ops=[first, second])
    )


@case
def a_batch_that_refers_to_what_comes_later(session: RawSession) -> str:
    only = MESSAGES.new(
        "BatchTableRequest.Operation",
        unstructured_filter=MESSAGES.new(
            "UnstructuredFilterTableRequest",
            source_id=MESSAGES.new("TableReference", batch_offset=7),
            result_id=ticket(session.new_export()),
            filters=["V > 3"],
        ),
    )
    return session.call(TABLE_SERVICE, "Batch", MESSAGES.new("BatchTableRequest", ops=[only]))


@case
def a_batch_with_an_empty_operation(session: RawSession) -> str:
    only = MESSAGES.new("BatchTableRequest.Operation")
    return session.call(TABLE_SERVICE, "Batch", MESSAGES.new("BatchTableRequest", ops=[only]))


# --- inputs ---

WRONG_ROWS = pa.table({"Wrong": [1, 2]})


def input_table(session: RawSession) -> bytes:
    schema = pa.schema([("K", pa.int32()), ("V", pa.int64())])
    kinds = MESSAGES.new("CreateInputTableRequest.InputTableKind")
    keyed = MESSAGES.new(
        "CreateInputTableRequest.InputTableKind.InMemoryKeyBacked", key_columns=["K"]
    )
    kinds.in_memory_key_backed.CopyFrom(keyed)
    status = session.table("CreateInputTable", schema=schema.serialize().to_pybytes(), kind=kinds)
    assert status == "OK", session.details
    return session.result


def add(session: RawSession, target: bytes, rows: bytes) -> str:
    request = MESSAGES.new("AddTableRequest", input_table=ticket(target), table_to_add=ticket(rows))
    return session.call(INPUT_TABLE_SERVICE, "AddTableToInputTable", request)


@case
def rows_of_another_schema_for_an_input_table(session: RawSession) -> str:
    return add(session, input_table(session), session.upload(WRONG_ROWS))


@case
def rows_for_a_table_that_takes_none(session: RawSession) -> str:
    return add(session, session.opened("static_rows"), session.upload(WRONG_ROWS))


@case
def deletion_with_another_schema(session: RawSession) -> str:
    request = MESSAGES.new(
        "DeleteTableRequest",
        input_table=ticket(input_table(session)),
        table_to_remove=ticket(session.upload(WRONG_ROWS)),
    )
    return session.call(INPUT_TABLE_SERVICE, "DeleteTableFromInputTable", request)


@case
def an_input_table_of_no_schema(session: RawSession) -> str:
    kinds = MESSAGES.new("CreateInputTableRequest.InputTableKind")
    return session.table("CreateInputTable", schema=b"nonsense", kind=kinds)


@case
def an_upload_to_a_name(session: RawSession) -> str:
    return session.put(["scope", "uploaded_by_name"], WRONG_ROWS)


@case
def an_upload_to_a_path_that_is_none(session: RawSession) -> str:
    return session.put(["nowhere"], WRONG_ROWS)


@case
def an_upload_to_an_export_in_use(session: RawSession) -> str:
    value = session.upload(WRONG_ROWS)
    return session.put(["export", str(int.from_bytes(value[1:], "little"))], WRONG_ROWS)


@case
def an_upload_that_begins_with_a_batch(session: RawSession) -> str:
    batch = list(ipc_messages(WRONG_ROWS))[1]
    return session.stream(FLIGHT_SERVICE, "DoPut", [flight_frame(batch, ["export", "5"])])


# --- exchanges ---


def subscription(value: bytes, **fields: object) -> bytes:
    request = wire.SubscriptionRequest(ticket=value, **fields)
    return metadata_frame(wire.encode_wrapper(request, wire.WireRevision.R1_0_0))


def snapshot(value: bytes, **fields: object) -> bytes:
    request = wire.SnapshotRequest(ticket=value, **fields)
    return metadata_frame(wire.encode_wrapper(request, wire.WireRevision.R1_0_0))


@case
def an_exchange_on_an_unknown_name(session: RawSession) -> str:
    return session.exchange(command_frame(b"dphn"), subscription(b"s/nope"))


@case
def an_exchange_on_an_unknown_route(session: RawSession) -> str:
    return session.exchange(subscription(b"xyz"))


@case
def an_exchange_without_a_request(session: RawSession) -> str:
    """A real server leaves it open, which hangs the ticking client."""
    return session.exchange(command_frame(b"dphn"))


@case
def an_exchange_of_garbage(session: RawSession) -> str:
    return session.exchange(metadata_frame(b"\x10\0\0\0garbage"))


@case
def an_exchange_that_changes_its_kind(session: RawSession) -> str:
    return session.exchange(subscription(b"s/keyed"), snapshot(b"s/keyed"), seconds=SHORT_SECONDS)


@case
def a_full_subscription_that_wants_a_viewport(session: RawSession) -> str:
    return session.exchange(
        subscription(b"s/keyed"),
        subscription(b"s/keyed", viewport=RowSet.of_range(0, 5)),
        is_kept_open=True,
    )


@case
def a_reverse_viewport_of_a_blink_table(session: RawSession) -> str:
    return session.exchange(
        subscription(b"s/feed", viewport=RowSet.of_range(0, 5), is_reverse=True),
        is_kept_open=True,
    )


# --- flight ---


@case
def flight_info_of_an_unknown_path(session: RawSession) -> str:
    return session.call(FLIGHT_SERVICE, "GetFlightInfo", b"\x08\x01\x1a\x05scope\x1a\x04nope")


@case
def flight_info_of_an_empty_descriptor(session: RawSession) -> str:
    return session.call(FLIGHT_SERVICE, "GetFlightInfo", b"")


@case
def schema_of_an_unknown_path(session: RawSession) -> str:
    return session.call(FLIGHT_SERVICE, "GetSchema", b"\x08\x01\x1a\x05scope\x1a\x04nope")
