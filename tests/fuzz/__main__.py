"""Decoders against mutated input: ``python -m tests.fuzz --inputs 100000 [--decoder NAME ...]``.

Each input is a valid sample with a few changes. A decoder may return or refuse with a typed error.
Anything else is printed with the input in hexadecimal, and ends the run of that decoder; so does an
input that takes longer than a minute, or more than 2 GiB above what the process has.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from barrage.errors import BarrageError
from tests.fuzz.decoders import Decoder, decoders
from tests.fuzz.mutation import mutated

HANG_SECONDS = 60
EXTRA_BYTES_MAX = 2 << 30
BLOCK = 1000


class HangError(BaseException):
    """One input takes far too long. No Exception, so that nobody takes it for a refusal."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="inputs per decoder")
    parser.add_argument("--decoder", action="append", metavar="NAME")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = decoders()
    chosen = arguments.decoder or list(found)
    unknown = sorted(set(chosen) - set(found))
    if unknown:
        parser.error(f"no decoder {', '.join(unknown)}; there are {', '.join(found)}")
    bound_memory()
    results = {}
    for name in chosen:
        results[name] = fuzzed(found[name], f"{name}", arguments.inputs, arguments.seed)
        print(
            f"{name:28} {results[name]['inputs']:>10} inputs"
            f" {results[name]['per_second']:>8} per second"
            f" {results[name]['refused']:>10} refused {results[name]['failure']}",
            flush=True,
        )
        if arguments.json is not None:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_text(
                json.dumps({"seed": arguments.seed, "decoders": results}, indent=1)
            )
    return 1 if any(each["failure"] for each in results.values()) else 0


def bound_memory() -> None:
    """Allocating for a count that nobody checked shall fail."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + EXTRA_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def fuzzed(decoder: Decoder, name: str, inputs: int, seed: int) -> dict[str, Any]:
    """How the inputs of a decoder were taken; ``failure`` is empty when all were answered."""
    chance = random.Random(zlib.crc32(name.encode()) + seed)
    accepted = (BarrageError, *decoder.refusals)
    refused, done, failure = 0, 0, ""
    began = time.perf_counter()
    previous = signal.signal(signal.SIGALRM, _hang)
    raw = b""
    try:
        while done < inputs:
            signal.alarm(HANG_SECONDS)
            for _ in range(min(BLOCK, inputs - done)):
                raw = mutated(chance, decoder.samples)
                done += 1
                try:
                    decoder.decode(raw)
                except accepted:
                    refused += 1
    except (Exception, HangError) as error:
        failure = f"{type(error).__name__}: {error!s:.200} for {raw[:2000].hex()}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    spent = time.perf_counter() - began
    return {
        "inputs": done,
        "refused": refused,
        "seconds": round(spent, 1),
        "per_second": int(done / spent) if spent else 0,
        "failure": failure,
    }


def _hang(*_: object) -> None:
    raise HangError(f"a block of {BLOCK} inputs took more than {HANG_SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
