"""What one page may say in a message, and what that costs everybody else."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest

from barrage.limits import Limits
from barrage.transport.over_websocket.flight_socket import FlightSocket
from barrage.transport.over_websocket.http_messages import WebRequest
from tests.helpers.page_client import on_a_loop


@pytest.mark.parametrize("kind", ["pause", "resume"])
@on_a_loop
async def test_a_stream_that_is_named_often_is_looked_at_once(kind, monkeypatch):
    request = WebRequest(method="GET", target="/socket", headers=())
    page = FlightSocket(Mock(is_clogged=False), request, runner=Mock(), limits=Limits())
    page.text_received('{"type": "hello"}')
    page.text_received('{"type": "open", "stream": 1, "method": "DoGet"}')
    looked_at = []
    known = page._known
    monkeypatch.setattr(page, "_known", lambda stream: looked_at.append(stream) or known(stream))
    page.text_received(json.dumps({"type": kind, "streams": [1] * 1_000}))
    assert looked_at == [1]
    assert page._calls[1].is_paused == (kind == "pause")
    page.lost()
