"""Settings of a UCX context, as the library knows them.

The defaults keep to this host: one device (``lo``), one transport (``tcp``), no remote access to
memory. ``CM_USE_ALL_DEVICES`` must be equal on both sides of a connection, so it is part of what
the sides agree upon before they connect, and it is what clients have that set nothing.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LIBRARY_VARIABLES: Final = {
    "UCX_HANDLE_ERRORS": "none",
    "UCX_DEBUG_SIGNO": "0",
    "UCX_MEM_EVENTS": "n",
    "UCX_LOG_FILE": "stderr",
    "UCX_LOG_LEVEL": "fatal",
}
"""Read once, when the library is loaded. Without the first two it takes over signals, without the
third it patches ``mmap`` and its like in the running process. Its log goes to stdout, where the
output of commands is, and peers decide how much of it there is; what matters of it comes back as
statuses."""

RECEIVE_SEGMENT: Final = "256k"
"""Buffer of one segment over tcp. UCX does not check a peer's segments against it: one that was
set to send larger ones than the default 8k would overwrite memory here (1.22) or end the process
(1.13). It also means fewer calls of the system per body."""

SEND_SEGMENT: Final = "64k"
"""What peers that set nothing have room for. Releases before 1.22 take their own buffer for
receiving as the bound of what they send without copying it, so that 1.13 ended every peer with the
defaults; with copies the bound is this one. 1.22 copies, in segments of 8k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxSettings:
    """What a context is made with."""

    devices: str = "lo"
    """Network devices, comma separated (``lo``, ``eth0``, ``mlx5_0:1``). Every one of them gets a
    listening TCP socket per connection, on clients too."""

    tls: str = "tcp"
    """Transports, comma separated. Not ``all``: it prefers shared memory that breaks between
    users."""

    all_devices: bool = True
    """Connect through more than one device (``CM_USE_ALL_DEVICES``), which is what UCX does unless
    it is told otherwise; equal on both sides."""

    rma: bool = False
    """Offer memory to be read by peers. A peer can then read, and over tcp write, any memory of
    this process: for trusted networks only."""

    put_zcopy: bool = False
    """Large bodies over tcp as remote writes: up to three times as fast, and a peer that wants to
    can write any memory of this process."""

    def __post_init__(self) -> None:
        for name, value in (("devices", self.devices), ("tls", self.tls)):
            if not value or "\0" in value or value.strip() != value:
                raise ConfigError(f"UCX setting {name!r} must be a comma separated list: {value!r}")

    def entries(self, version: tuple[int, int, int] = (1, 22, 0)) -> dict[str, str]:
        """Names and values for ``ucp_config_modify`` of a release."""
        entries = {
            "TLS": self.tls,
            "NET_DEVICES": self.devices,
            "CM_USE_ALL_DEVICES": "y" if self.all_devices else "n",
            _of_tcp("PUT_ENABLE", version): "y" if self.put_zcopy else "n",
            _of_tcp("RX_SEG_SIZE", version): RECEIVE_SEGMENT,
        }
        if version < (1, 22, 0):
            entries["ZCOPY_THRESH"] = "inf"
            entries[_of_tcp("TX_SEG_SIZE", version)] = SEND_SEGMENT
        if self.put_zcopy:
            entries["RNDV_SCHEME"] = "put_zcopy"
        return entries

    def agreement(self) -> dict[str, str]:
        """What both sides must share, beside the release of the library."""
        entries = self.entries()
        return {name: entries[name] for name in ("CM_USE_ALL_DEVICES", "TCP_PUT_ENABLE")}


def _of_tcp(name: str, version: tuple[int, int, int]) -> str:
    """Releases up to 1.16 take the settings of a transport without its prefix here, and none of
    them says so when a name is unknown; looked up in the log of each release."""
    return f"TCP_{name}" if version >= (1, 17, 0) else name


@contextmanager
def library_environment() -> Iterator[None]:
    """What the library reads while it is loaded, unless the user has set it; gone afterwards, for
    other users of UCX in processes that are started from this one."""
    ours = {name: value for name, value in LIBRARY_VARIABLES.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def library_choice(environ: Mapping[str, str] | None = None) -> str | None:
    """Which library the environment asks for (``BARRAGE_UCX_LIBRARY``), if any."""
    return (os.environ if environ is None else environ).get("BARRAGE_UCX_LIBRARY") or None
