"""Writes the synchronous client, ``sync*.py`` in ``barrage/client/synchronous``, from the
asynchronous one: ``make generated``.

A method is written and described once, in the asynchronous class. A synchronous object holds an
asynchronous one and the thread whose event loop that lives on; what it does with a method follows
from how that is written there:

* properties and plain methods are read and called on the caller's thread;
* coroutines, and what is opened by ``await``, run on the loop, and the caller waits for them. Their
  ``timeout`` bounds that wait; one that has none gets it here;
* asynchronous tables that come back are wrapped.

This file has only what is said or done otherwise. What is no call that is passed on, such as
closing and following, is written by hand in ``on_thread.py``.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

from scripts.writing import TOP, note, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SYNCHRONOUS = "barrage.client.synchronous"
SHORT = "TIMEOUT_SECONDS"
"""How long a call may take that answers once."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """What of one method does not follow from the asynchronous one."""

    timeout: str | None = None
    """The default of a timeout that the asynchronous method does not have."""
    is_positional: bool = False
    """Whether that timeout may be given by its place."""
    is_property: bool = False
    """Whether it is one although the asynchronous method must be awaited."""
    drops: tuple[str, ...] = ()
    """Arguments that are not passed on."""
    more: tuple[tuple[str, str, str], ...] = ()
    """Further arguments that are not: name, type, default."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types by the names they have in the asynchronous method."""
    seconds: str = "timeout"
    """How long the caller waits; ``None`` where the asynchronous method itself takes the time."""
    body: str = "return {result}"
    """What is done with ``{call}``, the asynchronous call, ``{done}``, that call with its answer
    waited for, or ``{result}``, the answer wrapped."""
    returns: str | None = None
    """What it gives."""
    instead: tuple[str, str] = ("", "")
    """What is said, and what instead of it."""
    said: str = ""
    """What is added to it."""


PLAIN = Method()


@dataclass(frozen=True, kw_only=True)
class Form:
    """A synchronous class and where it comes from."""

    source: str
    """The module of the asynchronous class, whose name is this one's with ``Async`` before it."""
    bases: str
    methods: Mapping[str, Method]
    held: str = "self._table"
    """Where it holds the asynchronous object."""
    said: str = ""
    """What is said after the first sentence about the class, instead of the rest."""
    beginning: str = ""
    """How it begins."""


ON_LOOP = "runs on the session's thread"
BY_BATCH = "``timeout`` is the longest wait for one batch."
CALLBACKS = {
    "OnUpdate": "Callable[[Update], None]",
    "OnState": "Callable[[State], None]",
    "OnError": "Callable[[Exception], None]",
}

SESSION = {
    "address": PLAIN,
    "tables": PLAIN,
    "table": PLAIN,
    "open_table": PLAIN,
    "shared": PLAIN,
    "table_from_ticket": PLAIN,
    "upload": Method(said=f"``on_progress`` {ON_LOOP}."),
    "read_journal": Method(
        timeout="None",
        drops=("counter",),
        body="return JournalBatches({call}, self._thread, timeout)",
        returns="JournalBatches",
        said=BY_BATCH,
    ),
    "body_status": Method(timeout=SHORT),
    "input_table": PLAIN,
    "open_input_table": PLAIN,
    "put": Method(said=f"``on_progress`` {ON_LOOP}."),
    "writer": Method(timeout=SHORT),
    "create_table": PLAIN,
    "drop_table": PLAIN,
}
TABLE = {
    "name": PLAIN,
    "schema": Method(is_property=True, seconds=SHORT),
    "info": PLAIN,
    "snapshot": Method(said="``on_progress`` and ``on_query`` run on the session's thread."),
    "subscribe": Method(
        more=(
            ("on_update", "Callable[[Update], None] | None", "None"),
            ("on_state", "Callable[[State], None] | None", "None"),
            ("on_error", "Callable[[Exception], None] | None", "None"),
        ),
        body="return TickingTable._opened({call}, self._thread, "
        "on_update=on_update, on_state=on_state, on_error=on_error)",
        said="Callbacks run on threads of the table.",
    ),
    "show": Method(
        body="showing = self._table._showing(height=height)\n"
        "return self._thread.call(showing, timeout).displayed()",
        returns="LiveTable | FirstRows",
    ),
    "as_of": PLAIN,
    "changes": Method(timeout="None", body="return self._batches({call}, timeout)", said=BY_BATCH),
    "publish_shared": PLAIN,
    "is_closed": PLAIN,
    "_query_source": PLAIN,
    "_with_steps": PLAIN,
}
INPUT_TABLE = {
    "key": Method(is_property=True, seconds=SHORT),
    "add": PLAIN,
    "delete": PLAIN,
}
TICKING_TABLE = {
    **dict.fromkeys(("name", "state", "error", "schema", "table_size", "nbytes", "lag"), PLAIN),
    **dict.fromkeys(("stats", "bodies", "cursor", "resumption", "checkpoint"), PLAIN),
    "__len__": Method(body="return len(self._table)"),
    **dict.fromkeys(("to_arrow", "to_pandas", "to_polars", "__arrow_c_stream__"), PLAIN),
    "wait_ready": Method(
        seconds="None",
        body="{done}\nreturn self",
        returns="TickingTable",
        said="Returns the table.",
    ),
    "updates": Method(
        timeout="None",
        is_positional=True,
        body="return self._follow(timeout)",
        returns="BlockingUpdates",
        said="``timeout`` is the longest wait for one update; then TimeoutError, and the iterator "
        "may be used again.",
    ),
    "on_update": Method(
        types=CALLBACKS,
        body="return self._callbacks.on_update(callback, self._follow)",
        instead=(
            "If it returns an awaitable, that is awaited before the next update.",
            "It runs on a thread of this table.",
        ),
    ),
    "on_state": Method(types=CALLBACKS, body="return self._callbacks.on_state(callback)"),
    "on_error": Method(types=CALLBACKS, body="return self._callbacks.on_error(callback)"),
    "set_viewport": Method(timeout=SHORT),
    "set_columns": Method(timeout=SHORT),
}
WRITER = {
    **dict.fromkeys(("position", "step", "pending_count", "resends"), PLAIN),
    "write": Method(timeout="None", instead=("number of tasks", "number of threads")),
    "flush": PLAIN,
    "close": Method(seconds="None"),
    "abandon": Method(seconds="CLOSE_TIMEOUT_SECONDS"),
}

FORMS = {
    "Session": Form(
        source="barrage.client.session",
        bases="SessionOnThread",
        held="self._session",
        said="Close it or use it as a context manager.",
        methods=SESSION,
    ),
    "RemoteTable": Form(
        source="barrage.client.tables.remote_table",
        bases='TableOnThread, QueryMethods["RemoteTable"]',
        methods=TABLE,
    ),
    "InputTable": Form(
        source="barrage.client.tables.remote_table",
        bases="RemoteTable",
        methods=INPUT_TABLE,
        beginning="""
_table: AsyncInputTable

def __init__(self, table: AsyncInputTable, thread: LoopThread) -> None:
    super().__init__(table, thread)
""",
    ),
    "TickingTable": Form(
        source="barrage.client.subscriptions.subscription",
        bases="TickingOnThread",
        said="Always one consistent state. Reads are answered by the calling thread.",
        methods=TICKING_TABLE,
    ),
    "Writer": Form(
        source="barrage.client.writing.writer",
        bases="WriterOnThread",
        held="self._writer",
        said="Use it as a context manager: leaving it waits until everything is committed.",
        methods=WRITER,
    ),
}

FUNCTIONS = {
    "connect": (
        "barrage.client.session",
        "aconnect",
        Method(
            body="return Session._opened(uri, {call})",
            returns="Session",
            seconds="None",
            instead=(" on the running loop", ""),
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Module:
    """A file that is written."""

    doc: str
    names: tuple[str, ...]


MODULES = {
    "sync": Module(
        doc="""The synchronous client: the same names as the asyncio one, over a private loop on a
thread of its own.

Every blocking call takes a timeout and can be interrupted (Ctrl+C). A session owns one thread and
ends it when it is closed; sessions left open are closed at exit.""",
        names=("Session", "connect"),
    ),
    "sync_tables": Module(
        doc="Tables on the server, for the synchronous client.",
        names=("RemoteTable", "InputTable"),
    ),
    "sync_ticking": Module(
        doc="""Live tables of the synchronous client: reads are answered by the calling thread,
everything else by the session's loop.""",
        names=("TickingTable",),
    ),
    "sync_writer": Module(
        doc="Writing without loss for the synchronous client: :class:`Writer`.",
        names=("Writer",),
    ),
}

HERE = {name: f"{SYNCHRONOUS}.{module}" for module, each in MODULES.items() for name in each.names}
BY_HAND = {
    f"{SYNCHRONOUS}.on_thread": (
        *("SessionOnThread", "TableOnThread", "TickingOnThread", "WriterOnThread"),
        "BlockingUpdates",
    ),
    f"{SYNCHRONOUS}.sync_loop": ("CLOSE_TIMEOUT_SECONDS", "LoopThread", "opened"),
    f"{SYNCHRONOUS}.sync_journal": ("JournalBatches",),
    "barrage.client.subscriptions.state": ("State",),
    "barrage.client.tables.remote_table": (SHORT,),
    "barrage.client.updates.update": ("Update",),
    "collections.abc": ("Callable", "Iterator"),
}
ORIGINS = HERE | {name: module for module, names in BY_HAND.items() for name in names}
"""The modules of names that the asynchronous source does not have."""


# --- reading the source ---------------------------------------------------------------------------

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _path(module: str) -> Path:
    return (TOP / module.replace(".", "/")).with_suffix(".py")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text())


def _defined(body: list[ast.stmt], name: str) -> ast.ClassDef | Function:
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
    raise ValueError(f"there is no {name}")


def _function(body: list[ast.stmt], name: str) -> Function:
    found = _defined(body, name)
    assert not isinstance(found, ast.ClassDef)
    return found


def _import_lines(module: str) -> dict[str, str]:
    """How each name is imported that a module imports or defines."""
    lines: dict[str, str] = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            start = f"from {node.module} import " if isinstance(node, ast.ImportFrom) else "import "
            lines |= {each.asname or each.name: start + ast.unparse(each) for each in node.names}
    for node in _tree(module).body:
        names = [each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)]
        for name in (*names, getattr(node, "name", None)):
            if name:
                lines[name] = f"from {module} import {name}"
    return lines


# --- one method -----------------------------------------------------------------------------------

OURS = re.compile(r"\bAsync(?=[A-Z]\w+)")
BODY_COLUMNS = 92
"""What fits into a line of a method."""
OPENED = re.compile(r"^Opening\[(\w+)\]$")


def _method_text(form: Form, node: Function, how: Method) -> str:
    is_read = any(ast.unparse(each) == "property" for each in node.decorator_list)
    called = f"{form.held}.{node.name}"
    call = called if is_read else f"{called}({_arguments(node, how)})"
    decorator = "@property\n" if is_read or how.is_property else ""
    return decorator + _text(node.name, node, call, how=how)


def _function_text(name: str) -> str:
    module, source, how = FUNCTIONS[name]
    node = _function(_tree(module).body, source)
    return _text(name, node, f"{source}({_arguments(node, how)})", how=how)


def _text(name: str, node: Function, call: str, *, how: Method) -> str:
    """The definition that passes ``call`` on."""
    assert node.returns is not None
    given = ast.unparse(node.returns)
    opening = OPENED.match(given)
    is_awaited = opening is not None or isinstance(node, ast.AsyncFunctionDef)
    told = opening.group(1) if opening else given
    kind = OURS.sub("", told)

    def body_with(call: str) -> str:
        done = f"opened({call})" if opening else call
        if is_awaited:
            done = f"self._thread.call({done}, {how.seconds})"
        result = f"{kind}({done}, self._thread)" if kind in FORMS and kind != told else done
        return how.body.format(call=call, done=done, result=result)

    body = body_with(call)
    if max(map(len, body.splitlines())) > BODY_COLUMNS and is_awaited:
        body = f"work = {call}\n{body_with('work')}"
    if told == "None":
        body = body.removeprefix("return ")
    inside = textwrap.indent(_doc(node, how) + body, "    ")
    return f"def {name}({_parameters(node, how)}) -> {how.returns or kind}:\n{inside}\n"


def _parameters(node: Function, how: Method) -> str:
    if how.is_property:
        return "self"
    listed = node.args.args
    defaults = [None] * (len(listed) - len(node.args.defaults)) + list(node.args.defaults)
    parts = [_parameter(*each, how) for each in zip(listed, defaults, strict=True)]
    named = [
        _parameter(argument, default, how)
        for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        if argument.arg not in how.drops
    ]
    named += [f"{name}: {kind} = {default}" for name, kind, default in how.more]
    if how.timeout is not None:
        (parts if how.is_positional else named).append(f"timeout: float | None = {how.timeout}")
    return ", ".join([*parts, *(["*", *named] if named else [])])


def _parameter(argument: ast.arg, default: ast.expr | None, how: Method) -> str:
    text = argument.arg
    if argument.annotation is not None:
        kind = OURS.sub("", ast.unparse(argument.annotation))
        text += f": {how.types.get(kind, kind)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _arguments(node: Function, how: Method) -> str:
    """What is passed on. Who waits for a call bounds it, so it is not told of a timeout."""
    others = node.args.posonlyargs or node.args.vararg or node.args.kwarg
    assert not others, f"{node.name} takes arguments of a kind that nothing here passes on"
    value = {"timeout": "timeout" if how.seconds == "None" else "None"}
    names = [each.arg for each in node.args.args if each.arg != "self"]
    named = [each.arg for each in node.args.kwonlyargs if each.arg not in how.drops]
    parts = [value.get(name, name) for name in names]
    return ", ".join([*parts, *(f"{name}={value.get(name, name)}" for name in named)])


# --- descriptions ---------------------------------------------------------------------------------

SENTENCE_END = re.compile(r"(?<=[.])\s")
CODE = re.compile(r"``.*?``", re.DOTALL)


def _doc(node: Function, how: Method) -> str:
    doc = ast.get_docstring(node)
    if doc is None:
        return ""
    if any(how.instead):
        doc = without(re.sub(r"(?<!\n)\n(?!\n)", " ", doc), *how.instead)
    return _literal(f"{_synchronous(doc).rstrip()} {how.said}".rstrip())


def _synchronous(doc: str) -> str:
    """A description with the words of the synchronous client."""
    doc = CODE.sub(lambda code: re.sub(r"\b(async|await)\s+", "", code.group()), doc)
    return OURS.sub("", doc).replace("aconnect", "connect")


def _literal(doc: str) -> str:
    """The literal, with its lines filled."""
    fill = partial(textwrap.fill, width=92, break_long_words=False, break_on_hyphens=False)
    first, *others = [" ".join(paragraph.split()) for paragraph in doc.split("\n\n")]
    if not others:
        return fill(f'"""{first}"""') + "\n"
    return "\n\n".join([fill(f'"""{first}'), *map(fill, others)]) + '\n"""\n'


# --- files ----------------------------------------------------------------------------------------


def _class_text(name: str) -> str:
    form = FORMS[name]
    source = _defined(_tree(form.source).body, f"Async{name}")
    doc = _synchronous(ast.get_docstring(source) or "")
    if form.said:
        doc = f"{SENTENCE_END.split(doc)[0]} {form.said}"
    parts = [_literal(doc), form.beginning]
    for method, how in form.methods.items():
        parts.append(_method_text(form, _function(source.body, method), how))
    return f"class {name}({form.bases}):\n" + textwrap.indent("\n".join(parts), "    ")


def module_text(name: str) -> str:
    """One file of the synchronous client."""
    module = MODULES[name]
    texts = [_class_text(each) if each in FORMS else _function_text(each) for each in module.names]
    sources = sorted({FORMS[each].source for each in module.names if each in FORMS})
    body = "\n\n".join(texts)
    always, typed = _needed(ast.parse(body), sources, module.names)
    return (
        f"{note(__file__, *map(_path, sources))}{_literal(module.doc)}\n"
        "from __future__ import annotations\n\nfrom typing import TYPE_CHECKING\n"
        f"{always}\n\nif TYPE_CHECKING:\n{textwrap.indent(typed, '    ')}\n\n\n{body}"
    )


def _needed(tree: ast.Module, sources: list[str], defined: tuple[str, ...]) -> tuple[str, str]:
    """The imports of what is named when the code runs, and of what only annotations name."""
    lines: dict[str, str] = {}
    for source in sources:
        lines |= _import_lines(source)
    lines |= {name: f"from {module} import {name}" for name, module in ORIGINS.items()}
    annotated = {id(part) for each in _annotations(tree) for part in ast.walk(each)}
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    run = {node.id for node in named if id(node) not in annotated}
    seen = {node.id for node in named} - run
    given = {"self", *dir(builtins), *defined}
    given |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    given |= {node.id for node in named if isinstance(node.ctx, ast.Store)}
    always, typed = (
        "\n".join(lines[name] for name in sorted(names - given)) for names in (run, seen)
    )
    return always, typed


def _annotations(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            yield node.annotation
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            yield node.returns


TEXTS = {_path(f"{SYNCHRONOUS}.{name}"): partial(module_text, name) for name in MODULES}
"""The files and what makes them."""
