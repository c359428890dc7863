"""Names of tables on the wire: tickets, path descriptors and command descriptors.

A ticket is opaque to Flight; its first byte selects the route (barrage-wire.md section 3.7). This
server routes one kind, ``s/<name>``: a published table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, SchemaError, TicketError

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.transport.flight_messages import Descriptor

SCOPE_ROUTE = b"s/"
_SCOPE_PATH = "scope"


def ticket_of(name: str) -> bytes:
    """The ticket of the published table ``name``."""
    return SCOPE_ROUTE + name.encode()


def table_name_of_ticket(ticket: bytes | memoryview | None, limits: Limits) -> str:
    """The table a ticket names. TicketError when no route takes it."""
    if ticket is None:
        raise TicketError("Ticket not specified.")
    raw = bytes(ticket)
    _check_length("ticket", len(raw), limits)
    if not raw:
        raise TicketError("Could not resolve ticket: it has no bytes; a table's ticket is s/<name>")
    if not raw.startswith(SCOPE_ROUTE):
        raise TicketError(
            f"Could not resolve ticket: no resolver for route '{raw[0]}' (byte); "
            "a table's ticket is s/<name>"
        )
    return _decode(raw[len(SCOPE_ROUTE) :])


def table_name_of_descriptor(descriptor: Descriptor, limits: Limits) -> str:
    """The table a descriptor names: path ``[name]`` or ``["scope", name]``, or a command holding a
    ticket."""
    if descriptor.command is not None:
        return table_name_of_ticket(descriptor.command, limits)
    path = descriptor.path
    for element in path:
        _check_length("path element", len(element.encode()), limits)
    if len(path) == 1 and path[0]:
        return path[0]
    if len(path) == 2 and path[0] == _SCOPE_PATH and path[1]:
        return path[1]
    raise TicketError(
        f"Could not resolve descriptor with {len(path)} path elements; "
        "use [name] or ['scope', name]"
    )


def check_table_name(name: object) -> str:
    """``name`` if it can be published; SchemaError otherwise."""
    if not isinstance(name, str):
        raise SchemaError(f"a table name is a string, not {type(name).__name__}")
    if not name or not name.isprintable() or len(name.encode()) > 1024:
        raise SchemaError(
            f"{name[:40]!r} is not a table name: use 1 to 1024 bytes of printable text"
        )
    return name


def _check_length(what: str, actual: int, limits: Limits) -> None:
    if actual > limits.ticket_bytes_max:
        raise LimitExceededError(what, actual=actual, maximum=limits.ticket_bytes_max, unit="bytes")


def _decode(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise TicketError("Could not resolve ticket: the table name is not UTF-8") from error
    if not name:
        raise TicketError("Could not resolve ticket: the table name is empty")
    return name
