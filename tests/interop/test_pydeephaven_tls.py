"""A real pydeephaven and the ticking client over TLS, with and without certificates of clients."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pyarrow as pa
import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from tests.helpers.certificates import authority
from tests.interop.processes import ROOT, deephaven_python

pytestmark = pytest.mark.interop

SCRIPT = pathlib.Path(__file__).with_name("pydeephaven_tls.py")
TIMEOUT_SECONDS = 120
PLAIN = pa.table({"K": pa.array([1, 2], pa.int32()), "S": ["a", "b"]})
TOLD = {"key": "2 rows", "password": "2 rows", "wrong key": "refused", "followed": [1, 2, 3]}


@pytest.mark.parametrize("http", ["own", "grpcio"])
@pytest.mark.parametrize("asks", [False, True])
def test_logging_in_reading_and_following(tmp_path, http, asks):
    python = deephaven_python("pydeephaven_ticking")
    if python is None:
        pytest.skip("pydeephaven-ticking is not installed (extra: interop)")
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    shown = authority("clients").for_client().write(tmp_path, "client")
    config = ServerConfig(
        host="localhost",
        token="key",
        http=http,
        tls_cert=certificate,
        tls_key=key,
        tls_client_ca=authority("clients").write(tmp_path, "clients") if asks else None,
    )
    with barrage.Server(config=config) as server:
        table = server.create_table("plain", key="K", data=PLAIN)
        words = [str(server.port), authority().write(tmp_path), *(shown if asks else ())]
        with subprocess.Popen(
            [python, str(SCRIPT), *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as running:
            assert running.stdout is not None
            first = running.stdout.readline()
            if first == "following\n":
                table.upsert({"K": [3], "S": ["c"]})
            said, errors = running.communicate(timeout=TIMEOUT_SECONDS)
    assert first == "following\n", errors
    told = json.loads(said.splitlines()[-1])
    assert told == (TOLD | {"without a certificate": "refused"} if asks else TOLD)
