"""Lines of the log as JSON and as words, with caller and stream; levels by part, at run time."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

import barrage
from barrage import Operation, Policy, Rule
from barrage.errors import BarrageError, ConfigError, PermissionDeniedError
from barrage.server import ServerConfig
from barrage.server.identity.caller import Caller, Proof
from barrage.server.identity.current_call import CurrentCall, within_call
from barrage.server.operations.log_levels import SET_LOG_LEVEL, levels, parts, set_levels
from barrage.server.operations.log_lines import log_no_more, log_to
from tests.helpers.users import ALICE_PASSWORD, users_file

log = logging.getLogger("barrage.journal.stores.store")


@pytest.fixture(autouse=True)
def levels_as_before() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in ("barrage", "barrage.journal")}
    yield
    for part in levels():
        logging.getLogger("barrage" if part == "barrage" else f"barrage.{part}").setLevel(0)
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def logged(work, *, is_json: bool, chosen: str = "warning") -> list[str]:
    """The lines that are written meanwhile."""
    text = io.StringIO()
    handler = log_to(text, is_json=is_json, levels=chosen)
    try:
        work()
    finally:
        log_no_more(handler)
    return text.getvalue().splitlines()


def in_a_call(work):
    call = CurrentCall(Caller(name="bob\n", proof=Proof.JWT), ["t"], stream_id=7)

    def run() -> None:
        with within_call(call):
            work()

    return run


def test_a_line_of_json_says_who_and_where():
    def work() -> None:
        try:
            raise ValueError("wrong \N{SNOWMAN}\n\x1b")
        except ValueError:
            log.exception("it %s", "failed\nbadly")

    (line,) = logged(in_a_call(work), is_json=True)
    told = json.loads(line)
    assert told.pop("time").endswith("+00:00")
    assert "ValueError: wrong" in told.pop("traceback")
    assert told == {
        "level": "error",
        "part": "journal.stores.store",
        "message": "it failed\nbadly",
        "thread": "MainThread",
        "user": "bob\n",
        "proof": "jwt",
        "stream": 7,
        "tables": ["t"],
        "error": "ValueError",
    }
    (plain,) = logged(lambda: log.error("alone"), is_json=True)
    assert set(json.loads(plain)) == {"time", "level", "part", "message", "thread"}


def test_a_line_of_words():
    line = "".join(logged(in_a_call(lambda: log.error("it failed")), is_json=False))
    assert "ERROR barrage.journal.stores.store: it failed" in line
    assert logged(lambda: log.warning("alone"), is_json=False)[0].endswith(": alone")


def test_levels_are_those_of_parts():
    def work() -> None:
        log.debug("of the journal")
        logging.getLogger("barrage.server.exchange").debug("of the server")

    assert logged(work, is_json=False) == []
    (line,) = logged(work, is_json=False, chosen="warning, journal=debug")
    assert "of the journal" in line
    assert levels()["journal"] == "debug"
    set_levels("journal=unset")
    assert "journal" not in levels()
    assert {"barrage", "journal", "server.exchange", "relay"} <= parts()


@pytest.mark.parametrize("text", ["loud", "journal=loud", "nothing=debug", "os=debug", "=debug,x="])
def test_what_is_no_level_is_refused(text):
    with pytest.raises(ConfigError):
        set_levels(text)


def test_levels_change_at_run_time_by_who_may(tmp_path):
    rules = (
        Rule(tables=("*",), roles=("writer",), allow=frozenset({Operation.ADMIN})),
        Rule(tables=("*",), allow=frozenset({Operation.READ})),
    )
    config = ServerConfig(users=str(users_file(tmp_path / "users")))
    with barrage.Server(config=config, policy=Policy(rules)) as server:

        def act(user: str, body: bytes) -> dict:
            auth = barrage.Basic(user, ALICE_PASSWORD)
            with barrage.connect(server.uri, auth=auth) as session:
                (answer,) = session._thread.call(session._session.act(SET_LOG_LEVEL, body), 60)
                return json.loads(answer)

        with pytest.raises(PermissionDeniedError):
            act("bob", b'{"level": "debug"}')
        told = act("alice", b'{"level": "debug", "part": "journal"}')
        assert told["levels"]["journal"] == "debug"
        assert log.isEnabledFor(logging.DEBUG)
        for body in (b"", b"[]", b"{}", b'{"level": 7}', b'{"level": "debug", "more": 1}'):
            with pytest.raises(BarrageError, match="action body"):
                act("alice", body)
        for body in (b'{"level": "loud"}', b'{"level": "debug", "part": "x"}'):
            with pytest.raises(BarrageError, match=r"is not one of|no part"):
                act("alice", body)
