"""The servers of the interop suite: one of each kind for the whole run."""

from __future__ import annotations

import pytest

from tests.helpers.secured import IS_SECURED
from tests.interop.clients import JavaClient, OurClient, SteeredClient, TickingClient
from tests.interop.driven_server import DrivenServer
from tests.interop.processes import deephaven_python

SERVERS = ["barrage"] if IS_SECURED else ["deephaven", "barrage"]
"""A real server has no rules to switch on."""


@pytest.fixture(scope="session")
def deephaven_interpreter():
    """The Python that has Deephaven's packages; without one the tests that need it are skipped."""
    python = deephaven_python()
    if python is None:
        pytest.skip("deephaven-server is not installed (extra: interop)")
    return python


@pytest.fixture(scope="session")
def real_server(deephaven_interpreter, tmp_path_factory):
    """A real Deephaven server with the tables of ``workload.py``."""
    server = DrivenServer("deephaven", deephaven_interpreter, tmp_path_factory.mktemp("deephaven"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def our_server(tmp_path_factory):
    """A server of this package with the same tables."""
    server = DrivenServer.ours(tmp_path_factory.mktemp("barrage"))
    yield server
    server.close()


@pytest.fixture(params=SERVERS, scope="session")
def server(request):
    """Each server of the matrix in turn."""
    return request.getfixturevalue("real_server" if request.param == "deephaven" else "our_server")


@pytest.fixture(scope="session")
def python_client(deephaven_interpreter, tmp_path_factory):
    """A process with pydeephaven and pydeephaven-ticking."""
    client = SteeredClient(
        "python_client", deephaven_interpreter, tmp_path_factory.mktemp("python-client")
    )
    yield client
    client.close()


@pytest.fixture(scope="session")
def java_client(deephaven_interpreter, tmp_path_factory):
    """A Deephaven server that is a client."""
    client = SteeredClient(
        "java_client", deephaven_interpreter, tmp_path_factory.mktemp("java-client")
    )
    yield client
    client.close()


@pytest.fixture(params=["ours", "ticking", "java"], scope="session")
def client(request):
    """Each client that follows ticking tables in turn."""
    if request.param == "ours":
        ours = OurClient()
        yield ours
        ours.close()
    elif request.param == "ticking":
        yield TickingClient(request.getfixturevalue("python_client"))
    else:
        yield JavaClient(request.getfixturevalue("java_client"))
