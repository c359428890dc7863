"""An event loop that runs ready tasks in a random order which a seed repeats, in virtual time.

What asyncio promises is kept: plain callbacks (``call_soon``, callbacks of futures, what other
threads post) run in the order in which they were scheduled, timers not before their time. What it
does not promise is drawn: which of the ready *tasks* goes on, how many callbacks run before it
does, and how long it takes (a task whose turn it is may be put off for some virtual milliseconds).
So a cancellation, a timeout or another task's change gets in between wherever code awaits.

There are no sockets. Time stands still while anything can run and then jumps to the next timer;
nobody waits for real. When nothing can run and no timer is set, that is a :class:`DeadlockError`
which lists the tasks. Work for an executor is done on the loop, some virtual time later.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import itertools
import random
import traceback
from collections.abc import Callable, Coroutine
from io import StringIO
from typing import Any, TypeVar

from tests.interleaving.counts import COUNTS
from tests.interleaving.failures import DeadlockError, HangError

T = TypeVar("T")

STEPS_MAX = 500_000
STEP_SECONDS = 1e-6
"""What a step takes, so that loops with a deadline come to it."""

DELAY_SECONDS_MAX = 0.02


class SeededLoop(asyncio.BaseEventLoop):
    """See above. ``loop.now`` is its virtual time in seconds; ``loop.random`` may be drawn from."""

    def __init__(self, seed: int | random.Random, *, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self.random = seed if isinstance(seed, random.Random) else random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self.switches = 0
        self.steps_max = steps_max
        # Some runs hardly put anything off, some nearly everything.
        self.delay_chance = self.random.choice((0.0, 0.02, 0.1, 0.3))
        self._delayed: list[tuple[float, int, asyncio.Handle]] = []
        self._numbers = itertools.count()
        self._executor_calls = 0

    def time(self) -> float:
        return self.now

    # --- one step -------------------------------------------------------------------------------

    def _run_once(self) -> None:
        self.steps += 1
        if self.steps > self.steps_max:
            # What ends the loop now needs some steps itself.
            self.steps = 0
            raise HangError(f"{self.steps_max} steps have not been enough\n{self.describe()}")
        self._wake_due()
        if not self._ready:
            self._idle(self._next_time())
            self._wake_due()
            if not self._ready:
                return
        handle = self._take_ready()
        if handle.cancelled():
            return
        if _is_task_step(handle) and self.random.random() < self.delay_chance:
            until = self.time() + self.random.random() * DELAY_SECONDS_MAX
            self.switches += 1
            heapq.heappush(self._delayed, (until, next(self._numbers), handle))
            return
        self._pass_step()
        handle._run()

    def _pass_step(self) -> None:
        self.now += STEP_SECONDS

    def _take_ready(self) -> asyncio.Handle:
        """A task's step from anywhere among those that are ready, or the first plain callback."""
        places = [place for place, handle in enumerate(self._ready) if _is_task_step(handle)]
        plain = next(
            (place for place, handle in enumerate(self._ready) if not _is_task_step(handle)), None
        )
        if plain is not None:
            places.append(plain)
        place = self.random.choice(places)
        handle: asyncio.Handle = self._ready[place]
        del self._ready[place]
        return handle

    def _wake_due(self) -> None:
        now = self.time()
        while self._scheduled and (
            self._scheduled[0]._cancelled or self._scheduled[0].when() <= now
        ):
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False
            if timer.cancelled():
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(timer)
        while self._delayed and self._delayed[0][0] <= now:
            # The task is due again and may be put off again.
            self._ready.append(heapq.heappop(self._delayed)[2])

    def _next_time(self) -> float | None:
        times = [self._scheduled[0].when()] if self._scheduled else []
        if self._delayed:
            times.append(self._delayed[0][0])
        return min(times, default=None)

    def _idle(self, until: float | None) -> None:
        """Nothing can run before ``until``."""
        if until is None:
            raise DeadlockError(f"nothing can run and no timer is set\n{self.describe()}")
        self.now = max(self.now, until)

    # --- what a loop has --------------------------------------------------------------------------

    def _process_events(self, event_list: object) -> None:
        raise AssertionError("this loop has no selector")

    def _write_to_self(self) -> None:
        """Another thread has posted a callback; see seeded_threads.py."""

    def run_in_executor(
        self, executor: object, func: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        """On this loop, after some time: an executor's thread without a thread."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.random.random() * DELAY_SECONDS_MAX, work)
        return future

    def describe(self) -> str:
        """The tasks that are not done, with their stacks."""
        told = StringIO()
        try:
            tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        except RuntimeError:
            return ""
        for task in tasks:
            task.print_stack(file=told)
        return told.getvalue()


def _is_task_step(handle: asyncio.Handle) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def run_seeded(
    main: Callable[[], Coroutine[Any, Any, T]],
    seed: int,
    *,
    steps_max: int = STEPS_MAX,
    leaves_tasks: bool = False,
) -> T:
    """``asyncio.run(main())`` on a loop of this seed. Fails for a deadlock, for what reaches the
    loop's exception handler, and for tasks that are left over."""
    loop = SeededLoop(seed, steps_max=steps_max)
    stray: list[str] = []

    def note(_: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
        error = facts.get("exception")
        detail = "".join(traceback.format_exception(error)) if error is not None else ""
        stray.append(f"{facts['message']} {detail}")

    loop.set_exception_handler(note)

    async def whole() -> T:
        result = await main()
        if not leaves_tasks:
            # What was cancelled last may still have to notice.
            for _ in range(100):
                left = asyncio.all_tasks() - {asyncio.current_task()}
                if not left:
                    break
                await asyncio.sleep(0.05)
            assert not left, f"tasks are left: {left}"
        return result

    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            result = runner.run(whole(), context=contextvars.copy_context())
    finally:
        COUNTS.add(loop.steps, loop.switches)
        if gc_was_enabled:
            gc.enable()
    assert not stray, stray
    return result
