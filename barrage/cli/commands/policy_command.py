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
from barrage.server.policy.policy_file import read_policy
from barrage.server.policy.rules import Decision, Operation, Policy, Rule

policy = typer.Typer(
    name="policy",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="Rules of who may see what: check a file, explain what it means for somebody.",
    epilog="`barrage policy COMMAND --help` has examples.",
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A policy.", dir_okay=False)]


@policy.command()
def check(*, file: FileArgument, as_json: JsonOption = False) -> None:
    """Whether a server would take the file: its form, its conditions, what goes together. What a
    rule says of columns shows when there is a table. Exit code 2 when it would not.

    \b
    Examples:
      barrage policy check policy.toml
    """
    found = _read(file)
    count = len(found.rules)
    told = json.dumps({"rules": count}) if as_json else f"{file}: {count} rules, all of them fit"
    sys.stdout.write(told + "\n")


@policy.command()
def explain(
    *,
    file: FileArgument,
    user: Annotated[str, typer.Argument(metavar="USER")],
    table: Annotated[str, typer.Argument(metavar="TABLE")],
    roles: Annotated[
        str, typer.Option("--roles", metavar="A,B", help="Roles of the user.", show_default=False)
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """What a user may do with a table, which rule says so, and what is shown of it. Exit code 1
    when the table does not exist for the user.

    \b
    Examples:
      barrage policy explain policy.toml alice trades
      barrage policy explain policy.toml alice trades --roles ops,audit --json
    """
    found = _read(file)
    try:
        names = checked_roles([each.strip() for each in roles.split(",") if each.strip()])
        caller = Caller(name=checked_name(user), roles=names, proof=Proof.PASSWORD)
    except ValueError as error:
        raise CommandError(f"user {user!r}: {error}", exit_code=2) from None
    decision = found.decide(caller, table)
    told = explained(found, decision)
    if as_json:
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        sys.stdout.write("".join(f"{name:8} {_words(value)}\n" for name, value in told.items()))
    if not decision.is_known:
        raise typer.Exit(1)


def explained(found: Policy, decision: Decision) -> dict[str, Any]:
    """The decision as fields."""
    rule: Rule | None = None if decision.rule is None else found.rules[decision.rule - 1]
    allowed = [operation.value for operation in Operation if operation in decision.allow]
    told: dict[str, Any] = {"rule": decision.rule, "allow": allowed}
    if rule is not None and decision.restriction is not None:
        told |= {
            name: value
            for name, value in (
                ("rows", rule.rows),
                ("hide", list(rule.hide)),
                ("mask", dict(rule.mask)),
                ("hash", list(rule.hash)),
            )
            if value
        }
    return told


def _words(value: Any) -> str:
    if value is None:
        return "none is meant for this user and table: it does not exist for the user"
    if isinstance(value, list):
        return ", ".join(value) or "nothing"
    return str(value)


def _read(file: Path) -> Policy:
    try:
        return read_policy(file)
    except ConfigError as error:
        raise CommandError(str(error), exit_code=2) from None
