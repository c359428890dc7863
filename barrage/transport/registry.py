"""Backends by name: transports by the scheme of a URI, body transports by the name of their way.

Those of this package are listed here. Others come from installed packages, by entry points of the
groups ``barrage.transports`` and ``barrage.bodies``, or from a program that registers its own.
Nothing is imported before it is asked for, and each backend once; entry points are looked up when a
name is asked for that is not listed here.
"""

from __future__ import annotations

import re
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from barrage.errors import ConfigError, TransportUnavailableError
from barrage.wire.dissociated.ways import BodyWay, can_be_way

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint

    from barrage.transport.base import Transport
    from barrage.transport.bodies import BodyTransport, SharedMemoryTransport

BackendT = TypeVar("BackendT")

_NAME = re.compile(r"[a-z][a-z0-9+.-]{0,63}")


def _can_be_named(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


class Registry(Generic[BackendT]):
    """The backends of one kind. Any thread may ask."""

    def __init__(
        self,
        group: str,
        kind: str,
        built_in: Mapping[str, str],
        *,
        can_be: Callable[[str], bool] = _can_be_named,
        needs: tuple[str, ...] = (),
    ) -> None:
        """``group``: of entry points. ``kind``: what messages call a backend. ``built_in``: where
        those of this package are, ``module:name``. ``can_be``: whether a backend can have a name.
        ``needs``: what every plug-in has."""
        self.group = group
        self._kind = kind
        self.built_in = built_in
        """Where those of this package are, by name."""
        self._can_be = can_be
        self._needs = needs
        self._plug_ins: dict[str, EntryPoint] | None = None
        self._loaded: dict[str, BackendT] = {}
        self._lock = threading.RLock()

    def names(self) -> tuple[str, ...]:
        """All that can be asked for: those of this package first."""
        with self._lock:
            return tuple(dict.fromkeys((*self.built_in, *self._found(), *self._loaded)))

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.names()

    def find(self, name: str) -> BackendT:
        """The backend of that name. ConfigError when there is none, TransportUnavailableError when
        its code cannot be imported or makes something else."""
        found = self._loaded.get(name)
        if found is None:
            # Not with the lock held: who imports may wait for somebody who imports and asks here.
            made = self._load(name)
            found = self._loaded.setdefault(name, made)
        return found

    def register(self, name: str, backend: BackendT) -> None:
        """Add a backend of this program. ConfigError when the name is taken, or is none."""
        if not self._can_be(name):
            raise ConfigError(f"{name!r} cannot be the name of a {self._kind}")
        with self._lock:
            if name in self:
                raise ConfigError(f"there is a {self._kind} {name!r} already")
            self._loaded[name] = backend

    def unregister(self, name: str) -> None:
        """Take back what :meth:`register` added."""
        with self._lock:
            if name not in self.built_in and name not in self._found():
                self._loaded.pop(name, None)

    def _load(self, name: str) -> BackendT:
        place = self.built_in.get(name)
        if place is not None:
            module, _, attribute = place.partition(":")
            return cast("BackendT", getattr(import_module(module), attribute))
        plug_in = self._found().get(name)
        if plug_in is None:
            known = ", ".join(self.names())
            raise ConfigError(f"there is no {self._kind} {name!r}; there are {known}")
        try:
            made = plug_in.load()
        except (ImportError, AttributeError) as error:
            from barrage.transport.entry_points import wanted

            raise TransportUnavailableError(
                f"the {self._kind} {name!r} cannot be loaded from {plug_in.value}: {error}; "
                f"install what it needs with `pip install {wanted(plug_in)}`"
            ) from error
        except Exception as error:  # Whatever code of others does when it is imported.
            raise TransportUnavailableError(
                f"the {self._kind} {name!r} cannot be loaded from {plug_in.value}: "
                f"{type(error).__name__}: {error}"
            ) from error
        missing = [each for each in self._needs if not hasattr(made, each)]
        if missing:
            raise TransportUnavailableError(
                f"{plug_in.value} is no {self._kind}: it has no {', '.join(missing)}"
            )
        return cast("BackendT", made)

    def _found(self) -> dict[str, EntryPoint]:
        """The entry points, looked up once. What is built in cannot be replaced by one, and what
        cannot be a name is passed over."""
        if self._plug_ins is None:
            from barrage.transport.entry_points import entry_points

            found = entry_points(self.group)
            self._plug_ins = {
                name: each
                for name, each in found.items()
                if name not in self.built_in and self._can_be(name)
            }
        return self._plug_ins


_GRPC = "barrage.transport.over_grpc.grpc_transport:GRPC"
_UNIX = "barrage.transport.over_grpc.grpc_transport:UNIX"

TRANSPORTS: Registry[Transport] = Registry(
    "barrage.transports",
    "transport",
    {
        **dict.fromkeys(("grpc", "grpc+tcp", "grpcs", "grpc+tls", "dh", "dh+plain", "dhs"), _GRPC),
        **dict.fromkeys(("unix", "grpc+unix"), _UNIX),
        "inproc": "barrage.transport.inproc.inproc_transport:INPROC",
    },
    needs=("parse", "connect", "is_local", "listen"),
)
"""Transports by scheme."""

BODIES: Registry[BodyTransport | SharedMemoryTransport] = Registry(
    "barrage.bodies",
    "body transport",
    {BodyWay.SHM.value: "barrage.transport.shared_memory.shared_bodies:SHARED_MEMORY"},
    can_be=can_be_way,
    needs=("settings", "dial", "serve", "examine"),
)
"""Body transports by the name of their way; ``inline`` needs none."""

SCHEME_DEFAULT = "grpc"
"""Of an address without one."""


def scheme_of(address: str) -> str:
    """The scheme of a URI or of a server's ``host``."""
    scheme, separator, _ = address.partition("://")
    return scheme.lower() if separator else SCHEME_DEFAULT


def body_way(name: str) -> BodyWay | None:
    """The way of that name, if bodies can take it here; its code is not imported."""
    if name == BodyWay.INLINE.value or name in BODIES:
        return BodyWay.named(name)
    return None


def body_transport(way: BodyWay) -> BodyTransport:
    """The backend of a way that is neither inline nor shared memory. Errors of
    :meth:`Registry.find`."""
    return cast("BodyTransport", BODIES.find(way.value))


def shared_memory() -> SharedMemoryTransport:
    """The backend of shared memory."""
    return cast("SharedMemoryTransport", BODIES.find(BodyWay.SHM.value))
