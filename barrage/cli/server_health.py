"""What ``barrage doctor SERVER`` looks at: a server, and when it is a relay, whom it follows and
where each of its tables stands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import barrage
from barrage.cli.command_errors import short_reason
from barrage.cli.target import credentials
from barrage.cli.tls.tls_options import in_flags
from barrage.client.connection.address import parse_addresses
from barrage.errors import AuthenticationError, BarrageError, TableNotFoundError, TLSFailedError
from barrage.relay.relay_statistics import RELAYED_TABLE, UPSTREAMS_TABLE
from barrage.transport.findings import Finding, fine, problem, warning

if TYPE_CHECKING:
    from barrage.cli.target import ServerAddress
    from barrage.client import Session
    from barrage.client.connection.address import Auth
    from barrage.transport.base import TLS


def examine_servers(address: ServerAddress, token: str | None) -> list[Finding]:
    """The findings about each of the servers of a list. ConfigError where one would be told in the
    clear what others are told through TLS."""
    parse_addresses(address.uri)
    auth = credentials(token)
    findings = []
    for each in (address, *address.others):
        one = replace(each, others=())
        findings += examine_server(one.uri, auth, tls=address.tls if one.is_tls else None)
    return findings


def examine_server(uri: str, auth: Auth, *, tls: TLS | None = None) -> list[Finding]:
    """Whether it answers, and what it says about itself."""
    try:
        with barrage.connect(uri, auth=auth, tls=tls) as session:
            return list(_said(uri, session))
    except AuthenticationError as error:
        advice = "pass --token or set BARRAGE_TOKEN, or --user with BARRAGE_PASSWORD"
        return [problem(uri, str(error), advice)]
    except TLSFailedError as error:
        return [problem(uri, in_flags(str(error)), "see docs/security.md")]
    except BarrageError as error:
        return [problem(uri, short_reason(error), "is the server running, and is this its port?")]


def _said(uri: str, session: Session) -> list[Finding]:
    names = [each.name for each in session.tables()]
    count = sum(not name.startswith("_") for name in names)
    upstreams = _rows(session, UPSTREAMS_TABLE)
    kind = "a server" if upstreams is None else "a relay"
    findings = [fine(uri, f"{kind}, {count} tables")]
    if upstreams is None:
        return findings
    has_any = any(each["is_followed"] for each in upstreams)
    findings += [_upstream(each, is_needed=not has_any) for each in upstreams]
    tables = _rows(session, RELAYED_TABLE) or []
    if not tables:
        findings.append(
            warning("relayed tables", "none", "check --tables against `barrage ls` of the upstream")
        )
    return findings + [_table(each) for each in tables]


def _rows(session: Session, name: str) -> list[dict[str, Any]] | None:
    """What a server tells about itself in a table; None when it has none of that name."""
    try:
        rows: list[dict[str, Any]] = session.table(name).snapshot().to_pylist()
    except TableNotFoundError:
        return None
    return rows


def _upstream(row: dict[str, Any], *, is_needed: bool) -> Finding:
    """``is_needed``: no other one is followed."""
    name = f"upstream {row['upstream']}"
    if row["is_followed"]:
        return fine(name, f"followed now, connected {row['connections']} times so far")
    if row["trouble"] is None and not is_needed:
        return fine(name, "not followed now: it is for when the one that is gets lost")
    text = f"not followed: {row['trouble'] or 'not reached yet'}"
    advice = "check that it runs, its address, and --upstream-token"
    return problem(name, text, advice) if is_needed else warning(name, text, advice)


def _table(row: dict[str, Any]) -> Finding:
    name = f"relayed {row['table']}"
    lag = "lag unknown" if row["lag_ms"] is None else f"lag {row['lag_ms']:.1f} ms"
    told = f"{row['updates']} updates, {row['resumes']} resumes, {row['snapshots']} snapshots"
    if row["state"] == "live":
        return fine(name, f"live at step {row['step']}, {lag}, {told}")
    if row["state"] == "paused":
        text = f"paused at step {row['step']}, {lag}: {row['trouble']}"
        return warning(name, text, "readers here see it stand still until the upstream is back")
    return problem(name, f"not served: {row['trouble'] or 'waiting'}", "see the upstream server")
