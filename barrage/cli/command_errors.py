"""How a command fails: one line on stderr that says what to do next, and a documented exit code.

Exit codes: 0 success, 1 an error from the server, the connection or a file, 2 wrong usage, 130
interrupted.
"""

from __future__ import annotations

import os
import sys
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ConfigError,
    ConnectionLostError,
    PermissionDeniedError,
    TableExistsError,
    TableNotFoundError,
    TransportError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_GRPC_CONNECT_WORDS = "failed to connect to all addresses"

# typer exports only the leaf of its usage errors; the base catches wrong flags and missing
# arguments too.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

_NEXT_STEPS: tuple[tuple[type[BaseException], str], ...] = (
    (
        AuthenticationError,
        "pass --token or set BARRAGE_TOKEN, or --user with BARRAGE_PASSWORD; none of them when it "
        "needs none",
    ),
    (PermissionDeniedError, "the server knows who you are: ask whoever runs it"),
    (TableNotFoundError, "`barrage ls HOST:PORT` lists the tables"),
    (TableExistsError, "use --append to add rows to it, or choose another name"),
    (ConnectionLostError, "check the address, and that the server is running (`barrage serve`)"),
    (TransportError, "check the address, and that the server is running (`barrage serve`)"),
    (PermissionError, "check the permissions"),
    (FileNotFoundError, "check the path"),
)


class CommandError(Exception):
    """A command cannot go on. ``message`` is complete: what is wrong and what to do."""

    def __init__(self, message: str, *, exit_code: int = EXIT_ERROR) -> None:
        self.exit_code = exit_code
        super().__init__(message)


def usage_error(message: str) -> CommandError:
    """The command line itself is wrong."""
    return CommandError(message, exit_code=EXIT_USAGE)


def describe(error: BaseException) -> str:
    """One line for any failure: its own words, then the next step where one is known."""
    words = " ".join(str(error).split()) or type(error).__name__
    for kind, next_step in _NEXT_STEPS:
        if isinstance(error, kind):
            # An error that names its own remedy needs no second one.
            return words if "`" in words else f"{words}; {next_step}"
    return words


def short_reason(error: BaseException) -> str:
    """Why a connection failed, without the layers gRPC puts before it."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words.rpartition(": ")[2] if words.startswith(_GRPC_CONNECT_WORDS) else words


def _fail(message: str, exit_code: int) -> int:
    typer.echo(f"error: {message}", err=True)
    return exit_code


class OneLineGroup(TyperGroup):
    """Commands whose failures are one line each, whoever raised them."""

    def main(  # noqa: PLR0917  (typer's signature)
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        code = self._run(args, prog_name or "barrage", complete_var, extra=extra)
        if not standalone_mode:
            return code
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Not an error to us, and typer would make one of it.
            _detach_stdout()
            raise typer.Exit(0) from error

    def _run(
        self,
        args: Sequence[str] | None,
        prog_name: str,
        complete_var: str | None,
        *,
        extra: dict[str, Any],
    ) -> int:
        try:
            # What the command keeps in context variables, whom it logs in as, ends with it.
            result = copy_context().run(
                super().main, args, prog_name, complete_var, standalone_mode=False, **extra
            )
        except _UsageError as error:
            return _fail(_usage_line(error), EXIT_USAGE)
        except CommandError as error:
            return _fail(str(error), error.exit_code)
        except ConfigError as error:
            return _fail(describe(error), EXIT_USAGE)
        except (KeyboardInterrupt, typer.Abort):
            return EXIT_INTERRUPTED
        except (BarrageError, OSError) as error:
            return _fail(describe(error), EXIT_ERROR)
        return result if isinstance(result, int) else 0


def _usage_line(error: Exception) -> str:
    """A usage error with the help that explains it."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "barrage"
    message = getattr(error, "format_message", error.__str__)().strip().rstrip(".")
    return f"{' '.join(message.split())}; see `{path} --help`"


def _detach_stdout() -> None:
    """The reader of our output went away, as ``| head`` does: say no more, not even at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
