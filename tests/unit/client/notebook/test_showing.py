"""What ``show()`` gives, and where."""

from __future__ import annotations

import pytest

import barrage
from barrage.client.notebook import showing
from barrage.client.notebook.first_rows import FirstRows
from barrage.errors import (
    ConfigError,
    ConnectionLostError,
    PermissionDeniedError,
    TableNotFoundError,
)
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import wait_until

EVIL = "<script>x</script>"


@pytest.fixture
def server():
    with barrage.Server(config=ServerConfig(host="inproc://")) as made:
        made.create_table("t", {"k": "int64", "s": "string"}, key="k").upsert(
            {"k": list(range(30)), "s": [EVIL] * 30}
        )
        yield made


@pytest.fixture
def session(server):
    with barrage.connect(server.uri) as made:
        yield made


@pytest.fixture
def notebook(monkeypatch):
    monkeypatch.setattr(showing, "in_notebook", lambda: True)


class Heard:
    """A widget whose messages go nowhere but here."""

    def __init__(self, widget, monkeypatch):
        self.widget = widget
        self.sent = []
        monkeypatch.setattr(
            widget, "send", lambda content, buffers: self.sent.append((content, buffers))
        )

    def say(self, *parts, **more):
        content = {"page": "p", "parts": list(parts), **more}
        self.widget._handle_custom_msg(content, [])

    @property
    def texts(self):
        return [part for content, _ in self.sent for part in content["parts"]]


def test_without_a_notebook_the_first_rows_are_shown(session):
    shown = session.table("t").show()
    assert isinstance(shown, FirstRows)
    assert shown.summary == (
        "30 rows x 2 columns, the first 20 are shown, not live: there is no notebook"
    )
    assert "<script" not in shown._repr_html_()


def test_without_the_extra_it_is_said_how_to_have_it(session, notebook, monkeypatch):
    monkeypatch.setattr(showing, "find_spec", lambda _: None)
    assert 'pip install "barrage[notebook]"' in session.table("t").show().summary


def test_a_table_without_a_name_is_not_live(session, notebook):
    uploaded = session.upload({"x": [3, 1, 2]})
    shown = uploaded.show()
    assert shown.rows.column("x").to_pylist() == [3, 1, 2]
    assert "only tables with a name" in shown.summary


def test_a_widget_says_what_is_shown_and_has_rows_for_who_has_no_kernel(session, notebook):
    widget = session.table("t").where("k > 2").select("k").show(height=300)
    assert widget.shown["table"] == "t"
    assert [operation[0] for operation in widget.shown["operations"]] == ["where", "select"]
    assert widget.height == 300
    data, _ = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "27 rows x 1 columns" in data["text/html"]
    assert "27 rows x 1 columns" in data["text/plain"]
    widget.close()


def test_a_live_table_shows_the_table_that_it_follows(session, notebook):
    with session.table("t").subscribe(columns=["s"], viewport=(0, 3)) as live:
        live.wait_ready(60)
        widget = live.show()
        assert widget.shown == {"table": "t", "operations": [["select", ["s"]]]}
        assert "30 rows x 1 columns" in live._repr_html_()
        widget.close()


def test_the_widget_carries_the_messages_of_pages(session, notebook, monkeypatch):
    heard = Heard(session.table("t").show(), monkeypatch)
    heard.say(opens=True)
    heard.say('{"type":"hello"}')
    wait_until(lambda: any('"welcome"' in text for text in heard.texts))
    heard.widget.close()
    wait_until(lambda: "close" in heard.sent[-1][0] or not heard.widget.comm)
    heard.widget.close()


def test_a_widget_whose_session_has_been_closed(server, notebook, monkeypatch):
    session = barrage.connect(server.uri)
    heard = Heard(session.table("t").show(), monkeypatch)
    session.close()
    heard.say(opens=True)
    assert heard.sent[-1][0]["close"] == [4401, showing_closed()]
    heard.widget.close()


def showing_closed():
    from barrage.client.notebook.page_door import CLOSED

    return CLOSED


@pytest.mark.parametrize("height", [159, 4001, True, "tall", 200.5])
def test_heights_that_cannot_be(session, height):
    with pytest.raises(ConfigError, match="height is"):
        session.table("t").show(height=height)


@pytest.mark.parametrize("height", [160, 4000])
def test_heights_at_the_limits(session, height):
    assert len(session.table("t").show(height=height).rows) == 20


def test_what_is_not_there_or_not_allowed_is_said_at_once(server, session):
    with pytest.raises(TableNotFoundError):
        session.table("missing").show()
    read = frozenset({barrage.Operation.READ})
    server.set_policy(barrage.Policy.of(barrage.Rule(tables=("open",), allow=read)))
    with pytest.raises((TableNotFoundError, PermissionDeniedError)):
        session.table("t").show()


def test_a_server_that_is_not_there_is_said_and_found_again():
    def served():
        made = barrage.Server(config=ServerConfig(host="inproc://showing-restart")).start()
        made.create_table("t", {"k": "int64"}).add({"k": [1, 2]})
        return made

    server = served()
    with barrage.connect(server.uri) as session:
        server.stop(grace=0)
        with pytest.raises(ConnectionLostError):
            session.table("t").show(timeout=60)
        server = served()
        assert session.table("t").show().total == 2
    server.stop(grace=0)


def test_a_live_table_has_no_html_before_its_first_state(session):
    with session.table("missing").subscribe() as live:
        assert live._repr_html_() is None
