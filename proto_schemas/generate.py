"""Compile every .proto file here into a serialized descriptor kept in a Python module.

The modules hold data only: the classes are made from it in descriptor pools of our own, so that
another package's copy of the same definitions in one process cannot collide with ours.
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
SOURCES = sorted(SCHEMAS.glob("*.proto"))
TARGETS = SCHEMAS.parent / "barrage" / "transport" / "_proto"


def target_of(source: Path) -> Path:
    """The generated module of one .proto file."""
    return TARGETS / f"{source.stem}_descriptor.py"


def compiled(source: Path) -> bytes:
    """The serialized FileDescriptorProto of one .proto file."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "file.binpb"
        status = protoc.main(["protoc", f"-I{SCHEMAS}", f"--descriptor_set_out={out}", str(source)])
        if status != 0:
            sys.exit(status)
        descriptors = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    [file] = descriptors.file
    return file.SerializeToString(deterministic=True)


def module_text(source: Path) -> str:
    """Source of the generated module."""
    encoded = base64.b64encode(compiled(source)).decode()
    lines = "\n".join(f'    "{line}"' for line in textwrap.wrap(encoded, 88))
    return (
        f'"""Generated from {source.name} by proto_schemas/generate.sh; do not edit."""\n\n'
        "import base64\n\n"
        f"FILE_DESCRIPTOR = base64.b64decode(\n{lines}\n)\n"
    )


if __name__ == "__main__":
    for path in SOURCES:
        target_of(path).write_text(module_text(path))
