"""A page of a notebook without a browser: what a widget's view sends to its kernel and hears."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from functools import partial

from websockets.exceptions import ConnectionClosedOK
from websockets.frames import Close

from barrage.client.notebook.kernel_pages import KernelPages
from barrage.client.notebook.page_door import PageDoor
from barrage.client.notebook.page_port import Pace
from barrage.clock import SystemClock
from barrage.limits import DEFAULT_LIMITS
from tests.helpers.page_client import Page

_numbers = itertools.count()


class Kernel:
    """One widget: its pages in the kernel, and the views that hear them."""

    def __init__(self, session, *, pace=None, limits=DEFAULT_LIMITS):
        self.limits = limits
        self.views = {}
        self.sent = []
        """All messages of the widget: content and buffers."""
        pace = pace or Pace(SystemClock(), bytes_per_s=10**9, burst=10**9)
        self.pages = KernelPages(
            partial(PageDoor, session._connection),
            self._send,
            loop=asyncio.get_running_loop(),
            pace=pace,
            limits=limits,
        )

    @property
    def calls_count(self):
        """Calls for pages that have not ended: each page is one, and each of its streams."""
        return self.pages._door._runner.calls_count

    def _send(self, content, buffers):
        self.sent.append((content, buffers))
        view = self.views.get(content["page"])
        if view is not None:
            view.heard(content, buffers)


class KernelView:
    """The socket of one view, as ``websockets`` would have it."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.page = f"page {next(_numbers)}"
        self.close_code = None
        self.close_reason = ""
        self.gaps = 0
        self._next = 0
        self._messages = asyncio.Queue()
        kernel.views[self.page] = self
        self.put([], opens=True)

    def put(self, parts, buffers=(), **more):
        content = {"page": self.page, "parts": parts, **more}
        self.kernel.pages.received(content, [memoryview(each) for each in buffers])

    def heard(self, content, buffers):
        self.gaps += content["number"] != self._next
        self._next = content["number"] + 1
        binary = iter(buffers)
        for part in content["parts"]:
            self._messages.put_nowait(next(binary) if part is None else part)
        if "close" in content:
            self.close_code, self.close_reason = content["close"]
            self._messages.put_nowait(None)

    async def send(self, message):
        if isinstance(message, str):
            self.put([message])
        else:
            self.put([None], [message])

    async def recv(self):
        message = await self._messages.get()
        if message is None:
            raise ConnectionClosedOK(Close(1000, ""), None)
        return message

    async def close(self):
        if self.close_code is None:
            self.put([], close=1000)
            self.close_code = 1000
            self._messages.put_nowait(None)


@asynccontextmanager
async def page_in(kernel):
    """A page of the widget that has not said anything yet."""
    page = Page(KernelView(kernel))
    try:
        yield page
    finally:
        await page.end()
