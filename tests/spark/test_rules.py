"""Source and sink as users of a server, over TLS, with passwords and tokens, under rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as flight
import pytest

pytest.importorskip("pyspark")

import barrage
from barrage import Policy, Rule
from barrage.server.policy.rules import Operation
from barrage.server.settings.config import ServerConfig
from tests.helpers.certificates import authority
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.spark.feeds import Collected, run
from tests.spark.file_stream import FileStream, run_to_end

SCHEMA = {"sym": "string", "qty": "int64"}
RULES = Policy.of(
    Rule(
        tables=("trades",),
        users=("alice",),
        allow=frozenset({Operation.READ}),
    ),
    Rule(
        tables=("out*",),
        users=("alice",),
        allow=frozenset({Operation.WRITE, Operation.CREATE, Operation.READ}),
    ),
    Rule(tables=("trades",), users=("bob",), allow=frozenset({Operation.READ}), rows="qty < 3"),
)


class Scene:
    """A server with users over TLS, and what jobs are told of it."""

    def __init__(self, folder: Path) -> None:
        certificate, key = authority().for_localhost().write(folder, "server")
        self.ca = authority().write(folder)
        config = ServerConfig(
            host="localhost",
            journal="memory",
            users=str(users_file(folder / "users")),
            tls_cert=certificate,
            tls_key=key,
        )
        self.server = barrage.Server(config=config, policy=RULES).start()
        self.trades = self.server.create_table("trades", SCHEMA, key="sym")
        self.trades.upsert([{"sym": f"s{i}", "qty": i} for i in range(10)])
        self.server.create_table("hidden", SCHEMA, key="sym")

    def options(self, user: str | None) -> dict[str, str]:
        """How a job logs in."""
        told = {"uri": self.server.uri, "tls.rootCertificates": self.ca}
        if user is None:
            return told
        return {**told, "auth.user": user, "auth.password": ALICE_PASSWORD}

    def token_of(self, user: str) -> str:
        uri = self.server.uri.replace("grpcs", "grpc+tls")
        with flight.connect(uri, tls_root_certs=authority().certificate) as client:
            _, header = client.authenticate_basic_token(user, ALICE_PASSWORD)
        return header.decode().removeprefix("Bearer ")


@pytest.fixture
def scene(tmp_path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.server.stop()


def batch_of(spark, scene, table: str = "trades", **options: str):
    return spark.read.format("barrage").options(**options).load(table)


def test_executors_read_by_tickets_as_the_user_the_job_is(spark, scene, checkpoint):
    assert batch_of(spark, scene, **scene.options("alice")).count() == 10
    token = {**scene.options(None), "auth.token": scene.token_of("alice")}
    assert batch_of(spark, scene, **token).repartition(3).count() == 10
    collected = Collected()
    reader = spark.readStream.format("barrage").options(**scene.options("alice"))
    rows = reader.option("table", "trades").load()
    run(rows, checkpoint, collected)
    scene.trades.upsert([{"sym": "new", "qty": 7}])
    run(rows, checkpoint, collected)
    assert len(collected.values()) == 11


def test_history_is_not_for_who_sees_a_part_and_no_table_is_for_nobody(spark, scene):
    with pytest.raises(Exception, match="you see a part of table 'trades' only"):
        batch_of(spark, scene, **scene.options("bob")).count()
    with pytest.raises(Exception, match=r"table .hidden. not found"):
        batch_of(spark, scene, "hidden", **scene.options("alice")).count()
    with pytest.raises(Exception, match=r"auth\.token"):
        batch_of(spark, scene, **scene.options(None)).count()
    wrong = {**scene.options("alice"), "auth.password": "nope"}
    with pytest.raises(Exception, match="Authentication details invalid") as told:
        batch_of(spark, scene, **wrong).count()
    assert ALICE_PASSWORD not in str(told.value)


def sink(rows, checkpoint: str, **options: str):
    return (
        rows.writeStream.format("barrage")
        .options(**options)
        .option("table", "out")
        .option("checkpointLocation", checkpoint)
    )


def test_a_sink_writes_as_the_user_the_job_is(spark, scene, tmp_path, checkpoint):
    files = FileStream(tmp_path / "in", "sym string, qty long")
    files.put({"sym": ["a", "b"], "qty": [1, 2]})
    run_to_end(sink(files.read(spark), checkpoint, **scene.options("alice")))
    files.put({"sym": ["c"], "qty": [3]})
    token = {**scene.options(None), "auth.token": scene.token_of("alice")}
    run_to_end(sink(files.read(spark).repartition(2), checkpoint, **token))
    found = scene.server.table("out").to_arrow()
    assert sorted(found["sym"].to_pylist()) == ["a", "b", "c"]
    files.put({"sym": ["d"], "qty": [4]})
    with pytest.raises(Exception, match="you may not create table 'out'"):
        run_to_end(sink(files.read(spark), checkpoint, **scene.options("bob")))
    assert scene.server.table("out").to_arrow().num_rows == 3
    assert scene.server._app.journals.staging.byte_count == 0
