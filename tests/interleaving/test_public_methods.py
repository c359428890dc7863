"""Every public method of clients and servers, found by introspection, is called by two at the same
time, first undisturbed and then beside whoever closes the object. Undisturbed, it gives what is
right; beside the close it does that or raises a typed error; it never hangs."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial

import pytest

import barrage
from barrage.client.session import AsyncSession, aconnect
from barrage.errors import BarrageError
from barrage.server.api.publish import Server
from barrage.server.api.publish_async import AsyncServer
from barrage.server.api.publish_tables import Transaction
from tests.interleaving.public_calls import CALLS, CLASSES, ROWS, methods, properties
from tests.interleaving.whole import Whole, run_whole

BY_NAME = {kind.__name__: kind for kind in CLASSES}


@pytest.mark.parametrize("name", BY_NAME)
def test_every_public_method_has_a_call(name):
    missing = [each for each in methods(BY_NAME[name]) if each not in CALLS]
    assert not missing, f"say in public_calls.py how to call {', '.join(missing)}"


def test_no_call_is_left_over():
    known = {each for kind in CLASSES for each in methods(kind)}
    assert known == set(CALLS)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", BY_NAME)
def test_two_call_each_method(name):
    """Every second one beside a close; ``make interleavings`` draws further ones."""
    for number, method in enumerate(methods(BY_NAME[name])):
        run_noted(name, method, is_closed=number % 2 == 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_two_call_each_method_both_ways(name):
    for number, method in enumerate(methods(BY_NAME[name])):
        run_noted(name, method, is_closed=number % 2 == 0)


def run_noted(name: str, method: str, *, is_closed: bool) -> None:
    kind = BY_NAME[name]
    try:
        run_whole(partial(run_one, scene_of(kind), kind, method, is_closed), is_closed)
    except BaseException as error:
        error.add_note(f"{name}.{method}{' beside a close' if is_closed else ''}")
        raise


def scene_of(kind: type):
    return AsyncScene if kind.__name__.startswith("Async") else Scene


def run_one(scene, kind: type, method: str, is_closed: bool, whole: Whole) -> None:
    scene(whole, kind, method, is_closed).run()


def check(call, result) -> None:
    if call.is_right is not None:
        assert call.is_right(result), result


class Scene:
    """Threads that call one method of one object."""

    def __init__(self, whole: Whole, kind: type, method: str, is_closed: bool) -> None:
        self.whole, self.kind, self.method, self.is_closed = whole, kind, method, is_closed
        self.call = CALLS[method]
        self.may_end = is_closed or method in ("abandon", "close", "give_back", "stop")

    def run(self) -> None:
        self.server = self.whole.server(journal="memory")
        self.table = self.server.create_table("t", ROWS.schema, key="k", data=ROWS)
        self.server.create_table("spare", ROWS.schema)
        self.server.start()
        session = barrage.connect(self.server.uri)
        try:
            subject, close = self.subject(session)
            closing = [lambda: self.tolerant(close)] if self.is_closed else []
            self.whole.together(*[partial(self.use, subject)] * 2, *closing)
        finally:
            session.close()
            self.server.stop()

    def subject(self, session: barrage.Session):
        """The object, and what ends it."""
        name = self.kind.__name__
        if name == "Session":
            return session, session.close
        if name in ("Server", "PublishedTable", "Transaction"):
            made = {"Server": self.server, "PublishedTable": self.table}.get(name)
            return made or self.server.transaction(), self.server.stop
        if name == "Writer":
            made = session.writer("t", producer="p", key="k")
        elif name == "InputTable":
            made = session.input_table(ROWS.schema, key="k")
        else:
            made = session.table("t").subscribe(viewport=slice(0, 10)).wait_ready()
        return made, self.whole.random.choice((made.close, session.close))

    def arguments(self, subject):
        if self.method in ("natural_join", "merge") and not isinstance(subject, barrage.Server):
            return (subject, *(["k"] if self.method == "natural_join" else []))
        if self.method == "publish":
            return ("other", self.table)
        if self.method == "delete" and "Input" not in self.kind.__name__:
            positions = (0, 1)
            return (self.table, *positions) if self.kind is Transaction else positions
        if self.method == "info" and self.kind is AsyncSession:
            return ("t",)
        if self.method == "fail":
            return (BarrageError("gone"),)
        if self.kind is Transaction:
            return (self.table, *self.call.arguments)
        return self.call.arguments

    def use(self, subject) -> None:
        self.whole.pause()
        for name in properties(self.kind):
            self.tolerant(lambda name=name: getattr(subject, name))
        self.tolerant(lambda: self.do(subject))

    def do(self, subject) -> None:
        arguments = self.arguments(subject)
        result = getattr(subject, self.method)(*arguments, **(self.call.named or {}))
        check(self.call, result)
        if self.method in ("changes", "updates") and not hasattr(result, "column"):
            next(iter(result), None)
        if self.method in ("subscribe", "writer", "read_journal", "updates"):
            result.close()

    def tolerant(self, work) -> None:
        try:
            work()
        except BarrageError:
            if not (self.may_end or self.call.may_be_refused):
                raise


class AsyncScene(Scene):
    """Tasks that call one method of one object."""

    def run(self) -> None:
        self.whole.run_async(self.run_async)

    async def run_async(self) -> None:
        self.server = AsyncServer("inproc://", journal="memory")
        self.table = await self.server.create_table("t", ROWS.schema, key="k", data=ROWS)
        await self.server.create_table("spare", ROWS.schema)
        await self.server.start()
        session = await aconnect(self.server.uri)
        try:
            subject, close = await self.subject_async(session)
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(self.use_async(subject))
                if self.is_closed:
                    group.create_task(self.tolerant_async(close))
        finally:
            await session.close()
            await self.server.stop()

    async def subject_async(self, session):
        name = self.kind.__name__
        if name == "AsyncSession":
            return session, session.close
        if name in ("AsyncServer", "AsyncPublishedTable"):
            return self.server if name == "AsyncServer" else self.table, self.server.stop
        if name == "AsyncWriter":
            made = await session.writer("t", producer="p", key="k")
        elif name == "AsyncInputTable":
            made = await session.input_table(ROWS.schema, key="k")
        else:
            made = await session.table("t").subscribe(viewport=slice(0, 10))
            await made.wait_ready()
        return made, self.whole.random.choice((made.close, session.close))

    async def use_async(self, subject) -> None:
        await self.whole.pause_async()
        for name in properties(self.kind):
            self.tolerant(lambda name=name: getattr(subject, name))
        await self.tolerant_async(lambda: self.do_async(subject))

    async def do_async(self, subject) -> None:
        arguments = self.arguments(subject)
        result = getattr(subject, self.method)(*arguments, **(self.call.named or {}))
        if inspect.isawaitable(result):
            result = await result
        check(self.call, result)
        if self.method in ("changes", "updates") and hasattr(result, "__anext__"):
            await anext(result, None)
        if hasattr(result, "aclose"):
            await result.aclose()
        elif self.method in ("subscribe", "writer"):
            await result.close()

    async def tolerant_async(self, work) -> None:
        try:
            await work()
        except BarrageError:
            if not (self.may_end or self.call.may_be_refused):
                raise


def test_a_new_method_without_a_call_is_found():
    class Newer(Server):
        def unheard_of(self) -> None:
            """Public, and nobody says how it is called."""

    assert [each for each in methods(Newer) if each not in CALLS] == ["serve_forever", "unheard_of"]
