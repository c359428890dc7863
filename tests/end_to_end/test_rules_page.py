"""The examples of the section on rules of docs/security.md run as they stand, but for the port."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

import barrage
from barrage.errors import PermissionDeniedError, TableNotFoundError
from barrage.server import Login, User
from barrage.server.identity.users_file import UserRecord, changing_users
from tests.end_to_end.test_security_page import PAGE, ran
from tests.end_to_end.test_transports_page import served
from tests.helpers.users import ALICE_PASSWORD, kept_password

USERS = {"alice": ("trader",), "olga": ("ops",), "feed-1": (), "eve": ()}
TRADES = pa.table(
    {
        "Trader": ["alice", "bob"],
        "Account": ["A1", "A2"],
        "Note": ["n1", "n2"],
        "Client": ["c1", "c2"],
    }
)


def section(language: str) -> str:
    """The one block of the section in that language."""
    text = Path(PAGE).read_text().partition("\n## Rules\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return str(found)


def names_of(session: barrage.client.Session) -> set[str]:
    return {table.name for table in session.tables()} - {"_callers"}


@pytest.mark.further
def test_the_file_and_the_commands(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(section("toml"))
    with changing_users(tmp_path / "users.jsonl") as users:
        for number, (name, roles) in enumerate(USERS.items()):
            password = kept_password(number, False)
            users[name] = UserRecord(name=name, password=password, roles=roles)
    draw, check, explain, serve = section("sh").splitlines()
    ran(draw, tmp_path)
    assert "4 rules, all of them fit" in ran(check, tmp_path)
    said = ran(explain, tmp_path)
    assert "Trader = caller()" in said
    assert "Note = '***'" in said
    with served(serve, tmp_path) as port:

        def login(name: str) -> barrage.client.Session:
            return barrage.connect(f"localhost:{port}", auth=barrage.Basic(name, ALICE_PASSWORD))

        with login("feed-1") as feed, login("alice") as alice, login("eve") as eve:
            feed.put("trades", TRADES)
            with pytest.raises(PermissionDeniedError):
                feed.table("trades").snapshot()
            (row,) = alice.table("trades").snapshot().to_pylist()
            assert (row["Trader"], row["Note"], len(row["Client"])) == ("alice", "***", 16)
            assert "Account" not in row
            assert names_of(eve) == set()
            with pytest.raises(TableNotFoundError):
                eve.table("trades").snapshot()
        with login("olga") as olga:
            assert olga.table("trades").snapshot().equals(TRADES)


def test_the_program() -> None:
    def authenticate(login: Login) -> User | None:
        return User(name=login.secret, roles=USERS[login.secret])

    head, _, body = section("python").partition("with ruled:\n")
    names: dict[str, object] = {"barrage": barrage, "authenticate": authenticate}
    exec(head, names)
    server = names["ruled"]
    assert isinstance(server, barrage.Server)
    with server:
        server.create_table("trades", data=TRADES)
        server.create_table("public_prices", data=TRADES)
        with (
            barrage.connect(server.uri, auth=barrage.Bearer("alice")) as alice,
            barrage.connect(server.uri, auth=barrage.Bearer("eve")) as eve,
        ):
            assert names_of(alice) == {"trades"}
            exec("if True:\n" + body, names)
            assert names_of(alice) == {"trades", "public_prices"}
            assert names_of(eve) == {"public_prices"}
            assert alice.table("trades").snapshot().num_rows == 1
