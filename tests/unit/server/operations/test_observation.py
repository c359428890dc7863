"""An observer that fails is told no more, and the engine goes on."""

from __future__ import annotations

import barrage
from barrage.server.runtime.observation import Observation


class Faulty:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str):
        def fail(*_arguments: object, **_named: object) -> None:
            self.asked.append(name)
            raise KeyError(name)

        return fail


def test_an_observer_that_fails_takes_nothing_with_it(caplog):
    with barrage.Server("inproc://") as server:
        table = server.create_table("t", {"a": "int64"}, key="a")
        observation = server._parts.runtime.observation
        for _ in range(2):
            faulty = Faulty()
            observation.add(faulty)
            table.upsert({"a": [1]})
            assert faulty.asked == ["write_begins"]
            assert observation.observer is None
        assert "told no more" in caplog.text


def test_several_are_told_and_may_go():
    observation, told = Observation(), []

    class Teller(Faulty):
        def __init__(self, name: str) -> None:
            self.name = name

        def write_begins(self) -> str | None:
            told.append(self.name)
            return self.name if self.name == "b" else None

    one, other = Teller("a"), Teller("b")
    observation.add(one)
    observation.add(other)
    observation.add(one)
    assert observation.observer is not None
    assert observation.observer.write_begins() == "b"
    assert sorted(told) == ["a", "b"]
    observation.remove(one)
    observation.remove(one)
    observation.remove(other)
    assert observation.observer is None
