"""Listeners that answer gRPC-web, and a browser that calls them by each way there is."""

from __future__ import annotations

import asyncio
import contextlib

from barrage.limits import Limits
from barrage.transport.base import ListenOptions
from barrage.transport.over_websocket.http_messages import WebAnswer
from barrage.transport.over_websocket.origins import OriginRule
from barrage.transport.over_websocket.web_listener import WebListener
from tests.helpers.fetching import GRPC_WEB, Browser, framed
from tests.unit.transport.contract import TOLD_SECONDS
from tests.unit.transport.http2_served import SERVICE, Behaviors, listener_on
from tests.unit.transport.tls_scene import server_tls

OTHER = "https://dashboards.example"
UPLOAD_BYTES_MAX = 32 * 1024
LIMITS = Limits(
    web_upload_bytes_max=UPLOAD_BYTES_MAX,
    web_requests_bytes_max=UPLOAD_BYTES_MAX,
    web_streams_max=2,
    http2_preface_ns_max=60 * 10**9,
)


class Site:
    """What is served beside calls; notes who asks."""

    def __init__(self):
        self.asked = []
        self.long = b"x" * 300_000
        self.is_held = asyncio.Event()
        self.is_held.set()

    async def answer(self, request):
        self.asked.append(request)
        await self.is_held.wait()
        if request.path == "/fails":
            raise ValueError("the site is broken")
        body = self.long if request.path == "/long" else request.path.encode()
        return WebAnswer(headers=(("content-type", "text/plain"),), body=body)


@contextlib.asynccontextmanager
async def web_listener(folder, *, is_tls, limits=LIMITS):
    behaviors, site = Behaviors(), Site()
    options = ListenOptions(
        port=0,
        message_bytes_max=UPLOAD_BYTES_MAX,
        keepalive_ms=30_000,
        limits=limits,
        tls=server_tls(folder) if is_tls else None,
    )
    listener = WebListener("127.0.0.1", options, site=site, origins=OriginRule([OTHER]))
    listener.add_generic_rpc_handlers((behaviors.handler(),))
    listener.bind()
    await listener.start()
    try:
        yield listener, behaviors, site
    finally:
        await listener.stop(0)
        assert listener.connections_count == 0
        assert listener.calls_count == 0


@contextlib.asynccontextmanager
async def other_listener(folder, *, is_tls):
    """That of native clients, which has no pages."""
    behaviors = Behaviors()
    listener = listener_on(tls=server_tls(folder) if is_tls else None)
    listener.add_generic_rpc_handlers((behaviors.handler(),))
    listener.bind()
    await listener.start()
    try:
        yield listener, behaviors, None
    finally:
        await listener.stop(0)
        assert listener.calls_count == 0


WAYS = {
    "HTTP/1.1": (web_listener, "1.1", False),
    "HTTP/1.1 under TLS": (web_listener, "1.1", True),
    "HTTP/2 under TLS": (web_listener, "2", True),
    "HTTP/2 on the other port": (other_listener, "2", True),
    "HTTP/2 in the clear": (other_listener, "2", False),
}
OF_PAGES = [name for name, (listener, _, _) in WAYS.items() if listener is web_listener]


def played(folder, play, way, **browser):
    """Run ``play`` with a browser that calls by ``way``."""
    listen, http, is_tls = WAYS[way]

    async def main():
        async with (
            asyncio.timeout(TOLD_SECONDS),
            listen(folder, is_tls=is_tls) as (listener, behaviors, site),
            Browser(listener.port, http=http, is_tls=is_tls, **browser) as made,
        ):
            if listen is other_listener:
                made.origin = ""
            await play(made, listener, behaviors, site)

    asyncio.run(main())


def method(name):
    return f"/{SERVICE}/{name}"


async def calls(browser, name, *messages, metadata=(), **options):
    """Without an origin where there are no pages."""
    headers = {**GRPC_WEB, **({"origin": browser.origin} if browser.origin else {})}
    headers |= dict(metadata)
    body = b"".join(map(framed, messages))
    return await browser.request("POST", method(name), headers, body, **options)
