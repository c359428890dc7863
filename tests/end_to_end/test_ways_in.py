"""Every way in, as docs/security.md lists them: none is missing there, and who has no right to a
table is told the same as of one that is not there."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import grpc
import pyarrow as pa
import pytest
from grpc_reflection.v1alpha import reflection_pb2

import barrage
from barrage import Policy, Rule
from barrage.errors import TableNotFoundError
from barrage.proto.resumption import CURSOR_HEADER, RESUME_HEADER, ResumeMode
from barrage.relay.relay_statistics import RELAYED_TABLE, UPSTREAMS_TABLE
from barrage.server import ServerConfig
from barrage.server.deephaven.operations.operation_table import OPERATIONS, REFUSED
from barrage.server.flight.result_calls import POLL_ROUTE
from barrage.server.history.journal_tickets import JOURNAL_ROUTE
from barrage.server.policy.rules import Operation
from barrage.server.results.pinned_results import RESULT_ROUTE
from barrage.server.statistics.body_statistics import BODIES_TABLE
from barrage.server.statistics.server_statistics import STATISTICS_TABLES
from barrage.server.tables.tickets import Route
from barrage.transport.deephaven_messages import (
    APPLICATION_SERVICE,
    CONSOLE_SERVICE,
    INPUT_TABLE_SERVICE,
    MESSAGES,
    SESSION_SERVICE,
    TABLE_SERVICE,
)
from barrage.transport.flight_messages import FLIGHT, Descriptor, FlightInfo, decode_result
from barrage.transport.registry import BODIES, TRANSPORTS
from tests.helpers.logging_in import basic
from tests.helpers.page_client import on_a_loop, page_at
from tests.helpers.shown_calls import (
    RESULT,
    Outcome,
    Peer,
    Request,
    acted,
    deephaven,
    filled,
    got,
    infos,
    journal_ticket,
    operation_requests,
    put,
    read_by_ticket,
    snapshot,
    subscription,
    ticket,
    upload,
)
from tests.helpers.users import ALICE_PASSWORD, users_file

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
HIDDEN, NOTHING, SEEN, PART = "hidden_7f3a", "nothing_7f3", "seen", "part"
CANARY = "CANARY"
EPOCH = f"{7:016x}"
RULES = Policy.of(
    Rule(tables=("*", "_*"), users=("alice",), allow=frozenset({Operation.ADMIN})),
    Rule(tables=(SEEN,), users=("bob",), allow=frozenset({Operation.READ})),
    Rule(tables=(PART,), users=("bob",), allow=frozenset({Operation.READ}), rows="x < 1"),
)


# --- the page ---


def rows_of_page() -> dict[str, tuple[set[str], str]]:
    """The table of ways: of each its names, and what it says of who has no right."""
    section = PAGE.read_text().partition("## Every way in")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    found = {}
    for way, names, _, told in rows[1:]:
        found[way.strip()] = set(re.findall(r"`([^`]+)`", names)), told.strip()
    return found


WAYS = rows_of_page()


def names_of_page() -> set[str]:
    return set().union(*(names for names, _ in WAYS.values()))


# --- what there is ---


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[barrage.Server]:
    users = users_file(tmp_path_factory.mktemp("ways") / "users")
    config = ServerConfig(
        users=str(users), bodies="shm", journal="memory", connector="127.0.0.1:0", web=True
    )
    with barrage.Server(config=config, policy=RULES) as made:
        for name in (HIDDEN, SEEN, PART):
            table = made.create_table(name, {"x": "int64", "text": "string"}, key="x")
            table.upsert({"x": [0, 1], "text": [CANARY, CANARY]})
        yield made


@pytest.fixture(scope="module")
def bob(server) -> Iterator[Peer]:
    with grpc.insecure_channel(server.address) as channel:
        yield Peer(channel, basic(ALICE_PASSWORD, "bob"))


@pytest.fixture(scope="module")
def alice(server) -> Iterator[Peer]:
    with grpc.insecure_channel(server.address) as channel:
        yield Peer(channel, basic(ALICE_PASSWORD, "alice"))


def methods_of(server: barrage.Server) -> set[tuple[str, str]]:
    """Service and method of all that the listeners answer."""
    app = server._app
    found: set[tuple[str, str]] = set()
    for listener in (app._listener, app._web):
        for handler in listener._handlers:
            for name in handler._method_handlers:
                _, service, method = name.split("/")
                found.add((service.rpartition(".")[2], method))
    return found


def test_every_method_is_in_a_row(server):
    known = names_of_page()
    operations = {operation.method for operation in OPERATIONS.values()} | set(REFUSED.values())
    missing = {
        f"{service}/{method}"
        for service, method in methods_of(server)
        # One row for all of them: each is tried below, whatever there is.
        if method not in known and not (service == "TableService" and method in operations)
    }
    assert missing - {"TableService/SeekRow"} == set()


def test_nothing_answers_that_is_no_method_of_these(server, alice):
    """What the listener has, by asking it: services that reflection names."""
    request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    (answer,) = alice.ask(Request(path, (request,), "bidi")).answers
    told = reflection_pb2.ServerReflectionResponse.FromString(answer)
    services = {each.name.rpartition(".")[2] for each in told.list_services_response.service}
    assert services == {service for service, _ in methods_of(server)} - {"Page"}


def test_every_action_is_in_a_row(server):
    (entry,) = (m["DoAction"] for m in server._app._services.values() if "DoAction" in m)
    assert set(entry.behavior.__self__._actions) - names_of_page() == set()


def test_every_kind_of_ticket_is_in_a_row():
    routes = {route.value.decode() for route in Route}
    routes |= {each.decode() for each in (JOURNAL_ROUTE, RESULT_ROUTE, POLL_ROUTE)}
    assert routes - names_of_page() == set()


def test_every_listener_and_way_of_bodies_is_in_a_row():
    assert set(TRANSPORTS.built_in) - names_of_page() == set()
    ways = {"shm", "ucx"}
    assert ways <= set(BODIES.names())
    assert ways <= names_of_page()


def test_every_setting_that_opens_a_door_is_in_a_row():
    names = [field.name for field in fields(ServerConfig)]
    doors = {name for name in names if re.search(r"(^|_)(port|host|connector)$", name)}
    assert doors >= {"port", "connector", "web_port"}
    assert doors - names_of_page() == set()


def test_every_protocol_of_browsers_is_in_a_row(server):
    assert set(server._app._web.speakers) - names_of_page() == set()


@on_a_loop
async def test_a_page_is_told_the_same_of_any_table(server):
    async with page_at(server._app.web_uri) as page:
        await page.hello(basic(ALICE_PASSWORD, "bob"))
        for number, (action, body) in enumerate(
            [("barrage.drop_table", "table"), ("journal.info", "table")]
        ):
            told = []
            for name in (HIDDEN, NOTHING):
                answer = await page.call(2 * number + 1 + (name == NOTHING), action, {body: name})
                answer.pop("call")
                told.append(json.dumps(answer).replace(name, "*"))
            assert told[0] == told[1]
            assert "NOT_FOUND" in told[0] or "5" in told[0]


def test_every_table_about_the_server_is_in_a_row(server):
    there = {name for name in server._parts.catalog.listing() if name.startswith("_")}
    all_of_them = there | {RELAYED_TABLE, UPSTREAMS_TABLE, BODIES_TABLE, *STATISTICS_TABLES}
    assert all_of_them - names_of_page() == set()


# --- what a caller without the right is told ---


def queries(name: str) -> Iterator[Request]:
    """As the table asked, as a partner, and in a partner's partner."""
    asked = {"table": name, "ops": [["where", f"text = '{CANARY}'"]]}
    joined = {"table": SEEN, "ops": [["natural_join", {"table": name}, ["x"], []]]}
    nested = {"table": SEEN, "ops": [["merge", joined]]}
    for query in ({"table": name}, asked, joined, nested):
        raw = b"q/" + json.dumps(query).encode()
        yield got(raw)
        yield from infos(Descriptor(command=raw))
        yield acted("barrage.describe", ticket=base64.b64encode(raw).decode())


def by_name(name: str) -> Iterator[Request]:
    for path in ((name,), ("scope", name), ("app", "scope", "field", name)):
        yield from infos(Descriptor(path=path))
    yield acted("barrage.describe", table=name)
    yield got(b"s/" + name.encode())
    yield got(b"a/scope/f/" + name.encode())
    yield snapshot(name)
    yield subscription(name)
    yield acted("barrage.describe", table=name)


def resumed(name: str) -> Iterator[Request]:
    for mode in set(ResumeMode) - {ResumeMode.OFF}:
        yield subscription(name, (CURSOR_HEADER, f"{EPOCH}:1"), (RESUME_HEADER, mode.value))


def operations(name: str) -> Iterator[Request]:
    raw = b"s/" + name.encode()
    for method, request in operation_requests(raw):
        yield request
        (member,) = [each.name for each in OPERATIONS.values() if each.method == method]
        message = MESSAGES.new("BatchTableRequest")
        operation = message.ops.add()
        getattr(operation, member).MergeFromString(request.messages[0])
        yield Request(f"/{TABLE_SERVICE}/Batch", (message.SerializeToString(),), "server_stream")
    yield deephaven(TABLE_SERVICE, "SeekRow", "SeekRowRequest", source_id=ticket(raw))


def exports(name: str) -> Iterator[Request]:
    raw = ticket(b"s/" + name.encode())
    yield deephaven(
        *(SESSION_SERVICE, "ExportFromTicket", "ExportRequest"),
        source_id=raw,
        result_id=ticket(RESULT),
    )
    yield Request(f"/{TABLE_SERVICE}/GetExportedTableCreationResponse", (raw.SerializeToString(),))


def named(name: str) -> Iterator[Request]:
    for source in (SEEN, name):
        yield deephaven(
            *(CONSOLE_SERVICE, "BindTableToVariable", "BindTableToVariableRequest"),
            variable_name=name,
            table_id=ticket(b"s/" + source.encode()),
        )


def inputs(name: str) -> Iterator[Request]:
    raw = b"s/" + name.encode()
    for method, message in (
        ("AddTableToInputTable", "AddTableRequest"),
        ("DeleteTableFromInputTable", "DeleteTableRequest"),
    ):
        made = filled(MESSAGES.new(message), raw)
        yield Request(f"/{INPUT_TABLE_SERVICE}/{method}", (made.SerializeToString(),))


def uploads(name: str) -> Iterator[Request]:
    for options in (
        {"keys": (), "mode": None},
        {"keys": (), "mode": "append"},
        {"keys": ("x",), "mode": "upsert"},
        {"keys": (), "mode": "create"},
        {"keys": (), "mode": "create", "kind": "static"},
        {"keys": (), "mode": "append", "producer": "p"},
    ):
        yield put(name, **options)
    yield upload(Descriptor(path=("scope", name)).encode())


def keyed_uploads(name: str) -> Iterator[Request]:
    for mode in ("replace", "delete"):
        yield put(name, keys=("x",), mode=mode)


SCHEMA = base64.b64encode(pa.schema({"x": pa.int64()}).serialize()).decode()
BATCH = {"writer": "w", "batch": 0}


def staged(name: str) -> Iterator[Request]:
    command = {"stage": {"table": name, **BATCH, "partition": 0, "attempt": 1}}
    yield upload(Descriptor(command=json.dumps(command).encode()).encode())
    yield acted("stage.abort", table=name, **BATCH)


def journals(name: str) -> Iterator[Request]:
    yield acted("journal.info", table=name)
    yield acted("journal.bound", table=name, **{"from": 0})
    yield acted("journal.bound", table=name, version=0)
    yield acted("journal.version", table=name, timestamp_us=1)
    yield acted("journal.cursor", table=name, consumer="c", version=0, lease_ms=1_000)
    yield acted("journal.release", table=name, consumer="c")
    yield acted("barrage.versions", table=name)
    yield got(b"q/" + json.dumps({"table": name, "at": f"{EPOCH}:1", "ops": []}).encode())
    for told in (
        {"mode": "changes", "epoch": EPOCH, "from": 0, "to": 1},
        {"mode": "snapshot"},
        {"mode": "watch", "consumer": "c", "lease_ms": 1_000},
    ):
        raw = journal_ticket(table=name, **told)
        yield got(raw)
        if told["mode"] != "watch":
            yield read_by_ticket(raw)
            yield from infos(Descriptor(command=raw))


def cells(name: str) -> Iterator[Request]:
    yield acted("barrage.set_cells", table=name, key={"x": "1"}, cells={"text": "new"})
    yield acted("barrage.add_row", table=name, cells={"x": "5", "text": "new"})
    yield acted("barrage.remove_row", table=name, key={"x": "1"})


def lists(_name: str) -> Iterator[Request]:
    yield Request(FLIGHT + "ListFlights", kind="server_stream")
    yield acted("barrage.tables")
    yield acted("barrage.relay")
    yield Request(f"/{APPLICATION_SERVICE}/ListFields", kind="server_stream", answers_max=1)


Asked = Callable[[str], Iterator[Request]]
TRIED: dict[str, Asked] = {
    "lists of tables": lists,
    "a table by name": by_name,
    "a query": queries,
    "going on from a cursor": resumed,
    "Deephaven's operations": operations,
    "exports": exports,
    "names given by clients": named,
    "input tables": inputs,
    "uploads": uploads,
    "uploads with a key to tables that must be there": keyed_uploads,
    "made": lambda name: iter([acted("barrage.create_table", table=name, schema=SCHEMA)]),
    "dropped": lambda name: iter([acted("barrage.drop_table", table=name)]),
    "staged batches, as of Spark's sink": staged,
    "commits of staged batches": lambda name: iter(
        [acted("stage.commit", table=name, staged=[], **BATCH)]
    ),
    "journals: changes, time travel, replay, Spark's source": journals,
    "cells and rows that pages change": cells,
}
"""What is called about a table, by the row of the page."""

ELSEWHERE = {
    "shared tickets",
    "read groups of journals, ended by `CancelFlightInfo`",
    "results that are kept",
    "a snapshot over UCX",
    "bodies outside of streams",
    "tables about the server",
    "logging in, sessions",
    "tables of no name",
    "the console",
    "not offered",
    "what can be called",
    "browsers",
    "sources of connectors",
    "writes passed on by a relay",
    "listeners",
    "levels of the log, traces of updates",
    "metrics and probes",
    "boards of pages",
    "who a page is",
}
"""Rows that are about no table, or need more than a call: they have tests of their own, below, in
tests/ucx/test_rules.py, test_read_groups.py, test_flight_results.py, test_connector_callers.py,
test_page_boards.py, test_page_hostile.py and tests/unit/relay/test_relays_log_in.py."""

SHOWN_WITHOUT = {"lists of tables"}
"""Rows whose calls are answered, and leave out what is hidden."""


def test_every_row_is_tried():
    assert set(WAYS) == set(TRIED) | ELSEWHERE
    assert not set(TRIED) & ELSEWHERE


def status_of_page(way: str) -> grpc.StatusCode:
    return grpc.StatusCode[re.findall(r"`([A-Z_]+)`", WAYS[way][1])[0]]


@pytest.mark.parametrize("way", sorted(set(TRIED) - SHOWN_WITHOUT))
def test_who_has_no_right_is_told_the_same_as_of_what_is_not_there(bob, way):
    wanted = status_of_page(way)
    pairs = zip(TRIED[way](HIDDEN), TRIED[way](NOTHING), strict=True)
    count = 0
    for about_hidden, about_nothing in pairs:
        hidden, nothing = bob.ask(about_hidden), bob.ask(about_nothing)
        assert hidden.about(HIDDEN) == nothing.about(NOTHING), about_hidden
        in_batch = about_hidden.method.endswith("/Batch")
        assert hidden.status is wanted or in_batch, (about_hidden, hidden)
        assert_tells_nothing(hidden)
        assert_tells_nothing(nothing)
        count += 1
    assert count


def assert_tells_nothing(outcome: Outcome) -> None:
    told = outcome.told
    assert CANARY.encode() not in told
    # Names that are alike are no hint.
    assert b"did you mean" not in told
    assert b"alice" not in told


@pytest.mark.parametrize("way", sorted(set(TRIED) - SHOWN_WITHOUT))
def test_the_same_calls_are_answered_otherwise_for_who_has_the_right(server, alice, way):
    """Else nothing would be shown by their being refused."""
    quick = Peer(alice.channel, alice.header, seconds=5)
    about_own = "own_5b"
    server.create_table(about_own, {"x": "int64"}, key="x")
    try:
        told = [quick.ask(replace(each, answers_max=1)) for each in TRIED[way](about_own)]
    finally:
        if about_own in server._parts.catalog.listing():
            server.drop_table(about_own)
    refused = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND}
    assert any(each.status not in refused for each in told)


# --- what is shown of what there is ---


def test_lists_leave_out_what_the_caller_may_not_read(bob, alice):
    for request in lists(HIDDEN):
        his, hers = bob.ask(request), alice.ask(request)
        assert HIDDEN.encode() in hers.told
        assert his.status is grpc.StatusCode.OK
        assert HIDDEN.encode() not in his.told
        assert SEEN.encode() in his.told
        assert_tells_nothing(his)


def test_counts_are_not_told_of_a_part(bob, alice):
    with_part = {request.method: request for request in infos(Descriptor(path=(PART,)))}
    his, hers = (who.ask(with_part[FLIGHT + "GetFlightInfo"]) for who in (bob, alice))
    assert FlightInfo.decode(hers.answers[0]).total_records == 2
    assert FlightInfo.decode(his.answers[0]).total_records in (-1, 1)
    (listed,) = bob.ask(acted("barrage.tables")).answers
    rows = {each["name"]: each["rows"] for each in json.loads(decode_result(listed))}
    assert rows == {SEEN: 2, PART: -1}


def test_what_is_known_and_not_allowed_is_told_so(bob):
    for way in ("uploads", "made", "dropped", "names given by clients"):
        for request in TRIED[way](SEEN):
            told = bob.ask(request)
            assert told.status is grpc.StatusCode.PERMISSION_DENIED, request
            assert "you may not" in told.details
    for request in inputs(SEEN):
        told = bob.ask(request)
        assert told.status is not grpc.StatusCode.OK
        assert "can't be used as an input table" in told.details


def test_history_is_for_those_who_see_all_of_a_table(bob, alice):
    """What a restricted caller may read of a journal: nothing. Rules are about what is there."""
    for request in journals(PART):
        told = bob.ask(request)
        assert told.status is grpc.StatusCode.PERMISSION_DENIED, request
        assert "you see a part of table" in told.details
        assert_tells_nothing(told)
    quick = Peer(alice.channel, alice.header, seconds=5)
    told = [quick.ask(replace(each, answers_max=1)).status for each in journals(PART)]
    assert grpc.StatusCode.PERMISSION_DENIED not in told
    assert grpc.StatusCode.OK in told


def test_a_shared_ticket_is_for_the_caller_that_shared_it_and_for_who_may_do_everything(server):
    auth = {name: barrage.Basic(name, ALICE_PASSWORD) for name in ("alice", "bob")}
    with (
        barrage.connect(server.uri, auth=auth["alice"]) as hers,
        barrage.connect(server.uri, auth=auth["bob"]) as his,
    ):
        of_hers = hers.table(HIDDEN).publish_shared()
        for raw in (of_hers, b"hnothing"):
            with pytest.raises(TableNotFoundError, match=f"^table 'ticket h:{raw[1:].hex()}' not"):
                his.shared(raw).snapshot()
        of_his = his.table(SEEN).publish_shared()
        assert his.shared(of_his).snapshot().num_rows == 2
        assert hers.shared(of_his).snapshot().num_rows == 2


def test_tables_about_the_server_need_a_rule_that_names_them(server, bob, alice):
    for name in (name for name in server._parts.catalog.listing() if name.startswith("_")):
        for request in by_name(name):
            hidden, nothing = bob.ask(request), bob.ask(_renamed(request, name, NOTHING))
            assert hidden.status is grpc.StatusCode.NOT_FOUND
            assert nothing is None or hidden.about(name) == nothing.about(NOTHING)
        assert alice.ask(got(b"s/" + name.encode())).status is grpc.StatusCode.OK


def _renamed(request: Request, name: str, other: str) -> Request:
    """The same about another table; lengths in a message are its own, so it is made anew."""
    place = list(by_name(name)).index(request)
    return list(by_name(other))[place]


def test_bodies_outside_of_streams_stay_inline_for_who_does_not_see_all(server):
    for name, way in (("alice", "shm"), ("bob", "inline")):
        auth = barrage.Basic(name, ALICE_PASSWORD)
        with barrage.connect(server.uri, auth=auth, bodies="auto") as session:
            assert session.body_status().way.value == way


def test_methods_that_are_about_no_table_tell_nothing_of_any(server, bob):
    ways = ("logging in, sessions", "the console", "not offered", "what can be called")
    names = set().union(*(WAYS[way][0] for way in ways))
    kinds = {
        f"/{service}/{name}": entry.kind
        for service, methods in server._app._services.items()
        for name, entry in methods.items()
        if name in names
    }
    quick = Peer(bob.channel, bob.header, seconds=1)
    for method, kind in kinds.items():
        told = quick.ask(Request(method, kind=kind, answers_max=3)).told
        for word in (HIDDEN, SEEN, CANARY):
            assert word.encode() not in told, method
