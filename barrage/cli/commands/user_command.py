"""``barrage user``: the file of users with passwords that ``barrage serve --users`` reads."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from barrage.cli.command_errors import CommandError, usage_error
from barrage.cli.target import NEW_PASSWORD_VARIABLE, JsonOption
from barrage.cli.text_table import format_rows
from barrage.errors import ConfigError
from barrage.server.identity.names import checked_roles
from barrage.server.identity.password_hashing import hashed
from barrage.server.identity.users_file import (
    UserRecord,
    changing_users,
    checked_user,
    read_users,
)

user = typer.Typer(
    name="user",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Users with passwords: add, change, list, remove.",
    epilog="`barrage user COMMAND --help` has examples.",
)

UsersFileOption = Annotated[
    Path,
    typer.Option(
        "--users",
        envvar="BARRAGE_USERS",
        show_envvar=True,
        metavar="FILE",
        help="The file; `barrage serve --users` reads it again when it changes.",
        dir_okay=False,
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]
RolesOption = Annotated[
    str | None,
    typer.Option("--roles", metavar="A,B", help="Roles, with commas between.", show_default=False),
]


@user.command()
def add(
    *,
    name: NameArgument,
    users: UsersFileOption,
    roles: RolesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a user; makes the file, readable by you alone. The password is asked for, or is the first
    line of stdin, or BARRAGE_NEW_PASSWORD; it is never an argument, which others could see.

    \b
    Examples:
      barrage user add alice --users users.jsonl --roles reader,writer
      pass show barrage/alice | barrage user add alice --users users.jsonl
    """
    found = _roles(roles)
    try:
        checked_user(name)
    except ValueError as error:
        raise usage_error(f"{name!r}: {error}") from None
    password = hashed(_new_password(name))
    with changing_users(users) as known:
        if name in known:
            raise CommandError(
                f"user {name!r} exists already; `barrage user passwd` changes the password"
            )
        known[name] = UserRecord(name=name, password=password, roles=found)
    _tell(known[name], "added", as_json=as_json)


@user.command()
def passwd(
    *,
    name: NameArgument,
    users: UsersFileOption,
    roles: RolesOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the password as it is.")] = False,
    disable: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Switch the user off or on.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a user another password, or other roles. A server that reads the file ends what the user
    has open within a second or two.

    \b
    Examples:
      barrage user passwd alice --users users.jsonl
      barrage user passwd alice --users users.jsonl --keep --roles reader
      barrage user passwd alice --users users.jsonl --keep --disable
    """
    found = None if roles is None else _roles(roles)
    password = None if keep else hashed(_new_password(name))
    with changing_users(users) as known, _known(known, name):
        record = known[name]
        known[name] = replace(
            record,
            password=password or record.password,
            roles=record.roles if found is None else found,
            is_disabled=record.is_disabled if disable is None else disable,
        )
    _tell(known[name], "changed", as_json=as_json)


@user.command()
def rm(*, name: NameArgument, users: UsersFileOption, as_json: JsonOption = False) -> None:
    """Remove a user. A server that reads the file ends what the user has open.

    \b
    Examples:
      barrage user rm alice --users users.jsonl
    """
    with changing_users(users) as known, _known(known, name):
        record = known.pop(name)
    _tell(record, "removed", as_json=as_json)


@user.command()
def ls(*, users: UsersFileOption, as_json: JsonOption = False) -> None:
    """List the users.

    \b
    Examples:
      barrage user ls --users users.jsonl
    """
    found = list(read_users(users)[0].values())
    if as_json:
        typer.echo(json.dumps([_shown(record) for record in found]))
        return
    columns = [
        [record.name for record in found],
        [",".join(record.roles) for record in found],
        ["disabled" if record.is_disabled else "" for record in found],
    ]
    names = ["user", "roles", "state"]
    for line in format_rows(names, columns, right=[False] * len(names), width=None):
        typer.echo(line)


@contextmanager
def _known(users: dict[str, UserRecord], name: str) -> Iterator[None]:
    if name not in users:
        raise CommandError(f"there is no user {name!r}; `barrage user ls` lists them")
    yield


def _roles(text: str | None) -> tuple[str, ...]:
    names = [name.strip() for name in (text or "").split(",")]
    try:
        return tuple(sorted(checked_roles(name for name in names if name)))
    except ValueError as error:
        raise usage_error(f"--roles {text!r}: {error}") from None


def _new_password(name: str) -> str:
    given = os.environ.get(NEW_PASSWORD_VARIABLE)
    if given is None and sys.stdin.isatty():
        given = typer.prompt(
            f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
    if given is None:
        given = sys.stdin.readline().rstrip("\r\n")
    if not given:
        raise ConfigError(f"no password: type one, pipe it in, or set {NEW_PASSWORD_VARIABLE}")
    return given


def _shown(record: UserRecord) -> dict[str, object]:
    """Never the hash."""
    roles, is_disabled = list(record.roles), record.is_disabled
    return {"name": record.name, "roles": roles, "is_disabled": is_disabled}


def _tell(record: UserRecord, done: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_shown(record)))
    else:
        typer.echo(f"user {record.name} {done}", err=True)
