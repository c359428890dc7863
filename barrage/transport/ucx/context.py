"""A UCX context: the library with settings and features, of which workers are made.

It is made in the process that uses it, never before a fork: UCX keeps a thread of its own that no
child has. A context that finds itself in a child refuses everything, and so does every later one
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from barrage.errors import ConfigError, TransportError, TransportUnavailableError
from barrage.transport.ucx import declarations as d

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.transport.ucx.library import UcxLibrary
    from barrage.transport.ucx.settings import UcxSettings

_FORKED = (
    "UCX does not survive a fork: make its context in the process that uses it, "
    "and start processes by spawn"
)


class OwnedPart(Protocol):
    """A listener, or memory that is registered: what is closed before its context."""

    def close(self) -> None:
        """Idempotent."""
        ...


class OwnedWorker(Protocol):
    """A worker of a context, which is destroyed before it."""

    abort: Callable[[], None]
    """Closes it, with what its owner has upon it, at once."""

    def destroy(self) -> None:
        """Idempotent."""
        ...


class UcxContext:
    """Owns the library's context; workers and registered memory are closed before it."""

    def __init__(self, library: UcxLibrary, settings: UcxSettings) -> None:
        if library.is_spoiled:
            raise TransportError(_FORKED)
        self.library = library
        self.settings = settings
        self.features = d.FEATURE_TAG | d.FEATURE_AM | d.FEATURE_WAKEUP
        if settings.rma:
            self.features |= d.FEATURE_RMA
        self.listeners: set[OwnedPart] = set()
        self.workers: set[OwnedWorker] = set()
        self.memory: set[OwnedPart] = set()
        self.has_abandoned = False
        """Whether a worker could not be destroyed; then neither can the context."""
        self._is_poisoned = False
        self._handle: Any = self._create()
        library.contexts.add(self)

    def _create(self) -> Any:
        library = self.library
        ffi, functions = library.ffi, library.functions
        config = ffi.new("void **")
        library.check("read its settings", functions.ucp_config_read(ffi.NULL, ffi.NULL, config))
        try:
            for name, value in self.settings.entries(library.version).items():
                status = functions.ucp_config_modify(config[0], name.encode(), value.encode())
                if status < 0:
                    raise ConfigError(f"UCX {library.release} refuses setting {name}={value!r}")
            params = ffi.new("ucp_params_t *")
            params.field_mask = d.PARAMS_FEATURES | d.PARAMS_SHARED_WORKERS
            params.features = self.features
            params.mt_workers_shared = 1  # threads that accept, and loops of other clients
            context = ffi.new("void **")
            major, minor, _ = library.version
            status = functions.ucp_init_version(major, minor, params, config[0], context)
        finally:
            functions.ucp_config_release(config[0])
        if status < 0:
            raise TransportUnavailableError(
                f"UCX {library.release} cannot use devices {self.settings.devices!r} with "
                f"transports {self.settings.tls!r}: {d.describe(status)}"
            )
        return context[0]

    @property
    def handle(self) -> Any:
        """The library's context. TransportError after :meth:`close` and after a fork."""
        self.check_usable()
        return self._handle

    @property
    def is_poisoned(self) -> bool:
        """Whether this is the copy in a forked child."""
        return self._is_poisoned

    def check_usable(self) -> None:
        """TransportError when nothing can be done with this context any more."""
        if self._is_poisoned:
            raise TransportError(_FORKED)
        if self._handle is None:
            raise TransportError("the UCX context is closed")

    def poison(self) -> None:
        """Refuse everything from now on, without touching the library: this is a forked child."""
        self._is_poisoned = True

    def close(self) -> None:
        """Close what is left of workers and memory, then the context. Idempotent."""
        if self._handle is None or self._is_poisoned:
            return
        for listener in list(self.listeners):
            listener.close()
        for worker in list(self.workers):
            worker.abort()
            worker.destroy()
        for memory in list(self.memory):
            memory.close()
        if not self.has_abandoned:
            self.library.functions.ucp_cleanup(self._handle)
        self._handle = None
        self.library.contexts.discard(self)
