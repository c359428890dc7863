"""Python processes that need not import everything again.

Half a second of CPU time of every command and server that tests start goes into imports. So a
process that has them done (the *warm* one, one for each process of tests, started when it is first
asked for) forks the others. What it forks are whole processes of their own: with their own memory,
descriptors, signals and end. How the interpreter starts, what a command imports, terminals and hash
seeds are tested with real ones. ``BARRAGE_TEST_COLD_PROCESSES=1`` makes all of them real.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

IS_COLD = bool(os.environ.get("BARRAGE_TEST_COLD_PROCESSES")) or sys.platform != "linux"
PRELOADED = ("pandas", "pyarrow.compute", "pyarrow.parquet", "textual.app")
REPOSITORY = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 1 << 17

TOLD = struct.Struct("qqd")
"""Of a process, when it begins and when it has ended: its id, its status, its CPU seconds."""

cpu_seconds = [0.0]
"""What warm processes have used that have ended."""


def popen(words: Sequence[str], **options: Any) -> subprocess.Popen[str] | WarmProcess:
    """``python *words`` with its output in two pipes of text; options are those of ``Popen``."""
    return cold_popen(words, **options) if IS_COLD else WarmProcess(words, **options)


def cold_popen(words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """The same from the start of the interpreter."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *words], stdout=pipe, stderr=pipe, text=True, **options
    )


def run(
    words: Sequence[str], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of ``python *words``, capturing what it prints."""
    process = popen(words, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    done = subprocess.CompletedProcess(list(words), process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class WarmProcess:
    """What tests use of ``subprocess.Popen``."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        request = {
            "words": self.args,
            "environment": dict(os.environ if env is None else env),
            "directory": os.fspath(cwd or os.getcwd()),
        }
        pipes = [os.pipe() for _ in range(3)]
        (out, out_end), (err, err_end), (self._status, status_end) = pipes
        self.stdout, self.stderr = open(out), open(err)  # noqa: SIM115
        try:
            _warm().ask(request, [0, out_end, err_end, status_end])
        finally:
            for end in (out_end, err_end, status_end):
                os.close(end)
        self._has_status = threading.Lock()
        self.pid: int = self._told(None)[0]

    def _told(self, timeout: float | None) -> tuple[int, int, float]:
        if not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return TOLD.unpack(os.read(self._status, TOLD.size))

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        with self._has_status:
            if self.returncode is None:
                _, status, seconds = self._told(timeout)
                cpu_seconds[0] += seconds
                self.returncode = os.waitstatus_to_exitcode(status)
                os.close(self._status)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        read = {"out": "", "err": ""}
        files = {"out": self.stdout, "err": self.stderr}
        threads = [
            threading.Thread(target=lambda n=name: read.update({n: _rest(files[n])}), daemon=True)
            for name in read
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(timeout)
            if each.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(timeout)
        for file in files.values():
            file.close()
        return read["out"], read["err"]


def _rest(file: io.TextIOWrapper) -> str:
    return "" if file.closed else file.read()


class _Warm:
    """The process that forks the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.warm_python", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=REPOSITORY,  # The test that asks first may stand elsewhere.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # An interrupt of the tests is theirs to deal with.
        )
        theirs.close()
        atexit.register(self.close)

    def ask(self, request: dict[str, Any], descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _warm() -> _Warm:
    return _Warm()


# --- in the warm process --------------------------------------------------------------------------


def _load_everything() -> None:
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import barrage

    for module in pkgutil.walk_packages(barrage.__path__, "barrage."):
        if "__main__" not in module.name:
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def _serve(asked: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks until nobody asks any more. Returns in each child, with what it is to do."""
    running: dict[int, int] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([asked, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(running)
        if asked in ready:
            message, descriptors, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 4)
            if not message:
                _end(running)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The allocator of Arrow has a thread; it may.
                child = os.fork()
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                asked.detach()
                return json.loads(message), descriptors
            *rest, status = descriptors
            running[child] = status
            os.write(status, TOLD.pack(child, 0, 0.0))
            for each in rest:
                os.close(each)


def _tell_ends(running: dict[int, int]) -> None:
    for child, status in list(running.items()):
        ended, code, used = os.wait4(child, os.WNOHANG)
        if ended:
            with contextlib.suppress(BrokenPipeError):
                os.write(status, TOLD.pack(child, code, used.ru_utime + used.ru_stime))
            os.close(status)
            del running[child]


def _end(running: dict[int, int]) -> NoReturn:
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os._exit(0)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the process that was asked for."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    is_unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout, sys.stderr = (
        open(number, "w", buffering=1 if number == 2 or is_unbuffered else -1)  # noqa: SIM115
        for number in (1, 2)
    )
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = list(request["words"])
    while words[0] == "-W":
        action, _, category = words[1].partition("::")
        warnings.simplefilter(action, getattr(builtins, category))
        del words[:2]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        name, code, sys.argv = "<string>", words[1], ["-c", *words[2:]]
        sys.path.insert(0, "")
    else:
        name, code, sys.argv = words[0], Path(words[0]).read_text(), words
        sys.path.insert(0, str(Path(name).parent))
        main.__file__ = name
    exec(compile(code, name, "exec"), main.__dict__)


if __name__ == "__main__":
    _load_everything()
    gc.collect()
    gc.freeze()
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
