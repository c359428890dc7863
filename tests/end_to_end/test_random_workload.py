"""Whatever is written and however readers come, go and dawdle: whenever the writers pause, every
subscriber holds exactly the rows the server holds."""

from __future__ import annotations

import random
import threading

import pytest

import barrage
from barrage.client import BodyStats
from barrage.server.settings.config import ServerConfig
from tests.end_to_end.random_subscribers import Subscriber
from tests.end_to_end.random_tables import World
from tests.helpers.server_process import wait_until
from tests.helpers.serving import HOST


def run(
    seed: int,
    *,
    revision: str,
    rounds: int,
    subscribers: int,
    changes: int,
    config: ServerConfig | None = None,
    bodies: str = "auto",
) -> list[BodyStats]:
    """What came by which way, per subscriber that was there at the end."""
    rng = random.Random(seed)
    with (
        barrage.Server(HOST, config=config) as server,
        barrage.connect(server.uri, revision=revision, bodies=bodies) as session,
    ):
        world = World(server, seed)

        def newcomer() -> Subscriber:
            return Subscriber(rng, world, session, can_reverse=revision != "2020")

        present = [newcomer() for _ in range(subscribers)]
        for number in range(rounds):
            write_while(world, seed * 1000 + number, changes, lambda: rng.choice(present).act())
            for subscriber in present:
                subscriber.check()
            present.pop(rng.randrange(len(present))).close()
            present.append(newcomer())
        stats = [subscriber.live.stats.bodies for subscriber in present]
        for subscriber in present:
            subscriber.close()
        wait_until(lambda: server.stream_count == 0)
        return stats


def write_while(world: World, seed: int, changes: int, act) -> None:
    """Let every writer make ``changes`` changes in a thread of its own; meanwhile ``act``."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        try:
            for _ in range(changes):
                world.writers[number](rng)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(world.writers))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        act()
        threads[0].join(0.01)
    assert not failures, failures


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("seed", "revision"), [(1, "1.0.0"), (3, "2020")])
def test_every_subscriber_holds_the_rows_of_the_server(seed, revision):
    run(seed, revision=revision, rounds=3, subscribers=12, changes=15)


@pytest.mark.slow
@pytest.mark.parametrize("revision", ["1.0.0", "2020"])
@pytest.mark.parametrize("seed", [2, *range(100, 106)])
def test_every_subscriber_holds_the_rows_of_the_server_for_long(seed, revision):
    run(seed, revision=revision, rounds=12, subscribers=20, changes=40)
