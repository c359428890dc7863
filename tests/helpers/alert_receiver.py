"""A receiver of alerts: a real HTTP server on loopback that keeps what it is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.helpers.server_process import wait_until

HANG_SECONDS = 180
LOOPBACK = "127.0.0.1"


@dataclass
class ReceivedMessage:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def told(self) -> dict[str, Any]:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.told["events"]


@dataclass
class AlertReceiver:
    """Answers 200, or what ``answer`` does with a request."""

    answer: Callable[[BaseHTTPRequestHandler], None] | None = None
    messages: list[ReceivedMessage] = field(default_factory=list)
    port: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/hook?a=1"

    @property
    def events(self) -> list[dict[str, Any]]:
        """All that were told, in order."""
        return [event for message in list(self.messages) for event in message.events]

    def statuses(self) -> list[tuple[str, Any]]:
        """What became of which key."""
        return [
            (event["status"], tuple((event.get("key") or {}).values())) for event in self.events
        ]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """So many events; AssertionError when they do not come."""
        wait_until(lambda: len(self.events) >= count, HANG_SECONDS)
        return self.events


def status(code: int, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """An answer of this status."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


@contextmanager
def receiver(
    answer: Callable[[BaseHTTPRequestHandler], None] | None = None,
) -> Iterator[AlertReceiver]:
    """A receiver while the block runs."""
    kept = AlertReceiver(answer)
    fine = status(200)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.messages.append(ReceivedMessage(self.path, dict(self.headers.items()), body))
            (kept.answer or fine)(self)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # Who asked has gone.

    with Quiet((LOOPBACK, 0), Handler) as server:
        kept.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield kept
        finally:
            kept.is_over.set()
            server.shutdown()
            thread.join()
