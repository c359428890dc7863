"""Bodies given back: from any thread, in batches, and when nobody is there any more."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref

from barrage.client.bodies.body_releases import ReleasedBodies
from barrage.errors import ConnectionLostError
from barrage.proto.release_batch import WAIT_NS
from barrage.wire.dissociated.lending import Window
from barrage.wire.dissociated.ranges import decode_addresses
from barrage.wire.flight_data import decode_flight_data
from tests.unit.client.scripted import run, until


class Loans:
    """Loans of 8 bytes; what was written."""

    def __init__(self):
        self.frames: list[bytes] = []
        self.failure: Exception | None = None

    async def write(self, frame):
        if self.failure is not None:
            raise self.failure
        self.frames.append(frame)

    def made(self):
        return ReleasedBodies(
            self.write, window=Window(2 << 20, 256), on_back=lambda loan: (loan, 8)
        )

    @property
    def told(self):
        return [
            number
            for frame in self.frames
            for number in decode_addresses(decode_flight_data(frame).released)
        ]


def test_bodies_are_given_back_from_any_thread():
    async def test():
        loans = Loans()
        bodies = loans.made()
        threads = [
            threading.Thread(
                target=lambda n=n: [bodies.give_back(n * 1000 + i) for i in range(500)]
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        await until_told(loans, 2000)
        for thread in threads:
            thread.join()
        assert sorted(loans.told) == sorted(n * 1000 + i for n in range(4) for i in range(500))
        assert len(loans.frames) <= 2000 // 16 + 1
        bodies.close()

    run(test)


def give_back_500(bodies, first):
    for loan in range(first, first + 500):
        bodies.give_back(loan)


async def until_told(loans, count):
    await until(lambda: len(loans.told) >= count)
    assert len(loans.told) == count


def test_bodies_are_given_back_after_the_loop_is_closed():
    loans = Loans()

    async def make():
        return loans.made()

    bodies = asyncio.run(make())
    for loan in range(3):
        bodies.give_back(loan)
    assert loans.frames == []


def test_what_comes_back_after_the_stream_is_counted_and_not_told():
    async def test():
        loans = Loans()
        back = []
        bodies = ReleasedBodies(
            loans.write,
            window=Window(2, 256),
            on_back=lambda loan: (back.append(loan), (loan, 8))[1],
        )
        bodies.release(1, 8)
        await until_told(loans, 1)
        bodies.close()
        bodies.give_back(2)
        await until(lambda: back == [2])
        await asyncio.sleep(0.03)
        assert loans.told == [1]

    run(test)


def test_a_stream_that_ended_is_not_told_again():
    async def test():
        loans = Loans()
        loans.failure = ConnectionLostError("gone")
        bodies = loans.made()
        for loan in range(40):
            bodies.release(loan, 8)
        await asyncio.sleep(0.03)
        loans.failure = None
        bodies.release(99, 8)
        await asyncio.sleep(0.03)
        assert loans.frames == []

    run(test)


def test_few_numbers_wait_once_for_others(monkeypatch):
    async def test():
        loans = Loans()
        bodies = loans.made()
        loop = asyncio.get_running_loop()
        delays = []
        call_later = loop.call_later

        def counted(delay, *arguments):
            delays.append(delay)
            return call_later(delay, *arguments)

        monkeypatch.setattr(loop, "call_later", counted)
        for number in range(3):
            bodies.release(number, 8)
        assert delays == [WAIT_NS / 1e9]
        monkeypatch.undo()
        assert loans.told == []
        await until_told(loans, 3)
        assert len(loans.frames) == 1

    run(test)


def test_many_bytes_are_told_at_once():
    async def test():
        loans = Loans()
        bodies = loans.made()
        bodies.release(1, 1 << 20)
        await until(lambda: loans.told == [1])
        bodies.release(2, 8)
        await bodies.finish()
        await asyncio.sleep(0.03)
        assert loans.told == [1]

    run(test)


class SlowLoans(Loans):
    """Writing takes until ``may_write`` is set."""

    def __init__(self):
        super().__init__()
        self.may_write = asyncio.Event()
        self.was_cancelled = False

    async def write(self, frame):
        try:
            await self.may_write.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        await super().write(frame)


def test_the_end_of_writing_waits_for_what_is_being_written():
    async def test():
        loans = SlowLoans()
        bodies = loans.made()
        bodies.release(1, 1 << 20)
        await asyncio.sleep(0.01)
        bodies.release(2, 1 << 20)
        finishing = asyncio.get_running_loop().create_task(bodies.finish())
        await asyncio.sleep(0.01)
        assert not finishing.done()
        bodies.release(3, 1 << 20)
        loans.may_write.set()
        await finishing
        await asyncio.sleep(0.03)
        assert loans.told == [1]

    run(test)


def test_two_messages_are_never_written_at_once():
    async def test():
        loans = SlowLoans()
        bodies = loans.made()
        for number in (1, 2, 3):
            bodies.release(number, 1 << 20)
            await asyncio.sleep(0.01)
        loans.may_write.set()
        await until_told(loans, 3)
        assert [decode_addresses(decode_flight_data(each).released) for each in loans.frames] == [
            (1,), (2, 3),
        ]  # fmt: skip
        bodies.close()

    run(test)


def test_the_end_of_the_stream_ends_what_is_being_written():
    async def test():
        loans = SlowLoans()
        bodies = loans.made()
        bodies.release(1, 1 << 20)
        await asyncio.sleep(0.01)
        bodies.close()
        await until(lambda: loans.was_cancelled)
        assert loans.frames == []

    run(test)


def test_what_is_lent_keeps_nothing_of_the_stream():
    async def test():
        loans = Loans()
        bodies = loans.made()
        stream = weakref.ref(loans)
        bodies.close()
        del loans
        gc.collect()
        assert stream() is None

    run(test)


def test_a_forked_child_gives_nothing_back():
    async def test():
        loans = Loans()
        bodies = loans.made()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            bodies.give_back(1)
            os.write(writing, b"n" if not bodies._back else b"y")
            os._exit(0)
        assert os.read(reading, 1) == b"n"
        os.waitpid(child, 0)  # noqa: ASYNC222
        os.close(reading)
        os.close(writing)
        await asyncio.sleep(0.03)
        assert loans.frames == []

    run(test)
