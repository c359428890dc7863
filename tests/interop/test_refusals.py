"""Bad input to both servers: the statuses agree, except where ours is known to differ."""

from __future__ import annotations

import contextlib

import pytest

from tests.helpers.server_process import wait_until
from tests.interop.raw_calls import RawSession, reference
from tests.interop.refusals import CASES

pytestmark = pytest.mark.interop

STATUSES = {
    "fetch_an_unknown_name": "NOT_FOUND",
    "get_an_unknown_name": "NOT_FOUND",
    "fetch_an_unknown_route": "FAILED_PRECONDITION",
    "get_an_unknown_route": "FAILED_PRECONDITION",
    "fetch_an_empty_ticket": "FAILED_PRECONDITION",
    "get_an_empty_ticket": "INVALID_ARGUMENT",
    "fetch_a_route_only": "FAILED_PRECONDITION",
    "get_a_route_only": "FAILED_PRECONDITION",
    "fetch_an_unknown_application": "NOT_FOUND",
    "get_an_unknown_application": "NOT_FOUND",
    "fetch_an_application_without_field": "FAILED_PRECONDITION",
    "get_an_application_without_field": "FAILED_PRECONDITION",
    "fetch_an_unknown_shared_ticket": "NOT_FOUND",
    "get_an_unknown_shared_ticket": "NOT_FOUND",
    "fetch_a_short_export_ticket": "FAILED_PRECONDITION",
    "get_a_short_export_ticket": "FAILED_PRECONDITION",
    "fetch_a_long_export_ticket": "FAILED_PRECONDITION",
    "get_a_long_export_ticket": "FAILED_PRECONDITION",
    "fetch_a_name_that_is_no_text": "NOT_FOUND",
    "get_a_name_that_is_no_text": "NOT_FOUND",
    "fetch_without_source": "FAILED_PRECONDITION",
    "fetch_without_result_ticket": "FAILED_PRECONDITION",
    "fetch_to_a_result_ticket_that_is_a_name": "FAILED_PRECONDITION",
    "fetch_to_a_result_ticket_in_use": "INVALID_ARGUMENT",
    "fetch_to_a_negative_export": "INVALID_ARGUMENT",
    "fetch_with_garbage_as_request": "UNKNOWN",
    "an_unknown_method": "UNIMPLEMENTED",
    "an_unknown_service": "UNIMPLEMENTED",
    "an_export_of_another_session": "DEADLINE_EXCEEDED",
    "a_call_without_token": "UNAUTHENTICATED",
    "a_foreign_token": "UNAUTHENTICATED",
    "a_token_that_is_no_uuid": "UNAUTHENTICATED",
    "unknown_credentials": "UNAUTHENTICATED",
    "a_token_after_the_session_was_closed": "UNAUTHENTICATED",
    "a_foreign_token_on_an_exchange": "UNAUTHENTICATED",
    "a_foreign_token_on_list_fields": "UNAUTHENTICATED",
    "release_of_an_export_never_defined": "UNAVAILABLE",
    "release_twice": "OK",
    "release_of_a_name": "FAILED_PRECONDITION",
    "use_after_release": "FAILED_PRECONDITION",
    "publish_to_a_shared_ticket_in_use": "ALREADY_EXISTS",
    "publish_a_name": "FAILED_PRECONDITION",
    "a_filter_that_does_not_parse": "INVALID_ARGUMENT",
    "a_filter_of_an_unknown_column": "INVALID_ARGUMENT",
    "a_filter_of_no_condition": "INVALID_ARGUMENT",
    "a_filter_of_wrong_types": "INVALID_ARGUMENT",
    "a_condition_that_is_empty": "INVALID_ARGUMENT",
    "a_condition_of_an_unknown_column": "INVALID_ARGUMENT",
    "a_comparison_without_sides": "INVALID_ARGUMENT",
    "a_sort_by_an_unknown_column": "FAILED_PRECONDITION",
    "a_sort_without_direction": "INVALID_ARGUMENT",
    "a_negative_head": "INVALID_ARGUMENT",
    "a_view_of_an_unknown_column": "INVALID_ARGUMENT",
    "a_view_that_does_not_parse": "INVALID_ARGUMENT",
    "a_drop_of_an_unknown_column": "INVALID_ARGUMENT",
    "select_distinct_of_an_unknown_column": "FAILED_PRECONDITION",
    "an_aggregation_of_nothing": "INVALID_ARGUMENT",
    "an_aggregation_by_an_unknown_column": "INVALID_ARGUMENT",
    "a_join_on_an_unknown_column": "INVALID_ARGUMENT",
    "a_batch_whose_second_operation_fails": "INVALID_ARGUMENT",
    "a_batch_that_refers_to_what_comes_later": "INVALID_ARGUMENT",
    "a_batch_with_an_empty_operation": "INVALID_ARGUMENT",
    "rows_of_another_schema_for_an_input_table": "INVALID_ARGUMENT",
    "rows_for_a_table_that_takes_none": "INVALID_ARGUMENT",
    "deletion_with_another_schema": "INVALID_ARGUMENT",
    "an_input_table_of_no_schema": "INVALID_ARGUMENT",
    "an_upload_to_a_name": "OK",
    "an_upload_to_a_path_that_is_none": "FAILED_PRECONDITION",
    "an_upload_to_an_export_in_use": "INVALID_ARGUMENT",
    "an_upload_that_begins_with_a_batch": "INVALID_ARGUMENT",
    "an_exchange_on_an_unknown_name": "NOT_FOUND",
    "an_exchange_on_an_unknown_route": "FAILED_PRECONDITION",
    "an_exchange_without_a_request": "DEADLINE_EXCEEDED",
    "an_exchange_of_garbage": "INVALID_ARGUMENT",
    "an_exchange_that_changes_its_kind": "INVALID_ARGUMENT",
    "a_full_subscription_that_wants_a_viewport": "INVALID_ARGUMENT",
    "a_reverse_viewport_of_a_blink_table": "INVALID_ARGUMENT",
    "flight_info_of_an_unknown_path": "NOT_FOUND",
    "flight_info_of_an_empty_descriptor": "FAILED_PRECONDITION",
    "schema_of_an_unknown_path": "NOT_FOUND",
}
"""What a real Deephaven 42.7 answers."""

OURS = {
    # A real server waits for ever for an export nobody defines, and leaves an exchange without a
    # request open, which hangs the ticking client.
    "an_export_of_another_session": "FAILED_PRECONDITION",
    "an_exchange_without_a_request": "OK",
    # What is malformed is an INVALID_ARGUMENT or, in a ticket, a FAILED_PRECONDITION throughout.
    "fetch_an_empty_ticket": "INVALID_ARGUMENT",
    "fetch_a_name_that_is_no_text": "FAILED_PRECONDITION",
    "get_a_name_that_is_no_text": "FAILED_PRECONDITION",
    "fetch_to_a_negative_export": "FAILED_PRECONDITION",
    "fetch_with_garbage_as_request": "INVALID_ARGUMENT",
    "a_sort_by_an_unknown_column": "INVALID_ARGUMENT",
    "select_distinct_of_an_unknown_column": "INVALID_ARGUMENT",
    "flight_info_of_an_empty_descriptor": "INVALID_ARGUMENT",
    # Conditions that compare no column are not offered, sides or not.
    "a_comparison_without_sides": "UNIMPLEMENTED",
    # Without a token in its configuration our server lets everybody on this machine in.
    "unknown_credentials": "OK",
    # A path of one name is our own way of uploading a table.
    "an_upload_to_a_path_that_is_none": "OK",
}
"""Where ours answers something else."""


@pytest.mark.parametrize("name", CASES)
def test_bad_input_has_its_status(server, name):
    expected = STATUSES[name]
    if server.kind == "barrage":
        is_asking = server.ca is not None and name == "unknown_credentials"
        expected = expected if is_asking else OURS.get(name, expected)
    assert CASES[name](server) == expected


COUNTED = ("streams", "sessions", "exports", "producers", "tables")


def counts(server):
    stats = server.stats()
    return {name: stats[name] for name in COUNTED}


def test_nothing_stays_of_bad_input(our_server):
    """The first time the two uploads that are let through leave a table each. Unknown credentials
    open a session that nobody closes."""
    calls = [call for name, call in CASES.items() if name != "unknown_credentials"]
    for call in calls:
        call(our_server)
    before = counts(our_server)
    for call in calls:
        call(our_server)
    with contextlib.suppress(AssertionError):
        wait_until(lambda: counts(our_server) == before)
    assert counts(our_server) == before


def test_a_session_that_is_closed_gives_everything_back(our_server):
    before = counts(our_server)
    session = RawSession(our_server)
    for name in ("keyed", "grown", "ring"):
        source = reference(session.opened(name))
        session.table("Head", source_id=source, num_rows=5)
    assert counts(our_server)["exports"] == before["exports"] + 6
    session.close()
    wait_until(lambda: counts(our_server) == before)
