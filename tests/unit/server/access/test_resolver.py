"""Tickets and path descriptors of every kind, and what they stand for."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import (
    BarrageError,
    LimitExceededError,
    SchemaError,
    StatusCode,
    TableFailedError,
    TableNotFoundError,
    TicketError,
)
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.server.access.exports import ExportExistsError
from barrage.server.access.resolver import TicketResolver
from barrage.server.access.session_store import ClientSession, SessionStore
from barrage.server.identity.caller import ANYBODY
from barrage.server.policy.access_gate import AccessGate
from barrage.server.presentation.presentation import (
    lease_of,
    lease_schema,
    shown_schema,
    shown_table,
)
from barrage.server.serving.serving import ServingParts
from barrage.server.settings.config import ServerConfig
from barrage.server.tables.table_lease import TableLease
from barrage.server.tables.table_service import TableRecipe
from barrage.server.tables.tickets import (
    Route,
    export_id_of_ticket,
    export_ticket,
    result_export_id,
    route_of,
    ticket_of_descriptor,
)
from barrage.transport.flight_messages import Descriptor
from tests.helpers.server_process import wait_until
from tests.helpers.virtual_clock import VirtualClock

ROWS = pa.table({"sym": ["a", "b"], "n": pa.array([1, 2], pa.uint32())})
LIMITS = Limits(export_wait_ns_max=20_000_000, shared_tickets_max=2)


class Scene:
    """A catalog with two tables, a resolver and two sessions; no sockets."""

    def __init__(self) -> None:
        self.parts = ServingParts(ServerConfig(limits=LIMITS))
        self.tables = self.parts.tables
        self.resolver = TicketResolver(self.parts.catalog, self.tables, LIMITS, gate=AccessGate())
        self.sessions = SessionStore(LIMITS, VirtualClock())
        self.session, self.other = self.open(), self.open()
        for name, kind in (("ticks", "append_only"), ("fixed", "static")):
            recipe = TableRecipe.checked(name, ROWS.schema, kind=kind)
            self.tables.create(recipe, ROWS).result()

    def open(self) -> ClientSession:
        return self.sessions.open(ANYBODY)

    def resolve(self, ticket: bytes | None, session: ClientSession | None = None) -> TableLease:
        return asyncio.run(self.resolver.resolve(ticket, session))

    def export(self, export_id: int, ticket: bytes) -> None:
        self.session.exports.define(export_id).fulfil(self.resolve(ticket))

    def share(self, source: bytes | None, shared: bytes | None) -> None:
        asyncio.run(self.resolver.publish_shared(source, shared, self.session))


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.sessions.close_all(TicketError("the end"))
    made.parts.close()


# --- tickets ---


@pytest.mark.parametrize(
    ("path", "ticket"),
    [
        (("t",), b"s/t"),
        (("scope", "t"), b"s/t"),
        (("export", "258"), b"e\x02\x01\x00\x00"),
        (("export", "-1"), b"e\xff\xff\xff\xff"),
        (("app", "scope", "field", "t"), b"a/scope/f/t"),
        (("shared", "00ff10"), b"h\x00\xff\x10"),
    ],
)
def test_a_path_stands_for_a_ticket(path, ticket):
    assert ticket_of_descriptor(Descriptor(path=path), DEFAULT_LIMITS) == ticket
    assert ticket_of_descriptor(Descriptor(command=ticket), DEFAULT_LIMITS) == ticket


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("",),
        ("scope", ""),
        ("export", "one"),
        ("export", "²"),
        ("export", "1" * 30),
        ("export", str(2**31)),
        ("shared", "xyz"),
        ("app", "scope", "t"),
        ("what", "t"),
    ],
)
def test_paths_that_stand_for_nothing(path):
    with pytest.raises(TicketError) as caught:
        ticket_of_descriptor(Descriptor(path=path), DEFAULT_LIMITS)
    assert caught.value.status_code is StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("ticket", [None, b""])
def test_a_missing_ticket_is_the_callers_mistake(ticket):
    with pytest.raises(TicketError) as caught:
        route_of(ticket, DEFAULT_LIMITS)
    assert caught.value.status_code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("export_id", [1, -1, 2**31 - 1, -(2**31)])
def test_the_number_of_an_export_survives_its_ticket(export_id):
    assert export_id_of_ticket(export_ticket(export_id), DEFAULT_LIMITS) == export_id


@pytest.mark.parametrize(
    "ticket", [b"e", b"e\x01\x00\x00", b"e" + bytes(5), b"e" + bytes(4), b"s/t"]
)
def test_malformed_tickets_of_exports(ticket):
    with pytest.raises(TicketError) as caught:
        export_id_of_ticket(ticket, DEFAULT_LIMITS)
    assert caught.value.status_code is StatusCode.FAILED_PRECONDITION


def test_clients_do_not_choose_the_servers_numbers():
    assert result_export_id(export_ticket(1), DEFAULT_LIMITS) == 1
    with pytest.raises(TicketError, match="the server's to give"):
        result_export_id(export_ticket(-1), DEFAULT_LIMITS)


@given(st.binary(max_size=60))
def test_any_bytes_have_a_route_or_are_refused(ticket):
    try:
        route = route_of(ticket, DEFAULT_LIMITS)
    except BarrageError:
        assert not ticket.startswith(tuple(route.value for route in Route))
    else:
        assert ticket.startswith(route.value)


# --- what they stand for ---


@pytest.mark.parametrize("ticket", [b"s/ticks", b"a/scope/f/ticks"])
def test_names_of_published_tables(scene, ticket):
    lease = scene.resolve(ticket)
    assert lease.name == "ticks"
    assert lease.schema == ROWS.schema
    assert lease.input_target is lease.table


def test_a_static_table_takes_no_rows(scene):
    assert scene.resolve(b"s/fixed").input_target is None


@pytest.mark.parametrize(
    ("ticket", "code"),
    [
        (b"s/nope", StatusCode.NOT_FOUND),
        (b"a/scope/f/nope", StatusCode.NOT_FOUND),
        (b"a/other/f/ticks", StatusCode.NOT_FOUND),
        (b"a/scope/ticks", StatusCode.FAILED_PRECONDITION),
        (b"a/scope/f/", StatusCode.FAILED_PRECONDITION),
        (b"hnobody", StatusCode.NOT_FOUND),
        (b"z", StatusCode.FAILED_PRECONDITION),
        (b"", StatusCode.INVALID_ARGUMENT),
        (None, StatusCode.INVALID_ARGUMENT),
        (export_ticket(1)[:3], StatusCode.FAILED_PRECONDITION),
        (export_ticket(1), StatusCode.FAILED_PRECONDITION),
        (b"s/" + b"x" * 5000, StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_statuses_of_tickets_that_stand_for_nothing(scene, ticket, code):
    for session in (None, scene.session):
        with pytest.raises(BarrageError) as caught:
            scene.resolve(ticket, session)
        assert caught.value.status_code is code


def test_an_export_is_found_in_its_own_session_only(scene):
    scene.export(1, b"s/ticks")
    assert scene.resolve(export_ticket(1), scene.session).name == "ticks"
    with pytest.raises(TicketError, match="was not defined"):
        scene.resolve(export_ticket(1), scene.other)


def test_an_export_that_failed_fails_its_readers(scene):
    scene.session.exports.define(1).fail(SchemaError("no column 'x'"))
    with pytest.raises(SchemaError, match="no column 'x'"):
        scene.resolve(export_ticket(1), scene.session)


def test_results_go_to_exports(scene):
    export = scene.resolver.result_export(export_ticket(4), scene.session)
    assert export is scene.session.exports.find(4)
    with pytest.raises(ExportExistsError):
        scene.resolver.result_export(export_ticket(4), scene.session)


def test_a_name_means_what_it_stands_for_when_it_is_used(scene):
    source = asyncio.run(scene.resolver.source(b"s/late", None))
    with pytest.raises(TableNotFoundError):
        scene.tables.run(source).result()
    scene.tables.create(TableRecipe.checked("late", ROWS.schema), None).result()
    assert scene.tables.run(source).result().name == "late"


def test_a_query_needs_no_session(scene):
    lease = scene.resolve(b'q/{"table": "ticks", "ops": [["where", "n > 1"], ["drop", ["n"]]]}')
    assert lease.schema.names == ["sym"]
    assert lease.input_target is None
    assert scene.tables.read(lease.table).to_pylist() == [{"sym": "b"}]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (b"q/{", StatusCode.INVALID_ARGUMENT),
        (b'q/{"table": "nope"}', StatusCode.NOT_FOUND),
        (b'q/{"table": "ticks", "ops": [["where", "nope > 1"]]}', StatusCode.INVALID_ARGUMENT),
    ],
)
def test_queries_that_are_refused(scene, query, code):
    with pytest.raises(BarrageError) as caught:
        scene.resolve(query)
    assert caught.value.status_code is code


# --- shared tickets ---


def test_a_shared_table_is_there_for_every_session_while_its_export_is(scene):
    scene.export(1, b"s/ticks")
    scene.share(export_ticket(1), b"h\x00\xff")
    assert scene.resolve(b"h\x00\xff", scene.other).name == "ticks"
    assert scene.resolve(b"h\x00\xff").name == "ticks"
    scene.session.exports.release(1)
    with pytest.raises(TicketError, match="nothing is shared"):
        scene.resolve(b"h\x00\xff", scene.other)
    assert scene.resolver.shared_count == 0


def test_a_shared_table_goes_with_its_session(scene):
    scene.export(1, b"s/ticks")
    scene.share(export_ticket(1), b"hx")
    scene.sessions.close(scene.session)
    with pytest.raises(TicketError, match="nothing is shared"):
        scene.resolve(b"hx", scene.other)


def test_a_shared_ticket_is_taken_once(scene):
    scene.export(1, b"s/ticks")
    scene.share(export_ticket(1), b"hx")
    with pytest.raises(TicketError, match="taken") as caught:
        scene.share(export_ticket(1), b"hx")
    assert caught.value.status_code is StatusCode.ALREADY_EXISTS


def test_shared_tickets_at_the_limit_and_one_past_it(scene):
    scene.export(1, b"s/ticks")
    for shared in (b"h1", b"h2"):
        scene.share(export_ticket(1), shared)
    with pytest.raises(LimitExceededError, match="shared tickets"):
        scene.share(export_ticket(1), b"h3")


@pytest.mark.parametrize(
    ("source", "shared"),
    [(b"s/ticks", b"hx"), (b"hy", b"hx"), (export_ticket(1), b"s/x"), (export_ticket(1), None)],
)
def test_only_exports_are_shared_and_only_under_shared_tickets(scene, source, shared):
    scene.export(1, b"s/ticks")
    with pytest.raises(TicketError):
        scene.share(source, shared)
    assert scene.resolver.shared_count == 0


# --- leases ---


def test_a_lease_keeps_its_table_and_gives_it_back_on_the_engine_thread(scene):
    lease = scene.resolve(b"s/ticks")
    table = weakref.ref(lease.table)
    scene.tables.drop("ticks").result()
    scene.session.exports.define(1).fulfil(lease)
    del lease
    gc.collect()
    assert table() is not None
    scene.session.exports.release(1)
    wait_until(lambda: table() is None)


def test_a_table_that_has_failed_is_refused(scene):
    lease = scene.resolve(b"s/ticks")
    lease.table.fail(SchemaError("broken"))
    with pytest.raises(TableFailedError, match="Table is already failed: broken"):
        lease_of(lease)


# --- how it is shown ---


def test_a_session_sees_its_types_and_metadata_and_nobody_else_does(scene):
    lease = scene.resolve(b"s/ticks")
    plain = scene.tables.run(lambda: shown_table(lease, None)).result()
    assert plain is lease.table
    assert shown_schema(lease, plain, None) == ROWS.schema
    view = scene.tables.run(lambda: shown_table(lease, "deephaven")).result()
    schema = shown_schema(lease, view, "deephaven")
    assert view.schema.field("n").type == pa.int64()
    assert schema.field("n").metadata[b"deephaven:type"] == b"long"
    assert lease_schema(lease, "deephaven").equals(schema, check_metadata=True)
    assert lease_schema(lease, None) == ROWS.schema
