"""``barrage policy``: the rules that ``barrage serve --policy`` reads, checked and explained."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from barrage.cli.command_errors import CommandError
from barrage.cli.target import JsonOption
from barrage.errors import ConfigError
from barrage.server.identity.caller import Caller, Proof
from barrage.server.identity.names import checked_name, checked_roles
from barrage.server.identity.users_file import read_users
from barrage.server.policy.policy_file import read_policy
from barrage.server.policy.rules import Decision, Operation, Policy

policy = typer.Typer(
    name="policy",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Rules of who may see what: check a file, explain what it means for somebody.",
    epilog="`barrage policy COMMAND --help` has examples.",
)

PolicyFileOption = Annotated[
    Path,
    typer.Option(
        "--policy",
        envvar="BARRAGE_POLICY",
        show_envvar=True,
        metavar="FILE",
        help="The file; `barrage serve --policy` reads it again when it changes.",
        dir_okay=False,
    ),
]


@policy.command()
def check(*, policy_file: PolicyFileOption, as_json: JsonOption = False) -> None:
    """Whether a server would take the file: its form, its conditions, what goes together; and which
    rules never decide, because those before them do. What a rule says of columns shows when there
    is a table. Exit code 2 when a server would not take it.

    \b
    Examples:
      barrage policy check --policy policy.toml
    """
    found = _read(policy_file)
    count, shadowed = len(found.rules), found.shadowed()
    if as_json:
        sys.stdout.write(json.dumps({"rules": count, "shadowed": shadowed}) + "\n")
        return
    sys.stdout.write(f"{policy_file}: {count} rules, all of them fit\n")
    for number in shadowed:
        sys.stdout.write(f"rule {number} never decides: those before it do\n")


@policy.command()
def explain(
    *,
    user: Annotated[str, typer.Argument(metavar="USER")],
    table: Annotated[str, typer.Argument(metavar="TABLE")],
    policy_file: PolicyFileOption,
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            envvar="BARRAGE_USERS",
            show_envvar=True,
            metavar="FILE",
            help="Users with their roles (`barrage user`).",
            show_default=False,
            dir_okay=False,
        ),
    ] = None,
    roles: Annotated[
        str | None,
        typer.Option(
            "--roles", metavar="A,B", help="Roles of the user, in their place.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What a user may do with a table, which rule says so, and what is shown of it. Exit code 1
    when the table does not exist for the user.

    \b
    Examples:
      barrage policy explain alice trades --policy policy.toml --users users.jsonl
      barrage policy explain alice trades --policy policy.toml --roles ops,audit --json
    """
    found = _read(policy_file)
    decision = found.decide(_caller(user, users, roles), table)
    told = _explained(found, decision)
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.write("".join(f"{name:8} {_words(value)}\n" for name, value in told.items()))
    if not decision.is_known:
        raise typer.Exit(1)


def _caller(user: str, users: Path | None, roles: str | None) -> Caller:
    """Whoever has logged in as that user."""
    try:
        if roles is not None:
            names = checked_roles([each.strip() for each in roles.split(",") if each.strip()])
        elif users is not None:
            known = read_users(users)[0]
            if user not in known:
                raise CommandError(f"there is no user {user!r} in {users}", exit_code=2)
            names = checked_roles(known[user].roles)
        else:
            names = frozenset()
        return Caller(name=checked_name(user), roles=names, proof=Proof.PASSWORD)
    except ValueError as error:
        raise CommandError(f"user {user!r}: {error}", exit_code=2) from None
    except ConfigError as error:
        raise CommandError(str(error), exit_code=2) from None


def _explained(found: Policy, decision: Decision) -> dict[str, Any]:
    """The decision as fields."""
    allowed = [operation.value for operation in Operation if operation in decision.allow]
    told: dict[str, Any] = {"rule": decision.rule, "allow": allowed}
    if decision.rule is None or decision.restriction is None:
        return told
    rule, concern = found.rules[decision.rule - 1], decision.restriction.concern
    fields = {
        "rows": rule.rows,
        "concern": None if concern is None else f"rows whose {concern.column} concerns the user",
        "show": list(rule.show),
        "hide": list(rule.hide),
        "mask": dict(rule.mask),
        "hash": list(rule.hash),
    }
    return told | {name: value for name, value in fields.items() if value}


def _words(value: Any) -> str:
    if value is None:
        return "none is meant for this user and table: it does not exist for the user"
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    if isinstance(value, dict):
        return ", ".join(f"{name} = {constant!r}" for name, constant in value.items())
    return str(value)


def _read(file: Path) -> Policy:
    try:
        return read_policy(file)
    except ConfigError as error:
        raise CommandError(str(error), exit_code=2) from None
