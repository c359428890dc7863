"""What the page shows when servers die, sockets are slow, tables go and peers lie."""

from __future__ import annotations

import json
import threading

import pytest

from tests.web.page.conftest import web_server
from tests.web.page.screen import wait_until

TABLE = {"id": "int64", "value": "string"}


def port_of(server):
    return int(server.web_uri.rstrip("/").rpartition(":")[2])


def filled(server, count, value="a"):
    table = server.create_table("t", TABLE, key="id")
    table.upsert({"id": list(range(count)), "value": [value] * count})
    return table


def test_a_server_is_restarted_twenty_times(open_screen):
    server = web_server().start()
    port = port_of(server)
    filled(server, 50, "life 0")
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    for life in range(1, 21):
        server.stop(grace=0)
        wait_until(lambda: screen.pill.startswith("reconnecting"), "the loss")
        assert screen.in_grid(".body > .row:not([hidden]) .cell").first.text_content() == "0"
        server = web_server(web_port=port)
        filled(server, 50 + life, f"life {life}")
        server.start()
        screen.page.evaluate("dispatchEvent(new Event('online'))")
        wait_until(lambda: screen.cells().get(0, {}).get("value") == f"life {life}", f"life {life}")
        wait_until(lambda: screen.row_count == 50 + life)
    assert screen.pill.startswith("live")
    server.stop(grace=0)


def test_a_table_with_a_journal_goes_on_where_it_was(tmp_path, open_screen):
    server = web_server(data=str(tmp_path)).start()
    port = port_of(server)
    filled(server, 50)
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    server.stop(grace=0)
    wait_until(lambda: screen.pill.startswith("reconnecting"))
    server = web_server(data=str(tmp_path), web_port=port).start()
    server.table("t").upsert({"id": [3, 77], "value": ["later", "new"]})
    screen.page.evaluate("dispatchEvent(new Event('online'))")
    wait_until(lambda: screen.cells().get(3, {}).get("value") == "later")
    wait_until(lambda: screen.row_count == 51)
    assert "replayed 1 step" in screen.pill or "nothing was missed" in screen.pill
    server.stop(grace=0)


@pytest.mark.parametrize("is_sorted", [False, True])
def test_a_table_is_dropped_and_comes_back_with_other_columns(server, open_screen, is_sorted):
    filled(server, 30)
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    if is_sorted:
        screen.set_state(sort=[{"name": "id", "isDescending": True}])
        wait_until(lambda: screen.cells().get(0, {}).get("id") == "29")
    server.drop_table("t")
    wait_until(lambda: "t" in screen.message and screen.pill == "failed")
    assert screen.in_grid(".body > .row:not([hidden])").count() > 5
    server.create_table("t", {"id": "int64", "renamed": "string"}, key="id").upsert(
        {"id": [1, 2], "renamed": ["x", "y"]}
    )
    wait_until(lambda: screen.columns == ["id", "renamed"] and screen.row_count == 2)
    wait_until(lambda: screen.message == "")
    # What was said of columns that are gone says nothing.
    screen.set_state(filters={"value": "a", "renamed": "y"})
    wait_until(lambda: screen.cells() == {0: {"id": "2", "renamed": "y"}})


def test_a_table_that_does_not_exist_yet(server, open_screen):
    filled(server, 3)
    screen = open_screen(server, "#table=tt")
    wait_until(lambda: "tt" in screen.message)
    server.create_table("tt", kind="static", data={"x": [1]})
    wait_until(lambda: screen.cells() == {0: {"x": "1"}})


def test_markup_is_text_everywhere(server, open_screen):
    evil = "<img src=x onerror=alert(1)><script>window.hurt=1</script>"
    server.create_table(
        "evil",
        kind="static",
        data={evil: [evil, "javascript:alert(1)", "\u202eabc"], "b": [evil] * 3},
    )
    server.create_table(f"t{evil}"[:60], kind="static", data={"x": [1]})
    screen = open_screen(server, "#table=evil")
    screen.wait_ready()
    wait_until(lambda: screen.page.locator(".tables li").count() >= 2)
    assert screen.cells()[0] == {evil: evil, "b": evil}
    assert screen.columns[0] == evil
    screen.in_grid(".tool").filter(has_text="Columns").click()
    screen.page.keyboard.press("Escape")
    assert screen.page.evaluate("window.hurt === undefined && !document.querySelector('img')")
    made = "document.querySelector('live-grid').shadowRoot.querySelectorAll('img, script').length"
    assert screen.page.evaluate(made) == 0


def test_very_long_cells_and_strange_texts(server, open_screen):
    texts = ["x" * 1_000_000, "🦀" * 1000, "שלום עולם", "a\nb\tc", "\u0000\u0007", "é" * 3, ""]
    server.create_table(
        "strange", kind="static", data={"text": [*texts, None], "n": list(range(8))}
    )
    screen = open_screen(server, "#table=strange")
    screen.wait_ready()
    shown = screen.column_values("text")
    assert shown[0] == "x" * 500 + "…"
    assert shown[2:4] == ["שלום עולם", "a↵b⇥c"]
    assert shown[6:] == ["", None]
    assert screen.in_grid(".cell").nth(0).evaluate("e => e.scrollHeight <= 30")


def test_tables_without_rows_and_without_columns(server, open_screen):
    server.create_table("norows", TABLE)
    screen = open_screen(server, "#table=norows")
    wait_until(lambda: screen.in_grid(".empty").text_content() == "No rows")
    screen.set_state(hidden=["id", "value"])
    wait_until(lambda: screen.in_grid(".empty").text_content() == "No columns")
    screen.press("ArrowDown", "Control+End", "PageUp", "Enter", "Control+a", "Control+c")
    screen.set_state(hidden=[])
    wait_until(lambda: screen.columns == ["id", "value"])


LIES = [
    b"",
    b"\x01",
    b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x01\x12\x04\x00\x00\x00\x00",
    b"\x01\x1a\x7f",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    "no json",
    "[]",
    '{"type":"end"}',
    '{"type":"view","stream":1,"token":"***"}',
    '{"type":"headers","stream":1,"headers":{"x-barrage-resumed":"replayed x"}}',
    '{"type":"result","call":99,"body":{}}',
    '{"type":"result","call":1,"body":{"columns":7,"schema":"AAAA"}}',
    '{"type":"result","call":1,"body":null}',
]


@pytest.mark.parametrize("lie", LIES, ids=[str(i) for i in range(len(LIES))])
def test_a_server_that_lies(server, open_screen, lie):
    """It tells something that makes no sense; the page says so, and is right again with the next
    socket."""
    filled(server, 10)
    screen = open_screen(server)
    screen.wait_ready()
    lies = [lie]

    def route(socket):
        upstream = socket.connect_to_server()

        def answer(message):
            if isinstance(message, str) and json.loads(message)["type"] == "welcome" and lies:
                socket.send(message)
                socket.send(lies.pop())
                return
            socket.send(message)

        upstream.on_message(answer)

    screen.page.route_web_socket("**/socket", route)
    screen.page.evaluate("location.hash = '#table=t'")
    screen.page.reload()
    wait_until(lambda: screen.page.title() and not lies, "the lie")
    wait_until(lambda: len(screen.cells()) == 10 or screen.message, "the rows or a word")
    if screen.message:
        screen.in_grid(".message button").evaluate("button => button.click()")
    wait_until(lambda: len(screen.cells()) == 10, "the rows")


def test_a_page_that_is_hidden_gets_the_latest_state_when_it_is_seen(server, open_screen):
    table = filled(server, 40)
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    hide = """hidden => {
      Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
      document.dispatchEvent(new Event('visibilitychange'));
    }"""
    screen.page.evaluate(hide, True)
    received = "document.querySelector('live-grid').connection.bytesReceived"
    threads = threading.active_count()
    for round_ in range(50):
        table.upsert({"id": list(range(40)), "value": [f"round {round_}"] * 40})
    quiet = screen.page.evaluate(received)
    for round_ in range(50, 100):
        table.upsert({"id": list(range(40)), "value": [f"round {round_}"] * 40})
    wait_until(lambda: table.to_arrow()["value"][0].as_py() == "round 99")
    assert screen.page.evaluate(received) - quiet < 5_000
    screen.page.evaluate(hide, False)
    wait_until(lambda: set(screen.column_values("value")) == {"round 99"})
    assert threading.active_count() <= threads + 1


def test_the_heap_does_not_grow(server, open_screen):
    table = filled(server, 200)
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    count = "document.querySelector('live-grid').core.rows.updateCount"
    used = "(gc(), gc(), performance.memory.usedJSHeapSize)"

    def change(updates):
        before = screen.page.evaluate(count)
        number = 0
        while screen.page.evaluate(count) < before + updates:
            number += 1
            table.upsert({"id": list(range(200)), "value": [f"value {number}"] * 200})

    change(40)
    first = screen.page.evaluate(used)
    change(150)
    assert screen.page.evaluate(used) < first * 1.25 + 1_000_000


def test_a_slow_socket_falls_behind_and_catches_up(server, open_screen):
    table = filled(server, 60)
    screen = open_screen(server, "#table=t")
    screen.wait_ready()
    network = screen.page.context.new_cdp_session(screen.page)
    network.send("Network.enable")
    network.send(
        "Network.emulateNetworkConditions",
        {
            "offline": False,
            "latency": 200,
            "downloadThroughput": 20_000,
            "uploadThroughput": 20_000,
        },
    )
    for round_ in range(200):
        table.upsert({"id": list(range(60)), "value": [f"round {round_}"] * 60})
    wait_until(lambda: set(screen.column_values("value")) == {"round 199"})


def test_signing_in(open_screen):
    with web_server(token="secret") as server:
        filled(server, 5)
        screen = open_screen(server, "#table=t")
        dialog = screen.page.locator("dialog.signin[open]")
        wait_until(dialog.count)
        dialog.locator("#signin-secret").fill("wrong")
        dialog.locator("button").click()
        wait_until(lambda: dialog.locator(".problem").text_content())
        dialog.locator("#signin-secret").fill("secret")
        dialog.locator("button").click()
        wait_until(lambda: len(screen.cells()) == 5)
        assert "secret" not in screen.page.url
        screen.complaints.clear()  # the console tells of the 401 that was asked for
