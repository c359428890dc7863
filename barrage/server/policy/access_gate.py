"""The gate: every way to a table asks here what the caller of this call may do with it.

Without a policy it lets everybody through and costs a comparison. With one, who asks outside of a
call is anybody: what a program does with its own server does not come by here.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from barrage.errors import PermissionDeniedError, TableNotFoundError
from barrage.server.identity.current_call import current_caller
from barrage.server.policy.catalog_view import CatalogView, not_allowed
from barrage.server.policy.rules import CALLER_KINDS_KEPT, EVERYTHING, Decision, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barrage.server.identity.caller import Caller
    from barrage.server.policy.rules import Kind, Policy, Rule
    from barrage.server.runtime.catalog import Catalog

    Decide = Callable[[Caller, str], Decision]

Tables: TypeAlias = "Catalog | CatalogView"
"""Where names become tables: all of them, or those of a caller."""

DECISIONS_KEPT = 16_384


class PolicyChangedError(PermissionDeniedError):
    """The rules for the caller are others now: what it reads and holds has ended."""

    def __init__(self) -> None:
        super().__init__(
            "the rules for you have changed; connect again to go on under the new ones"
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """A policy that holds, with what it has decided before."""

    policy: Policy
    decide: Decide
    hash_key: bytes


class AccessGate:
    """Asked from any thread; a policy is replaced as a whole."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._own_key = secrets.token_bytes(16)
        self._held = None if policy is None else self._holding(policy)

    def _holding(self, policy: Policy) -> _Held:
        return _Held(policy, _deciding(policy), policy.hash_key or self._own_key)

    @property
    def policy(self) -> Policy | None:
        held = self._held
        return None if held is None else held.policy

    def replace(self, policy: Policy) -> Callable[[Caller], bool]:
        """Another policy holds from now on; tells for which callers that is another one."""
        before, self._held = self._held, self._holding(policy)
        if before is None:
            return lambda _caller: True
        has_other_key = before.hash_key != self._held.hash_key
        former = before.policy

        @lru_cache(CALLER_KINDS_KEPT)
        def are_other(kind_before: Kind, kind: Kind) -> bool:
            was, now = former.rules_of(kind_before), policy.rules_of(kind)
            if has_other_key and any(rule.hash for rule in now):
                return True
            return was != now or _constants(was) != _constants(now)

        return lambda caller: are_other(former.kind_of(caller), policy.kind_of(caller))

    # --- what a caller may do ---

    def decision(self, table: str, caller: Caller | None = None) -> Decision:
        """About the table of that name and the caller: that of the call when none is given."""
        held = self._held
        if held is None:
            return EVERYTHING
        return held.decide(current_caller() if caller is None else caller, table)

    def check(self, table: str, *operations: Operation, caller: Caller | None = None) -> None:
        """Let through who may do one of ``operations`` with the table of that name.
        TableNotFoundError for whom it does not exist, PermissionDeniedError."""
        decision = self.decision(table, caller)
        if not decision.allow.isdisjoint(operations):
            return
        if decision.is_known:
            raise not_allowed(operations[0], table)
        if Operation.CREATE in operations:
            # Whether there is such a table or not.
            raise not_allowed(Operation.CREATE, table)
        raise TableNotFoundError(table)

    def check_whole(self, table: str) -> None:
        """Let through who may read all of the table, as history and relays do.
        TableNotFoundError, PermissionDeniedError."""
        self.check(table, Operation.READ)
        if self.decision(table).restriction is not None:
            raise PermissionDeniedError(
                f"you see a part of table {table!r} only: subscribe to it or take a snapshot; its "
                "history, and what reads that such as Spark, is for those who see all of it"
            )

    @property
    def is_keeper(self) -> bool:
        """Whether the caller may do everything with all tables."""
        held = self._held
        return held is None or held.policy.has_all(current_caller())

    def check_keeper(self, what: str) -> None:
        """Let through who may do everything with all tables. PermissionDeniedError."""
        if self.is_keeper:
            return
        raise PermissionDeniedError(
            f'{what} for those who may do everything only (a rule with tables = ["*"] and '
            'allow = ["admin"])'
        )

    def may_hand_on(self, giver: Caller, taker: Caller) -> bool:
        """Whether one caller may be given what another one holds."""
        held = self._held
        if held is None or giver.is_like(taker):
            return True
        return held.policy.has_all(taker)

    def readable(self, names: Iterable[str]) -> list[str]:
        """Those of the names the caller may read."""
        return [name for name in names if self.decision(name).may_read]

    def tables(self, catalog: Catalog) -> Tables:
        """The catalog as the caller of this call sees it; to be asked within the call."""
        held = self._held
        if held is None:
            return catalog
        decide, caller = held.decide, current_caller()
        return CatalogView(catalog, lambda name: decide(caller, name), held.hash_key)


def _constants(rules: Iterable[Rule]) -> list[str]:
    """What masks show: 0, 0.0 and False are equal, and not the same."""
    return [repr(sorted(rule.mask.items(), key=repr)) for rule in rules]


def _deciding(policy: Policy) -> Decide:
    """What the policy decides, remembered: it looks at a caller's name and roles alone."""

    decided = lru_cache(DECISIONS_KEPT)(policy.decide)

    def decide(caller: Caller, table: str) -> Decision:
        lasting = caller if caller.expires_ns is None else replace(caller, expires_ns=None)
        return decided(lasting, table)

    return decide
