"""The examples and the code in the README and the getting-started guide run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import warm_python

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 60
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_python(*arguments: str) -> str:
    done = warm_python.run(
        ["-W", "error::ResourceWarning", *arguments], timeout=SECONDS_MAX, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


def shell_blocks(name: str) -> list[str]:
    return [
        block.strip()
        for block in re.findall(r"```sh\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path: Path) -> None:
    assert run_python(str(path)).count("\n") >= 3
    assert path.name in (ROOT / "examples" / "README.md").read_text()


def test_the_readme_code_runs() -> None:
    # The blocks after these need Deephaven's packages and are run by tests/interop/test_readme.py.
    publish, subscribe = python_blocks("README.md")[:2]
    # Endless loops end after one round, and the port is a free one.
    subscribe = subscribe.replace("print(update.added", "break\n        print(update.added")
    code = publish.replace("port=10000", "port=0") + subscribe + "server.stop()\n"
    out = run_python("-c", code.replace('"localhost:10000"', "server.uri"))
    assert "411.9" in out


def test_the_code_for_asyncio_runs() -> None:
    block = next(each for each in python_blocks("docs/python-api.md") if "aconnect" in each)
    # The endless loop ends after one round, and the port is a free one.
    block = block.replace("print(update)", "break").replace('"localhost:10000"', "server.uri")
    indented = "\n".join(f"    {line}" for line in block.splitlines())
    code = f"""
import asyncio, barrage
server = barrage.Server(port=0).start()
server.create_table("trades", {{"x": "int64"}}, data={{"x": [7]}})
async def main():
{indented}
        print(live.to_arrow().to_pylist(), rows.num_rows)
asyncio.run(main())
server.stop()
"""
    assert run_python("-c", code) == "trades\n[{'x': 7}] 1\n"


def test_the_guide_publishes_what_it_says() -> None:
    blocks = python_blocks("docs/getting-started.md")
    publish = next(block for block in blocks if "Server(" in block)
    check = """
with barrage.connect(server.uri) as session:
    print(session.table("dear").snapshot().to_pylist())
server.stop()
"""
    out = run_python("-c", publish.replace("port=10001", "port=0") + check)
    assert out == "[{'id': 2, 'symbol': 'MSFT', 'price': 412.0}]\n"


def test_the_publishing_page_runs() -> None:
    blocks = python_blocks("docs/publishing.md")
    out = run_python("-c", "\n".join(blocks) + "\nimport asyncio\nprint(asyncio.run(main()))\n")
    assert out == "2\n"


def test_the_readme_stays_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for name in ("README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
        page = ROOT / name
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{name} links to {link}"
