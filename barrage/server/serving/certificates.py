"""Certificate and key of a server: where its settings say they are, looked at again and again."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from barrage.errors import ConfigError, LimitExceededError
from barrage.limits import NANOS_PER_MS
from barrage.supervision import Role, in_own_thread
from barrage.transport.tls.server_tls import ServerTLS, TLSPaths

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.server.settings.config import ServerConfig

CERTIFICATES = Role("barrage-certificates", "health: certificates would end and not be renewed")

log = logging.getLogger(__name__)


def tls_of(config: ServerConfig, clock: Clock) -> ServerTLS | None:
    """What the settings say, read; None without a certificate. ConfigError."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    made = ServerTLS(
        TLSPaths(
            certificate=config.tls_cert,
            key=config.tls_key,
            client_ca=config.tls_client_ca,
            crl=config.tls_crl,
        ),
        file_bytes_max=config.limits.tls_file_bytes_max,
        clock=clock,
    )
    _tell_end(made, clock)
    return made


async def keep_fresh(
    tls: ServerTLS,
    clock: Clock,
    *,
    interval_ms: int,
    on_revoked: Callable[[frozenset[bytes]], object],
) -> None:
    """Read the files when they have changed, for ever. New connections get what was read, and
    ``on_revoked`` which certificates are revoked now; files that are of no use are told of in the
    log, once, and change nothing."""
    told = ""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            is_new = await in_own_thread(tls.refresh)
        except (ConfigError, LimitExceededError) as error:
            if str(error) != told:
                told = str(error)
                log.error("the certificate stays as it is: %s", told)
            continue
        told = ""
        if is_new:
            log.info("%s was read again; new connections get it", tls.paths.certificate)
            _tell_end(tls, clock)
            on_revoked(tls.revoked)


def _tell_end(tls: ServerTLS, clock: Clock) -> None:
    ends = tls.ends_s
    if ends is not None and ends * 1_000 * NANOS_PER_MS < clock.wall_ns():
        day = datetime.fromtimestamp(ends, UTC).date()
        log.warning("the certificate %s has ended on %s", tls.paths.certificate, day)
