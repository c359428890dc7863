"""``x = await open_it()`` and ``async with open_it() as x`` from one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any


class Closable(Protocol):
    """Something with an idempotent asynchronous close."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Opening(Generic[T]):
    """Awaitable and asynchronous context manager for something that is opened and closed."""

    def __init__(self, opener: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._opener = opener
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._opener().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._opener()
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()
