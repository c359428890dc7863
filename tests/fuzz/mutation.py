"""Changing bytes at random, thousands of times a second."""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS = tuple(
    number.to_bytes(size, "little", signed=number < 0)
    for size in (1, 2, 4, 8)
    for number in (0, 1, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1)))
)
TEXTS = (b'"', b"{", b"[", b"]", b"}", b"null", b"-1", b"1e999", b"\\u0000", b"(", b"/", b"\xff")


def mutated(chance: random.Random, samples: Sequence[bytes]) -> bytes:
    """A sample with one to four changes; now and then bytes that never were one."""
    pick = chance.random()
    if pick < 0.02:
        return chance.randbytes(chance.randrange(64))
    data = bytearray(samples[int(pick * 7919 * len(samples)) % len(samples)])
    for _ in range(1 + (chance.getrandbits(2) & chance.getrandbits(2))):
        at = int(chance.random() * (len(data) + 1))
        kind = chance.getrandbits(3)
        if kind <= 1 and at < len(data):
            data[at] ^= 1 << chance.getrandbits(3)
        elif kind == 2 and at < len(data):
            data[at] = chance.getrandbits(8)
        elif kind == 3:
            word = WORDS[chance.randrange(len(WORDS))]
            data[at : at + len(word)] = word
        elif kind == 4:
            del data[at : at + 1 + chance.getrandbits(3)]
        elif kind == 5:
            data[at:at] = data[max(0, at - 16) : at] * (1 + chance.getrandbits(2))
        elif kind == 6:
            data[at:at] = TEXTS[chance.randrange(len(TEXTS))]
        else:
            del data[at:]
    return bytes(data)
