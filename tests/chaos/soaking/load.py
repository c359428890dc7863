"""The clients of a soak: ``python -m tests.chaos.soaking.load ADDRESS``, until its stdin ends.

Writers, subscriptions that come and go, viewports that move, readers that stop reading, floods of
streams that are reset as soon as they are opened, one-shot reads and staged commits. Every piece of
work rests between its turns, so that all of them together need a fraction of a core. What goes
wrong is printed as a line; the counts of what was done are the last line.

To find what makes something grow, ``--only write_ring,reset`` leaves some kinds of work, and
``--haste 10`` makes every pause a tenth.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pyarrow as pa

import barrage
from barrage.client import Session
from tests.helpers.journal_client import JournalClient
from tests.helpers.server_process import RawExchange, raw_channel, subscription_request

KEYS = 4000
RING_ROWS = 20_000
BOOK = pa.schema({"k": pa.int64(), "v": pa.int64(), "text": pa.string()})
TICKS = pa.schema({"k": pa.int64(), "n": pa.int64(), "price": pa.float64()})
FLOOD_STREAMS = 1500
FLOOD_EVERY = 20
"""Turns of the flood's worker between two floods; the others open a few streams and end them."""
RECREATED_EVERY = 60
"""Appends after which the table that only grows is dropped and made anew."""
STAGED_ROWS = 500


class Load:
    """Workers, each with a thread and a chance of its own."""

    def __init__(self, address: str, *, only: str, haste: float) -> None:
        self.address = address
        self.only = only.split(",") if only else ()
        self.haste = haste
        self.is_over = threading.Event()
        self.done: collections.Counter[str] = collections.Counter()
        self.session = barrage.connect(address)
        self.session.create_table("book", BOOK, key=["k"])
        self.session.create_table("ring", TICKS, kind="ring", capacity=RING_ROWS)
        self.session.create_table("ticks", TICKS)
        self.session.create_table(
            "names", pa.schema({"k": pa.int64(), "name": pa.string()}), key="k"
        )
        names = {"k": list(range(KEYS)), "name": [f"name {n}" for n in range(KEYS)]}
        self.session.put("names", pa.table(names), mode="upsert")

    def run(self) -> None:
        workers = [
            (self.write_book, 0.25),
            (self.write_ring, 0.25),
            (self.write_ticks, 0.5),
            (self.watch_all, 0.5),
            (self.watch_query, 0.5),
            (self.watch_window, 0.5),
            (self.stall, 0.5),
            (self.reset, 0.5),
            (self.fetch, 2.0),
            (self.stage, 2.0),
        ]
        threads = [
            threading.Thread(target=self._work, args=(work, rest, random.Random(n)), daemon=True)
            for n, (work, rest) in enumerate(workers)
            if not self.only or work.__name__ in self.only
        ]
        for thread in threads:
            thread.start()
        for _ in sys.stdin:
            pass
        self.is_over.set()
        for thread in threads:
            thread.join(60)
        hung = [thread.name for thread in threads if thread.is_alive()]
        for name in hung:
            self.complain(f"{name} hangs")
        print(json.dumps({"done": dict(self.done)}), flush=True)

    def _work(
        self, work: Callable[[Session, random.Random], None], rest: float, chance: random.Random
    ) -> None:
        name = work.__name__
        threading.current_thread().name = name
        with barrage.connect(self.address) as session:
            while not self._rests(rest * chance.uniform(0.5, 1.5)):
                try:
                    work(session, chance)
                    self.done[name] += 1
                except Exception as error:
                    if not self.is_over.is_set():
                        self.complain(f"{name}: {type(error).__name__}: {error}")

    def _rests(self, seconds: float) -> bool:
        """Pause; whether that was the end."""
        return self.is_over.wait(seconds / self.haste)

    def complain(self, problem: str) -> None:
        self.done["problems"] += 1
        if self.done["problems"] < 100:
            print(json.dumps({"problem": problem}), flush=True)

    # --- writers ----------------------------------------------------------------------------------

    def write_book(self, session: Session, chance: random.Random) -> None:
        """Change rows among a bounded number of keys, through a writer that lives for a while."""
        with session.writer("book", producer=f"book-{chance.getrandbits(3)}", key="k") as writer:
            for _ in range(20):
                keys = chance.sample(range(KEYS), 40)
                texts = ["x" * (key % 50) for key in keys]
                writer.write(
                    pa.table({"k": keys, "v": [chance.getrandbits(30)] * 40, "text": texts}, BOOK)
                )
                if self._rests(0.1):
                    return

    def write_ring(self, session: Session, chance: random.Random) -> None:
        session.put("ring", self._ticks(chance, 100))

    def write_ticks(self, session: Session, chance: random.Random) -> None:
        """Append, and begin anew before the table gets large."""
        session.put("ticks", self._ticks(chance, 200))
        if self.done["write_ticks"] % RECREATED_EVERY == RECREATED_EVERY - 1:
            session.drop_table("ticks")
            session.create_table("ticks", TICKS)

    @staticmethod
    def _ticks(chance: random.Random, count: int) -> pa.Table:
        keys = [chance.randrange(KEYS) for _ in range(count)]
        prices = [chance.random() for _ in range(count)]
        return pa.table({"k": keys, "n": list(range(count)), "price": prices}, TICKS)

    # --- readers ----------------------------------------------------------------------------------

    def watch_all(self, session: Session, chance: random.Random) -> None:
        """A full subscription for a few seconds."""
        with session.table(chance.choice(("book", "ring", "names"))).subscribe(
            interval_ms=100
        ) as t:
            t.wait_ready(60)
            self._rests(chance.uniform(0.5, 5))
            t.to_arrow()

    def watch_query(self, session: Session, chance: random.Random) -> None:
        """A filtered, sorted or joined table."""
        book, ring = session.table("book"), session.table("ring")
        query = chance.choice(
            (
                ring.where(f"k < {chance.randrange(1, KEYS)}"),
                book.sort("v"),
                ring.natural_join(session.table("names"), ["k"], ["name"]),
                book.where("v > 1000").sort("-v").head(100),
            )
        )
        with query.subscribe(interval_ms=100) as table:
            table.wait_ready(60)
            self._rests(chance.uniform(0.5, 4))

    def watch_window(self, session: Session, chance: random.Random) -> None:
        """A viewport that moves."""
        table = session.table(chance.choice(("book", "ring"))).sort("-k")
        with table.subscribe(viewport=range(50), interval_ms=50) as window:
            window.wait_ready(60)
            for _ in range(10):
                start = chance.randrange(KEYS)
                window.set_viewport(range(start, start + chance.randrange(1, 200)))
                if self._rests(0.2):
                    return

    def stall(self, session: Session, chance: random.Random) -> None:
        """Subscribe, read one update, then nothing for a while, then some."""
        with raw_channel(self.address) as channel, RawExchange(channel) as exchange:
            exchange.send(subscription_request(chance.choice(("book", "ring")), interval_ms=20))
            exchange.read_update()
            self._rests(chance.uniform(1, 6))
            exchange.read_update()

    def reset(self, session: Session, chance: random.Random) -> None:
        """Streams that end as soon as they have begun; every now and then a flood of them."""
        is_flood = self.done["reset"] % FLOOD_EVERY == FLOOD_EVERY - 1
        request = subscription_request("ring", viewport=None)
        with raw_channel(self.address) as channel, ExitStack() as stack:
            for number in range(FLOOD_STREAMS if is_flood else 20):
                exchange = stack.enter_context(RawExchange(channel))
                exchange.send(request)
                exchange.close()
                self.done["streams reset"] += 1
                if number % 50 == 49 and self._rests(0.02):
                    return

    def fetch(self, session: Session, chance: random.Random) -> None:
        session.table(chance.choice(("book", "ring", "names"))).snapshot(timeout=60)

    def stage(self, session: Session, chance: random.Random) -> None:
        """A batch of a pipeline, which replaces the one before."""
        number = self.done["stage"]
        rows = pa.table({"id": list(range(STAGED_ROWS)), "batch": [number] * STAGED_ROWS})
        with JournalClient(f"grpc://{self.address}") as client:
            staged = client.stage("staged", "job", number, rows)
            client.commit("staged", "job", number, staged, mode="upsert", create=True, key=["id"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--only", default="")
    parser.add_argument("--haste", type=float, default=1.0)
    arguments = parser.parse_args()
    Load(arguments.address, only=arguments.only, haste=arguments.haste).run()
