"""What gRPC server reflection describes: every service on the port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from barrage.transport._proto.flight_descriptor import FILE_DESCRIPTOR
from barrage.transport.deephaven_messages import FILE_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import grpc.aio


def offer_reflection(services: Iterable[str], server: grpc.aio.Server) -> None:
    """Let ``server``, which has these services, describe them and itself."""
    names = (*services, reflection.SERVICE_NAME)
    servicer = reflection.aio.ReflectionServicer(names, pool=reflection_pool())  # type: ignore[attr-defined]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


def reflection_pool() -> descriptor_pool.DescriptorPool:
    """Flight, the services of Deephaven clients, health and reflection itself. Not the process-wide
    pool, which another copy of Arrow Flight in the process may have filled."""
    pool = descriptor_pool.DescriptorPool()
    for descriptor in (FILE_DESCRIPTOR, *FILE_DESCRIPTORS):
        pool.AddSerializedFile(descriptor)
    for other in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        pool.AddSerializedFile(other.serialized_pb)
    return pool
