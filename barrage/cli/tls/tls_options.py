"""The options of TLS that every command has which takes the address of a server."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from barrage.transport.base import TLS

if TYPE_CHECKING:
    from collections.abc import Callable

_FLAGS = {
    "ca": ("tls-ca", "TLS_CA", "Authority of the server's certificate, in PEM; else the system's."),
    "certificate": ("tls-cert", "TLS_CLIENT_CERT", "Certificate to show to the server, in PEM."),
    "key": ("tls-key", "TLS_CLIENT_KEY", "Its key, in PEM."),
}
"""Field of :class:`TLS`: flag, variable without its prefix, help. The variables are not those of a
server's own certificate: both may be set in one environment."""

UPSTREAM = "upstream-"

VARIABLES = tuple(
    f"BARRAGE_{prefix}{variable}"
    for prefix in ("", "UPSTREAM_")
    for _, variable, _ in _FLAGS.values()
)
"""What is said to clients, and is no setting of a server."""

_CONTEXT = "tls_context"
"""What the parser knows of where a value came from."""

_IN_WORDS = {
    "pass tls=TLS(ca=...)": "pass --tls-ca FILE",
    "pass tls=TLS(certificate=..., key=...)": "pass --tls-cert FILE --tls-key FILE",
    ", or pass its name as tls=TLS(server_name=...)": "",
}


@dataclass(frozen=True, slots=True)
class TlsChoice:
    """What was said about TLS."""

    tls: TLS | None = None
    is_asked: bool = False
    """By a flag, not only by the environment: then all that is reached without TLS is an error."""


NO_CHOICE = TlsChoice()


def in_flags(text: str) -> str:
    """An error's advice for who has a command line instead of Python."""
    for python, flags in _IN_WORDS.items():
        text = text.replace(python, flags)
    return text


def with_tls_options(command: Callable[..., None], *, prefix: str = "") -> Callable[..., None]:
    """A command with these options behind its own, which reach it as one argument ``tls``.
    ``prefix`` stands before their names."""
    names = {field: f"{prefix}{flag}".replace("-", "_") for field, (flag, _, _) in _FLAGS.items()}

    @functools.wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        given = {field: named.pop(name) for field, name in names.items()}
        context = named.pop(_CONTEXT)
        command(*arguments, tls=_chosen(given, names, context), **named)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "tls"
    ]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(_CONTEXT, keyword, annotation=typer.Context)]
    added += [
        inspect.Parameter(
            names[field],
            keyword,
            default=None,
            annotation=_annotation(field, prefix),
        )
        for field in _FLAGS
    ]
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in (*own, *added)}
    return run


def _annotation(field: str, prefix: str) -> Any:
    flag, variable, help_text = _FLAGS[field]
    described = typer.Option(
        f"--{prefix}{flag}",
        envvar=f"BARRAGE_{prefix.replace('-', '_').upper()}{variable}",
        show_envvar=True,
        metavar="FILE",
        help=help_text,
        show_default=False,
    )
    return Annotated[str | None, described]


def _chosen(given: dict[str, str | None], names: dict[str, str], context: Any) -> TlsChoice:
    if not any(given.values()):
        return NO_CHOICE
    asked = any(
        context.get_parameter_source(names[field]).name == "COMMANDLINE"
        for field, value in given.items()
        if value is not None
    )
    return TlsChoice(TLS(**given), is_asked=asked)
