"""Memory that peers may read: registered with a context that has the feature for it.

The key is no protection. Over tcp a peer can make one itself, for any address; see
docs/security.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.errors import LocalProtocolError
from barrage.transport.ucx import declarations as d

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.transport.ucx.context import UcxContext


class RegisteredMemory:
    """One region; ``packed_key`` goes to peers. Keeps ``buffer`` alive until closed."""

    def __init__(self, context: UcxContext, buffer: pa.Buffer) -> None:
        if not context.settings.rma:
            raise LocalProtocolError("offering memory to peers needs UcxSettings(rma=True)")
        self._context = context
        self._buffer: pa.Buffer | None = buffer
        self.address = int(buffer.address)
        self.length = int(buffer.size)
        library = context.library
        params = library.ffi.new("ucp_mem_map_params_t *")
        params.field_mask = d.MEMORY_ADDRESS_AND_LENGTH
        params.address = library.ffi.cast("void *", self.address)
        params.length = self.length
        out = library.ffi.new("void **")
        status = library.functions.ucp_mem_map(context.handle, params, out)
        library.check("register memory", status)
        self._handle: Any = out[0]
        context.memory.add(self)
        try:
            self.packed_key = self._pack()
        except BaseException:
            self.close()
            raise

    def _pack(self) -> bytes:
        library = self._context.library
        key, size = library.ffi.new("void **"), library.ffi.new("size_t *")
        status = library.functions.ucp_rkey_pack(self._context.handle, self._handle, key, size)
        library.check("pack the key of memory", status)
        try:
            return bytes(library.ffi.buffer(key[0], size[0]))
        finally:
            library.functions.ucp_rkey_buffer_release(key[0])

    def close(self) -> None:
        """Take the memory back. Idempotent."""
        if self._handle is None:
            return
        if not self._context.is_poisoned:
            self._context.library.functions.ucp_mem_unmap(self._context.handle, self._handle)
        self._handle = None
        self._buffer = None
        self._context.memory.discard(self)
