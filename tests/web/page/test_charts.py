"""Charts on the board: lines over time and what was before them, bars, large numbers."""

from __future__ import annotations

import json
import random
import urllib.parse

import pytest

from tests.web.page.conftest import web_server
from tests.web.page.screen import wait_until
from tests.web.page.test_access import audit

ROWS = 30


@pytest.fixture
def quotes(server):
    return filled(server)


def filled(server):
    quotes = server.create_table(
        "quotes", {"id": "int64", "symbol": "string", "price": "float64"}, key="id"
    )
    quotes.upsert(
        {
            "id": list(range(ROWS)),
            "symbol": [f"S{i}" for i in range(ROWS)],
            "price": [None if i == 3 else float(i) for i in range(ROWS)],
        }
    )
    return quotes


def link(*panels):
    board = {"rows": [{"panels": list(panels)}]}
    return f"#board={urllib.parse.quote(json.dumps(board))}"


def chart(kind, **state):
    return {"chart": {"table": "quotes", "kind": kind, "values": ["price"], **state}}


def row(id_):
    return [["where", f"id == {id_}"]]


def shown(screen, index=0):
    """The numbers that are drawn: names of the lines, places, values of each line."""
    return screen.page.evaluate(
        "i => document.querySelectorAll('live-chart')[i]?.shown ?? {names: [], xs: [], series: []}",
        index,
    )


def changes(screen, index=0):
    """The values the first line of a chart went through, each once."""
    series = shown(screen, index)["series"]
    points = series[0] if series else []
    return [value for i, value in enumerate(points) if i == 0 or value != points[i - 1]]


def in_chart(screen, selector):
    return screen.page.locator("live-chart").first.locator(selector)


def put(quotes, id_, price):
    quotes.upsert({"id": [id_], "symbol": [f"S{id_}"], "price": [price]})


def drawn_pixels(screen):
    """How many pixels of the canvas are not empty."""
    return screen.page.evaluate(
        """() => {
          const canvas = document.querySelector('live-chart').shadowRoot.querySelector('canvas');
          if (!canvas) return 0;
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let i = 3; i < data.length; i += 4) if (data[i] > 0) count++;
          return count;
        }"""
    )


def test_bars_are_the_rows_of_the_window(server, quotes, open_screen):
    screen = open_screen(server, link(chart("bars", label="symbol", rows=5)))
    wait_until(lambda: shown(screen)["series"] == [[0, 1, 2, None, 4]])
    wait_until(lambda: drawn_pixels(screen) > 1000, "the picture")
    picture = in_chart(screen, "[role=img]").get_attribute("aria-label")
    assert picture == "Bars of price: S0 0, S1 1, S2 2, S3 none, S4 4"
    put(quotes, 1, 77.5)
    wait_until(lambda: shown(screen)["series"] == [[0, 77.5, 2, None, 4]])
    quotes.remove(0)
    wait_until(lambda: shown(screen)["series"] == [[77.5, 2, None, 4, 5]])


@pytest.mark.parametrize("seed", range(3))
def test_bars_equal_the_table_of_the_server(server, quotes, open_screen, seed):
    rng = random.Random(seed)
    operations = [["sort", ["-price", "id"]]]
    state = {"operations": operations, "label": "id", "rows": 12, "isFromEnd": seed == 2}
    screen = open_screen(server, link(chart("bars", **state)))
    view = quotes.sort("-price", "id")
    for _ in range(6):
        for _ in range(rng.randrange(1, 8)):
            id_ = rng.randrange(60)
            if rng.random() < 0.3:
                quotes.remove(id_)
            else:
                put(quotes, id_, rng.choice([None, float(rng.randrange(-50, 50))]))
        prices = view.to_arrow()["price"].to_pylist()
        expected = prices[-12:] if state["isFromEnd"] else prices[:12]
        wait_until(lambda wanted=expected: shown(screen)["series"] == [wanted])


def test_a_large_number_has_the_colour_of_its_threshold(server, quotes, open_screen):
    thresholds = [{"from": 70, "level": "wary"}, {"from": 90, "level": "bad"}]
    state = {"operations": row(5), "thresholds": thresholds, "numbers": "fixed2"}
    screen = open_screen(server, link(chart("number", **state)))
    value = in_chart(screen, ".big .value")
    wait_until(lambda: value.text_content() == "5.00")
    for price, text, level in [
        (69.99, "69.99", "value"),
        (70.0, "70.00", "value wary"),
        (90.0, "90.00", "value bad"),
        (None, "null", "value null"),
        (12.0, "12.00", "value"),
    ]:
        put(quotes, 5, price)
        wait_until(lambda wanted=text: value.text_content() == wanted, text)
        assert value.get_attribute("class") == level
    colours = "e => getComputedStyle(e).color"
    calm = value.evaluate(colours)
    put(quotes, 5, 95.0)
    wait_until(lambda: value.evaluate(colours) != calm)


def test_a_whole_number_of_64_bits_is_exact(server, open_screen):
    server.create_table("large", kind="static", data={"n": [2**63 - 1]})
    screen = open_screen(server, link({"chart": {"table": "large", "kind": "number"}}))
    value = in_chart(screen, ".big .value")
    wait_until(lambda: (value.text_content() or "").replace(",", "") == str(2**63 - 1))


def test_a_line_goes_through_the_values_of_a_cell(server, quotes, open_screen):
    screen = open_screen(server, link(chart("line", operations=row(1))))
    wait_until(lambda: changes(screen) == [1])
    for price in (5.0, -2.0, 8.0):
        put(quotes, 1, price)
        wait_until(lambda wanted=price: changes(screen)[-1] == wanted)
    assert changes(screen) == [1, 5, -2, 8]
    assert shown(screen)["names"] == ["price"]
    times = shown(screen)["xs"]  # Another one comes with each moment.
    assert times == sorted(times)
    wait_until(lambda: drawn_pixels(screen) > 1000, "the picture")
    assert in_chart(screen, "[role=img]").get_attribute("aria-label") == "Lines of price: price 8"


def test_lines_of_several_rows_and_of_an_aggregate(server, quotes, open_screen):
    total = [["agg_by", [], {"total": "sum(price)"}]]
    screen = open_screen(
        server,
        link(
            chart("line", label="symbol", rows=3),
            chart("line", operations=total, values=["total"]),
        ),
    )
    wait_until(lambda: shown(screen)["names"] == ["S0", "S1", "S2"])
    whole = float(sum(i for i in range(ROWS) if i != 3))
    wait_until(lambda: changes(screen, 1)[-1:] == [whole])
    put(quotes, 2, 102.0)
    wait_until(lambda: [points[-1] for points in shown(screen)["series"]] == [0, 1, 102])
    wait_until(lambda: changes(screen, 1)[-1:] == [whole + 100])
    legend = in_chart(screen, ".legend li")
    wait_until(lambda: legend.all_text_contents() == ["S0 0", "S1 1", "S2 102"])


def test_a_line_along_a_column(server, open_screen):
    curve = server.create_table("curve", {"x": "int64", "y": "float64"}, key="x")
    curve.upsert({"x": [3, 1, 2], "y": [9.0, 1.0, 4.0]})
    state = {"table": "curve", "kind": "line", "values": ["y"], "along": "x", "rows": 100}
    screen = open_screen(server, link({"chart": state}))
    wait_until(lambda: shown(screen)["series"] == [[1, 4, 9]])
    assert shown(screen)["xs"] == [1, 2, 3]
    curve.upsert({"x": [0], "y": [0.5]})
    wait_until(lambda: shown(screen)["series"] == [[0.5, 1, 4, 9]])


def test_a_line_begins_with_what_the_journal_has(tmp_path, open_screen):
    with web_server(data=str(tmp_path)) as server:
        quotes = filled(server)
        for price in (5.0, 7.0, None, 6.0):
            put(quotes, 1, price)
            put(quotes, 2, 1000.0)
        screen = open_screen(server, link(chart("line", operations=row(1))))
        wait_until(lambda: "history from the journal" in in_chart(screen, ".status").text_content())
        wait_until(lambda: changes(screen)[-5:] == [1, 5, 7, None, 6])
        put(quotes, 1, 9.0)
        wait_until(lambda: changes(screen)[-6:] == [1, 5, 7, None, 6, 9])
        assert set(changes(screen)[:-6]) <= {None}


def test_a_line_of_named_rows_begins_with_what_the_journal_has(tmp_path, open_screen):
    with web_server(data=str(tmp_path)) as server:
        quotes = filled(server)
        put(quotes, 1, 5.0)
        put(quotes, 0, -5.0)
        screen = open_screen(server, link(chart("line", label="symbol", rows=2)))
        wait_until(lambda: "history from the journal" in in_chart(screen, ".status").text_content())
        wait_until(lambda: len(shown(screen)["series"]) == 2)
        first, second = (
            [value for value in points if value is not None] for points in shown(screen)["series"]
        )
        assert list(dict.fromkeys(first)) == [0, -5]
        assert list(dict.fromkeys(second)) == [1, 5]


def test_a_line_without_a_journal_begins_now(server, quotes, open_screen):
    put(quotes, 1, 5.0)
    screen = open_screen(server, link(chart("line", operations=row(1))))
    wait_until(lambda: changes(screen) == [5])
    assert "history" not in in_chart(screen, ".status").text_content()


def test_charts_are_made_from_the_menu_of_a_grid(server, quotes, open_screen):
    asked = []
    screen = open_screen(server, "#table=quotes")
    screen.page.on("request", lambda request: asked.append(request.url))
    screen.wait_ready()
    screen.focusable.focus()
    screen.press("Control+Home", "ArrowDown", "End")
    assert not any("/chart-" in url for url in asked), "charts are loaded when there is one"
    screen.grid.locator("[aria-label='Charts']").click()
    screen.page.locator("[role=menuitem]", has_text="Number: this price").click()
    value = in_chart(screen, ".big .value")
    wait_until(lambda: value.text_content() == "1")
    assert any("/chart-" in url for url in asked)
    put(quotes, 1, 44.0)
    wait_until(lambda: value.text_content() == "44")
    again = open_screen(screen.page.url)
    wait_until(lambda: in_chart(again, ".big .value").text_content() == "44")
    again.wait_ready()
    screen.page.locator("live-chart [aria-label='Close panel']").click()
    wait_until(lambda: screen.page.locator("live-chart").count() == 0)
    assert "chart" not in urllib.parse.unquote(screen.page.url)


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ("Line of this price", ["price"]),
        ("Lines of price", [str(i) for i in range(8)]),  # The key names the rows.
        ("Bars of price", ["price"]),
        ("Line of avg(price)", ["avg_price"]),
    ],
)
def test_every_entry_of_the_menu_makes_a_chart(server, quotes, open_screen, entry, names):
    screen = open_screen(server, "#table=quotes")
    screen.wait_ready()
    screen.focusable.focus()
    screen.press("Control+Home", "ArrowDown", "End")
    screen.grid.locator("[aria-label='Charts']").click()
    screen.page.locator("[role=menuitem]", has_text=entry).first.click()
    wait_until(lambda: shown(screen)["names"] == names)
    assert not in_chart(screen, ".message").is_visible()


def test_a_board_with_a_chart_is_saved_on_the_server(server, quotes, open_screen):
    panels = ({"grid": {"table": "quotes"}}, chart("bars", label="symbol", rows=4))
    screen = open_screen(server, link(*panels))
    wait_until(lambda: shown(screen)["series"] == [[0, 1, 2, None]])
    screen.page.locator("button", has_text="Boards").click()
    screen.page.locator("[role=menuitem]", has_text="Save").click()
    screen.page.locator("#board-name").fill("charts")
    screen.page.locator("dialog button", has_text="Save").click()
    wait_until(lambda: not screen.page.locator("dialog[open]").count())
    other = open_screen(server)
    other.wait_ready()
    other.page.locator("button", has_text="Boards").click()
    other.page.locator("[role=menuitem]", has_text="charts").click()
    wait_until(lambda: shown(other)["series"] == [[0, 1, 2, None]])
    other.wait_ready()


def test_settings_by_keys(server, quotes, open_screen):
    screen = open_screen(server, link(chart("bars", label="symbol", rows=4)))
    wait_until(lambda: shown(screen)["series"] == [[0, 1, 2, None]])
    in_chart(screen, ".tool").press("Enter")
    wait_until(lambda: in_chart(screen, "#kind").evaluate("e => e.matches(':focus')"))
    in_chart(screen, "#rows").fill("2")
    in_chart(screen, "#rows").press("Enter")
    wait_until(lambda: shown(screen)["series"] == [[0, 1]])
    thresholds = in_chart(screen, "#thresholds")
    thresholds.fill("90 awful")
    thresholds.press("Tab")
    wait_until(lambda: "90 awful is no threshold" in in_chart(screen, ".problem").text_content())
    assert thresholds.get_attribute("aria-invalid") == "true"
    thresholds.fill("0.5 bad")
    thresholds.press("Tab")
    wait_until(lambda: in_chart(screen, ".problem").text_content() == "")
    in_chart(screen, "#kind").select_option("number")
    wait_until(lambda: in_chart(screen, ".big .value").text_content() == "0")
    screen.page.keyboard.press("Escape")
    wait_until(lambda: not in_chart(screen, ".settings").is_visible())
    state = json.loads(urllib.parse.unquote(screen.page.url).partition("#board=")[2])
    found = state["rows"][0]["panels"][0]["chart"]
    assert found["thresholds"] == [{"from": 0.5, "level": "bad"}]
    assert found["kind"] == "number"


def test_the_query_bar_works_on_a_chart(server, quotes, open_screen):
    screen = open_screen(server, link(chart("bars", label="symbol", rows=3)))
    wait_until(lambda: shown(screen)["series"] == [[0, 1, 2]])
    bar = screen.page.locator(".querybar input")
    bar.fill("where price > 20 | sort -price")
    bar.press("Enter")
    wait_until(lambda: shown(screen)["series"] == [[29, 28, 27]])


def test_a_column_that_is_not_there_and_a_table_that_goes_and_comes(server, quotes, open_screen):
    missing = {"chart": {"table": "quotes", "kind": "bars", "values": ["cost"]}}
    screen = open_screen(server, link(missing, chart("bars", rows=2)))
    message = in_chart(screen, ".message span")
    wait_until(lambda: message.text_content() == "there is no column cost")
    wait_until(lambda: shown(screen, 1)["series"] == [[0, 1]])
    other = screen.page.locator("live-chart").nth(1)
    server.drop_table("quotes")
    wait_until(lambda: other.locator(".pill").text_content() == "failed")
    filled(server)
    wait_until(lambda: not other.locator(".message").is_visible())
    wait_until(lambda: shown(screen, 1)["series"] == [[0, 1]])


def test_a_line_has_a_gap_while_the_server_is_away(tmp_path, open_screen):
    server = web_server(data=str(tmp_path)).start()
    port = urllib.parse.urlsplit(server.web_uri).port
    filled(server)
    screen = open_screen(server, link(chart("line", operations=row(1))))
    wait_until(lambda: changes(screen)[-1:] == [1])
    server.stop(grace=0)
    wait_until(lambda: in_chart(screen, ".pill").text_content().startswith("reconnecting"))
    server = web_server(data=str(tmp_path), web_port=port).start()
    put(server.table("quotes"), 1, 12.0)
    screen.page.evaluate("dispatchEvent(new Event('online'))")
    wait_until(lambda: changes(screen)[-3:] == [1, None, 12])
    server.stop(grace=0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_charts(server, quotes, open_screen, scheme):
    thresholds = [{"from": 0, "level": "good"}, {"from": 20, "level": "bad"}]
    panels = (
        chart("line", label="symbol", rows=8),
        chart("bars", label="symbol", thresholds=thresholds),
        chart("number", operations=row(25), thresholds=thresholds),
        {"chart": {"table": "quotes", "kind": "bars", "values": ["cost"]}},
    )
    screen = open_screen(server, link(*panels), color_scheme=scheme)
    wait_until(lambda: len(shown(screen)["names"]) == 8)
    value = screen.page.locator("live-chart .value.bad")
    wait_until(lambda: value.count() == 1)
    wait_until(lambda: screen.page.locator("live-chart .message:visible").count() == 1)
    assert audit(screen) == []
    in_chart(screen, ".tool").click()
    wait_until(lambda: in_chart(screen, ".settings").is_visible())
    assert audit(screen) == []


def test_the_element_in_a_page_of_its_own(server, quotes, open_screen):
    screen = open_screen(server, link(chart("bars", rows=2)))
    wait_until(lambda: shown(screen)["series"] == [[0, 1]])
    screen.page.evaluate(
        """() => {
          const chart = document.createElement('live-chart');
          chart.setAttribute('src', '/socket');
          chart.setAttribute('table', 'quotes');
          chart.setAttribute('kind', 'number');
          document.body.append(chart);
        }"""
    )
    own = screen.page.locator("live-chart").nth(1)
    wait_until(lambda: own.locator(".caption").text_content() == "id")
    screen.page.evaluate("document.querySelectorAll('live-chart')[1].remove()")
