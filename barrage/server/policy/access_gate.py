"""The gate: every way to a table asks here what the caller of this call may do with it.

Without a policy it lets everybody through and costs a comparison. Outside of calls it is the
program itself that asks, which may do everything.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from barrage.errors import PermissionDeniedError, TableNotFoundError
from barrage.server.identity.current_call import current_call
from barrage.server.policy.catalog_view import CatalogView
from barrage.server.policy.rules import EVERYTHING, UNKNOWN, Decision, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barrage.server.identity.caller import Caller
    from barrage.server.policy.rules import Policy
    from barrage.server.runtime.catalog import Catalog

Tables: TypeAlias = "Catalog | CatalogView"
"""Where names become tables: all of them, or those of a caller."""

DECISIONS_KEPT = 16_384


class PolicyChangedError(PermissionDeniedError):
    """The rules for the caller are others now: what it reads and holds has ended."""

    def __init__(self) -> None:
        super().__init__(
            "the rules for you have changed; connect again to go on under the new ones"
        )


class AccessGate:
    """Asked from any thread; a policy is replaced as a whole."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._key = secrets.token_bytes(16)
        self._policy = policy
        self._decide = _deciding(policy)

    @property
    def policy(self) -> Policy | None:
        return self._policy

    def replace(self, policy: Policy) -> Callable[[Caller], bool]:
        """Another policy holds from now on; tells for which callers that is another one."""
        before, self._policy = self._policy, policy
        self._decide = _deciding(policy)

        def is_meant(caller: Caller) -> bool:
            if before is None or before.hash_key != policy.hash_key:
                return True
            return before.rules_for(caller) != policy.rules_for(caller)

        return is_meant

    # --- what a caller may do ---

    def decision(self, table: str, caller: Caller | None = None) -> Decision:
        """About the table of that name and the caller: that of the call when none is given."""
        if self._policy is None:
            return EVERYTHING
        if caller is None:
            call = current_call()
            if call is None:
                return EVERYTHING
            caller = call.caller
        return self._decide(caller, table)

    def check(self, table: str, *operations: Operation, caller: Caller | None = None) -> None:
        """Let through who may do one of ``operations`` with the table of that name.
        TableNotFoundError for whom it does not exist, PermissionDeniedError."""
        decision = self.decision(table, caller)
        if not decision.allow.isdisjoint(operations):
            return
        if decision.is_known:
            raise _not_allowed(operations[0], table)
        if Operation.CREATE in operations:
            # Whether there is such a table or not.
            raise _not_allowed(Operation.CREATE, table)
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

    def check_keeper(self, what: str) -> None:
        """Let through who may do everything with all tables. PermissionDeniedError."""
        call = current_call()
        if self._policy is None or call is None or self._policy.has_all(call.caller):
            return
        raise PermissionDeniedError(
            f'{what} for those who may do everything only (a rule with tables = ["*"] and '
            'allow = ["admin"])'
        )

    def may_hand_on(self, giver: Caller, taker: Caller) -> bool:
        """Whether one caller may be given what another one holds."""
        policy = self._policy
        if policy is None or giver.owner == taker.owner:
            return True
        return policy.has_all(taker)

    def readable(self, names: Iterable[str]) -> list[str]:
        """Those of the names the caller may read."""
        return [name for name in names if self.decision(name).may_read]

    def tables(self, catalog: Catalog) -> Tables:
        """The catalog as the caller of this call sees it; to be asked within the call."""
        policy, call = self._policy, current_call()
        if policy is None or call is None:
            return catalog
        decide, caller = self._decide, call.caller
        return CatalogView(catalog, lambda name: decide(caller, name), policy.hash_key or self._key)


def _not_allowed(operation: Operation, table: str) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"you may not {operation.value} table {table!r}; ask whoever keeps the server's policy"
    )


def _deciding(policy: Policy | None) -> Callable[[Caller, str], Decision]:
    if policy is None:
        return lambda _caller, _table: UNKNOWN
    return lru_cache(DECISIONS_KEPT)(policy.decide)
