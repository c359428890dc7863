"""Three clients in processes of their own that read, fork, give back and are killed, at random."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from barrage.transport.shared_memory import Arena, LeaseTable
from tests.helpers.server_process import wait_until
from tests.unit.transport.shared_memory.bodies import KIB, content
from tests.unit.transport.shared_memory.peer import Process, peer

STEPS = 400


@dataclass
class Reader:
    """One client and the server's side of its stream. All it gets is the body of its seed."""

    process: Process
    leases: LeaseTable
    seed: int
    life: ExitStack
    is_forked: bool = False
    lent: list[int] = field(default_factory=list)

    def check(self) -> None:
        assert self.process.ask("read", self.seed) == "True"
        if self.is_forked:
            assert self.process.ask("tell", "read", self.seed) == "True"


class World:
    def __init__(self, arena: Arena, directory: str, draw: random.Random) -> None:
        self.arena = arena
        self.directory = directory
        self.draw = draw
        self.readers = [self.new_reader() for _ in range(3)]

    def new_reader(self) -> Reader:
        life = ExitStack()
        process = life.enter_context(peer(self.directory))
        assert process.ask("open", self.arena.name) == self.arena.proof.hex()
        leases = LeaseTable()
        return Reader(process, leases, self.draw.randrange(1 << 30), life)

    def send(self, reader: Reader) -> None:
        length = self.draw.randrange(1, 12 * KIB)
        region = self.arena.place([content(reader.seed, length)], length)
        if region is None:
            self.give_back(self.draw.choice(self.readers))
            return
        reader.leases.grant(region)
        assert reader.process.ask("borrow", region.reference().encode().hex()) == "held"
        reader.lent.append(region.address)

    def give_back(self, reader: Reader) -> None:
        reader.process.ask("drop")
        reader.leases.release(reader.lent)
        reader.lent.clear()

    def end_stream(self, reader: Reader) -> None:
        """The client goes on reading what it has."""
        reader.leases.close()
        reader.leases = LeaseTable()
        reader.lent.clear()

    def fork(self, reader: Reader) -> None:
        if reader.is_forked:
            assert reader.process.ask("wait") == "0"
        else:
            reader.process.ask("fork")
        reader.is_forked = not reader.is_forked

    def kill(self, reader: Reader) -> None:
        self.end(reader)
        self.readers[self.readers.index(reader)] = self.new_reader()

    def end(self, reader: Reader) -> None:
        reader.process.kill()
        reader.leases.close()
        reader.life.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_clients_do_they_read_what_they_were_sent(
    arena: Arena, directory: str, seed: int
) -> None:
    draw = random.Random(seed)
    world = World(arena, directory, draw)
    acts = [world.send, world.give_back, world.end_stream, world.fork, world.kill]
    try:
        for _ in range(STEPS):
            [act] = draw.choices(acts, weights=[60, 10, 5, 4, 1])
            act(draw.choice(world.readers))
            draw.choice(world.readers).check()
    finally:
        for reader in world.readers:
            world.end(reader)
    # A forked child of a killed client ends when it finds out.
    wait_until(lambda: arena.statistics().bytes_in_use == 0)
