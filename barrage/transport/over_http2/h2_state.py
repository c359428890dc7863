"""What h2 keeps of a connection: its settings, its headers, the states of its streams."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

if TYPE_CHECKING:
    from barrage.limits import Limits

FRAME_BYTES_MAX = 256 * 1024
"""Longest frame that is taken: longer ones would gain nothing."""

# At DEBUG it tells all headers, and credentials are headers.
logging.getLogger("hpack").setLevel(logging.INFO)


class _Counted(H2Connection):
    """h2, whose count of open streams, made anew for each request, is a walk over all of them. The
    walk also forgets streams that have ended, so it is done once for as many requests as there are
    streams. Requests are counted by :class:`Http2Connection`."""

    _requests_until_walk = 64

    @property
    def open_inbound_streams(self) -> int:
        self._requests_until_walk -= 1
        if self._requests_until_walk <= 0:
            self._requests_until_walk = 64 + super().open_inbound_streams
        return 0


def state_of_h2(limits: Limits) -> H2Connection:
    """For one connection."""
    made = _Counted(
        H2Configuration(
            client_side=False,
            header_encoding=None,
            normalize_outbound_headers=False,
            validate_outbound_headers=False,
            # Its checks would end the connection, and refuse what gRPC clients may send.
            validate_inbound_headers=False,
        )
    )
    made.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.http2_streams_max,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.http2_header_bytes_max,
            SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES_MAX,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.http2_stream_window_bytes,
        },
    )
    # h2 reads these from its defaults when it is made.
    made.max_inbound_frame_size = FRAME_BYTES_MAX
    made.decoder.max_header_list_size = limits.http2_header_bytes_max
    return made
