"""The real systems that connectors speak to, each private to a test and on loopback."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes import free_port
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until


def needed(name: str, *places: str) -> str:
    """The program of that name; a test without it fails, for `make test-connectors` installs it."""
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", *places]))
    if found is None:
        pytest.fail(f"{name} is missing: make test-connectors installs it")
    return found


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Peer:
    """A process that listens on a port, and may be killed and started again."""

    def __init__(self, words: list[str], port: int) -> None:
        self._words = words
        self.port = port
        self.start()

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._words, stdout=quiet, stderr=quiet)
        wait_until(lambda: listens(self.port), HANG_SECONDS)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextlib.contextmanager
def redis(where: Path) -> Iterator[Peer]:
    """With every write on disk before it is answered."""
    port = free_port()
    words = [needed("redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
    words += ["--dir", str(where), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    peer = Peer(words, port)
    try:
        yield peer
    finally:
        peer.kill()


@contextlib.contextmanager
def mosquitto(where: Path) -> Iterator[Peer]:
    port = free_port()
    config = where / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n"
        "max_inflight_messages 1000\n" + ("user root\n" if os.getuid() == 0 else "")
    )
    peer = Peer([needed("mosquitto"), "-c", str(config)], port)
    try:
        yield peer
    finally:
        peer.kill()


class Postgres:
    """A cluster of its own, run as the user ``postgres`` where this one is root."""

    def __init__(self) -> None:
        places = sorted(str(each) for each in Path("/usr/lib/postgresql").glob("*/bin"))
        self._bin = Path(needed("initdb", *places[::-1])).parent
        self._where = Path(tempfile.mkdtemp(prefix="barrage-pg-"))
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._where, self._user)
        self.port = free_port()
        self._run("initdb", "-D", str(self._where / "data"), "-U", "postgres", "-A", "trust", "-N")
        with (self._where / "data" / "postgresql.conf").open("a") as config:
            config.write(
                f"port = {self.port}\nlisten_addresses = '127.0.0.1'\n"
                f"unix_socket_directories = '{self._where}'\nwal_level = logical\n"
                "max_wal_size = 64MB\nmin_wal_size = 32MB\n"
            )
        self.start()

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [str(self._bin / program), *words],
            user=self._user,
            group=None if self._user is None else pwd.getpwnam(self._user).pw_gid,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self._where,
            timeout=4 * HANG_SECONDS,
        )

    def _control(self, *words: str) -> None:
        log = str(self._where / "log")
        self._run("pg_ctl", "-D", str(self._where / "data"), "-w", "-l", log, *words)

    def start(self) -> None:
        self._control("start")

    def kill(self) -> None:
        """As a power cut, but for the disk's cache."""
        self._control("stop", "-m", "immediate")

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._where)

    def sql(self, *statements: str) -> list[tuple[object, ...]]:
        """Run in one transaction; the rows of the last one."""
        import psycopg2

        with (
            contextlib.closing(psycopg2.connect(self.dsn)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            for each in statements:
                cursor.execute(each)
            return cursor.fetchall() if cursor.description else []
