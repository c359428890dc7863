"""One end in a network namespace of its own: ``python -m tests.ucx.namespace_peer serve ...``, and
``fetch``, ``guard`` or ``knock``.

Words go through standard input and output, one JSON text per line.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from dataclasses import replace
from ipaddress import IPv4Address

from barrage.clock import SystemClock
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.shared_memory import Arena
from barrage.transport.ucx import (
    BodyPlace,
    RemoteMemory,
    StreamServer,
    TableStreams,
    UcxContext,
    UcxSettings,
    fetch,
    load_library,
    table_source,
)
from tests.ucx.stream_children import limits_of, table_of


async def serve(host: str, device: str, rows: int) -> None:
    """Offer one table once per place for bodies, say where, and stay until standard input ends."""
    context = UcxContext(load_library(), UcxSettings(devices=device, rma=True))
    limits = replace(limits_of(), body_ticket_ns=60_000_000_000)
    server = StreamServer(context, limits, SystemClock())
    await server.start(host, 0)
    arena, memory = Arena.create(limits), RemoteMemory(context, 8 << 20)
    tables = TableStreams(server, limits, SystemClock(), arena=arena, memory=memory)
    source = table_source(table_of(rows), limits)
    offers = [tables.offer(source, place=place) for place in BodyPlace]
    told = [
        (offer.metadata.encode(), offer.bodies.encode(), offer.ticket.hex())
        for offer in offers
        if offer.metadata is not None and offer.bodies is not None
    ]
    print(json.dumps(told), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await tables.close()
    await server.close()
    memory.close()
    arena.close()
    context.close()


async def take(device: str, rows: int, metadata: str, bodies: str, ticket: str) -> None:
    """Fetch one of them and say whether it is what it should be."""
    context = UcxContext(load_library(), UcxSettings(devices=device, rma=True))
    try:
        got = await fetch(
            metadata, bodies, bytes.fromhex(ticket), context=context, limits=DEFAULT_LIMITS
        )
    finally:
        context.close()
    print(json.dumps(got.equals(table_of(rows))), flush=True)


async def guard(host: str, device: str) -> None:
    """Offer one stream to each address that comes in a line; say the port, and then that it is so.
    No address: nothing is offered any more."""
    context = UcxContext(load_library(), UcxSettings(devices=device))
    server = StreamServer(
        context, replace(limits_of(), body_ticket_ns=60_000_000_000), SystemClock()
    )
    await server.start(host, 0)
    print(json.dumps(server.port), flush=True)
    offered: list[int] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        for tag in offered:
            server.withdraw(tag)
        hosts = [IPv4Address(word) for word in line.split()]
        offered = [server.offer(lambda *_: None, hosts=[each]).location.want_data for each in hosts]
        print(json.dumps(len(offered)), flush=True)
    await server.close()
    context.close()


def knock(host: str, port: int, seconds: float) -> None:
    """Say whether a connection can be opened."""
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except TimeoutError:
        print(json.dumps("dropped"), flush=True)
    else:
        print(json.dumps("open"), flush=True)


if __name__ == "__main__":
    kind, *words = sys.argv[1:]
    if kind == "guard":
        asyncio.run(guard(words[0], words[1]))
    elif kind == "knock":
        knock(words[0], int(words[1]), float(words[2]))
    elif kind == "serve":
        asyncio.run(serve(words[0], words[1], int(words[2])))
    else:
        asyncio.run(take(words[0], int(words[1]), *words[2:]))
