"""Everything that servers of this process send over ``inproc://``, by who called: messages as they
are, headers and texts of statuses."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from barrage.errors import StatusCode
from barrage.transport.inproc.inproc_call import InprocCall, Pipe, acceptor_of

AUTHORIZATION = "authorization"
WINDOW_BYTES = 1 << 26
HANG_S = 180


class Wiretap:
    """What was sent to whom. Callers are told apart by the header they show, and by the tokens they
    are given for it."""

    def __init__(self) -> None:
        self._sent: dict[str, list[bytes]] = defaultdict(list)
        self._known_as: dict[str, str] = {}

    def taken(self, header: str) -> bytes:
        """What went to a caller since this was asked before."""
        owners = [each for each in list(self._sent) if self._owner(each) == header]
        return b"\n".join(b"\n".join(self._sent.pop(each)) for each in owners)

    def _owner(self, header: str) -> str:
        return self._known_as.get(header, header)

    def note(self, header: str, *sent: object) -> None:
        for each in sent:
            self._sent[header].append(each.encode() if isinstance(each, str) else bytes(each))  # type: ignore[arg-type]

    def note_headers(self, header: str, headers: tuple[tuple[str, str], ...]) -> None:
        for name, value in headers:
            if name == AUTHORIZATION and value != header:
                self._known_as[value] = self._owner(header)
            self.note(header, name, value)


def shown_header(call: InprocCall) -> str:
    return dict(call.metadata).get(AUTHORIZATION, "")


@contextmanager
def listening() -> Iterator[Wiretap]:
    """Tap all calls that begin within the block."""
    tap = Wiretap()
    make, finish, headers = InprocCall.__init__, InprocCall.finish, InprocCall.send_headers
    write, put_last = Pipe.write, Pipe.put_last
    owners: dict[int, tuple[Pipe, str]] = {}

    def owner(pipe: Pipe) -> str | None:
        found = owners.get(id(pipe))
        return None if found is None else found[1]

    def made(call: InprocCall, *arguments: Any, **named: Any) -> None:
        make(call, *arguments, **named)
        owners[id(call.answers)] = (call.answers, shown_header(call))

    def finished(call: InprocCall, code: StatusCode | None, details: str = "") -> None:
        tap.note(shown_header(call), details)
        finish(call, code, details)

    def sent(call: InprocCall, told: tuple[tuple[str, str], ...]) -> bool:
        tap.note_headers(shown_header(call), told)
        return headers(call, told)

    async def written(pipe: Pipe, message: bytes) -> bool:
        header = owner(pipe)
        if header is not None:
            tap.note(header, message)
        return await write(pipe, message)

    def put(pipe: Pipe, message: bytes) -> None:
        header = owner(pipe)
        if header is not None:
            tap.note(header, message)
        put_last(pipe, message)

    with (
        mock.patch.object(InprocCall, "__init__", made),
        mock.patch.object(InprocCall, "finish", finished),
        mock.patch.object(InprocCall, "send_headers", sent),
        mock.patch.object(Pipe, "write", written),
        mock.patch.object(Pipe, "put_last", put),
    ):
        yield tap


class RawClient:
    """Calls of one caller as bytes, over ``inproc://``; a session is kept if one is given."""

    def __init__(self, uri: str, header: str) -> None:
        self._name = uri.removeprefix("inproc://")
        self.header = header

    def call(self, method: str, *requests: bytes) -> tuple[list[bytes], StatusCode | None]:
        """All answers, and the status."""
        return asyncio.run(self._call(method, requests, answers_max=None))

    def first(self, method: str, *requests: bytes) -> tuple[list[bytes], StatusCode | None]:
        """The first answer of a stream, which is cancelled then."""
        return asyncio.run(self._call(method, requests, answers_max=1))

    def kept_open(self, method: str, *requests: bytes) -> StatusCode | None:
        """How a stream ends that the client would have go on."""
        return asyncio.run(self._call(method, requests, answers_max=None, is_kept_open=True))[1]

    async def _call(
        self,
        method: str,
        requests: tuple[bytes, ...],
        *,
        answers_max: int | None,
        is_kept_open: bool = False,
    ) -> tuple[list[bytes], StatusCode | None]:
        call = InprocCall(method, ((AUTHORIZATION, self.header),), window_bytes=WINDOW_BYTES)
        for request in requests:
            await call.requests.write(request)
        if not is_kept_open:
            call.requests.end()
        acceptor_of(self._name).accept(call)
        answers: list[bytes] = []
        async with asyncio.timeout(HANG_S):
            while answers_max is None or len(answers) < answers_max:
                answer = await call.answers.read()
                if answer is None:
                    break
                answers.append(answer)
            self.header = dict(await call.headers()).get(AUTHORIZATION, self.header)
        status = call.status
        call.cancel()
        return answers, None if status is None else status[0]
