"""What a user does with a table: sort, filter, search, arrange, copy, download, by keys alone."""

from __future__ import annotations

import io
import json
import urllib.parse

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from tests.web.page.screen import wait_until

ROWS = 200


@pytest.fixture
def quotes(server):
    quotes = server.create_table(
        "quotes",
        {"id": "int64", "symbol": "string", "price": "float64", "note": "string"},
        key="id",
    )
    quotes.upsert(
        {
            "id": list(range(ROWS)),
            "symbol": [["AAPL", "MSFT", "nvda"][i % 3] for i in range(ROWS)],
            "price": [float(i % 50) for i in range(ROWS)],
            "note": [None if i % 4 else f'it\'s {i}, "so"' for i in range(ROWS)],
        }
    )
    return quotes


@pytest.fixture
def screen(server, quotes, open_screen):
    screen = open_screen(server, "#table=quotes", permissions=["clipboard-read", "clipboard-write"])
    screen.wait_ready()
    return screen


def ids(screen):
    return [int(text.replace(",", "")) for text in screen.column_values("id")]


def test_sorting_by_heads_of_columns(screen):
    head = screen.in_grid(".headcell").filter(has_text="price")
    head.click()
    wait_until(lambda: ids(screen)[:4] == [0, 50, 100, 150])
    assert head.get_attribute("aria-sort") == "ascending"
    head.click()
    wait_until(lambda: ids(screen)[:4] == [49, 99, 149, 199])
    screen.in_grid(".headcell").filter(has_text="id").click(modifiers=["Shift"])
    screen.in_grid(".headcell").filter(has_text="id").click(modifiers=["Shift"])
    wait_until(lambda: ids(screen)[:4] == [199, 149, 99, 49])
    assert screen.state()["sort"] == [
        {"name": "price", "isDescending": True},
        {"name": "id", "isDescending": True},
    ]
    head.click()
    wait_until(lambda: ids(screen)[:3] == [0, 1, 2])


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("price", "> 48", [i for i in range(ROWS) if i % 50 > 48]),
        ("price", "1..2", [i for i in range(ROWS) if i % 50 in (1, 2)]),
        ("id", "in 3, 5, 1_000", [3, 5]),
        ("symbol", "vd", [i for i in range(ROWS) if i % 3 == 2]),
        ("symbol", "= nvda", [i for i in range(ROWS) if i % 3 == 2]),
        ("symbol", "!= AAPL", [i for i in range(ROWS) if i % 3]),
        ("note", "null", [i for i in range(ROWS) if i % 4]),
        ("note", "!null", [i for i in range(ROWS) if not i % 4]),
        ("note", "it's 8, \"", [8]),
    ],
)
def test_filters_of_columns(screen, column, text, expected):
    screen.in_grid(".tool").filter(has_text="Filter").click()
    screen.in_grid(f"input[aria-label='Filter {column}']").fill(text)
    wait_until(lambda: screen.row_count == len(expected))
    wait_until(lambda: ids(screen) == expected[: len(ids(screen))])


def test_a_filter_that_says_nothing_sensible(screen):
    screen.in_grid(".tool").filter(has_text="Filter").click()
    box = screen.in_grid("input[aria-label='Filter price']")
    box.fill("> cheap")
    wait_until(lambda: screen.message == "cheap is no value of price")
    assert box.get_attribute("aria-invalid") == "true"
    assert screen.row_count == ROWS
    box.fill("")
    wait_until(lambda: screen.message == "")


def test_searching_in_all_columns(screen):
    screen.in_grid("input[type=search]").fill("NVDA")
    wait_until(lambda: screen.row_count == len([i for i in range(ROWS) if i % 3 == 2]))
    screen.in_grid("input[type=search]").fill("123")
    wait_until(lambda: ids(screen) == [123])
    screen.in_grid("input[type=search]").fill("nowhere")
    wait_until(lambda: screen.in_grid(".empty").text_content() == "No rows")


def test_a_link_brings_everything_back(server, screen, open_screen):
    screen.set_state(
        sort=[{"name": "price", "isDescending": True}],
        filters={"symbol": "a"},
        hidden=["note"],
        order=["price", "symbol"],
        widths={"price": 222},
        frozen=1,
    )
    wait_until(lambda: screen.columns == ["price", "symbol", "id"])
    screen.in_grid(".headcell").filter(has_text="symbol").click()
    wait_until(lambda: "symbol" in urllib.parse.unquote(screen.page.url))
    wait_until(lambda: screen.is_current)
    again = open_screen(screen.page.url)
    again.wait_ready()
    assert again.state() == screen.state()
    wait_until(lambda: again.cells() == screen.cells())
    width = again.in_grid(".headcell").filter(has_text="price").evaluate("e => e.offsetWidth")
    assert width == 222


def test_columns_are_hidden_moved_resized_and_frozen(screen):
    head = screen.in_grid(".headcell").filter(has_text="symbol")
    head.click(button="right")
    screen.in_grid("[role=menuitem]").filter(has_text="Hide").click()
    wait_until(lambda: screen.columns == ["id", "price", "note"])
    asked = "document.querySelector('live-grid').core.rows.request.columns"
    wait_until(lambda: screen.page.evaluate(asked) == [0, 2, 3])
    screen.in_grid(".tool").filter(has_text="Columns").click()
    screen.in_grid("[role=menuitemcheckbox]").filter(has_text="symbol").click()
    screen.page.keyboard.press("Escape")
    wait_until(lambda: screen.columns == ["id", "symbol", "price", "note"])
    source = screen.in_grid(".headcell").filter(has_text="note").bounding_box()
    target = screen.in_grid(".headcell").filter(has_text="id").bounding_box()
    mouse = screen.page.mouse
    mouse.move(source["x"] + 20, source["y"] + 10)
    mouse.down()
    mouse.move(target["x"] + 60, target["y"] + 10, steps=5)
    mouse.up()
    wait_until(lambda: screen.columns == ["note", "id", "symbol", "price"])
    box = screen.in_grid(".headcell").filter(has_text="note").bounding_box()
    mouse.move(box["x"] + box["width"] - 3, box["y"] + 10)
    mouse.down()
    mouse.move(box["x"] + box["width"] + 57, box["y"] + 10, steps=3)
    mouse.up()
    wait_until(lambda: screen.state()["widths"].get("note") == round(box["width"]) + 60)
    screen.in_grid(".headcell").filter(has_text="id").click(button="right")
    screen.in_grid("[role=menuitem]").filter(has_text="Freeze").click()
    wait_until(lambda: screen.in_grid(".titles .frozen .headcell").count() == 2)
    screen.in_grid(".headcell").filter(has_text="note").click(button="right")
    screen.in_grid("[role=menuitem]").filter(has_text="Fit").click()
    wait_until(lambda: screen.state()["widths"]["note"] != round(box["width"]) + 60)


def test_everything_by_keys(screen):
    screen.focusable.focus()
    screen.press("ArrowDown", "ArrowDown", "ArrowRight")
    focused = screen.in_grid(".cell.focused")
    wait_until(lambda: focused.text_content() == "nvda")
    assert focused.get_attribute("id") == screen.focusable.get_attribute("aria-activedescendant")
    screen.press("ArrowUp", "ArrowUp", "ArrowUp", "Enter")
    wait_until(lambda: screen.column_values("symbol")[0] == "AAPL" and screen.state()["sort"])
    screen.press("Alt+ArrowRight")
    wait_until(lambda: screen.columns == ["id", "price", "symbol", "note"])
    before = screen.in_grid(".headcell").filter(has_text="symbol").evaluate("e => e.offsetWidth")
    screen.press("Alt+Shift+ArrowRight")
    wait_until(lambda: screen.state()["widths"].get("symbol") == before + 10)
    screen.press("m")
    screen.page.keyboard.press("ArrowDown")
    screen.page.keyboard.press("Escape")
    screen.press("Enter", "Enter")
    wait_until(lambda: screen.state()["sort"] == [])
    screen.press("Control+End", "ArrowUp")
    wait_until(lambda: ROWS - 1 in screen.cells())
    screen.press("g")
    screen.page.keyboard.type("42")
    screen.page.keyboard.press("Enter")
    wait_until(
        lambda: 42 in screen.cells() and focused.text_content() in screen.cells()[42].values()
    )
    screen.press("/")
    screen.page.keyboard.type("msft")
    wait_until(lambda: screen.row_count == len([i for i in range(ROWS) if i % 3 == 1]))


def test_cells_are_copied_as_a_spreadsheet_reads_them(screen):
    screen.focusable.focus()
    screen.press("Control+Home", "Shift+ArrowDown", "Shift+End")
    screen.press("Control+Shift+c")
    clipboard = "navigator.clipboard.readText()"
    expected = 'id\tsymbol\tprice\tnote\n0\tAAPL\t0\t"it\'s 0, ""so"""\n1\tMSFT\t1\t'
    wait_until(lambda: screen.page.evaluate(clipboard) == expected)
    screen.press("Control+a", "Control+c")
    wait_until(lambda: len(screen.page.evaluate(clipboard).split("\n")) == ROWS)


@pytest.mark.parametrize("format_", ["CSV", "Arrow", "Parquet"])
def test_all_rows_are_downloaded(screen, quotes, format_):
    screen.set_state(sort=[{"name": "id", "isDescending": True}], hidden=["symbol"])
    wait_until(lambda: ids(screen)[0] == ROWS - 1)
    screen.in_grid(".tool").filter(has_text="More").click()
    with screen.page.expect_download() as waiting:
        screen.in_grid("[role=menuitem]").filter(has_text=f"as {format_}").click()
    expected = quotes.sort("-id").to_arrow().select(["id", "price", "note"])
    path = waiting.value.path()
    if format_ == "CSV":
        options = csv.ConvertOptions(
            column_types=expected.schema, strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        found = csv.read_csv(path, convert_options=options)
    elif format_ == "Arrow":
        found = pa.ipc.open_stream(io.BytesIO(path.read_bytes())).read_all()
    else:
        found = parquet.read_table(path)
    assert found.to_pylist() == expected.to_pylist()


def test_pause_and_go_on(screen, quotes):
    screen.press(" ")
    wait_until(lambda: screen.pill == "paused")
    quotes.upsert({"id": [0], "symbol": ["ZZZ"], "price": [1.0], "note": [None]})
    other = quotes.to_arrow().slice(0, 1).to_pylist()
    assert other[0]["symbol"] == "ZZZ"
    assert screen.cells()[0]["symbol"] == "AAPL"
    screen.press(" ")
    wait_until(lambda: screen.cells()[0]["symbol"] == "ZZZ")


def test_another_order_is_shown_once_while_paused(screen, quotes):
    screen.press(" ")
    wait_until(lambda: screen.pill == "paused")
    screen.set_state(sort=[{"name": "id", "isDescending": True}])
    wait_until(lambda: ids(screen)[0] == ROWS - 1)
    before = screen.cells()[0]["symbol"]
    quotes.upsert({"id": [ROWS - 1], "symbol": ["ZZZ"], "price": [1.0], "note": [None]})
    assert screen.pill == "paused"
    assert screen.cells()[0]["symbol"] == before != "ZZZ"
    screen.press(" ")
    wait_until(lambda: screen.cells()[0]["symbol"] == "ZZZ")


def test_other_rows_are_shown_once_while_paused(screen, quotes):
    screen.press(" ")
    wait_until(lambda: screen.pill == "paused")
    screen.go_to(ROWS - 1)
    wait_until(lambda: screen.is_current and ROWS - 1 in screen.cells())
    before = screen.cells()[ROWS - 1]["symbol"]
    quotes.upsert({"id": [ROWS - 1], "symbol": ["ZZZ"], "price": [1.0], "note": [None]})
    assert screen.cells()[ROWS - 1]["symbol"] == before != "ZZZ"
    # Fewer rows than stood above those in sight: the window moves.
    screen.set_state(filters={"id": "< 100"})
    wait_until(lambda: screen.is_current and screen.row_count == 100 and 99 in screen.cells())
    quotes.upsert({"id": [99], "symbol": ["YYY"], "price": [1.0], "note": [None]})
    assert screen.cells()[99]["symbol"] != "YYY"
    screen.press(" ")
    wait_until(lambda: screen.cells()[99]["symbol"] == "YYY")


def test_cells_flash_up_and_down_unless_less_motion_is_wanted(server, screen, quotes, open_screen):
    still = open_screen(server, "#table=quotes", reduced_motion="reduce")
    still.wait_ready()
    watch = """() => {
      window.seen = new Set();
      const root = document.querySelector('live-grid').shadowRoot;
      new MutationObserver((all) => {
        for (const { target } of all) for (const name of ['up', 'down', 'changed', 'new'])
          if (target.classList?.contains(name)) window.seen.add(name);
      }).observe(root, {subtree: true, attributes: true, attributeFilter: ['class']});
    }"""
    for each in (screen, still):
        each.page.evaluate(watch)
    quotes.upsert({"id": [0, 1], "symbol": ["B", "B"], "price": [99.0, -1.0], "note": [None, None]})
    seen = "[...window.seen].sort().join()"
    wait_until(lambda: screen.page.evaluate(seen) == "changed,down,up")
    wait_until(lambda: still.cells()[0]["price"] == "99")
    assert still.page.evaluate(seen) == ""
    at_once = """() => {
      const grid = document.querySelector('live-grid');
      grid.connection = grid.connection;
      return grid.core.hasFlashes;
    }"""
    assert [each.page.evaluate(at_once) for each in (screen, still)] == [True, False]


def test_the_query_bar_completes_and_runs(screen):
    bar = screen.page.locator(".querybar input")
    bar.click()
    screen.page.keyboard.type("agg by sym")
    wait_until(lambda: screen.page.locator("[role=option]").all_text_contents() == ["symbol"])
    screen.page.keyboard.press("Tab")
    screen.page.keyboard.type("n=count(), top=max(price) | sort -n, symbol")
    screen.page.keyboard.press("Enter")
    wait_until(lambda: screen.columns == ["symbol", "n", "top"])
    wait_until(lambda: screen.column_values("n") == ["67", "67", "66"])
    link = urllib.parse.unquote(screen.page.url)
    operations = json.loads(link.partition("#board=")[2])["rows"][0]["panels"][0]["grid"][
        "operations"
    ]
    assert operations[0] == ["agg_by", ["symbol"], {"n": "count()", "top": "max(price)"}]
    bar.fill("where nothing > 3")
    bar.press("Enter")
    wait_until(lambda: "nothing" in screen.message)
    bar.fill("jump 3")
    bar.press("Enter")
    wait_until(
        lambda: "there is no operator jump" in screen.page.locator(".querybar").text_content()
    )


def test_several_tables_in_a_layout(server, screen, open_screen):
    server.create_table("other", kind="static", data={"x": [1, 2, 3]})
    add = screen.page.locator("button[aria-label='Show other beside the others']")
    wait_until(lambda: add.count() == 1 or screen.page.reload() or False)
    add.click()
    wait_until(lambda: len(screen.cells(1)) == 3)
    left, right = (screen.page.locator(".panel").nth(i).bounding_box() for i in range(2))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    handle = screen.page.locator("live-grid").nth(1).locator("[aria-label='Move panel']")
    handle.press("ArrowDown")
    wait_until(lambda: screen.page.locator(".panel").nth(1).bounding_box()["y"] > left["y"] + 100)
    again = open_screen(screen.page.url)
    wait_until(lambda: len(again.cells(1)) == 3)
    screen.page.locator("live-grid").nth(1).locator("[aria-label='Close panel']").click()
    wait_until(lambda: screen.page.locator("live-grid").count() == 1)


def test_a_board_is_saved_on_the_server(screen, server, open_screen):
    screen.set_state(sort=[{"name": "price", "isDescending": True}])
    wait_until(lambda: screen.state()["sort"])
    screen.page.locator("button", has_text="Boards").click()
    screen.page.locator("[role=menuitem]", has_text="Save").click()
    screen.page.locator("#board-name").fill("morning")
    screen.page.locator("dialog button", has_text="Save").click()
    wait_until(lambda: not screen.page.locator("dialog[open]").count())
    other = open_screen(server)
    other.wait_ready()
    other.page.locator("button", has_text="Boards").click()
    other.page.locator("[role=menuitem]", has_text="morning").click()
    wait_until(lambda: other.state()["sort"] == [{"name": "price", "isDescending": True}])


def test_the_element_in_a_page_of_its_own(server, screen):
    server.create_table("other", kind="static", data={"x": [1, 2, 3]})
    screen.page.evaluate(
        """() => {
          const grid = document.createElement('live-grid');
          grid.setAttribute('src', '/socket');
          grid.setAttribute('table', 'quotes');
          document.body.append(grid);
        }"""
    )
    wait_until(lambda: screen.cells(1).get(0, {}).get("symbol") == "AAPL", "the rows")
    screen.page.evaluate("document.querySelectorAll('live-grid')[1].setAttribute('table', 'other')")
    wait_until(lambda: screen.cells(1) == {i: {"x": str(i + 1)} for i in range(3)}, "others")
    screen.page.evaluate("document.querySelectorAll('live-grid')[1].remove()")
    wait_until(lambda: screen.is_current)
