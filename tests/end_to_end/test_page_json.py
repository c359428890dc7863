"""JSON of pages that cannot be read: its message is answered, and nothing else is touched."""

from __future__ import annotations

import pytest

import barrage
from barrage.model.viewport import Viewport
from barrage.proto.client_exchange import ClientExchange
from barrage.server.settings.config import ServerConfig
from tests.helpers.page_client import PageTable, on_a_loop, page_at


@pytest.fixture(scope="module")
def server():
    with barrage.Server(config=ServerConfig(host="inproc://", web=True)) as made:
        made.create_table("t", {"k": "int64", "v": "float64"}, key=["k"]).upsert(rows(0, 100))
        yield made


def rows(start, stop):
    return {"k": list(range(start, stop)), "v": [float(k) for k in range(start, stop)]}


@on_a_loop
async def test_a_call_that_nests_too_deep_is_answered_and_the_socket_goes_on(server):
    deep = "[" * 3000 + "]" * 3000
    async with page_at(server.web_uri) as page:
        page.acknowledges = True
        await page.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 2))
        for action in ("barrage.describe", "barrage.save_board", "barrage.set_cells", "barrage.x"):
            for body in (deep, f'{{"table": {deep}}}'):
                message = f'{{"type": "call", "call": 1, "action": "{action}", "body": {body}}}'
                await page.socket.send(message)
                told = await page.text("error", call=1)
                assert told["code"] == "INVALID_ARGUMENT"
                assert "nests 300" in told["message"]
        deep = "[" * 1000 + "]" * 1000
        query = f'{{"table": "t", "ops": [["where", {deep}]]}}'.encode()
        await page.say(type="open", stream=2, method="DoExchange")
        await page.send(2, ClientExchange().subscribe(b"q/" + query))
        told = await page.text("error", stream=2)
        assert told["code"] == "INVALID_ARGUMENT"
        assert "nests 1003 deep" in told["message"]
        server.table("t").upsert(rows(0, 1))
        await shown.change(2, 4)
        await page.call(1, "barrage.describe", {"table": "t"})


@pytest.mark.parametrize(
    "action", ["barrage.describe", "barrage.board", "barrage.drop_board", "barrage.remove_row"]
)
@on_a_loop
async def test_half_of_a_surrogate_pair_is_refused(server, action):
    async with page_at(server.web_uri) as page:
        await page.hello()
        await page.socket.send(
            f'{{"type": "call", "call": 1, "action": "{action}", "body": {{"name": "\\ud800x"}}}}'
        )
        assert (await page.text("error", call=1))["code"] == "INVALID_ARGUMENT"
        query = b'{"table": "t", "ops": [["where", "a = \'\\udc00x\'"]]}'
        await page.say(type="open", stream=1, method="DoExchange")
        await page.send(1, ClientExchange().subscribe(b"q/" + query))
        assert (await page.text("error", stream=1))["code"] == "INVALID_ARGUMENT"
        await page.call(2, "barrage.tables")
