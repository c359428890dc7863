"""Listeners with TLS, and clients of gRPC that trust them or not."""

from __future__ import annotations

import contextlib

import grpc
import grpc.aio

from barrage.limits import DEFAULT_LIMITS
from barrage.transport.tls.server_tls import ServerTLS, TLSPaths
from tests.helpers.certificates import authority


def files_in(folder, *, pair=None, client_ca=None):
    """Paths of a server's files; the pair is a good one of the test authority by default."""
    certificate, key = (pair or authority().for_localhost()).write(folder, "server")
    path = None
    if client_ca is not None:
        path = str(folder / "client-ca.pem")
        (folder / "client-ca.pem").write_bytes(client_ca)
    return TLSPaths(certificate=certificate, key=key, client_ca=path)


def server_tls(folder, *, pair=None, client_ca=None):
    return ServerTLS(
        files_in(folder, pair=pair, client_ca=client_ca),
        file_bytes_max=DEFAULT_LIMITS.tls_file_bytes_max,
    )


@contextlib.asynccontextmanager
async def secure_channel(port, *, pair=None, trusted=None, host="localhost"):
    """Who trusts ``trusted``, the test authority by default, and shows ``pair``."""
    credentials = grpc.ssl_channel_credentials(
        trusted or authority().certificate,
        None if pair is None else pair.key,
        None if pair is None else pair.certificate,
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"{host}:{port}", credentials, options) as channel:
        yield channel
