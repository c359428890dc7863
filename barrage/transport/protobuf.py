"""Protocol Buffers messages out of a compiled descriptor, in a descriptor pool of its own.

The process-wide pool is left alone: another copy of the same definitions in the process (a client
library's stubs) would otherwise collide with ours. FlightData is not handled here: it is on the hot
path and has its own codec in :mod:`barrage.wire`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from barrage.errors import RemoteProtocolError


class MessageSet:
    """The messages of some .proto files by their short names (nested ones: ``Outer.Inner``)."""

    def __init__(self, *file_descriptors: bytes) -> None:
        """``file_descriptors``: serialized FileDescriptorProtos, imported files before those that
        import them. Messages of all files share one space of names."""
        self.pool = descriptor_pool.DescriptorPool()
        self._classes: dict[str, Any] = {}
        for serialized in file_descriptors:
            file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
            self.pool.AddSerializedFile(serialized)
            found = message_factory.GetMessageClassesForFiles([file.name], self.pool)
            for name, message_class in found.items():
                self._classes.setdefault(name.removeprefix(f"{file.package}."), message_class)

    def new(self, name: str, **fields: Any) -> Any:
        """A message with these fields."""
        return self._class(name)(**fields)

    def encode(self, name: str, **fields: Any) -> bytes:
        """The bytes of a message with these fields."""
        return bytes(self.new(name, **fields).SerializeToString())

    def decode(self, name: str, buffer: bytes | memoryview) -> Any:
        """Read a message; RemoteProtocolError when the bytes are malformed."""
        try:
            return self._class(name).FromString(bytes(buffer))
        except message.DecodeError as error:
            raise RemoteProtocolError(f"malformed {name} message") from error

    def _class(self, name: str) -> Any:
        found = self._classes.get(name)
        if found is None and "." in name:
            outer, _, inner = name.rpartition(".")
            found = self._classes[name] = getattr(self._class(outer), inner)
        if found is None:
            raise KeyError(name)
        return found
