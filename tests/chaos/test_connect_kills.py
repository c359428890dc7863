"""kill -9 of the server and of `barrage connect` at random moments, with a durable table and a real
system on the other side: nothing is lost, nothing is there twice."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from barrage.server import Server, ServerConfig
from tests.chaos.processes import CommandLine, free_port
from tests.connectors.peers import Postgres, mosquitto, redis
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until

pytestmark = pytest.mark.chaos

SEED = 20_261_125
KILLS = 10
STEPS = 40
"""Between two of them something new comes; a kill after each, on average every fifth."""


class Scene:
    """A server and a connector, each of which may be killed; ``words`` follow `barrage connect`."""

    def __init__(self, where: Path, words: Callable[[int, int], list[str]]) -> None:
        self.data = where / "data"
        self._log = (where / "connect.log").open("ab")
        port, door = free_port(), free_port()
        self._server = CommandLine(
            *("serve", "--json", "--data", str(self.data), "--port", str(port)),
            *("--connector", f"127.0.0.1:{door}"),
        )
        self._words = [sys.executable, "-m", "tests.chaos.connect_driver", *words(port, door)]
        self.life = self._server.start()
        self.life.wait_ready()
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._words, stderr=self._log, stdout=self._log)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def kill_one(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.life.kill()
            self.life = self._server.start()
            self.life.wait_ready()
        else:
            self.stop()
            self.start()

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self.stop()
        self.life.kill()
        self._server.close()
        self._log.close()


def through(scene: Scene, add: Callable[[int], None], is_there: Callable[[], bool]) -> None:
    """Add and kill; then wait until everything has arrived, and end everything."""
    chance = random.Random(SEED)
    try:
        for step in range(STEPS):
            add(step)
            time.sleep(chance.uniform(0.0, 0.1))
            if step % (STEPS // KILLS) == 0:
                time.sleep(chance.uniform(0.0, 1.0))
                scene.kill_one(chance)
        wait_until(lambda: is_there() or scene.has_ended, 4 * HANG_SECONDS)
        assert not scene.has_ended
    finally:
        scene.close()


def rows(data: Path, table: str) -> list[dict[str, object]]:
    with Server(config=ServerConfig(data=str(data))) as server:
        return server.table(table).to_arrow().to_pylist()


@contextlib.contextmanager
def counted(uri: str, table: str) -> Iterator[Callable[[], int]]:
    """How many rows there are, asked over the network; 0 while nobody answers."""
    import barrage
    from barrage.errors import BarrageError

    def count() -> int:
        with contextlib.suppress(BarrageError), barrage.connect(uri) as session:
            return session.table(table).info().total_records or 0
        return 0

    yield count


def _uri(port: int) -> str:
    return f"grpc://127.0.0.1:{port}"


@pytest.mark.parametrize("is_worker", [True, False])
def test_files(tmp_path, is_worker) -> None:
    path = tmp_path / "a.jsonl"
    # What stands there when it is read first is where it begins: it is not rotated before that.
    path.write_bytes(b'{"n":0}\n')
    ports: list[int] = []

    def words(port: int, door: int) -> list[str]:
        ports.append(port)
        to = f"127.0.0.1:{door}" if is_worker else _uri(port)
        more = [] if is_worker else ["--columns", "n=int64"]
        state = ["--state", str(tmp_path / "state")]
        return ["files", str(path), "--to", to, "--table", "t", *state, *more]

    scene = Scene(tmp_path, words)
    numbers = itertools.count(1)

    def add(step: int) -> None:
        if step % 20 == 19:
            path.rename(tmp_path / f"a.jsonl.{step}")
        with path.open("ab") as file:
            file.write(b"".join(b'{"n":%d}\n' % next(numbers) for _ in range(500)))

    total = 500 * STEPS + 1
    with counted(_uri(ports[0]), "t") as count:
        wait_until(lambda: count() > 0, HANG_SECONDS)
        through(scene, add, lambda: count() >= total)
    found = rows(tmp_path / "data", "t")
    if is_worker:
        wanted = [b'{"n":%d}' % n for n in range(total)]
        assert [row["payload"] for row in found] == wanted
    else:
        assert [row["n"] for row in found] == list(range(total))


def test_redis(tmp_path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    from redis import Redis

    with redis(tmp_path) as peer, Redis(port=peer.port) as store:
        ports: list[int] = []

        def words(port: int, door: int) -> list[str]:
            ports.append(port)
            to = ["--to", f"127.0.0.1:{door}", "--program", "t"]
            return ["redis", "s", "--url", f"redis://127.0.0.1:{peer.port}", *to]

        scene = Scene(tmp_path, words)

        def add(step: int) -> None:
            with store.pipeline() as together:
                for n in range(200):
                    together.xadd("s", {"n": 200 * step + n})
                together.execute()

        with counted(_uri(ports[0]), "t") as count:
            through(scene, add, lambda: count() >= 200 * STEPS)
    found = [row["payload"] for row in rows(tmp_path / "data", "t")]
    assert found == [b'{"n": "%d"}' % n for n in range(200 * STEPS)]


def test_mqtt(tmp_path) -> None:
    if shutil.which("mosquitto", path=os.environ["PATH"] + ":/usr/sbin") is None:
        pytest.skip("mosquitto is not installed")
    from paho.mqtt import publish

    with mosquitto(tmp_path) as peer:
        ports: list[int] = []

        def words(port: int, door: int) -> list[str]:
            ports.append(port)
            state = ["--state", str(tmp_path / "state"), "--broker", f"127.0.0.1:{peer.port}"]
            to = ["--to", f"127.0.0.1:{door}", "--program", "t"]
            return ["mqtt", "t/#", *state, *to]

        scene = Scene(tmp_path, words)
        with counted(_uri(ports[0]), "t") as count:

            def is_subscribed() -> bool:
                publish.single("t/0", b"first", 1, hostname="127.0.0.1", port=peer.port)
                return count() > 0

            wait_until(is_subscribed, HANG_SECONDS)

            def add(step: int) -> None:
                sent = [("t/1", b"%d" % (50 * step + n), 1, False) for n in range(50)]
                publish.multiple(sent, hostname="127.0.0.1", port=peer.port)

            def is_there() -> bool:
                # The last ones may wait for a kill's session to be given up by the broker.
                return count() >= 50 * STEPS + 1

            through(scene, add, is_there)
    found = [row["payload"] for row in rows(tmp_path / "data", "t") if row["payload"] != b"first"]
    assert sorted(map(int, found)) == list(range(50 * STEPS))


def test_postgres(tmp_path) -> None:
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("PostgreSQL is not installed")
    postgres = Postgres()
    try:
        postgres.sql("create table t (id bigint primary key, v text)")
        ports: list[int] = []

        def words(port: int, door: int) -> list[str]:
            ports.append(port)
            return ["postgres", "t", "--dsn", postgres.dsn, "--to", _uri(port), "--table", "t"]

        scene = Scene(tmp_path, words)
        with counted(_uri(ports[0]), "t") as count:
            postgres.sql("insert into t values (-1, 'first')")
            # A first copy that is broken off is refused, not mended: kills begin after it.
            wait_until(lambda: count() > 0, HANG_SECONDS)

            def add(step: int) -> None:
                postgres.sql(
                    f"insert into t select n, 'x' from generate_series({100 * step}, "
                    f"{100 * step + 99}) n",
                    f"update t set v = 'step {step}' where id % 7 = {step % 7}",
                    f"delete from t where id = {100 * step - 50}",
                )

            through(scene, add, lambda: _same(postgres, ports[0]))
        found = sorted((row["id"], row["v"]) for row in rows(tmp_path / "data", "t"))
        assert found == postgres.sql("select id, v from t order by id")
    finally:
        postgres.close()


def _same(postgres: Postgres, port: int) -> bool:
    import barrage
    from barrage.errors import BarrageError

    with contextlib.suppress(BarrageError), barrage.connect(_uri(port)) as session:
        found = session.table("t").snapshot().to_pylist()
        ours = sorted((row["id"], row["v"]) for row in found)
        return ours == postgres.sql("select id, v from t order by id")
    return False
