"""What external sources may do (docs/connector-protocol.md): the part of
:class:`barrage.limits.Limits` that is about connectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorLimits:
    """Limits of connectors with their defaults, in the unit the names end with."""

    connector_connections_max: int = 1_000
    """Connections of connectors at a time; past it new ones are closed as they come."""

    connector_hello_bytes_max: int = 256 * 1024
    """Longest frame of a connector that has not been welcomed."""

    connector_frame_bytes_max: int = 4 * 1024 * 1024
    """Longest frame of a connector, tag and body."""

    connector_handshake_ns_max: int = 10 * 1_000_000_000
    """How long a connector may take to say HELLO, and to take an ERROR once there is one."""

    connector_programs_max: int = 1_000
    """Programs that connectors may have begun with since the server started; each has a table."""

    connector_streams_max: int = 10_000
    """Streams of one program whose positions are kept. They are never forgotten, so a further one
    is refused."""

    connector_name_bytes_max: int = 1024
    """Longest name of a stream."""

    connector_credits_max: int = 16_384
    """Messages of one connector that may be under way, received and not yet safe included."""

    connector_credits_min: int = 16
    """What a connector gets however many others its program has."""

    connector_source_credits_max: int = 65_536
    """The same for all connectors of one program, which share it."""

    connector_unsafe_bytes_max: int = 256 * 1024 * 1024
    """Bytes of one connector that are received and not yet safe; past it the connector is ended,
    since credits are the only brake."""

    connector_room_bytes: int = 64 * 1024 * 1024
    """Bytes of all connectors of one program that are received and not yet safe, from which on no
    credits are given."""

    connector_unstable_bytes_max: int = 16 * 1024 * 1024
    """Bytes of one connector that wait for a point its streams can go on from."""

    connector_payload_rows_max: int = 1_000_000
    """Rows of one payload of Arrow IPC, and of the payloads that are decoded at once."""

    connector_decoded_bytes_max: int = 64 * 1024 * 1024
    """What the rows of one payload may take, and those of the payloads that are decoded at once:
    more payloads are decoded one part after the other, a single one cannot be decoded."""

    connector_turn_frames_max: int = 512
    """Frames (or runs of messages) of one connection that are looked at before others have their
    turn."""

    connector_replies_bytes_max: int = 4 * 1024 * 1024
    """Bytes that wait for a connector that does not read; past it the connection is cut."""
