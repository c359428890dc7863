"""A real Deephaven server for the tests of our client: it can be killed and started again, and its
sessions live as short as the test wants."""

from __future__ import annotations

import pathlib

import pyarrow as pa

from tests.interop.processes import START_TIMEOUT_SECONDS, SteeredProcess, free_port

SCRIPT = pathlib.Path(__file__).with_name("client_deephaven_script.py")

APPLICATION = """type=script
scriptType=python
enabled=true
id=demo
name=Demo
file_0=demo.py
"""

APPLICATION_CODE = """
from deephaven import empty_table
from deephaven.appmode import get_app_state
get_app_state()["offered"] = empty_table(3).update("X = i")
"""


class ClientsServer:
    """One server on one port for its whole life."""

    def __init__(self, python: str, directory: pathlib.Path, *, lifetime_ms: int = 300_000) -> None:
        self._python = python
        self._directory = directory
        self._lifetime_ms = lifetime_ms
        applications = directory / "applications"
        applications.mkdir()
        (applications / "demo.app").write_text(APPLICATION)
        (applications / "demo.py").write_text(APPLICATION_CODE)
        self._applications = applications
        self.port = free_port()
        self.start()

    def start(self) -> None:
        self._process = SteeredProcess(
            "deephaven",
            [
                self._python,
                str(SCRIPT),
                str(self.port),
                str(self._lifetime_ms),
                str(self._applications),
            ],
            self._directory,
        )
        try:
            self._process.answer(START_TIMEOUT_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def uri(self) -> str:
        return f"dh://127.0.0.1:{self.port}"

    def add(self, rows: int = 3) -> None:
        """Change the tables that tick."""
        self._process.ask(f"add {rows}")

    def truth(self, name: str) -> pa.Table:
        """What the server itself says a table holds now."""
        path = self._directory / f"{name}.arrow"
        self._process.ask(f"truth {name} {path}")
        with pa.OSFile(str(path)) as source:
            return pa.ipc.open_file(source).read_all()

    def close(self) -> None:
        self._process.close()
