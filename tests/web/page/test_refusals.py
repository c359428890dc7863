"""What the page says when it may see nothing any more, when what it asks for is not there, and when
its server is killed."""

from __future__ import annotations

import json
from urllib.parse import quote, urlsplit

from tests.helpers.server_process import ServerProcess
from tests.web.page.conftest import web_server
from tests.web.page.screen import wait_until
from tests.web.page.test_trust import filled

LIFETIME_MS = 5_000


def signing_in(screen, look):
    """Wait for what is looked for; sign in whenever the page asks for it."""

    def is_there():
        dialog = screen.page.locator("dialog.signin[open]")
        if dialog.count():
            dialog.locator("#signin-secret").fill("secret")
            dialog.locator("button").click(force=True)
        return look()

    return wait_until(is_there, "the rows")


def test_a_session_that_has_run_out_asks_to_sign_in_again(open_screen):
    """The rows stay where they are meanwhile."""
    with web_server(token="secret", token_lifetime_ms=LIFETIME_MS) as server:
        table = filled(server, 5)
        screen = open_screen(server, "#table=t")
        signing_in(screen, lambda: len(screen.cells()) == 5)
        dialog = screen.page.locator("dialog.signin[open]")
        wait_until(dialog.count, "the dialog again")
        assert "expired" in (dialog.text_content() or "")
        assert screen.in_grid(".body > .row:not([hidden])").count() == 5
        table.upsert({"id": [0], "value": ["since"]})
        signing_in(screen, lambda: screen.cells().get(0, {}).get("value") == "since")
        screen.complaints.clear()  # the console tells of the 401 that was asked for


def test_a_link_to_a_query_whose_column_was_renamed(server, open_screen):
    """The message says which column is not there, until the query names one that is."""
    filled(server, 30)
    server.drop_table("t")
    renamed = server.create_table("t", {"id": "int64", "renamed": "string"}, key="id")
    renamed.upsert({"id": [1], "renamed": ["x"]})
    grid = {"table": "t", "operations": [["where", "value != ''"]]}
    board = {"rows": [{"panels": [{"grid": grid}]}]}
    screen = open_screen(server, f"#board={quote(json.dumps(board))}")
    wait_until(lambda: "'value'" in screen.message, "the message")
    assert screen.pill == "failed"
    screen.set_state(operations=[["where", "renamed != ''"]])
    wait_until(lambda: screen.cells() == {0: {"id": "1", "renamed": "x"}}, "the new column")
    wait_until(lambda: screen.message == "", "the end of the message")


LIFE = """
import threading
from barrage.server import Server, ServerConfig

with Server(config=ServerConfig(web=True, web_port={port}, data={data!r})) as server:
    if {port} == 0:
        table = server.create_table("t", {{"id": "int64", "value": "string"}}, key="id")
        table.upsert({{"id": list(range(50)), "value": ["a"] * 50}})
    else:
        server.table("t").upsert({{"id": [3, 77], "value": ["later", "new"]}})
    print(server.web_uri, flush=True)
    threading.Event().wait()
"""


def test_a_server_that_is_killed_and_started_again(tmp_path, open_screen):
    """The rows stay, and the page goes on with exactly what has happened since."""
    data = str(tmp_path)
    with ServerProcess(LIFE.format(port=0, data=data)) as first:
        screen = open_screen(first.address, "#table=t")
        screen.wait_ready()
        first.process.kill()
        wait_until(lambda: screen.pill.startswith("reconnecting"), "the loss")
        assert screen.in_grid(".body > .row:not([hidden])").count() > 5
    port = urlsplit(first.address).port
    with ServerProcess(LIFE.format(port=port, data=data)):
        screen.page.evaluate("dispatchEvent(new Event('online'))")
        wait_until(lambda: screen.cells().get(3, {}).get("value") == "later", "the change")
        wait_until(lambda: screen.row_count == 51, "the new row")
        assert "replayed 1 step" in screen.pill or "nothing was missed" in screen.pill
        assert screen.message == ""
