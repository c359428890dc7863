"""A server of the matrix, real or ours, and the truth about its tables.

Commands of both scripts (``deephaven_script.py`` and ``barrage_script.py``): ``step`` changes
every ticking table but the big one, ``big_step`` changes that, ``truth NAME PATH`` writes a
table's present contents, ``stats`` counts what is in use, ``quit`` ends. After every change the
script writes the table's contents to ``DIRECTORY/NAME.VERSION.arrow``: these versions are the
states a client may show.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa

import barrage
from tests.helpers.secured import IS_SECURED, Secured
from tests.interop.digests import Digest, digest
from tests.interop.processes import START_TIMEOUT_SECONDS, SteeredProcess, free_port
from tests.interop.workload import ORDERED, TABLES, Workload

HERE = pathlib.Path(__file__).parent
SEED = 20_260_801

View = Callable[[pa.Table], pa.Table]


def whole(table: pa.Table) -> pa.Table:
    return table


class DrivenServer:
    """``kind`` is "deephaven" or "barrage"; ``python`` runs the script."""

    def __init__(self, kind: str, python: str, directory: pathlib.Path, seed: int = SEED) -> None:
        self.kind = kind
        self.directory = directory
        self._python = python
        self._seed = seed
        self._lock = threading.Lock()
        self._secured = Secured.made(directory) if IS_SECURED and kind == "barrage" else None
        self._start(free_port())

    @classmethod
    def ours(cls, directory: pathlib.Path) -> DrivenServer:
        return cls("barrage", sys.executable, directory)

    def _start(self, port: int) -> None:
        for old in self.directory.glob("*.arrow"):
            old.unlink()
        self._model = Workload(self._seed)
        script = HERE / f"{self.kind}_script.py"
        command = [self._python, str(script), str(port), str(self._seed), str(self.directory)]
        self.process = SteeredProcess(f"{self.kind}-server", command, self.directory)
        try:
            started = self.process.answer(START_TIMEOUT_SECONDS)
        except AssertionError:
            self.process.close()
            raise
        self.port: int = started["port"]
        self.versions: dict[str, int] = started["versions"]
        self.rows = functools.lru_cache(maxsize=2000)(self._rows)
        self.digests = functools.lru_cache(maxsize=200_000)(self._digest)
        self._check_model(TABLES)

    @property
    def uri(self) -> str:
        """What :func:`barrage.connect` takes for a session with tickets."""
        return self._uri("dh")

    def _uri(self, scheme: str) -> str:
        return f"{scheme}{'' if self._secured is None else 's'}://{self.address}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- logging in ---

    @property
    def ca(self) -> str | None:
        """The authority of its certificate; None for a server that asks for nothing."""
        return None if self._secured is None else self._secured.ca

    @property
    def bearer(self) -> str:
        """A token of a server that asks for one."""
        assert self._secured is not None
        return self._secured.token(self.address, server=self.process.pid)

    def login(self) -> dict[str, str]:
        """What scripts of Deephaven's clients take to log in."""
        if self._secured is None:
            return {}
        return self._secured.login(self.address, server=self.process.pid)

    def spark_options(self) -> dict[str, str]:
        return {} if self._secured is None else self._secured.spark_options()

    def connect(self, scheme: str = "dh") -> barrage.Session:
        """A session of our client; ``scheme`` is dh (with a session of Deephaven's) or grpc."""
        if self._secured is not None:
            return self._secured.connect(self._uri(scheme))
        return barrage.connect(self._uri(scheme), auth="Anonymous" if scheme == "dh" else None)

    # --- changes ---

    def step(self, count: int = 1) -> None:
        """Change every ticking table but the big one; check them against the model."""
        for _ in range(count):
            with self._lock:
                self.versions = self.process.ask("step")["versions"]
                self._model.next_step()
        self._check_model([name for name in TABLES if name != "big"])

    def big_step(self) -> None:
        """Change the big table."""
        with self._lock:
            self.versions = self.process.ask("big_step")["versions"]
            self._model.next_big_step()
        self._check_model(["big"])

    @contextlib.contextmanager
    def ticking(self, pause_seconds: float = 0.02) -> Iterator[None]:
        """Steps, one after another, on a thread while the block runs."""
        is_over = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                while not is_over.wait(pause_seconds):
                    self.step()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        assert not failures, failures

    # --- truth ---

    def truth(self, name: str) -> pa.Table:
        """What the server itself says the table holds now."""
        path = self.directory / f"{name}.now.arrow"
        with self._lock:
            self.process.ask(f"truth {name} {path}")
            return _read(path)

    def _rows(self, name: str, version: int) -> pa.Table:
        return _read(self.directory / f"{name}.{version}.arrow")

    def _digest(self, name: str, version: int, view: View = whole) -> Digest:
        return digest(view(self.rows(name, version)))

    def last_digest(self, name: str, view: View = whole) -> Digest:
        return self.digests(name, self.versions[name], view)

    def _check_model(self, names: list[str] | tuple[str, ...]) -> None:
        with self._lock:
            for name in names:
                expected = self._model.expected(name)
                if expected is None or name not in self.versions:
                    continue
                shown, wanted = self.last_digest(name), digest(expected)
                assert shown.rows == wanted.rows, name
                assert shown.multiset == wanted.multiset, name
                assert name not in ORDERED or shown.ordered == wanted.ordered, name

    # --- life ---

    def stats(self) -> dict[str, int]:
        with self._lock:
            return self.process.ask("stats")

    def restart(self) -> None:
        """Kill the process and start another one on the same port, with the first rows."""
        self.process.close()
        self._start(self.port)

    def close(self) -> None:
        self.process.close()


def _read(path: pathlib.Path) -> pa.Table:
    with pa.OSFile(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
