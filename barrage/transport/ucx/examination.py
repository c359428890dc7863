"""Whether UCX works on this machine. It is tried in a process of its own: a library that does not
fit may end it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from barrage.transport.findings import CheckStatus, Finding, fine, problem, warning
from barrage.transport.ucx.settings import library_choice

SELF_TEST_SECONDS_MAX: Final = 60.0

_PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def examine() -> list[Finding]:
    """What ``barrage doctor`` says: the library, whether it connects, and whether processes may
    read each other's memory."""
    said, end = run_self_test()
    findings = []
    if (library := said.get("library")) is not None:
        findings += _about_library(library)
    if (connection := said.get("connection")) is not None:
        findings.append(_about_connection(connection))
    if end and (not findings or findings[-1].status is not CheckStatus.PROBLEM):
        findings.append(
            problem(
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
            return [warning("ucx", text, "only needed for bodies over UCX (`--bodies ucx`)")]
        return [problem("ucx", text, f"unset BARRAGE_UCX_LIBRARY, which asks for {asked!r}")]
    text = f"{facts['release']}, {facts['path']}"
    if not facts["warnings"]:
        return [fine("ucx", text)]
    found, _, advice = "; ".join(facts["warnings"]).partition("; ")
    return [warning("ucx", f"{text}: {found}", advice)]


def _about_connection(facts: dict[str, Any]) -> Finding:
    if facts["error"]:
        return problem("ucx over tcp", facts["error"], "serve without `ucx`")
    return fine("ucx over tcp", f"connects over the loopback device ({facts['took_ms']} ms)")


def _about_cma(error: str) -> Finding:
    name = "cross-memory attach"
    if not error:
        return fine(name, "allowed")
    try:
        scope = f" (ptrace_scope {_PTRACE_SCOPE.read_text().strip()})"
    except OSError:
        scope = ""
    return warning(
        name,
        f"{error}{scope}",
        "only needed for UCX with transport `cma`: `sysctl kernel.yama.ptrace_scope=0`, or in "
        "containers `--cap-add SYS_PTRACE`; or stay with `tcp`",
    )
