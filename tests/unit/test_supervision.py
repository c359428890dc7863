"""No thread and no long-lived task ends in silence."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future

import pytest

from barrage.errors import BarrageError, StatusCode, WorkerDiedError
from barrage.supervision import (
    Role,
    WorkerPool,
    in_own_thread,
    in_thread,
    living,
    roles,
    start_awaited,
    start_task,
    start_thread,
)

HANG_SECONDS = 180
FATAL = [KeyError("x"), MemoryError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()]


@pytest.fixture
def role(request):
    return roles().get("test") or Role("test", "nothing")


def raising(error: BaseException):
    def work(*_):
        raise error

    return work


@pytest.mark.parametrize("error", FATAL, ids=lambda error: type(error).__name__)
def test_whoever_depends_on_a_thread_is_told_how_it_died(role, caplog, error):
    told: Future[WorkerDiedError] = Future()
    start_thread(role, raising(error), on_death=told.set_result).join(HANG_SECONDS)
    died = told.result(0)
    assert isinstance(died, BarrageError)
    assert died.status_code is StatusCode.UNAVAILABLE
    assert died.worker == "test"
    assert f"in {raising.__name__}" not in str(died), "no internals"
    [record] = caplog.records
    assert record.exc_info[1] is error
    assert str(died).split()[-1] in record.getMessage()


def test_a_thread_that_is_done_has_not_died(role):
    told: list[WorkerDiedError] = []
    start_thread(role, int, on_death=told.append).join(HANG_SECONDS)
    assert told == []


def test_a_failure_to_tell_is_logged(role, caplog):
    start_thread(role, raising(KeyError("a")), on_death=lambda _: 1 // 0).join(HANG_SECONDS)
    assert "ZeroDivisionError" in caplog.text
    assert "KeyError" in caplog.text


def test_a_system_without_threads_is_told_as_such(role, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    with pytest.raises(WorkerDiedError, match="could not be started"):
        start_thread(role, int, on_death=print)


async def _raise(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), SystemExit(3)], ids=repr)
def test_whoever_depends_on_a_task_is_told_how_it_died(role, caplog, error):
    told: list[WorkerDiedError] = []

    async def scene():
        task = start_task(role, _raise(error), on_death=told.append)
        await asyncio.wait([task])
        assert await task is None

    asyncio.run(scene())
    [died] = told
    assert died.worker == "test"
    [record] = caplog.records
    assert record.exc_info[1] is error


def test_an_interrupt_is_told_and_still_ends_the_loop(role, caplog):
    told: list[WorkerDiedError] = []

    async def scene():
        await asyncio.wait([start_task(role, _raise(KeyboardInterrupt()), on_death=told.append)])

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scene())
    assert len(told) == 1


def test_a_task_ended_by_its_owner_has_not_died(role):
    told: list[WorkerDiedError] = []

    async def scene():
        task = start_task(role, asyncio.sleep(3600), on_death=told.append)
        await asyncio.sleep(0)
        assert (role, task) in living()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert (role, task) not in living()

    asyncio.run(scene())
    assert told == []


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_task_ended_before_it_began_leaves_nothing_that_was_never_awaited(role, is_awaited):
    async def scene():
        work = asyncio.sleep(3600)
        task = start_awaited(work) if is_awaited else start_task(role, work, on_death=print)
        task.cancel()
        await asyncio.wait([task])

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(scene())
        gc.collect()
    assert told == []


def test_a_task_that_waited_for_something_cancelled_has_died(role):
    """Its owner has not ended it and would wait for ever."""
    told: list[WorkerDiedError] = []

    async def scene():
        future = asyncio.get_running_loop().create_future()

        async def work():
            await future

        task = start_task(role, work(), on_death=told.append)
        await asyncio.sleep(0)
        future.cancel()
        await asyncio.wait([task])

    asyncio.run(scene())
    assert len(told) == 1


def test_an_awaited_task_raises_to_who_awaits_it_and_never_ends_the_loop():
    async def scene():
        with pytest.raises(WorkerDiedError):
            await start_awaited(_raise(SystemExit()))
        with pytest.raises(KeyError):
            await start_awaited(_raise(KeyError()))
        unwatched = start_awaited(_raise(KeyError()))
        await asyncio.wait([unwatched])

    asyncio.run(scene())


def test_work_on_other_threads_never_ends_the_loop_that_awaits_it():
    async def scene():
        with WorkerPool(1) as pool:
            loop = asyncio.get_running_loop()
            for error in (SystemExit(), KeyboardInterrupt()):
                with pytest.raises(WorkerDiedError):
                    await loop.run_in_executor(pool, raising(error))
            assert await loop.run_in_executor(pool, int) == 0
        for elsewhere in (in_thread, in_own_thread):
            with pytest.raises(WorkerDiedError):
                await elsewhere(raising(SystemExit()))
            with pytest.raises(KeyError):
                await elsewhere(raising(KeyError()))

    asyncio.run(scene())


def test_work_on_its_own_thread_waits_behind_nothing(monkeypatch):
    async def scene():
        loop, is_over = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(WorkerPool(1))
        holding = asyncio.create_task(in_thread(is_over.wait, 60))
        await asyncio.sleep(0)
        try:
            assert await asyncio.wait_for(in_own_thread(max, 1, 2), 30) == 2
            assert not holding.done()
        finally:
            is_over.set()
        await holding
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            assert await in_own_thread(max, 1, 3) == 3

    asyncio.run(scene())


def test_a_process_ends_though_work_on_its_own_thread_does_not():
    program = (
        "import asyncio, time; from barrage.supervision import in_own_thread\n"
        "async def scene():\n"
        "    waiting = asyncio.create_task(in_own_thread(time.sleep, 3600))\n"
        "    await asyncio.sleep(0.01)\n"
        "    waiting.cancel()\n"
        "asyncio.run(scene())\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, b"")


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_two_roles_never_have_one_name(role):
    with pytest.raises(ValueError, match="another role"):
        Role("test", "something else")
