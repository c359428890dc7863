"""The two machines themselves: what they keep, what they vary, what they find."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.interleaving import test_machines as this_module
from tests.interleaving.failures import DeadlockError, HangError
from tests.interleaving.seeded_loop import run_seeded
from tests.interleaving.seeded_threads import Threads, run_threads

SEEDS = range(40)


# --- the loop -------------------------------------------------------------------------------------


def orders(test, seeds=SEEDS):
    return {tuple(run_seeded(test, seed)) for seed in seeds}


async def _three_tasks():
    done = []

    async def one(name):
        done.append(name)

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(one(name))
    return done


def test_tasks_run_in_every_order():
    assert len(orders(_three_tasks)) == 6


def test_a_seed_is_an_order():
    assert all(run_seeded(_three_tasks, seed) == run_seeded(_three_tasks, seed) for seed in SEEDS)


def test_callbacks_keep_the_order_they_were_scheduled_in():
    async def test():
        done = []
        loop = asyncio.get_running_loop()
        for number in range(5):
            loop.call_soon(done.append, number)
        await asyncio.sleep(1)
        return done

    assert orders(test) == {(0, 1, 2, 3, 4)}


def test_time_is_virtual_and_timers_are_in_order():
    async def test():
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3600)
        assert 3600 <= loop.time() - begun < 3601
        return ()

    orders(test, range(3))


def test_a_cancellation_may_come_between_an_event_and_its_waiter():
    async def test():
        event, told = asyncio.Event(), []

        async def wait():
            try:
                await event.wait()
                told.append("woken")
            except asyncio.CancelledError:
                told.append("cancelled")

        waiter = asyncio.ensure_future(wait())
        await asyncio.sleep(1)
        event.set()
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.wait([waiter])
        return told

    assert orders(test) == {("woken",), ("cancelled",)}


def test_a_loop_on_which_nothing_can_happen_is_a_deadlock():
    async def test():
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="nothing can run"):
        run_seeded(test, 0)


def test_a_loop_that_spins_is_a_hang():
    async def test():
        for _ in range(10**9):
            await asyncio.sleep(0)

    with pytest.raises(HangError):
        run_seeded(test, 0, steps_max=10_000)


def test_what_a_callback_raises_fails_the_run():
    async def test():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run_seeded(test, 0)


def test_a_task_that_is_left_fails_the_run():
    async def test():
        asyncio.get_running_loop().kept = asyncio.ensure_future(asyncio.sleep(1e9))

    with pytest.raises(AssertionError, match="tasks are left"):
        run_seeded(test, 0)


def test_work_for_an_executor_is_done_on_the_loop():
    async def test():
        me = threading.get_ident()
        assert await asyncio.to_thread(threading.get_ident) == me
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)

    run_seeded(test, 0)


# --- threads --------------------------------------------------------------------------------------


class Counter:
    """Reads, then writes: two threads at once lose a count."""

    def __init__(self):
        self.count = 0

    def increase(self):
        before = self.count
        self.count = before + 1


def together(*works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def count_to_six(threads: Threads) -> tuple[int, str]:
    counter = Counter()
    together(*[lambda: [counter.increase() for _ in range(2)]] * 3)
    return counter.count, threads.trace_hash


def test_a_lost_update_is_found_between_the_lines_of_a_module():
    counts = {run_threads(count_to_six, seed, modules=[this_module])[0] for seed in SEEDS}
    assert 6 in counts
    assert min(counts) < 6


def test_a_seed_is_an_interleaving():
    traces = [
        [run_threads(count_to_six, seed, modules=[this_module]) for seed in range(10)]
        for _ in range(2)
    ]
    assert traces[0] == traces[1]
    assert len({trace for _, trace in traces[0]}) > 5


def test_two_locks_in_two_orders_are_a_deadlock_in_some_runs():
    def main(_):
        one, two = threading.Lock(), threading.Lock()

        def take(first, second):
            with first, second:
                pass

        together(lambda: take(one, two), lambda: take(two, one))
        return True

    ended, told = 0, []
    for seed in SEEDS:
        try:
            ended += run_threads(main, seed)
        except DeadlockError as error:
            told.append(str(error))
    assert ended
    assert told
    assert all("everybody waits" in each and "test_machines.py" in each for each in told)


def test_queues_conditions_futures_and_pools_are_of_the_world():
    def main(_):
        posted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        bounded: queue.Queue[int] = queue.Queue(1)
        answer: Future[int] = Future()
        barrier = threading.Barrier(2)

        def consume():
            total = 0
            while (number := posted.get()) is not None:
                total += number
            bounded.put(total)
            barrier.wait()
            answer.set_result(bounded.get())

        threading.Thread(target=consume).start()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(posted.put, range(5)))
        posted.put(None)
        barrier.wait()
        return answer.result(60)

    assert {run_threads(main, seed) for seed in SEEDS} == {10}


def test_the_time_of_threads_is_virtual():
    def main(_):
        begun = time.monotonic()
        woken = threading.Event()
        sleeper = threading.Thread(target=lambda: (time.sleep(3600), woken.set()))
        sleeper.start()
        assert not woken.wait(5)
        with pytest.raises(queue.Empty):
            queue.SimpleQueue().get(timeout=5)
        sleeper.join()
        assert 3600 <= time.monotonic() - begun < 3700

    for seed in range(5):
        run_threads(main, seed)


def test_a_loop_on_a_thread_is_woken_by_others():
    def main(_):
        loop = asyncio.new_event_loop()

        async def add(number):
            await asyncio.sleep(1)
            return number + await asyncio.to_thread(lambda: 1)

        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        futures = [asyncio.run_coroutine_threadsafe(add(number), loop) for number in range(3)]
        results = [future.result() for future in futures]
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        return tuple(results)

    assert {run_threads(main, seed) for seed in SEEDS} == {(1, 2, 3)}


def test_what_a_thread_raises_fails_the_run():
    def main(_):
        together(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        run_threads(main, 0)


def test_a_thread_that_is_left_waiting_fails_the_run():
    def main(_):
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    with pytest.raises(DeadlockError, match="everybody waits"):
        run_threads(main, 0)


def test_threads_that_spin_are_a_hang():
    def main(_):
        lock = threading.Lock()

        def spin():
            while True:
                with lock:
                    pass

        threading.Thread(target=spin, daemon=True).start()

    with pytest.raises(HangError):
        run_threads(main, 0, seams_max=10_000)


def test_python_has_its_threads_back_afterwards():
    before = threading.Lock, threading.RLock, queue.SimpleQueue, time.monotonic, time.sleep
    run_threads(lambda _: None, 0)
    after = threading.Lock, threading.RLock, queue.SimpleQueue, time.monotonic, time.sleep
    assert before == after


def test_a_thread_may_have_the_number_of_one_that_has_ended():
    """The system gives the numbers of finished threads again; they may still be joined."""

    def test(_):
        first = threading.Thread(target=int)
        first.start()
        first.join()
        second = threading.Thread(target=first.join)
        second.start()
        second.join()

    for seed in SEEDS:
        run_threads(test, seed)
