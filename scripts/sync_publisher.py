"""Writes the blocking form of a server's tables, ``barrage/server/api/publish_tables.py``, from the
asynchronous one beside it: ``make generated``.

A method is written and described once, in ``publish_tables_async.py``. Here ``await`` goes, futures
are waited for where they were awaited, and work done beside the event loop is done on the spot.
Writes get what only the blocking form has, ``wait=False``.
"""

from __future__ import annotations

import re

from scripts.writing import ROOT, note, without

SOURCE = ROOT / "server" / "api" / "publish_tables_async.py"
TARGET = ROOT / "server" / "api" / "publish_tables.py"

PROSE = (
    (
        '"""The tables of a server in this process, for asyncio: views',
        '"""The tables of a server in this process: views',
    ),
    (
        """The blocking form, :mod:`barrage.server.api.publish_tables`, is written from this file by
``scripts/sync_publisher.py``.
""",
        "What is awaited in :mod:`barrage.server.api.publish_tables_async` blocks here.\n",
    ),
    (
        "    not fit. To not wait, make a task.\n",
        """\
    not fit. With ``wait=False`` rows are still checked for their form at once; the future gets the
    step, or the error that only the engine can find (a null key, for example). Such calls block
    only while ``limits.ingest_bytes_pending_max`` bytes wait to be committed.
""",
    ),
)
"""What is said in another way."""

FORMS = (
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bCoroutine\[Any, Any, (\S+?)\]", r"\1"),
    (r"\basync (?=def |with |for )", ""),
    (r"__a(?=(?:enter|exit|iter|next)__)", "__"),
    (r"\bawait in_thread\(([\w.]+), ", r"\1("),
    (r"\ban (?=PublishedTable)", "a "),
)
"""What is written in another way."""

WRITE = re.compile(
    r"    def (?P<name>\w+)\((?P<arguments>[^)]*), (?P<numbered>\*\*numbered: [^)]*)\) -> int:\n"
    r'(?P<doc> +"""(?:(?!""").)*"""\n)'
    r"        return self\._change\((?P<change>[^\n]*), \*\*numbered\)\.result\(\)\n",
    re.DOTALL,
)
WRITES = """\
    @overload
    def {name}({arguments}, *, wait: Literal[True] = True, {numbered}) -> int: ...
    @overload
    def {name}({arguments}, *, wait: Literal[False], {numbered}) -> Future[int]: ...
    def {name}({arguments}, *, wait: bool = True, {numbered}) -> int | Future[int]:
{doc}        return self._commit({change}, wait, **numbered)
"""


def publisher_text() -> str:
    """``barrage/server/api/publish_tables.py``."""
    text = SOURCE.read_text()
    for pattern, instead in FORMS:
        text = re.sub(pattern, instead, text)
    text = _waited_for(text)
    text, count = WRITE.subn(lambda found: WRITES.format(**found.groupdict()), text)
    assert count, "no method writes"
    for told, instead in PROSE:
        text = without(text, told, instead)
    text = without(text, "import asyncio\n", "from typing import Literal, overload\n")
    typed = "if TYPE_CHECKING:\n"
    text = without(text, typed, typed + "    from concurrent.futures import Future\n")
    return note(__file__, SOURCE) + text


def _waited_for(text: str) -> str:
    """The source with ``future.result()`` where a future was awaited, and no other ``await``."""
    awaited = "await asyncio.wrap_future("
    while (start := text.find(awaited)) >= 0:
        first = stop = start + len(awaited)
        depth = 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[stop], 0)
            stop += 1
        text = f"{text[:start]}{text[first : stop - 1]}.result(){text[stop:]}"
    return text.replace("await ", "")


TEXTS = {TARGET: publisher_text}
"""The file and what makes it."""
