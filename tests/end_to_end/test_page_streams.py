"""Pages on a server: what they are told is what DoExchange carries; flow, views, actions."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial

import pyarrow as pa
import pytest

import barrage
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.model.schema_message import read_schema_message
from barrage.model.viewport import Viewport
from barrage.proto.client_exchange import ClientExchange
from barrage.server.settings.config import ServerConfig
from barrage.transport.base import ConnectOptions
from barrage.transport.flight_messages import decode_put_result, encode_ticket
from barrage.transport.registry import TRANSPORTS, scheme_of
from barrage.wire.messages import SubscriptionOptions
from tests.helpers.page_client import HANG_S, PageTable, on_a_loop, page_at

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), metadata={"description": "the key"}),
        pa.field("v", pa.float64()),
        pa.field("s", pa.string()),
    ],
    metadata={"description": "what is tested"},
)


def rows_of(start, stop, factor=1.0):
    return [{"k": k, "v": k * factor, "s": f"row {k}"} for k in range(start, stop)]


def rows_table(start, stop, factor=1.0):
    return pa.Table.from_pylist(rows_of(start, stop, factor), schema=SCHEMA)


@pytest.fixture(scope="module")
def server():
    with barrage.Server(config=ServerConfig(host="inproc://", web=True)) as made:
        yield made


@pytest.fixture
def name(request):
    return request.node.name


@pytest.fixture
def table(server, name):
    made = server.create_table(name, SCHEMA, key=["k"])
    made.upsert(rows_table(0, 100))
    yield made
    if name in server.table_names():
        server.drop_table(name)


def ticket(name):
    return b"s/" + name.encode()


class RawExchange:
    """The same subscription over gRPC, its frames as they come."""

    def __init__(self, server):
        backend = TRANSPORTS.find(scheme_of(server.uri))
        address = backend.parse(server.uri)
        self.connection = backend.connect(address, ConnectOptions(limits=DEFAULT_LIMITS))
        self.stream = self.connection.exchange()
        self.frames = []

    async def open(self, name, viewport):
        options = SubscriptionOptions(min_update_interval_ms=10)
        request = ClientExchange().subscribe(ticket(name), viewport=viewport, options=options)
        await self.stream.write(request)

    async def read_until(self, count):
        async with asyncio.timeout(HANG_S):
            while len(self.frames) < count:
                self.frames.append(await self.stream.read())

    async def close(self):
        self.stream.cancel()
        await self.connection.close()


VIEWS = [None, Viewport.of(10, 30), Viewport.of(0, 5, is_reverse=True)]


@pytest.mark.parametrize("viewport", VIEWS, ids=["full", "view", "reverse"])
@on_a_loop
async def test_frames_are_those_of_do_exchange(server, table, name, viewport):
    grpc = RawExchange(server)
    async with page_at(server.web_uri) as page:
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name), viewport=viewport)
        await grpc.open(name, viewport)
        await page.messages(1, 2)
        await grpc.read_until(2)
        changes = [
            partial(table.upsert, rows_table(10, 12, factor=2.0)),
            partial(table.remove, {"k": list(range(20))}),
            partial(table.upsert, rows_table(100, 150)),
            partial(table.upsert, rows_table(0, 40, factor=3.0)),
        ]
        page.acknowledges = True
        for change in changes:
            before = len(page.received[1])
            change()
            # Both have been told before the next change, or some could be told of two at once.
            await page.messages(1, before + 1)
            await grpc.read_until(before + 1)
            await page.call(1, "barrage.tables")
        await page.messages(1, len(grpc.frames))
        await grpc.read_until(len(page.received[1]))
        assert page.received[1][: len(grpc.frames)] == grpc.frames
        assert len(grpc.frames) >= 6
    await grpc.close()


@on_a_loop
async def test_rows_are_those_of_the_table(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        full, view = PageTable(page, 1), PageTable(page, 200)
        await full.open(ticket(name))
        await view.open(ticket(name), viewport=Viewport.of(5, 8))
        await full.shows(rows_of(0, 100))
        await view.shows(rows_of(5, 8))
        table.upsert(rows_table(6, 7, factor=-1.0))
        await view.shows([*rows_of(5, 6), *rows_of(6, 7, -1.0), *rows_of(7, 8)])
        table.remove({"k": list(range(6))})
        await view.shows(rows_of(11, 14))
        assert page.order[0]["type"] == "welcome"


@on_a_loop
async def test_a_query_is_a_ticket(server, table, name):
    query = {"table": name, "ops": [["where", "k < 10"], ["sort", ["-k"]]]}
    asked = b"q/" + json.dumps(query).encode()
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(asked, viewport=Viewport.of(0, 3))
        await shown.shows(list(reversed(rows_of(7, 10))))
        told = await page.call(1, "barrage.describe", {"ticket": base64.b64encode(asked).decode()})
        assert told["body"]["rows"] == 10
        assert [column["type"] for column in told["body"]["columns"]] == [
            "int64",
            "double",
            "string",
        ]


# --- views ----------------------------------------------------------------------------------------


@on_a_loop
async def test_the_token_of_a_view_is_said_ahead_of_its_rows(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name), viewport=Viewport.of(0, 5), token=b"first")
        await shown.shows(rows_of(0, 5))
        for number, start in enumerate((3, 50, 90, 0)):
            token = b"view %d" % number
            await shown.change(start, start + 5, token)
            await shown.shows(rows_of(start, start + 5))
            told = base64.b64encode(token).decode()
            at = next(
                i
                for i, m in enumerate(page.order)
                if isinstance(m, dict) and m.get("token") == told
            )
            # What follows it on the stream is the answer, and is the last that has come.
            assert page.order[at + 1] == 1
            assert [m for m in page.order[at + 2 :] if m == 1] == []
        told = [m["token"] for m in page.order if isinstance(m, dict) and m["type"] == "view"]
        assert [base64.b64decode(each) for each in told] == [
            b"first",
            b"view 0",
            b"view 1",
            b"view 2",
            b"view 3",
        ]


@on_a_loop
async def test_of_views_asked_for_at_once_the_last_is_announced(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name), viewport=Viewport.of(0, 5))
        await shown.shows(rows_of(0, 5))
        for start in range(60):
            await shown.change(start, start + 5, b"%d" % start)
        await page.text("view", token=base64.b64encode(b"59").decode())
        await shown.shows(rows_of(59, 64))
        numbers = [
            int(base64.b64decode(m["token"]))
            for m in page.order
            if isinstance(m, dict) and m["type"] == "view"
        ]
        assert numbers == sorted(set(numbers))


# --- flow -----------------------------------------------------------------------------------------


@on_a_loop
async def test_what_is_not_acknowledged_is_merged(server, table, name):
    async with page_at(server.web_uri) as page:
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name), window=3)
        await page.messages(1, 2)
        for number in range(1, 41):
            table.upsert(rows_table(0, 1, factor=1.0).set_column(1, "v", pa.array([float(number)])))
            await until_told(server, name)
        # The schema, the first state, one update; two wait in the outbox.
        assert len(page.received[1]) == 3
        page.acknowledges = True
        await page.acknowledge(1)
        await shown.shows([{"k": 0, "v": 40.0, "s": "row 0"}, *rows_of(1, 100)])
        assert shown.updates <= 5


async def until_told(server, name):
    """Until another subscriber has been told of a change, so that each is an update by itself."""
    grpc = RawExchange(server)
    await grpc.open(name, Viewport.of(0, 1))
    await grpc.read_until(2)
    await grpc.close()


@on_a_loop
async def test_a_paused_page_gets_the_latest_state_once(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name), viewport=Viewport.of(0, 3))
        await shown.shows(rows_of(0, 3))
        before = len(page.received[1])
        await page.say(type="pause")
        # An answer says that the pause has been heard.
        await page.call(1, "barrage.tables")
        for number in range(1, 30):
            table.upsert(rows_table(1, 2, factor=float(number)))
            await until_told(server, name)
        assert len(page.received[1]) == before
        await page.say(type="resume")
        await shown.shows([*rows_of(0, 1), *rows_of(1, 2, 29.0), *rows_of(2, 3)])
        assert len(page.received[1]) <= before + 4


@on_a_loop
async def test_only_a_page_that_has_said_so_may_take_nothing():
    # A paused stream is vouched for four times in that time, by a loop that may be late.
    limits = Limits(stall_ns_max=3_000_000_000)
    with barrage.Server(config=ServerConfig(host="inproc://", web=True, limits=limits)) as server:
        table = server.create_table("t", SCHEMA, key=["k"])
        table.upsert(rows_table(0, 3))
        async with page_at(server.web_uri) as page:
            await page.hello()
            silent, paused = PageTable(page, 1), PageTable(page, 2)
            for shown in (silent, paused):
                await shown.open(ticket("t"), viewport=Viewport.of(0, 3), window=2)
                await page.messages(shown.stream, 2)
                await page.acknowledge(shown.stream)
            await page.say(type="pause", streams=[2])
            await page.call(1, "barrage.tables")
            last = 0.0
            for stream in (1, 3):
                # Once the first one is over, another one is as silent for as long.
                if stream == 3:
                    await PageTable(page, 3).open(ticket("t"), viewport=Viewport.of(0, 3), window=2)
                async with asyncio.timeout(HANG_S):
                    while not any(told["type"] == "error" for told in page.texts):
                        last += 1.0
                        table.upsert(rows_table(1, 2, factor=last))
                        await until_told(server, "t")
                told = await page.text("error")
                assert (told["stream"], told["code"]) == (stream, "RESOURCE_EXHAUSTED")
            page.acknowledges = True
            await page.say(type="resume")
            await paused.shows([*rows_of(0, 1), *rows_of(1, 2, last), *rows_of(2, 3)])


@on_a_loop
async def test_a_stream_that_is_opened_while_all_are_paused_waits(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        await page.say(type="pause")
        shown = PageTable(page, 1)
        await shown.open(ticket(name), viewport=Viewport.of(0, 3))
        await page.call(1, "barrage.tables")
        await until_told(server, name)
        assert page.received[1] == []
        await page.say(type="resume", streams=[1])
        await shown.shows(rows_of(0, 3))


# --- other calls ----------------------------------------------------------------------------------


@on_a_loop
async def test_do_get_and_do_put(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        await page.say(type="open", stream=1, method="DoGet")
        await page.send(1, encode_ticket(ticket(name)))
        await page.say(type="half_close", stream=1)
        await page.text("end", stream=1)
        exchange = ClientExchange()
        exchange.take_snapshot(ticket(name))
        events = [event for frame in page.received[1] for event in exchange.receive_frame(frame)]
        assert len(events) == 2
        await page.say(type="open", stream=2, method="DoPut")
        for frame in put_frames(name, rows_table(500, 502)):
            await page.send(2, frame)
        await page.say(type="half_close", stream=2)
        await page.text("end", stream=2)
        assert page.received[2]
        assert [decode_put_result(result) for result in page.received[2]]
        assert table.to_arrow().num_rows == 102


def put_frames(name, rows):
    """What a page sends to write rows: a schema and a batch as Arrow lays them out."""
    from barrage.transport.flight_messages import Descriptor
    from barrage.wire.flight_data import encode_flight_data
    from barrage.wire.frame import FlightFrame

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    frames = []
    for message in reader:
        descriptor = Descriptor(path=(name,)).encode() if not frames else None
        frames.append(
            encode_flight_data(
                FlightFrame(
                    descriptor=descriptor,
                    header=message.metadata.to_pybytes(),
                    body=b"" if message.body is None else message.body.to_pybytes(),
                )
            )
        )
    return frames


@on_a_loop
async def test_tables_and_their_descriptions(server, table, name):
    async with page_at(server.web_uri) as page:
        await page.hello()
        listed = (await page.call(1, "barrage.tables"))["body"]
        assert name in [each["name"] for each in listed]
        told = (await page.call(2, "barrage.describe", {"table": name}))["body"]
        assert told["description"] == "what is tested"
        assert told["rows"] == 100
        assert told["columns"][0] == {
            "name": "k",
            "type": "int64",
            "is_nullable": True,
            "description": "the key",
        }
        message = read_schema_message(base64.b64decode(told["schema"]))
        assert message.names == ["k", "v", "s"]
        wrong = await page.call(3, "barrage.describe", {"table": "no such table"})
        assert wrong["code"] == "NOT_FOUND"
        assert (await page.call(4, "no.such.action"))["code"] == "NOT_FOUND"
        both = await page.call(5, "barrage.describe", {})
        assert both["code"] == "INVALID_ARGUMENT"


@on_a_loop
async def test_a_table_that_goes_ends_its_streams_and_no_others(server, table, name):
    other = server.create_table(f"{name} other", SCHEMA, key=["k"])
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        gone, stays = PageTable(page, 1), PageTable(page, 2)
        await gone.open(ticket(name), viewport=Viewport.of(0, 3))
        await stays.open(ticket(f"{name} other"), viewport=Viewport.of(0, 3))
        await gone.shows(rows_of(0, 3))
        await stays.shows([])
        server.drop_table(name)
        told = await page.text("error", stream=1)
        assert told["code"] != "OK"
        assert told["message"]
        other.upsert(rows_table(7, 8))
        await stays.shows(rows_of(7, 8))
        await page.say(type="open", stream=3, method="DoExchange")
        again = ClientExchange().subscribe(ticket(name))
        await page.send(3, again)
        assert (await page.text("error", stream=3))["code"] == "NOT_FOUND"
    server.drop_table(f"{name} other")


@on_a_loop
async def test_a_table_that_goes_ends_the_queries_that_name_it_and_no_others(server, table, name):
    other, view = f"{name} other", f"{name} view"
    kept = server.create_table(other, SCHEMA, key=["k"])
    server.publish(view, server.table(name).where("v > 3"))
    queries = {
        1: {"table": name, "ops": [["sort", ["-v"]]]},
        2: {"table": other, "ops": [["natural_join", {"table": name}, ["k"], ["w=v"]]]},
        3: {"table": name, "ops": [["where", "v > 3"]]},
        4: {"table": other, "ops": [["sort", ["-v"]]]},
    }
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = {stream: PageTable(page, stream) for stream in queries}
        for stream, query in queries.items():
            text = b"q/" + json.dumps(query).encode()
            await shown[stream].open(text, viewport=Viewport.of(0, 3))
            await page.call(stream, "barrage.tables")
        server.drop_table(name)
        for stream in (1, 2):
            told = await page.text("error", stream=stream)
            assert told["code"] == "NOT_FOUND"
            assert told["message"] == f"table {name!r} was dropped"
        kept.upsert(rows_table(7, 8))
        await shown[4].shows(rows_of(7, 8))
        # A published table lives on, and who reads it by a query of its own does, too.
        ended = [told for told in page.order if isinstance(told, dict) and told["type"] == "error"]
        assert {told["stream"] for told in ended} == {1, 2}
    server.drop_table(view)
    server.drop_table(other)


@on_a_loop
async def test_a_column_that_is_renamed_ends_the_query_that_names_it(server, table, name):
    server.drop_table(name)
    renamed = pa.schema([("k", pa.int64()), ("w", pa.float64())])
    server.create_table(name, renamed, key=["k"])
    query = json.dumps({"table": name, "ops": [["where", "v > 3"]]}).encode()
    async with page_at(server.web_uri) as page:
        await page.hello()
        await page.say(type="open", stream=1, method="DoExchange")
        await page.send(1, ClientExchange().subscribe(b"q/" + query))
        told = await page.text("error", stream=1)
        assert told["code"] == "INVALID_ARGUMENT"
        assert "'v'" in told["message"]


@on_a_loop
async def test_a_cancelled_stream_says_nothing_more(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name), viewport=Viewport.of(0, 3))
        await shown.shows(rows_of(0, 3))
        await page.say(type="cancel", stream=1)
        await page.call(1, "barrage.tables")
        count = len(page.order)
        table.upsert(rows_table(0, 3, factor=9.0))
        await until_told(server, name)
        # Late messages for it are no offence.
        await page.send(1, b"anything")
        await page.say(type="half_close", stream=1)
        await page.call(2, "barrage.tables")
        assert [m for m in page.order[count:] if m == 1 or m.get("stream") == 1] == []


@on_a_loop
async def test_a_half_closed_subscription_ends_well(server, table, name):
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name), viewport=Viewport.of(0, 3))
        await shown.shows(rows_of(0, 3))
        await page.say(type="half_close", stream=1)
        await page.text("end", stream=1)


@on_a_loop
async def test_a_page_that_comes_back_goes_on_from_its_cursor(server, name):
    made = server.create_table(name, SCHEMA, key=["k"], journal="memory")
    made.upsert(rows_table(0, 10))
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(ticket(name))
        await shown.shows(rows_of(0, 10))
        epoch = (await page.text("headers", stream=1))["headers"]["x-barrage-epoch"]
        version = shown.step
        made.upsert(rows_table(3, 4, factor=5.0))
        again = PageTable(page, 2)
        headers = {"x-barrage-cursor": f"{epoch}:{version}"}
        await again.open(ticket(name), headers=headers)
        told = await page.text("headers", stream=2)
        assert told["headers"]["x-barrage-resumed"] == "replayed 1"
    server.drop_table(name)
