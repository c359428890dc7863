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
    """The messages of one .proto file by their short names."""

    def __init__(self, file_descriptor: bytes) -> None:
        file = descriptor_pb2.FileDescriptorProto.FromString(file_descriptor)
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(file_descriptor)
        self._classes: dict[str, Any] = message_factory.GetMessageClassesForFiles([file.name], pool)
        self._prefix = f"{file.package}."

    def new(self, name: str, **fields: Any) -> Any:
        """A message with these fields."""
        return self._classes[self._prefix + name](**fields)

    def encode(self, name: str, **fields: Any) -> bytes:
        """The bytes of a message with these fields."""
        return bytes(self.new(name, **fields).SerializeToString())

    def decode(self, name: str, buffer: bytes | memoryview) -> Any:
        """Read a message; RemoteProtocolError when the bytes are malformed."""
        try:
            return self._classes[self._prefix + name].FromString(bytes(buffer))
        except message.DecodeError as error:
            raise RemoteProtocolError(f"malformed {name} message") from error
