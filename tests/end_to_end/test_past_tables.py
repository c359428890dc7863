"""Tables as they were, by ``q/`` tickets with ``at``: the same for everybody who may see them."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from contextlib import asynccontextmanager

import barrage
from barrage import Operation, Policy, Rule
from barrage.limits import Limits
from barrage.server.settings.config import ServerConfig
from tests.end_to_end.test_page_boards import shown
from tests.helpers.page_client import PageTable, on_a_loop, page_at
from tests.helpers.server_process import wait_until
from tests.helpers.users import users_file


def serving(**config):
    config.setdefault("journal", "memory")
    return barrage.Server(config=ServerConfig(host="inproc://", web=True, **config))


def filled(server, versions=5):
    table = server.create_table("t", {"id": "int64", "who": "string", "n": "int64"}, key="id")
    for n in range(versions):
        table.upsert({"id": [1, 2], "who": ["bob", "eve"], "n": [n, 10 * n]})
    return table


async def ask(page, action, number, **body):
    answer = await page.call(number, f"barrage.{action}", body)
    return answer["body"] if answer["type"] == "result" else (answer["code"], answer["message"])


def ticket(epoch, version, ops=(), table="t"):
    text = json.dumps({"table": table, "at": f"{epoch}:{version}", "ops": list(ops)})
    return b"q/" + text.encode()


async def seen(page, stream, asked):
    """The rows of a ticket, or the code and the words of the refusal."""
    table = PageTable(page, stream)
    await table.open(asked)

    def outcome():
        ends = [each for each in page.texts if each.get("stream") == stream and "code" in each]
        return table.rows() or (ends and (ends[0]["code"], ends[0]["message"]))

    return await page.until(outcome)


@on_a_loop
async def test_every_version_there_is_and_no_other():
    with serving() as server:
        table = filled(server)
        async with page_at(server.web_uri) as page:
            await page.hello()
            told = await ask(page, "versions", 1, table="t")
            assert [len(entry) for entry in told["versions"]] == [2] * len(told["versions"])
            assert told["versions"][-1][0] == told["version"]
            epoch = told["epoch"]
            for number, (version, _) in enumerate(told["versions"], start=1):
                rows = await seen(page, number, ticket(epoch, version))
                assert rows == table.as_of(version).to_arrow().to_pylist()
            last = told["version"]
            sorted_rows = await seen(page, 50, ticket(epoch, last, [["sort", ["-n"]], ["head", 1]]))
            assert sorted_rows == [{"id": 2, "who": "eve", "n": 40}]
            few = await ask(page, "versions", 2, table="t", count=2)
            assert few["versions"] == [told["versions"][0], told["versions"][-1]]
            # What is written from now on changes none of it.
            table.upsert({"id": [1], "who": ["bob"], "n": [-1]})
            assert (await seen(page, 51, ticket(epoch, last)))[0]["n"] == 4
            for stream, (place, words) in enumerate(
                [
                    (ticket(epoch, 10**9), "history-lost: epoch"),
                    (ticket("0" * 16, last), "history-lost: epoch"),
                    (ticket("zz", last), "the 'at' of a query"),
                ],
                start=60,
            ):
                assert words in (await seen(page, stream, place))[1]


@on_a_loop
async def test_a_past_table_is_found_however_its_query_is_written():
    with serving() as server:
        filled(server)
        async with page_at(server.web_uri) as page:
            await page.hello()
            told = await ask(page, "versions", 1, table="t")
            version = told["versions"][2][0]
            plain = ticket(told["epoch"], version).decode()
            wanted = await seen(page, 1, plain.encode())
            assert [row["n"] for row in wanted] != [4, 40]
            for stream, asked in enumerate(
                (
                    plain.replace('"at"', '"\\u0061t"').encode(),
                    b"q/" + plain.removeprefix("q/").encode("utf-16"),
                ),
                2,
            ):
                assert await seen(page, stream, asked) == wanted


@on_a_loop
async def test_no_more_versions_are_told_than_asked_for():
    with serving() as server:
        filled(server)
        async with page_at(server.web_uri) as page:
            await page.hello()
            all_of_them = (await ask(page, "versions", 1, table="t"))["versions"]
            for count in range(len(all_of_them) + 2):
                told = await ask(page, "versions", 2 + count, table="t", count=count)
                assert len(told["versions"]) == min(count, len(all_of_them))
                assert told["versions"][-1:] == all_of_them[len(all_of_them) - 1 :][:count]


@on_a_loop
async def test_a_table_without_a_journal():
    with serving(journal="none") as server:
        filled(server)
        async with page_at(server.web_uri) as page:
            await page.hello()
            code, words = await ask(page, "versions", 1, table="t")
            assert (code, words.startswith("no-journal:")) == ("FAILED_PRECONDITION", True)
            assert "no-journal:" in (await seen(page, 1, ticket("0" * 16, 1)))[1]
            assert (await ask(page, "versions", 2, table="none"))[0] == "NOT_FOUND"


@on_a_loop
async def test_versions_that_are_no_more():
    with serving(journal_memory_bytes=64 * 1024) as server:
        table = server.create_table("t", {"id": "int64", "text": "string"}, key="id")
        async with page_at(server.web_uri) as page:
            await page.hello()
            async with asyncio.timeout(60):
                for number in itertools.count(1):
                    table.upsert({"id": [1], "text": [str(number) * 5000]})
                    told = await ask(page, "versions", number, table="t")
                    if told["earliest"] > 1:
                        break
            words = (await seen(page, 1, ticket(told["epoch"], told["earliest"] - 1)))[1]
            assert "history-lost: truncated" in words


@on_a_loop
async def test_history_is_for_who_sees_all_of_a_table(tmp_path):
    read = frozenset({Operation.READ})
    rules = Policy(
        rules=(
            Rule(tables=("t",), users=("bob",), allow=read, rows="who = caller()", hide=("n",)),
            Rule(tables=("*",), users=("alice",), allow=frozenset(Operation)),
        )
    )
    config = ServerConfig(
        host="inproc://",
        web=True,
        journal="memory",
        users=str(users_file(tmp_path / "users.jsonl")),
        anonymous=False,
    )
    with barrage.Server(config=config, policy=rules) as server:
        filled(server)
        server.create_table("hidden", {"id": "int64"}, key="id").upsert({"id": [1]})
        async with page_at(server.web_uri) as one, page_at(server.web_uri) as other:
            await one.hello(shown("alice"))
            await other.hello(shown("bob"))
            told = await ask(one, "versions", 1, table="t")
            place = ticket(told["epoch"], told["version"])
            assert len(await seen(one, 1, place)) == 2
            for answer in (
                await ask(other, "versions", 1, table="t"),
                await seen(other, 1, place),
                await seen(other, 2, ticket(told["epoch"], told["version"], [["where", "n > 0"]])),
            ):
                assert answer[0] == "PERMISSION_DENIED"
                assert "you see a part of table 't'" in answer[1]
            hidden = await ask(one, "versions", 2, table="hidden")
            assert (await ask(other, "versions", 2, table="hidden"))[0] == "NOT_FOUND"
            place = ticket(hidden["epoch"], hidden["version"], table="hidden")
            assert (await seen(other, 51, place))[0] == "NOT_FOUND"


@on_a_loop
async def test_a_past_table_has_a_largest_size():
    async def asked(limits):
        with serving(limits=limits) as server:
            filled(server)
            async with page_at(server.web_uri) as page:
                await page.hello()
                told = await ask(page, "versions", 1, table="t")
                return await seen(page, 1, ticket(told["epoch"], told["version"]))

    code, words = await asked(Limits(past_table_bytes_max=1))
    assert code == "RESOURCE_EXHAUSTED"
    size = int(re.search(r"\d+", words)[0])
    assert len(await asked(Limits(past_table_bytes_max=size))) == 2
    assert (await asked(Limits(past_table_bytes_max=size - 1)))[0] == "RESOURCE_EXHAUSTED"


@asynccontextmanager
async def bounded(count, users=None, *, is_of_caller=False):
    """A server with room for so many states, a page of each user, and the tickets of nine
    versions."""
    with serving(**(users or {})) as server:
        filled(server, 10)
        past = server._app.journals.past
        name = "past_bytes_per_caller_max" if is_of_caller else "past_bytes_max"
        async with page_at(server.web_uri) as page, page_at(server.web_uri) as other:
            await page.hello(shown("alice") if users else None)
            await other.hello(shown("bob") if users else None)
            told = await ask(page, "versions", 1, table="t")
            places = [ticket(told["epoch"], version) for version, _ in told["versions"][-9:]]
            assert len(await seen(page, 1, places[0])) == 2
            past.server = server
            size = past.byte_count
            assert size > 0
            past._limits = Limits(**{name: count * size})
            await page.say(type="cancel", stream=1)
            yield page, other, places, past, size


def refused(answer):
    code, words = answer
    return code == "RESOURCE_EXHAUSTED" and "show fewer versions at a time" in words


@on_a_loop
async def test_past_states_that_are_shown_are_bounded_together_and_given_back():
    async with bounded(5) as (page, other, places, past, size):
        for stream, place in enumerate(places[:5], start=10):
            assert len(await seen(page, stream, place)) == 2
        # All five are shown: there is room for none more, whoever asks.
        assert past.byte_count == 5 * size
        assert refused(await seen(page, 20, places[5]))
        assert refused(await seen(other, 20, places[6]))
        # What is there already is shared, also when it is not among the last that are kept.
        for stream, place in enumerate(places[:5], start=30):
            assert len(await seen(other, stream, place)) == 2
        assert past.byte_count == 5 * size
        await page.say(type="cancel", stream=10)
        assert refused(await seen(page, 40, places[5]))
        await other.say(type="cancel", stream=30)
        await until(lambda: past.byte_count == 4 * size)
        assert len(await seen(page, 41, places[5])) == 2
        await page.end()
        await other.end()
        await until(lambda: past.byte_count <= 4 * size)
        past.forget()
        await until(lambda: past.byte_count == 0)
        assert not past._states
        assert not past._owner_bytes


@on_a_loop
async def test_states_that_nobody_shows_any_more_give_way():
    async with bounded(1) as (page, _, places, past, size):
        for stream, place in enumerate(places * 2, start=10):
            assert len(await seen(page, stream, place)) == 2
            await page.say(type="cancel", stream=stream)
            # The stream has ended once the server has none.
            await until(lambda: past.server.stream_count == 0)
        assert past.byte_count == size


@on_a_loop
async def test_one_caller_does_not_take_the_room_of_all(tmp_path):
    users = {"users": str(users_file(tmp_path / "users.jsonl")), "anonymous": False}
    async with bounded(3, users, is_of_caller=True) as (page, other, places, past, size):
        for stream, place in enumerate(places[:3], start=10):
            assert len(await seen(page, stream, place)) == 2
        assert refused(await seen(page, 20, places[3]))
        # Another one has room of its own, and shares what the first one shows.
        for stream, place in enumerate(places[1:4], start=10):
            assert len(await seen(other, stream, place)) == 2
        assert refused(await seen(other, 20, places[0]))
        await page.say(type="cancel", stream=10)
        await until(lambda: len(past._states) <= 4)

        async def has_room():
            return not refused(await seen(page, next(numbers), places[4]))

        numbers = itertools.count(30)
        async with asyncio.timeout(60):
            while not await has_room():
                pass
        assert past.byte_count <= 5 * size


async def until(condition):
    await asyncio.to_thread(wait_until, condition)
