"""Tables in a real JupyterLab: what cells show, and what becomes of it."""

from __future__ import annotations

import barrage
from barrage import Server
from barrage.server import ServerConfig
from tests.web.page.screen import wait_until

SCHEMA = {"id": "int64", "value": "string"}
SHOW = "session.table('t').show()"


def filled(server, count, name="t", value="a"):
    table = server.create_table(name, SCHEMA, key="id")
    table.upsert({"id": list(range(count)), "value": [value] * count})
    return table


def value(notebook, row, index=0):
    return notebook.cells(index).get(row, {}).get("value")


def test_a_cell_shows_a_table_as_it_changes(server, open_notebook):
    table = filled(server, 1000)
    notebook = open_notebook(server, SHOW, "session.table('t').sort('-id').show(height=300)")
    notebook.run(1)
    wait_until(lambda: notebook.cells().get(3) == {"id": "3", "value": "a"}, "the rows")
    assert notebook.pill() == "live"
    table.upsert({"id": [3], "value": ["changed"]})
    wait_until(lambda: value(notebook, 3) == "changed", "the change")
    notebook.go_to(900)
    wait_until(lambda: value(notebook, 900) == "a", "the rows below")
    # A second cell, of a query; the first goes on.
    notebook.run(2)
    wait_until(lambda: notebook.grids() == 2 and notebook.cells(1), "the second grid")
    assert notebook.cells(1)[0] == {"id": "999", "value": "a"}
    table.upsert({"id": [900, 999], "value": ["both", "both"]})
    wait_until(lambda: value(notebook, 900) == "both" and value(notebook, 0, 1) == "both")
    # The keys of the notebook are not those of the grid: A adds a cell there.
    anchor = notebook.in_grid(".tool").get_by_text("Anchor", exact=True)
    notebook.in_grid("[role=grid]").press("a")
    wait_until(lambda: anchor.get_attribute("aria-pressed") == "true", "the anchor")
    assert notebook.page.locator(".jp-Notebook .jp-CodeCell").count() == 3


def test_rows_go_on_coming_while_a_cell_computes_and_after_it_is_interrupted(server, open_notebook):
    table = filled(server, 100)
    notebook = open_notebook(server, SHOW, "import time\ntime.sleep(600)")
    notebook.run(1)
    wait_until(lambda: value(notebook, 3) == "a", "the rows")
    notebook.start(2)
    wait_until(lambda: notebook.count_of(2) == "[*]:", "the cell")
    table.upsert({"id": [3], "value": ["meanwhile"]})
    wait_until(lambda: value(notebook, 3) == "meanwhile", "the change while a cell computes")
    notebook.interrupt_kernel()
    wait_until(lambda: "KeyboardInterrupt" in notebook.output(2), "the interruption")
    table.upsert({"id": [3], "value": ["after"]})
    wait_until(lambda: value(notebook, 3) == "after", "the change after it")
    notebook.go_to(90)
    wait_until(lambda: value(notebook, 90) == "a", "rows asked for after it")


def test_a_table_that_is_dropped_says_so_and_comes_back(server, open_notebook):
    filled(server, 30)
    notebook = open_notebook(server, SHOW)
    notebook.run(1)
    wait_until(lambda: value(notebook, 3) == "a", "the rows")
    server.drop_table("t")
    wait_until(lambda: "'t'" in notebook.message() and notebook.pill() == "failed", "the message")
    assert notebook.in_grid(".body > .row:not([hidden])").count() > 5
    filled(server, 40, value="again")
    wait_until(lambda: value(notebook, 3) == "again" and notebook.message() == "", "its return")


def test_a_server_that_restarts_and_a_kernel_that_does(open_notebook):
    def served(port, text):
        made = Server(config=ServerConfig(port=port)).start()
        filled(made, 30, value=text)
        return made

    server = served(0, "before")
    notebook = open_notebook(server, SHOW)
    notebook.run(1)
    wait_until(lambda: value(notebook, 3) == "before", "the rows")
    port = server.port
    server.stop(grace=0)
    wait_until(lambda: notebook.pill() == "reconnecting", "the loss")
    assert value(notebook, 3) == "before"
    server = served(port, "after")
    wait_until(lambda: value(notebook, 3) == "after", "the new server's rows")
    notebook.restart_kernel()
    wait_until(lambda: notebook.pill() == "ended", "the end of the kernel")
    assert "Run the cell again" in notebook.message()
    assert notebook.in_grid(".body > .row:not([hidden]) .cell").nth(1).text_content() == "after"
    server.stop(grace=0)


def test_one_widget_twice_and_its_end(server, open_notebook):
    table = filled(server, 100)
    notebook = open_notebook(
        server,
        "shown = session.table('t').show()\nshown",
        "shown",
        "shown.close()",
        "session.close()",
    )
    notebook.run(1)
    notebook.run(2)
    wait_until(lambda: notebook.grids() == 2 and notebook.cells(0) and notebook.cells(1))
    table.upsert({"id": [3], "value": ["twice"]})
    wait_until(lambda: value(notebook, 3) == "twice" and value(notebook, 3, 1) == "twice")
    notebook.go_to(90, 1)
    wait_until(lambda: value(notebook, 90, 1) == "a" and value(notebook, 3, 0) == "twice")
    notebook.run(3)
    wait_until(lambda: notebook.grids() == 0, "the end of the widget")


def test_a_cell_that_is_run_again_ends_its_stream(server, open_notebook):
    def streams():
        rows = watching.table("_subscriptions").snapshot(timeout=60)
        return rows.column("table").to_pylist().count("t")

    table = filled(server, 100)
    notebook = open_notebook(server, SHOW)
    with barrage.connect(server.uri) as watching:
        for turn in range(3):
            notebook.run(1)
            table.upsert({"id": [3], "value": [f"turn {turn}"]})
            wait_until(lambda turn=turn: value(notebook, 3) == f"turn {turn}", "the rows")
            wait_until(lambda: streams() == 1, "one stream")


def test_a_session_that_is_closed_says_so(server, open_notebook):
    filled(server, 100)
    notebook = open_notebook(server, SHOW, "session.close()")
    notebook.run(1)
    wait_until(lambda: value(notebook, 3) == "a", "the rows")
    notebook.run(2)
    wait_until(lambda: notebook.pill() == "refused", "the end of the session")
    assert "the session is closed" in notebook.message()


def test_on_the_event_loop_of_the_kernel(server, open_notebook):
    table = filled(server, 100)
    notebook = open_notebook(
        server,
        f"own = await barrage.aconnect('{server.uri}')\nawait own.table('t').show()",
        "live = await own.table('t').subscribe()\nawait live.wait_ready(60)\nawait live.show()",
    )
    notebook.run(1)
    wait_until(lambda: value(notebook, 3) == "a", "the rows")
    table.upsert({"id": [3], "value": ["changed"]})
    wait_until(lambda: value(notebook, 3) == "changed", "the change")
    notebook.run(2)
    wait_until(lambda: notebook.grids() == 2 and value(notebook, 3, 1) == "changed")


def test_what_is_hard_to_show_is_shown_exactly(server, open_notebook):
    evil = "<img src=x onerror=\"document.body.textContent='broken'\">"
    import pyarrow as pa

    rows = pa.table(
        {
            evil: pa.array([evil, "", None]),
            "whole": pa.array([2**63 - 1, -(2**63), None]),
            "time": pa.array([1_700_000_000_123_456_789, 0, None], pa.timestamp("ns", tz="UTC")),
            **{f"c{number}": pa.array([number, number, None]) for number in range(197)},
        }
    )
    server.create_table("hard", data=rows, kind="static")
    notebook = open_notebook(server, "session.table('hard').show()")
    notebook.run(1)
    wait_until(lambda: notebook.cells().get(2), "the rows")
    first, second, third = (notebook.cells()[row] for row in range(3))
    assert first[evil] == evil
    assert first["whole"].replace(",", "") == str(2**63 - 1)
    assert second["whole"].replace(",", "").replace("\u2212", "-") == str(-(2**63))
    assert "123456789" in first["time"].replace("\u2009", "")
    assert second[evil] == ""
    assert third[evil] is None
    assert third["whole"] is None
    assert "200 columns" in notebook.in_grid(".rowstext").text_content()


def test_ten_million_rows(server, open_notebook):
    import numpy as np

    server.create_table("large", data={"n": np.arange(10_000_000)}, kind="static")
    notebook = open_notebook(server, "session.table('large').show()")
    notebook.run(1)
    wait_until(lambda: notebook.cells(), "the rows")
    for row in (9_999_999, 5_000_000, 1234):
        notebook.go_to(row)
        wait_until(lambda row=row: notebook.cells().get(row), f"row {row}")
        assert notebook.cells()[row]["n"].replace(",", "") == str(row)


def test_wide_rows_are_paced_and_none_is_left_out(server, open_notebook):
    text = "x" * 4000
    rows = {"id": list(range(5000)), **{f"c{n}": [f"{n} {text}"] * 5000 for n in range(4)}}
    server.create_table("wide", data=rows, kind="static")
    notebook = open_notebook(server, "session.table('wide').show()")
    notebook.run(1)
    wait_until(lambda: notebook.cells(), "the rows")
    pills = set()
    for row in range(100, 5000, 350):
        notebook.go_to(row)
        pills.add(notebook.pill())
    notebook.go_to(4321)
    wait_until(lambda: notebook.cells().get(4321, {}).get("c3", "").startswith("3 x"), "the last")
    assert pills | {notebook.pill()} == {"live"}


def test_twenty_tables_in_one_notebook(server, open_notebook):
    table = filled(server, 50)
    code = (
        "from IPython.display import display\n"
        "for _ in range(20):\n    display(session.table('t').show(height=160))"
    )
    notebook = open_notebook(server, code)
    notebook.run(1)
    wait_until(lambda: notebook.grids() == 20, "the grids")
    notebook.page.locator("live-grid").nth(19).scroll_into_view_if_needed()
    wait_until(lambda: value(notebook, 0, 19) == "a", "the last grid")
    table.upsert({"id": [0], "value": ["changed"]})
    wait_until(lambda: value(notebook, 0, 19) == "changed", "the change")
    notebook.page.locator("live-grid").first.scroll_into_view_if_needed()
    wait_until(lambda: value(notebook, 0, 0) == "changed", "the change in the first")


def test_a_table_without_rights_and_one_that_is_not_there(open_notebook):
    read = frozenset({barrage.Operation.READ})
    rules = barrage.Policy.of(barrage.Rule(tables=("open",), allow=read))
    with Server(config=ServerConfig(port=0)) as server:
        server.set_policy(rules)
        filled(server, 5)
        notebook = open_notebook(server, SHOW, "session.table('missing').show()")
        notebook.run(1)
        wait_until(lambda: "Error" in notebook.output(1), "the error")
        notebook.run(2)
        wait_until(lambda: "TableNotFoundError" in notebook.output(2), "the other error")
        assert notebook.grids() == 0
