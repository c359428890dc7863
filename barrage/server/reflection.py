"""What gRPC server reflection describes: every service on the port."""

from __future__ import annotations

from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from barrage.transport._proto.flight_descriptor import FILE_DESCRIPTOR
from barrage.transport.deephaven_messages import FILE_DESCRIPTORS


def reflection_pool() -> descriptor_pool.DescriptorPool:
    """Flight, the services of Deephaven clients, health and reflection itself. Not the process-wide
    pool, which another copy of Arrow Flight in the process may have filled."""
    pool = descriptor_pool.DescriptorPool()
    for descriptor in (FILE_DESCRIPTOR, *FILE_DESCRIPTORS):
        pool.AddSerializedFile(descriptor)
    for other in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(other.serialized_pb)
    return pool
