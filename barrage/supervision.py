"""Where every thread and every long-lived task begins, so that none of them ends in silence.

Each belongs to a :class:`Role`, declared once beside the code that starts it, and comes with a
function for what depends on it. When it ends by an exception nobody expected (a ``MemoryError`` or
a ``SystemExit`` as much as a ``KeyError``), the traceback is logged under an id and that function
gets a :class:`~barrage.errors.WorkerDiedError` which names the id, on the dying thread or on the
task's loop: it fails the futures, ends the subscriptions, says NOT_SERVING.

What is no worker: a task that is awaited by the function that made it (its errors are raised
there), and one whose outcome several callers await, which :func:`start_awaited` makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from barrage.errors import WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeAlias

    OnDeath: TypeAlias = Callable[[WorkerDiedError], object]

T = TypeVar("T")

log = logging.getLogger(__name__)

_ROLES: Final[dict[str, Role]] = {}
_living: WeakKeyDictionary[threading.Thread | asyncio.Task[Any], Role] = WeakKeyDictionary()
_living_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Role:
    """What a thread or a task is for. Two roles never have one name."""

    name: str
    """Of the thread, and in the log."""
    depends: str
    """What fails when it dies, for who reads the code or a test."""

    def __post_init__(self) -> None:
        if _ROLES.setdefault(self.name, self) is not self:
            raise ValueError(f"there is another role {self.name!r}")


def roles() -> Mapping[str, Role]:
    """Every role declared so far, by name."""
    return MappingProxyType(_ROLES)


def living() -> list[tuple[Role, threading.Thread | asyncio.Task[Any]]]:
    """The workers that have not ended, with their roles."""
    with _living_lock:
        known = [(role, worker) for worker, role in _living.items()]
    return [
        (role, worker)
        for role, worker in known
        if (worker.is_alive() if isinstance(worker, threading.Thread) else not worker.done())
    ]


# --- threads --------------------------------------------------------------------------------------


def start_thread(
    role: Role,
    work: Callable[[], object],
    *,
    on_death: OnDeath,
    name: str | None = None,
) -> threading.Thread:
    """Run ``work`` on a daemon thread, called as its role unless there is a ``name``.
    WorkerDiedError when the system has no thread left."""
    thread = threading.Thread(
        target=_run_thread, args=(role, work, on_death), name=name or role.name, daemon=True
    )
    with _living_lock:
        _living[thread] = role
    try:
        thread.start()
    except RuntimeError as error:
        raise WorkerDiedError(role.name, f"it could not be started: {error}") from error
    return thread


def _run_thread(role: Role, work: Callable[[], object], on_death: OnDeath) -> None:
    try:
        work()
    except BaseException as error:
        _bury(role, error, on_death)


# --- tasks ----------------------------------------------------------------------------------------


def start_task(
    role: Role,
    work: Coroutine[Any, Any, object],
    *,
    on_death: OnDeath,
    name: str | None = None,
) -> asyncio.Task[None]:
    """Run ``work`` as a task of the running loop. The caller keeps the task, and may cancel it at
    any time; that it ends is all its outcome says."""
    task = asyncio.get_running_loop().create_task(
        _run_task(role, work, on_death), name=name or role.name
    )
    task.add_done_callback(partial(_close, work))
    with _living_lock:
        _living[task] = role
    return task


async def _run_task(role: Role, work: Coroutine[Any, Any, object], on_death: OnDeath) -> None:
    try:
        await work
    except GeneratorExit:
        raise  # The loop is gone, and everything with it.
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            del task  # The error it ends with refers to this frame.
            # The task keeps its error: without the frames it came through, since those refer to
            # what refers to the task, and a cycle keeps all they hold until the next collection.
            raise error.with_traceback(None) from None
        # Nobody has cancelled this task: something it waited for was.
        _bury(role, error, on_death)
    except KeyboardInterrupt as error:
        _bury(role, error, on_death)
        raise
    except BaseException as error:
        _bury(role, error, on_death)


def _close(work: Awaitable[object], _: asyncio.Task[Any]) -> None:
    """A task that is cancelled before it begins has never awaited its work."""
    if isinstance(work, Coroutine):
        work.close()


def start_awaited(work: Awaitable[T], *, name: str | None = None) -> asyncio.Task[T]:
    """A task whose outcome belongs to whoever awaits it, of whom there may be several or, in the
    end, none: then its error is nobody's."""
    task = asyncio.get_running_loop().create_task(contained_awaitable(work), name=name)
    task.add_done_callback(partial(_close, work))
    task.add_done_callback(_take_note)
    return task


async def contained_awaitable(work: Awaitable[T]) -> T:
    """What ``work`` gives; WorkerDiedError instead of a SystemExit."""
    try:
        return await work
    except SystemExit as error:
        # It would end the loop it is raised on.
        raise _died("a task", error) from error


def _take_note(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def no_dependants(_: WorkerDiedError) -> None:
    """For a worker on which nothing depends: the record in the log is all there is to do."""


# --- pools ----------------------------------------------------------------------------------------


class WorkerPool(ThreadPoolExecutor):
    """Threads for work whose outcome is awaited. An exception that would end the loop of whoever
    awaits it (SystemExit, KeyboardInterrupt) becomes a WorkerDiedError."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        return super().submit(contained, work, *arguments, **named)


async def in_thread(work: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
    """Do ``work`` beside the loop, on a thread of its pool; like ``asyncio.to_thread``, with errors
    as those of a :class:`WorkerPool`."""
    return await asyncio.to_thread(contained, work, *arguments, **named)


async def in_own_thread(work: Callable[..., T], /, *arguments: Any) -> T:
    """The same on a thread that is made for it and ends with it, some 0.1 ms: for what must not
    wait behind whatever else is done beside the loop, of which callers can make any amount."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(contained(work, *arguments))
        except Exception as error:
            outcome.set_exception(error)

    # The process ends without it, should what it reads never answer.
    thread = threading.Thread(target=run, name="barrage-own", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # The system has no thread left.
        return await in_thread(work, *arguments)
    return await asyncio.wrap_future(outcome)


def contained(work: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
    """Do ``work``; WorkerDiedError instead of what only an end of the process is meant to raise."""
    try:
        return work(*arguments, **named)
    except Exception:
        raise
    except BaseException as error:
        raise _died(threading.current_thread().name, error) from error


# --- deaths ---------------------------------------------------------------------------------------


def _bury(role: Role, error: BaseException, on_death: OnDeath) -> None:
    died = _died(role.name, error)
    try:
        on_death(died)
    except BaseException:
        # Memory may be short; whatever it is, it is told if that can be done at all.
        with contextlib.suppress(BaseException):
            log.exception("what depends on %s could not be told that it has died", role.name)


def _died(name: str, error: BaseException) -> WorkerDiedError:
    died_id = uuid.uuid4().hex[:12]
    with contextlib.suppress(BaseException):
        log.error("%s has died (id %s)", name, died_id, exc_info=error)
    return WorkerDiedError(name, f"details are logged with id {died_id}")
