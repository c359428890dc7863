"""What a kernel sends to pages that are over, or are none: no more than its pace allows, and
nothing once the widget was closed."""

from __future__ import annotations

import asyncio

import pytest

import barrage
from barrage.client.notebook.page_port import Pace
from barrage.limits import Limits
from barrage.model.viewport import Viewport
from barrage.server.settings.config import ServerConfig
from tests.helpers.kernel_page import Kernel, KernelView, page_in
from tests.helpers.page_client import PageTable, on_a_loop
from tests.helpers.server_process import wait_until
from tests.helpers.virtual_clock import VirtualClock


class Toll:
    """A pace that stands still until it is let go."""

    def __init__(self):
        self.wait = 0.0

    def wait_s(self):
        return self.wait

    def spend(self, size):
        pass


@pytest.fixture
def server():
    with barrage.Server(config=ServerConfig(host="inproc://")) as made:
        made.create_table("t", {"k": "int64"}, key=["k"]).upsert({"k": [1]})
        yield made


async def until(condition):
    await asyncio.to_thread(wait_until, condition)


async def shown_in(page):
    page.acknowledges = True
    await page.hello()
    shown = PageTable(page, 1)
    await shown.open(b"s/t", viewport=Viewport.of(0, 1))
    await shown.shows([{"k": 1}])


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_closed_widget_sends_nothing_and_keeps_nothing(server, is_waiting):
    @on_a_loop
    async def closed():
        toll = Toll()
        async with barrage.aconnect(server.uri) as session:
            kernel = Kernel(session, pace=toll)
            async with page_in(kernel) as page:
                await shown_in(page)
                sent = len(kernel.sent)
                if is_waiting:
                    toll.wait = 0.001
                    page.socket.put(['{"type":"call","call":1,"action":"barrage.tables"}'])
                kernel.pages.close()
                page.socket.put(['{"type":"call","call":2,"action":"barrage.tables"}'])
                KernelView(kernel).put(['{"type":"hello"}'])
                await until(lambda: kernel.pages.count == kernel.calls_count == 0)
                toll.wait = 0.0
                await asyncio.sleep(0.01)
                page.socket.put(["{}"])
                KernelView(kernel)
                for _ in range(5):
                    await asyncio.sleep(0)
                told = [content.get("close") for content, _ in kernel.sent[sent:]]
                assert told == ([] if is_waiting else [[4401, "the widget was closed"]])
                assert kernel.pages.count == 0
                page.socket.close_code = 1000
                page.socket._messages.put_nowait(None)

    closed()


@on_a_loop
async def test_why_a_page_was_closed_waits_for_its_pace_and_what_waited_is_left_out(server):
    toll = Toll()
    async with barrage.aconnect(server.uri) as session:
        kernel = Kernel(session, pace=toll)
        async with page_in(kernel) as page:
            await shown_in(page)
            sent = len(kernel.sent)
            toll.wait = 0.001
            page.socket.put(
                ['{"type":"call","call":1,"action":"barrage.x","body":{"\\ud800":1}}', "{"]
            )
            await until(lambda: kernel.calls_count == 0)
            for _ in range(50):  # What comes from it meanwhile opens nothing.
                page.socket.put(["{}"], opens=True)
            await asyncio.sleep(0.01)
            assert len(kernel.sent) == sent
            assert kernel.pages.count == 1
            toll.wait = 0.0
            assert await page.closed() == 4400
            assert page.socket.gaps == 0
            (last,) = kernel.sent[sent:]
            assert last[0]["parts"] == []


@pytest.mark.parametrize("opens", [False, True])
def test_pages_that_are_refused_again_and_again_are_told_within_the_pace(server, opens):
    @on_a_loop
    async def told():
        async with barrage.aconnect(server.uri) as session:
            pace = Pace(VirtualClock(), bytes_per_s=1000, burst=2000)
            limits = Limits(notebook_pages_max=2)
            kernel = Kernel(session, pace=pace, limits=limits)
            for number in range(1000):
                content = {"page": f"p{number % 7}", "parts": ["{"], "opens": opens}
                kernel.pages.received(content, [])
            await asyncio.sleep(0.01)
            assert 1 <= len(kernel.sent) <= 2000 / 200 + 2
            assert kernel.pages.count <= 2
            kernel.pages.close()

    told()
