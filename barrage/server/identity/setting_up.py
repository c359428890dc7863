"""The ways to prove who one is that a configuration switches on, put together once."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.limits import NANOS_PER_MS
from barrage.server.identity.audit import AuditLog
from barrage.server.identity.authenticator import Authenticator
from barrage.server.identity.credentials import new_token
from barrage.server.identity.issued_tokens import IssuedTokens
from barrage.server.identity.json_web_tokens import jwt_way
from barrage.server.identity.names import NAME_LENGTH_MAX, checked_name, checked_roles
from barrage.server.identity.peers import PeerWays
from barrage.server.identity.ways import HookWay, KeyWay
from barrage.transport.registry import scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.clock import Clock
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.server.identity.caller import Caller
    from barrage.server.identity.credentials import Credentials
    from barrage.server.identity.password_way import PasswordWay
    from barrage.server.identity.ways import Hook, Way
    from barrage.server.settings.config import ServerConfig


def authenticator_of(
    config: ServerConfig, clock: Clock, *, hook: Hook | None, is_local: bool
) -> Authenticator:
    """The chain of one server; ``is_local``: whether only this machine can reach it. Where nothing
    is set up and others can reach it, there is a key made up at random. ConfigError when a file
    cannot be read."""
    users = None if config.users is None else _users_of(config.users, config.limits)
    others: list[Way] = [] if users is None else [users]
    tokens_of_others = jwt_way(config, config.limits, clock)
    if tokens_of_others is not None:
        others.append(tokens_of_others)
    if hook is not None:
        others.append(HookWay(hook, config.limits))
    are_peers_proof = _checked_peers(config)
    has_ways = bool(others) or config.token is not None or are_peers_proof
    is_open = config.anonymous if config.anonymous is not None else is_local and not has_ways
    key = config.token
    if key is None and not has_ways and not is_open:
        key = new_token()
    return Authenticator(
        [*([] if key is None else [KeyWay(key)]), *others],
        limits=config.limits,
        clock=clock,
        tokens=IssuedTokens(config.limits, clock, config.token_lifetime_ms * NANOS_PER_MS),
        is_open=is_open,
        users=users,
        peers=PeerWays(
            certificate_name=config.certificate_name,
            trusts_unix=config.unix_peers,
            is_proof=are_peers_proof,
            roles=_roles(config.caller_roles),
        ),
        key=key,
    )


def _users_of(path: str, limits: Limits) -> PasswordWay:
    from barrage.server.identity.password_way import PasswordWay

    return PasswordWay(Path(path), limits)


def _checked_peers(config: ServerConfig) -> bool:
    """Whether a connection alone says who calls. ConfigError where it never could."""
    is_told = config.http == "own" and scheme_of(config.host).removeprefix("grpc+") == "unix"
    if config.unix_peers and not is_told:
        raise ConfigError(
            'unix_peers needs a host unix:///path and http = "own": nothing else knows the user of '
            "a process that calls"
        )
    shows = config.tls_client_ca is not None and config.certificate_name != "none"
    return shows or config.unix_peers


def audit_log(config: ServerConfig, clock: Clock) -> AuditLog | None:
    """The audit log of a server; None when none is asked for."""
    if config.audit is None:
        return None
    return AuditLog(Path(config.audit), config.limits, clock, bytes_max=config.audit_bytes)


def note_login(
    audit: AuditLog,
    credentials: Credentials,
    peer: str,
    *,
    caller: Caller | None,
    error: BarrageError | None,
) -> None:
    """Leave a record of credentials that were looked at."""
    audit.record(
        user=credentials.user[:NAME_LENGTH_MAX] if caller is None else caller.name,
        proof=None if caller is None else caller.proof.value,
        peer=peer,
        method="login",
        outcome="OK" if error is None else error.status_code.name,
    )


def _roles(path: str | None) -> Mapping[str, frozenset[str]]:
    """The roles of each caller in the file."""
    if path is None:
        return MappingProxyType({})
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read caller_roles {path}: {error}") from None
    try:
        return MappingProxyType(
            {
                checked_name(name): checked_roles(roles if isinstance(roles, list) else "")
                for name, roles in document.items()
            }
        )
    except ValueError as error:
        raise ConfigError(f"caller_roles {path}: {error}") from None
