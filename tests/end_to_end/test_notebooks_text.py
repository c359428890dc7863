"""The code of docs/notebooks.md, as it stands but for the address."""

from __future__ import annotations

import ast
import asyncio
import inspect

import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import wait_until
from tests.unit.cli.test_examples import python_blocks


@pytest.fixture
def server():
    with barrage.Server(config=ServerConfig(host="inproc://")) as made:
        made.create_table("quotes", {"sym": "string", "price": "float64"}, key="sym").upsert(
            {"sym": ["<A>", "B"], "price": [1.5, 4.0]}
        )
        yield made


def run(code, names):
    """The value of the last line, as a notebook displays it."""
    *before, last = ast.parse(code).body
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for node in before:
        made = compile(ast.Module([node], []), "docs/notebooks.md", "exec", flags=flags)
        value = eval(made, names)
        if inspect.iscoroutine(value):
            yield value
    shown = compile(ast.Expression(last.value), "docs/notebooks.md", "eval", flags=flags)
    yield eval(shown, names)


def test_the_blocks_of_the_page(server):
    first, asynchronous, live, mirrored = (
        block.replace("grpc://localhost:10000", server.uri)
        for block in python_blocks("docs/notebooks.md")
    )
    names = {}
    (shown,) = run(first, names)
    assert "2 rows x 2 columns" in shown._repr_html_()
    assert "&lt;A&gt;" in shown._repr_html_()
    assert "there is no notebook" in repr(shown)
    filtered = names["quotes"].where("price > 3").sort("-price").show(height=300)
    assert filtered.rows.column("sym").to_pylist() == ["B"]

    async def awaited():
        own = {"barrage": barrage}
        for value in run(asynchronous, own):
            found = await value
        await own["session"].close()
        return found

    assert "2 rows x 2 columns" in repr(asyncio.run(awaited()))

    (displayed,) = run(live, names)
    assert "&lt;A&gt;" in displayed._repr_html_()
    (size,) = run(mirrored, names)
    assert size == 2
    server.table("quotes").upsert({"sym": ["C"], "price": [2.0]})
    wait_until(lambda: names["mirrored"].size() == 3)
    names["session"].close()
