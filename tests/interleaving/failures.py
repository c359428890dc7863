"""What the machines of this package complain about."""

from __future__ import annotations


class InterleavingError(AssertionError):
    """An order of events that is allowed broke something."""


class DeadlockError(InterleavingError):
    """Everybody waits and nobody is left who could wake them."""


class HangError(InterleavingError):
    """Far more steps than anything takes that ends."""
