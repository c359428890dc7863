"""The clients of the matrix behind one interface.

``follow(table)`` starts to follow a table; the follower has ``wait_for(state)``, ``states()``,
``errors()`` and ``stop()``.
"""

from __future__ import annotations

import itertools
import json
import pathlib
import threading
from typing import Any

import pyarrow as pa

import barrage
from tests.interop.digests import Digest
from tests.interop.driven_server import HERE, DrivenServer
from tests.interop.processes import START_TIMEOUT_SECONDS, SteeredProcess, free_port
from tests.interop.recording import Shown

WAIT_SECONDS = 30.0


class SteeredClient:
    """A process with one of Deephaven's clients; it is started when first needed, and again after
    ``kill``."""

    def __init__(self, script: str, python: str, directory: pathlib.Path) -> None:
        self._command = [python, str(HERE / f"{script}.py")]
        self._name = script
        self._directory = directory
        self._process: SteeredProcess | None = None
        self._sessions: dict[Any, str] = {}
        self._numbers = itertools.count(1)

    def start(self) -> None:
        if self._process is not None:
            return
        command = list(self._command)
        is_java = self._name == "java_client"
        if is_java:
            command.append(str(free_port()))
        self._process = SteeredProcess(self._name, command, self._directory)
        if is_java:
            self._process.answer(START_TIMEOUT_SECONDS)

    def do(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.start()
        assert self._process is not None
        return self._process.ask(json.dumps({"do": command, **arguments}))

    def session(self, server: DrivenServer, *, is_new: bool = False, **options: Any) -> str:
        """The name of a session with ``server``, opened when there is none."""
        key = (server.process.pid, tuple(sorted(options.items())))
        if is_new or key not in self._sessions:
            name = f"session {next(self._numbers)}"
            self.do("connect", session=name, port=server.port, **server.login(), **options)
            if is_new:
                return name
            self._sessions[key] = name
        return self._sessions[key]

    def new_key(self, table: str) -> str:
        return f"{table} {next(self._numbers)}"

    def end_sessions(self) -> None:
        for name in self._sessions.values():
            self.do("disconnect", session=name)
        self._sessions.clear()

    def kill(self) -> None:
        """End the process at once; sessions and followers are gone."""
        if self._process is not None:
            self._process.close()
        self._process = None
        self._sessions.clear()

    close = kill


class SteeredFollower:
    """A table that a :class:`SteeredClient` follows under ``key``."""

    def __init__(self, client: SteeredClient, key: str) -> None:
        self.client = client
        self.key = key

    def wait_for(self, state: Digest, seconds: float = WAIT_SECONDS) -> None:
        """Until the client shows ``state``; does not say whether it did."""
        self.client.do(
            "wait_for",
            key=self.key,
            rows=state.rows,
            multiset=state.multiset,
            timeout=seconds,
        )

    def states(self) -> list[Shown]:
        found = self.client.do("states", key=self.key)["states"]
        return [Shown(state["rows"], state["multiset"], state["ordered"]) for state in found]

    def errors(self) -> list[str]:
        return self.client.do("states", key=self.key)["errors"]

    def wait_error(self) -> list[str]:
        return self.client.do("wait_error", key=self.key, timeout=WAIT_SECONDS)["errors"]

    def stop(self) -> None:
        self.client.do("stop", key=self.key)


class TickingClient:
    """pydeephaven-ticking's ``listen``."""

    name = "ticking"

    def __init__(self, process: SteeredClient) -> None:
        self.process = process

    def tables(self, server: DrivenServer) -> list[str]:
        """Lists that are null or empty crash its accessor; unknown types fail its start."""
        return [name for name in server.versions if name not in ("odd_lists", "all_types")]

    def follow(self, server: DrivenServer, table: str, **options: Any) -> SteeredFollower:
        """What it says was modified is relied on with our server only: a real one's updates meet
        its fault in ``modified()`` (docs/compatibility.md, section 5)."""
        key = self.process.new_key(table)
        session = self.process.session(server, **options)
        self.process.do(
            "listen",
            session=session,
            table=table,
            key=key,
            is_log=table == "feed",
            is_tallied=server.kind == "barrage",
        )
        return SteeredFollower(self.process, key)


class JavaClient:
    """A Deephaven server as a client: full subscriptions."""

    name = "java"

    def __init__(self, process: SteeredClient) -> None:
        self.process = process

    def tables(self, server: DrivenServer) -> list[str]:
        return list(server.versions)

    def follow(self, server: DrivenServer, table: str) -> SteeredFollower:
        key = self.process.new_key(table)
        session = self.process.session(server)
        self.process.do("subscribe", session=session, table=table, key=key)
        if table == "feed":
            return self.derive(key, "blink_to_append_only(t)")
        return self.following(key)

    def derive(self, source: str, code: str) -> SteeredFollower:
        """Follow a local operation over a table that is there."""
        key = self.process.new_key(source)
        self.process.do("derive", source=source, key=key, code=code)
        return self.following(key)

    def following(self, key: str, columns: list[str] | None = None) -> SteeredFollower:
        self.process.do("follow", key=key, columns=columns)
        return SteeredFollower(self.process, key)


class OurClient:
    """``barrage.connect``, in this process. ``scheme`` is dh (with a session) or grpc."""

    name = "ours"

    def __init__(self, scheme: str = "dh") -> None:
        self._scheme = scheme
        self._sessions: dict[int, barrage.Session] = {}

    def tables(self, server: DrivenServer) -> list[str]:
        return list(server.versions)

    def session(self, server: DrivenServer) -> barrage.Session:
        pid = server.process.pid
        if pid not in self._sessions:
            self._sessions[pid] = server.connect(self._scheme)
        return self._sessions[pid]

    def follow(self, server: DrivenServer, table: str, **options: Any) -> OurFollower:
        options.setdefault("interval_ms", 20)
        live = self.session(server).table(table).subscribe(**options)
        return OurFollower(live, is_log=table == "feed")

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()


class OurFollower:
    """Takes every update from the iterator and notes what the table shows then."""

    def __init__(self, live: Any, *, is_log: bool) -> None:
        self.live = live
        self._is_log = is_log
        self._log: list[pa.Table] = []
        self._changed = threading.Condition()
        self._states: list[Shown] = []
        self._errors: list[str] = []
        live.wait_ready(WAIT_SECONDS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        with self._changed:
            assert self._changed.wait_for(lambda: self._states or self._errors, WAIT_SECONDS)

    def _run(self) -> None:
        try:
            for update in self.live.updates():
                if self._is_log:
                    self._log.append(update.added)
                state = Shown.of(
                    pa.concat_tables(self._log) if self._is_log else self.live.to_arrow()
                )
                with self._changed:
                    self._states.append(state)
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._errors.append(f"{type(error).__name__}: {error}")
                self._changed.notify_all()

    def wait_for(self, state: Digest, seconds: float = WAIT_SECONDS) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._errors or self._states[-1].is_state(state), seconds
            )

    def states(self) -> list[Shown]:
        with self._changed:
            return list(self._states)

    def errors(self) -> list[str]:
        with self._changed:
            return list(self._errors)

    def stop(self) -> None:
        self.live.close()
        self._thread.join(WAIT_SECONDS)
