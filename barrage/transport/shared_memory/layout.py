"""How an arena lies in its files: names, headers, addresses.

An arena ``barrage-<32 hex>`` is one small file of that name, the *root*, and numbered *segments*
``barrage-<32 hex>.<number>``. Each begins with the same header, which carries the arena's proof. A
*region* of a segment is a 64-byte header and one body behind it; both begin on multiples of 64.

An address is ``segment number << 40 | offset of the body``. All numbers are little-endian.
"""

from __future__ import annotations

import re
import secrets
import struct
from typing import NamedTuple

ALIGNMENT = 64
"""What bodies are aligned to, as Arrow recommends for its buffers."""

COPY_BYTES_MAX = 256 * 1024
"""Parts up to this size are copied without giving the interpreter's lock away: to get it back from
a thread that computes takes longer."""

PROOF_BYTES = 16
NAME = re.compile(r"barrage-[0-9a-f]{32}")
FILE_NAME = re.compile(r"barrage-[0-9a-f]{32}(\.[0-9]{1,4})?")
FILE_MODE = 0o600
ROOT_BYTES = 4096
ROOT_NUMBER = 0xFFFF_FFFF

SEGMENTS_MAX = 4096
"""Segments of one arena; a client maps no more."""

OFFSET_BITS = 40
OFFSET_MASK = (1 << OFFSET_BITS) - 1

_FILE = struct.Struct("<8sIIQ16s24x")
_FILE_MAGIC = b"BRGARENA"
_VERSION = 1
FILE_HEADER_BYTES = _FILE.size

_REGION = struct.Struct("<8sQQQ16s")
_REGION_MAGIC = b"BRGREGN1"
REGION_HEADER_BYTES = 64
REGION_HEADER_USED = _REGION.size
_GENERATION = struct.Struct("<Q")
_GENERATION_OFFSET = 8
NO_GENERATION = 0
"""Stands in the header of a region that is not lent out any more; no region ever has it."""


class FileHeader(NamedTuple):
    """The first 64 bytes of every file of an arena."""

    number: int
    """Of the segment; :data:`ROOT_NUMBER` in the root."""
    size: int
    """Of the file in bytes."""
    proof: bytes

    def encode(self) -> bytes:
        return _FILE.pack(_FILE_MAGIC, _VERSION, self.number, self.size, self.proof)

    @classmethod
    def decode(cls, buffer: bytes) -> FileHeader | None:
        """None when this is no file of an arena, or one of another version."""
        if len(buffer) < FILE_HEADER_BYTES:
            return None
        magic, version, number, size, proof = _FILE.unpack_from(buffer)
        if magic != _FILE_MAGIC or version != _VERSION:
            return None
        return cls(number, size, proof)


def new_name() -> str:
    """A name nobody can guess and no other arena has."""
    return f"barrage-{secrets.token_hex(16)}"


def segment_name(name: str, number: int) -> str:
    return f"{name}.{number}"


def block_bytes(length: int) -> int:
    """What a body of ``length`` bytes takes in a segment, its header included."""
    return REGION_HEADER_BYTES + -(-max(length, 1) // ALIGNMENT) * ALIGNMENT


def region_header(generation: int, address: int, length: int, *, proof: bytes) -> bytes:
    """What stands before a body. It names the arena too, so that no other content of a segment
    looks like it by chance."""
    return _REGION.pack(_REGION_MAGIC, generation, address, length, proof)


def write_generation(memory: memoryview, header: int, generation: int) -> None:
    """Change the generation of the region whose header begins at offset ``header``."""
    _GENERATION.pack_into(memory, header + _GENERATION_OFFSET, generation)


def read_generation(memory: memoryview, header: int) -> int:
    """What the region whose header begins at offset ``header`` has now."""
    generation: int = _GENERATION.unpack_from(memory, header + _GENERATION_OFFSET)[0]
    return generation
