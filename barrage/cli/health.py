"""What ``barrage doctor`` looks at: versions, shared memory, UCX, and what the system allows.

Each check is a function without arguments that gives one or more findings. UCX is tried in a
process of its own: a library that does not fit may end it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import platform
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import barrage
from barrage.errors import BarrageError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.shared_memory import Arena, ArenaMapping
from barrage.transport.ucx.settings import library_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SHARED_MEMORY: Final = Path("/dev/shm")
DESCRIPTORS_WANTED: Final = 4096
DESCRIPTORS_MIN: Final = 256
PYTHON_MIN: Final = (3, 11)
SELF_TEST_SECONDS_MAX: Final = 60.0

_MIB = 1024 * 1024
_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


class CheckStatus(Enum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line: what was looked at, how it is, and what to do about it when it is not well."""

    name: str
    status: CheckStatus
    text: str
    advice: str = ""

    def facts(self) -> dict[str, str]:
        """The JSON form."""
        return {**dataclasses.asdict(self), "status": self.status.value}


def examine() -> list[Finding]:
    """All findings, in the order they are shown."""
    checks: tuple[Callable[[], Iterable[Finding]], ...] = (
        check_versions,
        check_shared_memory_room,
        check_shared_memory,
        check_ucx,
        check_descriptors,
    )
    return [finding for check in checks for finding in check()]


def worst(findings: Iterable[Finding]) -> CheckStatus:
    """The status of all together."""
    order = list(CheckStatus)
    return max((finding.status for finding in findings), key=order.index, default=CheckStatus.OK)


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, status=CheckStatus.OK, text=text)


def _warning(name: str, text: str, advice: str) -> Finding:
    return Finding(name=name, status=CheckStatus.WARNING, text=text, advice=advice)


def _problem(name: str, text: str, advice: str) -> Finding:
    return Finding(name=name, status=CheckStatus.PROBLEM, text=text, advice=advice)


# --- versions -------------------------------------------------------------------------------------


def check_versions() -> list[Finding]:
    """Python and the packages nothing works without."""
    findings = [_ok("barrage", barrage.__version__)]
    text = platform.python_version()
    if sys.version_info >= PYTHON_MIN:
        findings.append(_ok("python", text))
    else:
        findings.append(_problem("python", text, "use Python 3.11 or newer"))
    for package in ("pyarrow", "grpcio"):
        try:
            findings.append(_ok(package, version(package)))
        except PackageNotFoundError:
            findings.append(_problem(package, "not installed", f"`pip install {package}`"))
    return findings


# --- shared memory --------------------------------------------------------------------------------


def check_shared_memory_room(directory: Path = SHARED_MEMORY) -> list[Finding]:
    """Size of the file system that bodies are shared in."""
    name = str(directory)
    try:
        facts = os.statvfs(directory)
    except OSError as error:
        return [
            _problem(name, str(error.strerror), "mount a tmpfs there, or serve without `shm`"),
        ]
    total, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    text = f"{total // _MIB:,} MiB, {free // _MIB:,} MiB free"
    wanted = DEFAULT_LIMITS.body_arena_bytes
    if free >= wanted:
        return [_ok(name, text)]
    return [
        _warning(
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
        return [_problem(name, str(error), advice)]
    try:
        region = arena.place([content], len(content))
        if region is None:
            return [_problem(name, "no room for a body of 1 MiB", advice)]
        mapping = ArenaMapping.open(arena.name, directory=str(directory))
        try:
            came = mapping.copy(region.reference()).to_pybytes()
        finally:
            mapping.close()
    except BarrageError as error:
        return [_problem(name, str(error), advice)]
    finally:
        arena.close()
    if came != content:
        return [_problem(name, "what was written reads differently", advice)]
    return [_ok(name, "usable")]


# --- UCX ------------------------------------------------------------------------------------------


def check_ucx() -> list[Finding]:
    """The library, whether it connects, and whether processes may read each other's memory."""
    said, end = run_self_test()
    findings = []
    if (library := said.get("library")) is not None:
        findings += _about_library(library)
    if (connection := said.get("connection")) is not None:
        findings.append(_about_connection(connection))
    if end and (not findings or findings[-1].status is not CheckStatus.PROBLEM):
        findings.append(
            _problem(
                "ucx",
                f"trying it {end}",
                "use another UCX (BARRAGE_UCX_LIBRARY=wheel or system), or serve without `ucx`",
            )
        )
    if (memory := said.get("cma")) is not None:
        findings.append(_about_cma(memory["error"]))
    return findings


def run_self_test() -> tuple[dict[str, dict[str, Any]], str]:
    """What the process that tries UCX said, by subject, and how it ended when not well."""
    probe = ctypes.create_string_buffer(b"memory of another process")
    arguments = [str(os.getpid()), str(ctypes.addressof(probe)), str(len(probe))]
    command = [sys.executable, "-m", "barrage.transport.ucx.self_test", *arguments]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=SELF_TEST_SECONDS_MAX,
            check=False,
        )
        output, end = done.stdout, _end_of(done.returncode)
    except subprocess.TimeoutExpired as error:
        output, end = error.stdout or b"", f"took longer than {SELF_TEST_SECONDS_MAX:g} s"
    facts = [json.loads(line) for line in output.splitlines() if line.startswith(b'{"about"')]
    return {fact["about"]: fact for fact in facts}, end


def _end_of(code: int) -> str:
    if code == 0:
        return ""
    return f"ended with {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _about_library(facts: dict[str, Any]) -> list[Finding]:
    if facts["error"]:
        text = f"not available: {facts['error']}"
        asked = library_choice()
        if asked is None:
            return [_warning("ucx", text, "only needed for bodies over UCX (`--bodies ucx`)")]
        return [_problem("ucx", text, f"unset BARRAGE_UCX_LIBRARY, which asks for {asked!r}")]
    text = f"{facts['release']}, {facts['path']}"
    if not facts["warnings"]:
        return [_ok("ucx", text)]
    found, _, advice = "; ".join(facts["warnings"]).partition("; ")
    return [_warning("ucx", f"{text}: {found}", advice)]


def _about_connection(facts: dict[str, Any]) -> Finding:
    if facts["error"]:
        return _problem("ucx over tcp", facts["error"], "serve without `ucx`")
    return _ok("ucx over tcp", f"connects over the loopback device ({facts['took_ms']} ms)")


def _about_cma(error: str) -> Finding:
    name = "cross-memory attach"
    if not error:
        return _ok(name, "allowed")
    try:
        scope = f" (ptrace_scope {_PTRACE_SCOPE.read_text().strip()})"
    except OSError:
        scope = ""
    return _warning(
        name,
        f"{error}{scope}",
        "only needed for UCX with transport `cma`: `sysctl kernel.yama.ptrace_scope=0`, or in "
        "containers `--cap-add SYS_PTRACE`; or stay with `tcp`",
    )


# --- limits of the process ------------------------------------------------------------------------


def check_descriptors() -> list[Finding]:
    """Open files: a stream takes one or two, a UCX connection four to seven."""
    name = "open files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [_ok(name, "no limit")]
    most = "no limit" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    text = f"{soft:,} allowed, at most {most}"
    advice = f"raise it (`ulimit -n {65536 if hard < 0 else min(hard, 65536)}`)"
    if soft < DESCRIPTORS_MIN:
        return [_problem(name, text, advice)]
    if soft < DESCRIPTORS_WANTED:
        return [_warning(name, text, advice)]
    return [_ok(name, text)]
