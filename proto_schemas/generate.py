"""Compile flight.proto into a serialized descriptor kept in a Python module.

The module holds data only: the classes are made from it in a descriptor pool of our own, so that
another package's copy of Arrow Flight in the same process cannot collide with ours.
"""

from __future__ import annotations

import base64
import sys
import tempfile
import textwrap
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

SCHEMAS = Path(__file__).parent
TARGET = SCHEMAS.parent / "barrage" / "server" / "_proto" / "flight_descriptor.py"


def compiled() -> bytes:
    """The serialized FileDescriptorProto of flight.proto."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "flight.binpb"
        status = protoc.main(
            ["protoc", f"-I{SCHEMAS}", f"--descriptor_set_out={out}", str(SCHEMAS / "flight.proto")]
        )
        if status != 0:
            sys.exit(status)
        descriptors = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    [file] = descriptors.file
    return file.SerializeToString(deterministic=True)


def module_text(descriptor: bytes) -> str:
    """Source of the generated module."""
    lines = "\n".join(
        f'    "{line}"' for line in textwrap.wrap(base64.b64encode(descriptor).decode(), 88)
    )
    return (
        '"""Generated from flight.proto by proto_schemas/generate.sh; do not edit."""\n\n'
        "import base64\n\n"
        f"FILE_DESCRIPTOR = base64.b64decode(\n{lines}\n)\n"
    )


if __name__ == "__main__":
    TARGET.write_text(module_text(compiled()))
