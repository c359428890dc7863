"""Names of tables on the wire: tickets, path descriptors and command descriptors.

A ticket is opaque to Flight; its first byte selects the route (deephaven-clients.md section 2.4):

======================== ========================= ============================================
ticket                   path                      what it names
======================== ========================= ============================================
``s/<name>``             ``scope, <name>``         a published table; also the path ``<name>``
``e`` + int32            ``export, <number>``      an export of the caller's session
``a/<app>/f/<field>``    ``app, <app>, field,      a field of an application; ``scope`` is the
                         <field>``                 published tables
``h`` + bytes            ``shared, <hex>``         an export that its session has shared
``q/`` + JSON            none                      a query, which is our own addition
======================== ========================= ============================================

What the names stand for is the business of :mod:`barrage.server.access.resolver`.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, SchemaError, StatusCode, TicketError

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.transport.flight_messages import Descriptor

SCOPE_ROUTE = b"s/"
APPLICATION_ROUTE = b"a/"
EXPORT_ROUTE = b"e"
SHARED_ROUTE = b"h"
QUERY_ROUTE = b"q/"

SCOPE_APPLICATION = "scope"
"""The application whose fields are the published tables."""

_FIELD_MARK = b"/f/"
_EXPORT_ID = struct.Struct("<i")


class Route(Enum):
    """The kinds of tickets, each with the bytes it starts with."""

    SCOPE = SCOPE_ROUTE
    APPLICATION = APPLICATION_ROUTE
    EXPORT = EXPORT_ROUTE
    SHARED = SHARED_ROUTE
    QUERY = QUERY_ROUTE


class TicketMissingError(TicketError):
    """There is no ticket, or it has no bytes."""

    status_code = StatusCode.INVALID_ARGUMENT


class NoApplicationError(TicketError):
    """No application of that name."""

    status_code = StatusCode.NOT_FOUND


def ticket_of(name: str) -> bytes:
    """The ticket of the published table ``name``."""
    return SCOPE_ROUTE + name.encode()


def export_ticket(export_id: int) -> bytes:
    """The ticket of an export."""
    return EXPORT_ROUTE + _EXPORT_ID.pack(export_id)


def route_of(ticket: bytes | None, limits: Limits) -> Route:
    """The route that takes a ticket. TicketError when there is none, LimitExceededError."""
    if ticket is None:
        raise TicketMissingError("Ticket not specified.")
    # What stands behind the route may be as long as an element of a path, which stands for it.
    _check_length("ticket", len(ticket) - len(SCOPE_ROUTE), limits)
    if not ticket:
        raise TicketMissingError(
            "Could not resolve ticket: it has no bytes; a table's ticket is s/<name>"
        )
    for route in Route:
        if ticket.startswith(route.value):
            return route
    raise TicketError(
        f"Could not resolve ticket: no resolver for route '{ticket[0]}' (byte); "
        "a table's ticket is s/<name>, that of a query q/<query>"
    )


def export_id_of_ticket(ticket: bytes | None, limits: Limits) -> int:
    """The number in an export's ticket; TicketError for any other ticket."""
    if route_of(ticket, limits) is not Route.EXPORT:
        raise TicketError("Could not resolve ticket: it must be the ticket of an export")
    assert ticket is not None
    if len(ticket) != 1 + _EXPORT_ID.size:
        raise TicketError(
            f"Could not resolve ticket: an export's ticket has {1 + _EXPORT_ID.size} bytes, "
            f"not {len(ticket)}"
        )
    export_id: int = _EXPORT_ID.unpack_from(ticket, 1)[0]
    if export_id == 0:
        raise TicketError("Could not resolve ticket: 0 is not the number of an export")
    return export_id


def result_export_id(ticket: bytes | None, limits: Limits) -> int:
    """The number under which a client wants to have a result. TicketError when it is not one that
    clients may choose."""
    export_id = export_id_of_ticket(ticket, limits)
    if export_id < 0:
        raise TicketError(f"export {export_id} is the server's to give; results have numbers > 0")
    return export_id


def field_of_ticket(ticket: bytes) -> str:
    """The published table an application's ticket names; NoApplicationError for any application but
    the scope, TicketError when it is malformed."""
    application, mark, name = ticket[len(APPLICATION_ROUTE) :].partition(_FIELD_MARK)
    if not mark:
        raise TicketError("Could not resolve ticket: a field's ticket is a/<application>/f/<field>")
    if application != SCOPE_APPLICATION.encode():
        raise NoApplicationError(
            f"Could not resolve ticket: no application {_decode(application, 'application')!r}"
        )
    return _decode(name)


def table_name_of_ticket(ticket: bytes | memoryview | None, limits: Limits) -> str:
    """The published table a ticket names. TicketError when it names anything else."""
    raw = None if ticket is None else bytes(ticket)
    route = route_of(raw, limits)
    assert raw is not None
    if route is Route.APPLICATION:
        return field_of_ticket(raw)
    if route is not Route.SCOPE:
        raise TicketError("Could not resolve ticket: it must name a published table, as s/<name>")
    return _decode(raw[len(SCOPE_ROUTE) :])


def table_name_of_descriptor(descriptor: Descriptor, limits: Limits) -> str:
    """The published table a descriptor names. TicketError when it names anything else."""
    return table_name_of_ticket(ticket_of_descriptor(descriptor, limits), limits)


def ticket_of_descriptor(descriptor: Descriptor, limits: Limits) -> bytes:
    """The ticket a descriptor stands for: that of its path, or the bytes of its command.
    TicketError when it stands for none."""
    if descriptor.command is not None:
        route_of(descriptor.command, limits)
        return descriptor.command
    path = descriptor.path
    for element in path:
        _check_length("path element", len(element.encode()), limits)
    match path:
        case (name,) | ("scope", name) if name:
            return ticket_of(name)
        case ("export", number):
            return _export_ticket_of(number)
        case ("app", application, "field", name):
            return b"".join((APPLICATION_ROUTE, application.encode(), _FIELD_MARK, name.encode()))
        case ("shared", digits):
            return SHARED_ROUTE + _unhex(digits)
    raise TicketError(
        f"Could not resolve descriptor with {len(path)} path elements; "
        "use [name] or ['scope', name]"
    )


def _export_ticket_of(number: str) -> bytes:
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 10):
        raise TicketError(
            f"Could not resolve descriptor: {number[:40]!r} is not an export's number"
        )
    export_id = int(number)
    if not -(2**31) <= export_id < 2**31:
        raise TicketError(f"Could not resolve descriptor: {export_id} is not an export's number")
    return export_ticket(export_id)


def _unhex(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError as error:
        raise TicketError(
            "Could not resolve descriptor: a shared ticket is written in hex"
        ) from error


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


def _decode(raw: bytes, what: str = "table") -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise TicketError(f"Could not resolve ticket: the {what} name is not UTF-8") from error
    if not name:
        raise TicketError(f"Could not resolve ticket: the {what} name is empty")
    return name
