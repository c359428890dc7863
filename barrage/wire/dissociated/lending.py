"""How much of the memory that a server lends a client may keep: half of its window.

Who keeps what it was lent must not hold up its own stream, so past that half bodies are copied and
given back at once; the other half stays for what is under way.
"""

from __future__ import annotations


class Window:
    """Bytes and bodies that may be out and not given back."""

    __slots__ = ("bytes", "count")

    def __init__(self, byte_count: int, count: int) -> None:
        self.bytes = byte_count
        self.count = count

    def can_lend(self, lending: Lending, size: int) -> bool:
        """Whether another body of ``size`` bytes leaves half of the window free."""
        return (
            2 * (lending.byte_count + size) <= self.bytes and 2 * (lending.count + 1) <= self.count
        )


class Lending:
    """What is lent now."""

    __slots__ = ("byte_count", "count")

    def __init__(self) -> None:
        self.byte_count = 0
        self.count = 0

    def lend(self, size: int) -> None:
        """One more body is kept."""
        self.byte_count += size
        self.count += 1

    def take_back(self, size: int) -> None:
        """One of them is back."""
        self.byte_count -= size
        self.count -= 1
