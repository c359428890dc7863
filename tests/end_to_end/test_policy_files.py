"""The policy stands in a file: what is read of it, and when."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

import barrage
from barrage import Policy
from barrage.errors import ConfigError
from barrage.server import ServerConfig
from barrage.server.identity import password_way
from barrage.server.identity.users_file import changing_users
from barrage.server.policy import policy_watch
from barrage.server.policy.policy_file import read_policy_and_files
from barrage.server.policy.policy_watch import PolicyWatch
from barrage.server.statistics import caller_statistics
from tests.helpers.alert_receiver import HANG_SECONDS
from tests.helpers.server_process import wait_until
from tests.helpers.users import users_file

READS = '[[rule]]\ntables = ["t"]\nallow = ["read"]\n'


def test_rules_stand_in_a_file_or_in_the_program(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    config = ServerConfig(policy=str(path))
    with (
        barrage.Server("inproc://", config=config) as server,
        pytest.raises(ConfigError, match="stands in"),
    ):
        server.set_policy(Policy(()))
    with pytest.raises(ConfigError, match="two policies"):
        barrage.Server("inproc://", config=config, policy=Policy(())).start()


@pytest.mark.parametrize(
    "broken",
    ["[[rule]", READS + "rows = 'a >'", READS + "hide = 3", "hash_key_file = 'none'", "\xff", None],
)
def test_a_file_that_cannot_be_read_changes_nothing(
    tmp_path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(READS)
    ended: list[object] = []

    async def scene() -> None:
        watch = PolicyWatch(path, None)
        watch.on_change(lambda is_meant, error: ended.append((is_meant, error)))
        policy = watch.gate.policy
        if broken is None:
            path.unlink()
        else:
            path.write_bytes(broken.encode("latin-1"))
        await watch.refresh()
        await watch.refresh()
        assert watch.gate.policy is policy
        assert not ended
        path.write_text(READS * 2)
        await watch.refresh()
        assert watch.gate.policy != policy
        assert len(ended) == 1

    asyncio.run(scene())
    assert sum("stays as it was" in line for line in caplog.messages) == 1


def test_half_of_a_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule whose condition is still to be written allows more than the whole one."""
    path = tmp_path / "policy.toml"
    path.write_text(READS)
    text = READS + "rows = 'a > 0'\n"
    left = iter(text)

    async def scene() -> None:
        watch = PolicyWatch(path, None)
        policy = watch.gate.policy
        with path.open("w") as file:

            async def rest(_: float) -> None:
                file.write(next(left, ""))
                file.flush()

            monkeypatch.setattr(policy_watch.asyncio, "sleep", rest)
            for _ in text:
                await watch.refresh()
                assert watch.gate.policy is policy
            await watch.refresh()
        assert watch.gate.policy is not None
        assert watch.gate.policy.rules[0].rows is not None

    asyncio.run(scene())


def test_a_file_that_is_written_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(READS)

    async def scene() -> None:
        watch = PolicyWatch(path, None)
        policy = watch.gate.policy
        path.write_text(READS * 2)

        def read_too_early(path: Path) -> tuple[Policy, tuple[Path, ...]]:
            read = read_policy_and_files(path)
            path.write_text(READS * 3)
            return read

        with monkeypatch.context() as patched:
            patched.setattr(policy_watch, "read_policy_and_files", read_too_early)
            await watch.refresh()
        assert watch.gate.policy is policy
        await watch.refresh()
        assert watch.gate.policy is not None
        assert len(watch.gate.policy.rules) == 3

    asyncio.run(scene())


def test_a_key_file_may_come_later_than_the_rules_that_name_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, key = tmp_path / "policy.toml", tmp_path / "mask.key"
    path.write_text(READS)

    async def scene() -> None:
        watch = PolicyWatch(path, None)
        policy = watch.gate.policy
        path.write_text("hash_key_file = 'mask.key'\n" + READS)
        for _ in range(3):
            await watch.refresh()
            assert watch.gate.policy is policy
        key.write_text("11" * 16)
        await watch.refresh()
        assert watch.gate.policy is not None
        assert watch.gate.policy.hash_key == b"\x11" * 16

    asyncio.run(scene())
    assert sum("stays as it was" in line for line in caplog.messages) == 1


def test_another_key_of_hashes_is_noticed(tmp_path: Path) -> None:
    path, key = tmp_path / "policy.toml", tmp_path / "mask.key"
    path.write_text("hash_key_file = 'mask.key'\n" + READS)
    key.write_text("00" * 16)

    async def scene() -> None:
        watch = PolicyWatch(path, None)
        key.write_text("11" * 16 + "\n")
        await watch.refresh()
        assert watch.gate.policy is not None
        assert watch.gate.policy.hash_key == b"\x11" * 16

    asyncio.run(scene())


def test_users_and_rules_change_while_all_threads_are_busy(tmp_path: Path) -> None:
    """As they are with what many callers ask for."""
    rules, users = tmp_path / "policy.toml", users_file(tmp_path / "users.jsonl")
    rules.write_text(READS)
    config = ServerConfig(policy=str(rules), users=str(users))
    is_over = threading.Event()
    with barrage.Server("inproc://", config=config) as server:
        loop = server._loop
        assert loop is not None

        async def hold() -> None:
            for _ in range(100):
                loop.run_in_executor(None, is_over.wait, HANG_SECONDS)

        try:
            asyncio.run_coroutine_threadsafe(hold(), loop).result(HANG_SECONDS)
            with changing_users(users) as known:
                known.clear()
            way = server._app._authenticator._users
            wait_until(lambda: not way.users)
            rules.write_text("")
            wait_until(lambda: server._app._gate.policy == Policy(()))
        finally:
            is_over.set()


def test_rules_change_while_the_statistics_of_callers_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do for an engine that is busy."""
    asked = threading.Event()

    async def show(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(caller_statistics, "INTERVAL_S", 0.01)
    monkeypatch.setattr(caller_statistics.StatisticsTable, "show", show)
    path = tmp_path / "policy.toml"
    path.write_text(READS)
    config = ServerConfig(policy=str(path), token="secret")
    with barrage.Server("inproc://", config=config) as server:
        assert asked.wait(HANG_SECONDS)
        path.write_text(READS * 2)
        gate = server._app._policy.gate
        wait_until(lambda: len(gate.policy.rules) == 2, HANG_SECONDS)


@pytest.mark.parametrize("stuck", ["users", "rules"])
def test_a_disk_that_does_not_answer_keeps_only_what_lies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: str
) -> None:
    rules, users = tmp_path / "policy.toml", users_file(tmp_path / "users.jsonl")
    rules.write_text(READS)
    config = ServerConfig(policy=str(rules), users=str(users), session_lifetime_ms=1_000)
    is_asked, is_over = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        is_asked.set()
        is_over.wait(HANG_SECONDS)

    with barrage.Server("inproc://", config=config) as server:
        try:
            module = password_way if stuck == "users" else policy_watch
            monkeypatch.setattr(module, "stamp_of", hang)
            assert is_asked.wait(HANG_SECONDS)
            if stuck == "users":
                rules.write_text("")
                wait_until(lambda: server._app._gate.policy == Policy(()))
            else:
                with changing_users(users) as known:
                    known.clear()
                way = server._app._authenticator._users
                wait_until(lambda: not way.users)
            swept = threading.Event()
            monkeypatch.setattr(server._app.sessions, "sweep", swept.set)
            assert swept.wait(HANG_SECONDS)
        finally:
            is_over.set()


def test_a_pipe_that_takes_the_place_of_a_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(READS)

    async def scene() -> None:
        watch = PolicyWatch(path, None)
        policy = watch.gate.policy
        path.unlink()
        os.mkfifo(path)
        await watch.refresh()
        assert watch.gate.policy is policy
        path.unlink()
        path.write_text(READS * 2)
        await watch.refresh()
        assert watch.gate.policy is not None
        assert len(watch.gate.policy.rules) == 2

    asyncio.run(scene())
