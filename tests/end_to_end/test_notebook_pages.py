"""Pages of a notebook: the kernel answers them as a server would, by way of its own connection."""

from __future__ import annotations

import asyncio
import base64
import json
import threading

import pyarrow as pa
import pytest

import barrage
from barrage.client.notebook.page_port import Pace
from barrage.engine.propagation.producer import Producer
from barrage.errors import ASK_AGAIN, CycleTooLongError
from barrage.limits import Limits
from barrage.model.viewport import Viewport
from barrage.server.settings.config import ServerConfig
from barrage.transport.flight_messages import encode_ticket
from barrage.wire.messages import NewSessionRequest
from barrage.wire.metadata import encode_wrapper
from barrage.wire.revision import WireRevision
from tests.helpers.frame_factory import metadata_frame
from tests.helpers.kernel_page import Kernel, KernelView, page_in
from tests.helpers.page_client import PageTable, on_a_loop
from tests.helpers.server_process import wait_until
from tests.helpers.virtual_clock import VirtualClock

DRAFT = WireRevision.DRAFT_2020
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])


def rows_of(start, stop, factor=1.0):
    return [{"k": k, "v": k * factor, "s": f"row {k}"} for k in range(start, stop)]


def rows_table(start, stop, factor=1.0):
    return pa.Table.from_pylist(rows_of(start, stop, factor), schema=SCHEMA)


@pytest.fixture
def server():
    with barrage.Server(config=ServerConfig(host="inproc://")) as made:
        made.create_table("t", SCHEMA, key=["k"]).upsert(rows_table(0, 100))
        yield made


async def until(condition):
    await asyncio.to_thread(wait_until, condition)


@on_a_loop
async def test_a_page_shows_what_the_server_has_as_it_changes(server):
    async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
        page.acknowledges = True
        told = await page.hello()
        assert told["caller"]["proof"] == "kernel"
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 20), token=b"first")
        await shown.shows(rows_of(0, 20))
        await page.text("view", stream=1, token=base64.b64encode(b"first").decode())
        server.table("t").upsert(rows_table(0, 5, factor=3.0))
        await shown.shows(rows_of(0, 5, factor=3.0) + rows_of(5, 20))
        await shown.change(50, 60, token=b"second")
        await shown.shows(rows_of(50, 60))
        await page.text("view", stream=1, token=base64.b64encode(b"second").decode())
        assert page.socket.gaps == 0


@on_a_loop
async def test_a_view_is_announced_ahead_of_the_update_that_answers_it(server):
    async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 5), token=b"a")
        await shown.shows(rows_of(0, 5))
        for start in range(5, 50, 5):
            await shown.change(start, start + 5, token=str(start).encode())
        await shown.shows(rows_of(45, 50))
        tokens = [
            (at, base64.b64decode(one["token"]))
            for at, one in enumerate(page.order)
            if isinstance(one, dict) and one["type"] == "view"
        ]
        assert tokens[0][1] == b"a"
        assert tokens[-1][1] == b"45"
        # What follows is the update itself, and not before it another one.
        assert all(page.order[at + 1] == 1 for at, _ in tokens)


@pytest.mark.further
@on_a_loop
async def test_a_page_that_acknowledges_nothing_is_sent_its_window_and_then_the_sum(server):
    async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 1), window=4)
        await page.messages(1, 2)
        table = server.table("t")
        # Of long cells few are between the server and the kernel, however slow both are, and an
        # answer says that the server's loop is not behind its engine.
        for step in range(1, 301):
            text = f"{step}" * 100_000
            table.upsert({"k": [0], "v": [float(step)], "s": [text]})
            await session.info("t")
        await page.messages(1, 4)
        page.acknowledges = True
        await page.acknowledge(1)
        await shown.shows([{"k": 0, "v": 300.0, "s": text}])
        assert len(page.received[1]) < 50


@on_a_loop
async def test_a_closed_page_ends_its_stream_on_the_server(server):
    async with barrage.aconnect(server.uri) as session:
        kernel = Kernel(session)
        async with page_in(kernel) as page:
            page.acknowledges = True
            await page.hello()
            shown = PageTable(page, 1)
            await shown.open(b"s/t", viewport=Viewport.of(0, 3))
            await shown.shows(rows_of(0, 3))
            assert kernel.calls_count == 2
        await until(lambda: kernel.calls_count == 0)
        assert kernel.pages.count == 0


@on_a_loop
async def test_the_same_widget_in_two_places(server):
    async with barrage.aconnect(server.uri) as session:
        kernel = Kernel(session)
        async with page_in(kernel) as one, page_in(kernel) as two:
            tables = []
            for page, start in ((one, 0), (two, 40)):
                page.acknowledges = True
                await page.hello()
                tables.append(PageTable(page, 1))
                await tables[-1].open(b"s/t", viewport=Viewport.of(start, start + 3))
            await tables[0].shows(rows_of(0, 3))
            await tables[1].shows(rows_of(40, 43))


@on_a_loop
async def test_a_page_reads_and_changes_nothing(server):
    async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
        page.acknowledges = True
        await page.hello()
        told = await page.call(1, "barrage.describe", {"table": "t"})
        assert [column["name"] for column in told["body"]["columns"]] == ["k", "v", "s"]
        told = await page.call(2, "barrage.drop_table", {"table": "t"})
        assert (told["code"], "barrage.drop_table" in told["message"]) == (
            "PERMISSION_DENIED",
            True,
        )
        await page.say(type="open", stream=1, method="DoPut")
        assert (await page.text("error", stream=1))["code"] == "UNIMPLEMENTED"
        await page.say(type="open", stream=2, method="DoGet")
        await page.send(2, encode_ticket(b"s/t"))
        await page.say(type="half_close", stream=2)
        await page.text("end", stream=2)
        assert page.received[2]
        assert server.table_names() == ["t"]


@on_a_loop
async def test_a_page_logs_nobody_in_and_holds_no_journal():
    """What a server answers, and does, for the session itself."""
    config = ServerConfig(host="inproc://", journal="memory")
    with barrage.Server(config=config) as server:
        server.create_table("t", SCHEMA, key=["k"]).upsert(rows_table(0, 3))
        async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
            page.acknowledges = True
            await page.hello()
            asked = encode_wrapper(NewSessionRequest(protocol_version=1), DRAFT)
            for stream, headers in enumerate(({"x-barrage-revision": "2020"}, {}), 1):
                await page.say(type="open", stream=stream, method="DoExchange", headers=headers)
                await page.send(stream, metadata_frame(asked))
                code = (await page.text("error", stream=stream))["code"]
                assert code in ("PERMISSION_DENIED", "INVALID_ARGUMENT")
                assert not page.received[stream]
            watch = {"mode": "watch", "table": "t", "consumer": "c", "lease_ms": 60_000}
            for stream, ticket in enumerate((b"j/" + json.dumps(watch).encode(), b"", b"h1"), 3):
                await page.say(type="open", stream=stream, method="DoGet")
                await page.send(stream, encode_ticket(ticket))
                await page.say(type="half_close", stream=stream)
                assert (await page.text("error", stream=stream))["code"] == "PERMISSION_DENIED"
            shown = PageTable(page, 6)
            await shown.open(b"s/t", viewport=Viewport.of(0, 3))
            await shown.shows(rows_of(0, 3))


@on_a_loop
async def test_a_table_that_is_dropped_says_so(server):
    async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 3))
        await shown.shows(rows_of(0, 3))
        server.drop_table("t")
        told = await page.text("error", stream=1)
        assert "t" in told["message"]
        await PageTable(page, 2).open(b"s/t", viewport=Viewport.of(0, 3))
        assert (await page.text("error", stream=2))["code"] == "NOT_FOUND"


@on_a_loop
async def test_a_view_that_the_server_has_ended_ends_alone(server, monkeypatch):
    """The page asks for it again; what else it shows goes on, and so do other pages."""
    add, refused = Producer.add, [CycleTooLongError()]

    def add_later(self, *arguments, **named):
        if refused:
            raise refused.pop()
        add(self, *arguments, **named)

    async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 3))
        await shown.shows(rows_of(0, 3))
        monkeypatch.setattr(Producer, "add", add_later)
        await PageTable(page, 2).open(b"s/t", viewport=Viewport.of(0, 3), interval_ms=500)
        told = await page.text("error", stream=2)
        assert told["code"] == "ABORTED"
        assert ASK_AGAIN in told["message"]
        again = PageTable(page, 3)
        await again.open(b"s/t", viewport=Viewport.of(0, 3), interval_ms=500)
        await again.shows(rows_of(0, 3))
        server.table("t").upsert(rows_table(0, 3, factor=3.0))
        await shown.shows(rows_of(0, 3, factor=3.0))
        assert page.close_reason == ""


@on_a_loop
async def test_a_page_is_let_in_again_when_the_server_is_back():
    def served():
        made = barrage.Server(config=ServerConfig(host="inproc://notebook-restart")).start()
        made.create_table("t", SCHEMA, key=["k"]).upsert(rows_table(0, 10))
        return made

    server = await asyncio.to_thread(served)
    async with barrage.aconnect("inproc://notebook-restart") as session:
        kernel = Kernel(session)
        async with page_in(kernel) as page:
            page.acknowledges = True
            await page.hello()
            shown = PageTable(page, 1)
            await shown.open(b"s/t", viewport=Viewport.of(0, 3))
            await shown.shows(rows_of(0, 3))
            await asyncio.to_thread(server.stop, grace=0)
            assert await page.closed() == 1001
        async with page_in(kernel) as page:
            await page.say(type="hello")
            assert await page.closed() == 1001
        server = await asyncio.to_thread(served)
        async with page_in(kernel) as page:
            page.acknowledges = True
            await page.hello()
            shown = PageTable(page, 1)
            await shown.open(b"s/t", viewport=Viewport.of(0, 3))
            await shown.shows(rows_of(0, 3))
        await asyncio.to_thread(server.stop, grace=0)


@on_a_loop
async def test_a_page_goes_on_at_the_next_server():
    def served(name, factor):
        made = barrage.Server(config=ServerConfig(host=f"inproc://{name}")).start()
        made.create_table("t", SCHEMA, key=["k"]).upsert(rows_table(0, 10, factor))
        return made

    one = await asyncio.to_thread(served, "notebook-one", 1.0)
    two = await asyncio.to_thread(served, "notebook-two", 2.0)
    async with barrage.aconnect([one.uri, two.uri]) as session:
        kernel = Kernel(session)
        async with page_in(kernel) as page:
            page.acknowledges = True
            await page.hello()
            shown = PageTable(page, 1)
            await shown.open(b"s/t", viewport=Viewport.of(0, 3))
            await shown.shows(rows_of(0, 3))
            await asyncio.to_thread(one.stop, grace=0)
            assert await page.closed() == 1001
        async with page_in(kernel) as page:
            page.acknowledges = True
            await page.hello()
            shown = PageTable(page, 1)
            await shown.open(b"s/t", viewport=Viewport.of(0, 3))
            await shown.shows(rows_of(0, 3, 2.0))
    await asyncio.to_thread(two.stop, grace=0)


@on_a_loop
async def test_a_closed_session_is_said_for_good(server):
    session = await barrage.aconnect(server.uri)
    kernel = Kernel(session)
    async with page_in(kernel) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 3))
        await shown.shows(rows_of(0, 3))
        await session.close()
        assert await page.closed() == 1001
    async with page_in(kernel) as page:
        await page.say(type="hello")
        assert await page.closed() == 4401
        assert "the session is closed" in page.close_reason


def test_a_session_whose_loop_has_ended_is_said_for_good(server):
    heard = []

    async def made():
        async with barrage.aconnect(server.uri) as session:
            kernel = Kernel(session)
            kernel._send = None
            return kernel

    kernel = asyncio.run(made())
    kernel.pages._send = lambda content, _: heard.append(content)
    kernel.pages.received({"page": "p", "parts": [], "opens": True}, [])
    kernel.pages.received({"page": "q", "parts": ["{}"]}, [])
    kernel.pages.received({"page": "q", "parts": [], "close": 1000}, [])
    kernel.pages.close()
    assert [(each["page"], each["number"], each["close"][0]) for each in heard] == [
        ("p", 0, 4401),
        ("q", -1, 4401),
    ]


@on_a_loop
async def test_messages_may_come_on_any_thread(server):
    async with barrage.aconnect(server.uri) as session:
        kernel = Kernel(session)
        async with page_in(kernel) as page:
            hello = threading.Thread(target=page.socket.put, args=(['{"type":"hello"}'],))
            hello.start()
            await page.text("welcome")
            hello.join()


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"page": 1, "parts": []},
        {"page": "", "parts": []},
        {"page": "x" * 65, "parts": []},
        {"page": "p", "parts": "text"},
        {"page": "p", "parts": [1]},
        {"page": "p", "parts": [None] * 4097, "opens": True},
        {"page": "p", "parts": [], "close": "now"},
    ],
)
def test_what_is_no_message_of_a_page_is_ignored(server, content):
    @on_a_loop
    async def ignored():
        async with barrage.aconnect(server.uri) as session:
            kernel = Kernel(session)
            kernel.pages.received(content, [])
            async with page_in(kernel) as page:
                await page.hello()
                assert kernel.pages.count == 1

    ignored()


@pytest.mark.parametrize(
    ("parts", "buffers", "code"),
    [
        (["{"], [], 4400),
        (['{"type":"none"}'], [], 4400),
        ([None], [], 4400),
        ([None], [b"\xff" * 9], 4400),
        (["x" * (1024 * 1024 + 1)], [], 1009),
        (['{"type":"ack","streams":{"9":1}}'], [], 4400),
        (['{"type":"hello","authorization":"\ud800"}'], [], 4400),
        (['{"type":"resume","\ud800":1}'], [], 4400),
    ],
)
def test_a_page_that_breaks_the_protocol_is_closed_and_no_other(server, parts, buffers, code):
    @on_a_loop
    async def closed():
        async with barrage.aconnect(server.uri) as session:
            kernel = Kernel(session)
            async with page_in(kernel) as good, page_in(kernel) as bad:
                await bad.hello()
                await good.hello()
                bad.socket.put(parts, buffers)
                assert await bad.closed() == code
                good.acknowledges = True
                shown = PageTable(good, 1)
                await shown.open(b"s/t", viewport=Viewport.of(0, 3))
                await shown.shows(rows_of(0, 3))

    closed()


@pytest.mark.parametrize(
    "body", ['{"table":"\ud800"}', '{"table":"\\ud800"}', "[" * 300 + "]" * 300]
)
def test_a_call_of_a_page_that_cannot_be_read_is_answered(server, body):
    @on_a_loop
    async def answered():
        async with barrage.aconnect(server.uri) as session, page_in(Kernel(session)) as page:
            await page.hello()
            page.socket.put(
                ['{"type":"call","call":3,"action":"barrage.describe","body":' + body + "}"]
            )
            told = await page.text("error", call=3)
            assert told["code"] == "INVALID_ARGUMENT"
            await page.call(3, "barrage.describe", {"table": "t"})

    answered()


@on_a_loop
async def test_as_many_places_as_there_may_be_and_one_more(server):
    limits = Limits(notebook_pages_max=2)
    async with barrage.aconnect(server.uri) as session:
        kernel = Kernel(session, limits=limits)
        async with page_in(kernel) as one, page_in(kernel) as two:
            await one.hello()
            await two.hello()
            async with page_in(kernel) as three:
                assert await three.closed() == 1013
                assert "2 places" in three.close_reason
            await one.end()
            async with page_in(kernel) as four:
                await four.hello()


@on_a_loop
async def test_a_page_that_is_not_heard_of_any_more_is_given_up(server):
    limits = Limits(notebook_silence_ns_max=20_000_000)
    async with barrage.aconnect(server.uri) as session:
        kernel = Kernel(session, limits=limits)
        async with page_in(kernel) as page:
            assert await page.closed() == 4408
            assert kernel.pages.count == 0
            # It is there after all: it is to begin again, under another name.
            page.socket.put(['{"type":"hello"}'])
            await until(lambda: kernel.sent[-1][0]["number"] == -1)


@on_a_loop
async def test_a_message_that_was_left_out_is_noticed(server):
    async with barrage.aconnect(server.uri) as session:
        kernel = Kernel(session)
        view = KernelView(kernel)
        view.put(['{"type":"hello"}'])
        await until(lambda: len(kernel.sent) > 0)
        assert [content["number"] for content, _ in kernel.sent] == list(range(len(kernel.sent)))


def test_a_pace_lets_a_burst_through_and_then_so_much_a_second():
    clock = VirtualClock()
    pace = Pace(clock, bytes_per_s=1000, burst=500)
    assert pace.wait_s() == 0
    pace.spend(400)
    assert pace.wait_s() == 0
    pace.spend(1100)
    assert pace.wait_s() == pytest.approx(1.0)
    clock.advance(500_000_000)
    assert pace.wait_s() == pytest.approx(0.5)
    clock.advance(500_000_000)
    assert pace.wait_s() == 0
    clock.advance(3600 * 1_000_000_000)
    assert pace.wait_s() == 0
    pace.spend(501)
    assert pace.wait_s() == pytest.approx(0.001)


@on_a_loop
async def test_streams_wait_for_their_pace_and_lose_nothing(server):
    class Toll:
        """A pace that stands still until it is let go."""

        def __init__(self):
            self.wait = 0.0
            self.spent = 0

        def wait_s(self):
            return self.wait

        def spend(self, size):
            self.spent += size

    toll = Toll()
    async with (
        barrage.aconnect(server.uri) as session,
        page_in(Kernel(session, pace=toll)) as page,
    ):
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 1))
        await shown.shows(rows_of(0, 1))
        toll.wait = 0.001
        for step in range(1, 101):
            server.table("t").upsert({"k": [0], "v": [float(step)], "s": ["x"]})
        toll.wait = 0.0
        await shown.shows([{"k": 0, "v": 100.0, "s": "x"}])
        assert page.socket.gaps == 0
        assert toll.spent > 0
