"""What ``barrage doctor`` looks at: versions, shared memory, body transports, and what the system
allows.

Each check is a function without arguments that gives one or more findings.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import barrage
from barrage.errors import BarrageError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.findings import CheckStatus, Finding, fine, problem, warning
from barrage.transport.registry import BODIES, body_transport
from barrage.transport.shared_memory import Arena, ArenaMapping
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SHARED_MEMORY: Final = Path("/dev/shm")
DESCRIPTORS_WANTED: Final = 4096
DESCRIPTORS_MIN: Final = 256
PYTHON_MIN: Final = (3, 11)

_MIB = 1024 * 1024


def examine() -> list[Finding]:
    """All findings, in the order they are shown."""
    checks: tuple[Callable[[], Iterable[Finding]], ...] = (
        check_versions,
        check_shared_memory_room,
        check_shared_memory,
        check_body_transports,
        check_descriptors,
    )
    return [finding for check in checks for finding in check()]


def worst(findings: Iterable[Finding]) -> CheckStatus:
    """The status of all together."""
    order = list(CheckStatus)
    return max((finding.status for finding in findings), key=order.index, default=CheckStatus.OK)


# --- versions -------------------------------------------------------------------------------------


def check_versions() -> list[Finding]:
    """Python and the packages nothing works without."""
    findings = [fine("barrage", barrage.__version__)]
    text = platform.python_version()
    if sys.version_info >= PYTHON_MIN:
        findings.append(fine("python", text))
    else:
        findings.append(problem("python", text, "use Python 3.11 or newer"))
    for package in ("pyarrow", "grpcio"):
        try:
            findings.append(fine(package, version(package)))
        except PackageNotFoundError:
            findings.append(problem(package, "not installed", f"`pip install {package}`"))
    return findings


# --- shared memory --------------------------------------------------------------------------------


def check_shared_memory_room(directory: Path = SHARED_MEMORY) -> list[Finding]:
    """Size of the file system that bodies are shared in."""
    name = str(directory)
    try:
        facts = os.statvfs(directory)
    except OSError as error:
        return [
            problem(name, str(error.strerror), "mount a tmpfs there, or serve without `shm`"),
        ]
    total, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    text = f"{total // _MIB:,} MiB, {free // _MIB:,} MiB free"
    wanted = DEFAULT_LIMITS.body_arena_bytes
    if free >= wanted:
        return [fine(name, text)]
    return [
        warning(
            name,
            f"{text}; a server may use {wanted // _MIB:,} MiB and sends inline what does not fit",
            "make it larger (containers: `--shm-size=1g`)",
        )
    ]


def check_shared_memory(directory: Path = SHARED_MEMORY) -> list[Finding]:
    """Put a body into shared memory, and read it as a client does."""
    name = "shared memory"
    content = os.urandom(_MIB)
    limits = dataclasses.replace(
        DEFAULT_LIMITS, body_arena_bytes=4 * _MIB, body_segment_bytes=2 * _MIB
    )
    advice = f"check the permissions and the room of {directory}, or serve without `shm`"
    try:
        arena = Arena.create(limits, directory=str(directory))
    except BarrageError as error:
        return [problem(name, str(error), advice)]
    try:
        region = arena.place([content], len(content))
        if region is None:
            return [problem(name, "no room for a body of 1 MiB", advice)]
        mapping = ArenaMapping.open(arena.name, directory=str(directory))
        try:
            came = mapping.copy(region.reference()).to_pybytes()
        finally:
            mapping.close()
    except BarrageError as error:
        return [problem(name, str(error), advice)]
    finally:
        arena.close()
    if came != content:
        return [problem(name, "what was written reads differently", advice)]
    return [fine(name, "usable")]


# --- body transports ------------------------------------------------------------------------------


def check_body_transports() -> list[Finding]:
    """What each of them that is a plug-in says about this machine."""
    findings = []
    for name in BODIES.names():
        if name == BodyWay.SHM.value:
            continue
        try:
            findings += body_transport(BodyWay.named(name)).examine()
        except BarrageError as error:
            findings.append(warning(name, str(error), f"only needed for `--bodies {name}`"))
        except Exception as error:  # what a plug-in does; the other checks are made all the same
            text = f"its check failed: {type(error).__name__}: {error}"
            findings.append(warning(name, text, f"only needed for `--bodies {name}`"))
    return findings


# --- limits of the process ------------------------------------------------------------------------


def check_descriptors() -> list[Finding]:
    """Open files: a stream takes one or two, a UCX connection four to seven."""
    name = "open files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [fine(name, "no limit")]
    most = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    text = f"{soft:,} allowed, at most {most}"
    advice = f"raise it (`ulimit -n {65536 if hard < 0 else min(hard, 65536)}`)"
    if soft < DESCRIPTORS_MIN:
        return [problem(name, text, advice)]
    if soft < DESCRIPTORS_WANTED:
        return [warning(name, text, advice)]
    return [fine(name, text)]
