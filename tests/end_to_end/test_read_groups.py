"""Read groups of journals: who may end one."""

from __future__ import annotations

import asyncio

import pytest

import barrage
from barrage import Operation, Policy, Rule
from barrage.errors import PermissionDeniedError
from barrage.server import Login, ServerConfig, User
from barrage.transport.flight_messages import (
    CANCEL,
    FLIGHT,
    CancelStatus,
    Descriptor,
    FlightInfo,
    decode_cancel_result,
    encode_cancel_request,
)

COMMAND = b'j/{"mode": "snapshot", "table": "t", "read_group": "g"}'
POLICY = Policy(
    (
        Rule(tables=("t",), users=("ann",), allow=frozenset({Operation.ADMIN})),
        Rule(tables=("t",), users=("bob", "eve"), allow=frozenset({Operation.READ})),
        Rule(tables=("t",), users=("max",), allow=frozenset(Operation) - {Operation.ADMIN}),
    )
)
NAMES = ("ann", "bob", "eve", "max")


def authenticate(login: Login) -> User | None:
    return User(name=login.secret) if login.secret in NAMES else None


def begun(server: barrage.Server, name: str | None) -> FlightInfo:
    """The group of a caller."""

    async def ask() -> bytes:
        async with barrage.aconnect(server.uri, auth=shown(name)) as session:
            return await session.unary(
                FLIGHT + "GetFlightInfo", Descriptor(command=COMMAND).encode()
            )

    return FlightInfo.decode(asyncio.run(ask()))


def cancelled(server: barrage.Server, told: FlightInfo, name: str | None) -> CancelStatus:
    async def ask() -> list[bytes]:
        async with barrage.aconnect(server.uri, auth=shown(name)) as session:
            return await session.act(CANCEL, encode_cancel_request(told))

    (answer,) = asyncio.run(ask())
    return decode_cancel_result(answer)


def shown(name: str | None) -> barrage.Bearer | None:
    return None if name is None else barrage.Bearer(name)


def served(policy: Policy | None, *, is_open: bool = False) -> barrage.Server:
    return barrage.Server(
        config=ServerConfig(host="inproc://", journal="memory"),
        authenticate=None if is_open else authenticate,
        policy=policy,
    )


@pytest.mark.parametrize("policy", [None, POLICY], ids=["no rules", "rules"])
@pytest.mark.parametrize("owner", NAMES)
def test_a_read_group_is_ended_by_its_own_caller_or_an_administrator(
    owner: str, policy: Policy | None
) -> None:
    with served(policy) as server:
        server.create_table("t", {"k": "int64"}).add({"k": [1]})
        leases = server._app.journals.leases
        told = begun(server, owner)
        for other in NAMES:
            if other == owner or (other == "ann" and policy is not None):
                continue
            with pytest.raises(PermissionDeniedError, match="somebody else's"):
                cancelled(server, told, other)
            assert set(leases._groups) == {("t", "g")}
        ends = owner if policy is None else "ann"
        assert cancelled(server, told, ends) is CancelStatus.CANCELLED
        assert not leases._groups
        told = begun(server, owner)
        assert cancelled(server, told, owner) is CancelStatus.CANCELLED


def test_where_nobody_says_who_they_are_anybody_ends_a_read_group() -> None:
    with served(None, is_open=True) as server:
        server.create_table("t", {"k": "int64"}).add({"k": [1]})
        told = begun(server, None)
        assert cancelled(server, told, None) is CancelStatus.CANCELLED
