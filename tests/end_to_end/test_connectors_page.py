"""The examples of docs/connectors.md and the template run as they stand, but for the port."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

from barrage.server import Server
from barrage.server.ingest.connector.sources_file import parse_sources
from tests.unit.cli.test_examples import python_blocks

PAGE = "docs/connectors.md"
ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "examples" / "connector_template"


@pytest.mark.further
def test_a_source_and_a_sink_in_thirty_lines(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    source, sink = python_blocks(PAGE)
    assert len(source.splitlines()) <= 30
    with Server(journal="memory") as server:
        names: dict[str, object] = {}
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(source.replace("10000", str(server.port)), names)
            exec(sink.replace("10000", str(server.port)), names)
        assert told.getvalue().splitlines()[0] == "1000"
        assert told.getvalue().splitlines()[1].startswith("1000 rows are there, 0 are gone, up to")
        assert server.table("countdown").to_arrow()["left"].to_pylist() == list(range(1000, 0, -1))
        # Again from where they were.
        with contextlib.redirect_stdout(told):
            exec(source.replace("10000", str(server.port)), names)
            exec(sink.replace("10000", str(server.port)), names)
        assert told.getvalue().splitlines()[2:] == ["0"]


def test_the_file_of_sources() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)
    (mapping,) = parse_sources(text)
    assert mapping.new_schema().names == ["id", "symbol", "price", "at"]


def test_the_template(tmp_path, monkeypatch) -> None:
    """As cookiecutter makes it."""
    name = "my_connector"
    for path in TEMPLATE.rglob("*"):
        if path.is_file() and path.name != "cookiecutter.json" and path.suffix != ".pyc":
            inside = str(path.relative_to(TEMPLATE / "{{ cookiecutter.package }}"))
            target = tmp_path / inside.replace("{{ cookiecutter.package }}", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(path.read_text().replace("{{ cookiecutter.package }}", name))
    monkeypatch.syspath_prepend(str(tmp_path))
    made: dict[str, object] = {}
    exec((tmp_path / "tests" / "test_source.py").read_text(), made)
    test = made["test_lines_arrive"]
    assert callable(test)
    test(tmp_path)
    assert name in sys.modules
    assert name in (tmp_path / "pyproject.toml").read_text()


@pytest.fixture(autouse=True)
def _forget_the_template():
    yield
    for name in [each for each in sys.modules if each.startswith("my_connector")]:
        del sys.modules[name]
