"""How workers are killed, and which scenario kills which."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

import barrage
from barrage import supervision
from barrage.client.synchronous.sync import Session
from barrage.errors import BarrageError
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST

HANG_SECONDS = 180
SCHEMA = {"x": "int64"}
ROW = {"x": [1]}
NOT_SERVING = b"\x08\x02"

SCENARIOS: dict[str, Callable[[Killing], None]] = {}


def kills(role: str) -> Callable[[Callable[[Killing], None]], Callable[[Killing], None]]:
    """Marks the scenario in which workers of a role are killed."""

    def note(scenario: Callable[[Killing], None]) -> Callable[[Killing], None]:
        assert role not in SCENARIOS
        SCENARIOS[role] = scenario
        return scenario

    return note


class UnforeseenError(BaseException):
    """Nothing in the product expects it, not even where it expects any ``Exception``."""


class UnforeseenExit(SystemExit):
    """The same for an event loop, which takes everything else to be its callback's."""


def leave() -> None:
    raise UnforeseenExit


def die(*_: object, **__: object) -> None:
    raise UnforeseenError


class _Victim:
    """One task that may be killed where it waits."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.task: asyncio.Task[Any] | None = None
        self.is_waiting = False
        self.is_doomed = False

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """``work``, whose next cancellation is something unforeseen once it is doomed."""
        self.task = asyncio.current_task()
        step = partial(work.send, None)
        while True:
            try:
                waited = step()
            except StopIteration as stop:
                self.is_waiting = False
                return stop.value
            self.is_waiting = True
            try:
                step = partial(work.send, (yield waited))
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                step = partial(work.throw, self._instead_of(error))

    def _instead_of(self, error: BaseException) -> BaseException:
        if not self.is_doomed or not isinstance(error, asyncio.CancelledError):
            return error
        self.is_doomed = False
        assert self.task is not None
        self.task.uncancel()
        return UnforeseenError()

    def kill(self) -> None:
        assert self.task is not None
        self.is_doomed = True
        self.task.cancel()


class Killing:
    """Kills workers of one role."""

    def __init__(
        self,
        role: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        directory: Path,
    ) -> None:
        self.role = role
        self.patches = monkeypatch
        self.directory = directory
        self._caplog = caplog
        self._victims: list[_Victim] = []
        self._is_armed = False
        self._original = supervision._run_task
        monkeypatch.setattr(supervision, "_run_task", self._run_task)

    async def _run_task(
        self,
        role: supervision.Role,
        work: Coroutine[Any, Any, object],
        on_death: Callable[[Any], object],
    ) -> None:
        if role.name != self.role:
            await self._original(role, work, on_death)
            return
        victim = _Victim(role.name)
        self._victims.append(victim)
        if self._is_armed:
            self._is_armed = False
            asyncio.get_running_loop().call_soon(self._kill_when_it_waits, victim)
        await self._original(role, victim.run(work), on_death)

    def _kill_when_it_waits(self, victim: _Victim) -> None:
        if victim.is_waiting:
            victim.kill()
        else:
            asyncio.get_running_loop().call_soon(self._kill_when_it_waits, victim)

    def newborn(self) -> None:
        """The next task of the role dies where it waits first."""
        self._is_armed = True

    @property
    def living(self) -> list[_Victim]:
        return [each for each in self._victims if each.is_waiting]

    def task(self, index: int = -1) -> None:
        """One of the living tasks of the role, by default the youngest, dies where it waits."""
        wait_until(lambda: bool(self.living), HANG_SECONDS)
        victim = self.living[index]
        assert victim.task is not None
        victim.task.get_loop().call_soon_threadsafe(victim.kill)

    def thread(self, owner: object, name: str) -> None:
        """The thread that calls this method dies in it."""
        self.patches.setattr(owner, name, die)

    @property
    def deaths(self) -> list[str]:
        """What the log says of them."""
        return [
            record.getMessage()
            for record in self._caplog.get_records("call")
            if record.exc_info and isinstance(record.exc_info[1], UnforeseenError | UnforeseenExit)
        ]

    def check(self) -> None:
        """There is one record of one death."""
        wait_until(lambda: bool(self.deaths), HANG_SECONDS)
        [told] = self.deaths
        assert told.startswith(f"{self.role} has died")
        assert "could not be told" not in self._caplog.text


class Scene:
    """A server with a table, a session, and two subscriptions."""

    def __init__(self, server: barrage.Server, session: Session, **options: Any) -> None:
        self.server, self.session = server, session
        self.table = server.create_table("t", SCHEMA)
        server.create_table("other", SCHEMA)
        self.other = session.table("other").subscribe(interval_ms=1).wait_ready(HANG_SECONDS)
        self.live = session.table("t").subscribe(interval_ms=1, **options).wait_ready(HANG_SECONDS)

    def others_go_on(self) -> None:
        """Whoever has nothing to do with what has died gets what comes, over the same stream."""
        count = len(self.other)
        self.server.table("other").add(ROW)
        wait_until(lambda: len(self.other) == count + 1, HANG_SECONDS)
        assert self.other.stats.reconnects == 0

    def comes_back(self) -> None:
        """The subscription begins anew and goes on."""
        wait_until(lambda: self.live.stats.reconnects == 1, HANG_SECONDS)
        count = len(self.live)
        self.server.table("t").add(ROW)
        wait_until(lambda: len(self.live) == count + 1, HANG_SECONDS)

    def is_not_serving(self) -> None:
        """Whoever asks for the server's health hears that it needs a restart."""
        wait_until(lambda: health(self.session) == NOT_SERVING, HANG_SECONDS)


def health(session: Session) -> bytes:
    """The answer to a question for the health of the whole server."""
    channel = session._session._channel
    check = channel.unary("/grpc.health.v1.Health/Check", b"", timeout=HANG_SECONDS)
    return bytes(session._thread.call(check, HANG_SECONDS))


@contextmanager
def scene(options: dict[str, Any] | None = None, **settings: Any) -> Iterator[Scene]:
    """``options`` are of the subscription, ``settings`` of the server."""
    with (
        barrage.Server(**{"host": HOST, **settings}) as server,
        barrage.connect(server.uri) as session,
    ):
        yield Scene(server, session, **(options or {}))


def refusal(work: Callable[[], object]) -> BarrageError:
    """What a call is refused with."""
    with pytest.raises(BarrageError) as caught:
        work()
    assert not isinstance(caught.value, grpc.RpcError)
    return caught.value
