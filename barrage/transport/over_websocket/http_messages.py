"""Requests and answers of plain HTTP, as whoever serves a page sees them."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from barrage.transport.base import NOBODY

if TYPE_CHECKING:
    from barrage.transport.base import PeerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class WebRequest:
    """One request, without its body."""

    method: str
    target: str
    """The path, and what stands behind a question mark."""
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    peer: str = ""
    """Who asks, as gRPC names it."""
    identity: PeerIdentity = NOBODY
    is_tls: bool = False

    @property
    def path(self) -> str:
        """Without what stands behind a question mark."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header called ``name``, in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    def words(self, name: str) -> list[str]:
        """What headers called ``name`` list, with commas in between."""
        values = [value for key, value in self.headers if key == name]
        return [word for value in values for word in map(str.strip, value.split(",")) if word]

    def cookie(self, name: str) -> str | None:
        """The first cookie called ``name``."""
        for key, value in self.headers:
            if key != "cookie":
                continue
            for pair in value.split(";"):
                found, _, text = pair.strip().partition("=")
                if found == name:
                    return text
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAnswer:
    """One answer."""

    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @classmethod
    def text(cls, status: HTTPStatus, text: str) -> WebAnswer:
        """A line for people."""
        return cls(
            status=status,
            headers=(("content-type", "text/plain; charset=utf-8"),),
            body=text.encode() + b"\n",
        )

    @classmethod
    def failed(cls) -> WebAnswer:
        """Who should have answered could not."""
        text = "this request could not be answered; the log of the server says why"
        return cls.text(HTTPStatus.INTERNAL_SERVER_ERROR, text)


class WebSite(Protocol):
    """What answers requests that do not become a WebSocket."""

    def is_for_any_page(self, request: WebRequest) -> bool:
        """Whether pages of all origins may have the answer, those of none among them."""
        ...

    async def answer(self, request: WebRequest) -> WebAnswer:
        """The answer to one."""
        ...
