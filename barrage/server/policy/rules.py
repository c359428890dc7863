"""Rules: values that say who may do what. Nothing here looks at a table.

For a caller and the name of a table the *first* rule decides that is meant for both; where there is
none, the table does not exist for that caller. The rule says which operations are allowed, and for
reading which rows and columns are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from fnmatch import translate
from functools import lru_cache
from re import Pattern
from re import compile as compiled
from typing import TYPE_CHECKING

from barrage.engine.expressions.expression import Expression
from barrage.engine.expressions.expression_text import Call, Literal, Membership
from barrage.errors import ConfigError, ExpressionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.engine.expressions.expression_text import Node
    from barrage.server.identity.caller import Caller

CALLER, HAS_ROLE = "caller", "has_role"
"""What a condition on rows may call: ``caller()`` is the caller's name, ``has_role('x')`` whether
it has that role."""

SYSTEM = "_"
"""Names that begin so are tables about the server; only patterns that begin so are meant for
them."""

PATTERN_LENGTH_MAX = 256
RULES_MAX = 10_000


class Operation(Enum):
    """What can be done with a table."""

    READ = "read"
    WRITE = "write"
    """Change its rows."""
    CREATE = "create"
    DROP = "drop"
    ADMIN = "admin"
    """All of these; upon ``*`` also what is about the server and all its tables."""


ALL_OPERATIONS = frozenset(Operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What is shown of a table to those a rule is meant for."""

    rows: Expression | None = None
    """Which rows."""
    hide: tuple[str, ...] = ()
    """Columns that are left out. One the table does not have is not there anyway."""
    mask: tuple[tuple[str, bool | int | float | str | None], ...] = ()
    """Columns that show a constant."""
    hash: tuple[str, ...] = ()
    """Columns that show a keyed hash of each cell's text, 16 hexadecimal digits: equal for equal
    cells, and telling nothing else without the key."""

    @property
    def is_nothing(self) -> bool:
        return self.rows is None and not (self.hide or self.mask or self.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. ``users``, ``roles`` and ``tables`` are patterns (``*``, ``?``, ``[abc]``); without
    users and roles it is meant for everybody, anonymous callers included.

    ConfigError when what it says does not go together.
    """

    tables: tuple[str, ...]
    users: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    allow: frozenset[Operation] = frozenset()
    rows: str | None = None
    """A condition on rows, as in ``where``; see :data:`CALLER`."""
    hide: tuple[str, ...] = ()
    mask: Mapping[str, bool | int | float | str | None] = field(default_factory=dict)
    hash: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.tables:
            raise ConfigError('a rule needs tables, such as ["trades*"]')
        for pattern in (*self.tables, *self.users, *self.roles):
            if not 0 < len(pattern) <= PATTERN_LENGTH_MAX:
                raise ConfigError(f"a pattern must have 1 to {PATTERN_LENGTH_MAX} characters")
        columns = [*self.hide, *self.mask, *self.hash]
        twice = next((name for name in columns if columns.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"column {twice!r} is hidden, masked or hashed twice")
        if not self.restriction().is_nothing:
            self._check_restricted()

    def _check_restricted(self) -> None:
        if Operation.READ not in self.allow:
            raise ConfigError("rows, hide, mask and hash are about reading: allow must have 'read'")
        unfit = self.allow & {Operation.WRITE, Operation.ADMIN}
        if unfit:
            told = ", ".join(sorted(operation.value for operation in unfit))
            raise ConfigError(
                f"who sees a part of a table only may not have {told}: a write can replace rows it "
                "does not see"
            )

    def restriction(self, caller: Caller | None = None) -> Restriction:
        """What is shown to ``caller``; ConfigError for a condition that is none."""
        condition = None if self.rows is None else _condition(self.rows, caller)
        return Restriction(
            rows=condition, hide=self.hide, mask=tuple(self.mask.items()), hash=self.hash
        )

    def is_meant_for(self, caller: Caller) -> bool:
        """Whether the caller is one of those it names."""
        if not self.users and not self.roles:
            return True
        return _matches(self.users, caller.name) or any(
            _matches(self.roles, role) for role in caller.roles
        )

    def covers(self, table: str) -> bool:
        """Whether a table of that name is one of those it names."""
        meant = self.tables
        if table.startswith(SYSTEM):
            meant = tuple(pattern for pattern in meant if pattern.startswith(SYSTEM))
        return _matches(meant, table)

    @property
    def covers_all(self) -> bool:
        """Whether it names all tables but those about the server."""
        return "*" in self.tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a caller may do with a table."""

    allow: frozenset[Operation] = frozenset()
    restriction: Restriction | None = None
    """What of it is shown; None for all of it."""
    rule: int | None = None
    """Which rule decided, from 1; None for none."""

    @property
    def is_known(self) -> bool:
        """Whether the table exists for the caller."""
        return bool(self.allow)

    @property
    def may_read(self) -> bool:
        return Operation.READ in self.allow


UNKNOWN = Decision()
EVERYTHING = Decision(allow=ALL_OPERATIONS)


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules in order, and the key of hashes. Never changes."""

    rules: tuple[Rule, ...]
    hash_key: bytes = field(default=b"", repr=False)
    """16 bytes; where there are none, each server makes its own at random."""

    def __post_init__(self) -> None:
        if len(self.rules) > RULES_MAX:
            raise ConfigError(f"{len(self.rules)} rules are more than {RULES_MAX}")
        if self.hash_key and len(self.hash_key) != 16:
            raise ConfigError(f"the key of hashes must have 16 bytes, not {len(self.hash_key)}")

    @classmethod
    def of(cls, *rules: Rule, hash_key: bytes = b"") -> Policy:
        """A policy of these rules."""
        return cls(rules, hash_key)

    def rules_for(self, caller: Caller) -> tuple[Rule, ...]:
        """Those meant for a caller, in order: all that decides what it may do."""
        return tuple(rule for rule in self.rules if rule.is_meant_for(caller))

    def decide(self, caller: Caller, table: str) -> Decision:
        """What a caller may do with the table of that name, whether there is one or not."""
        for number, rule in enumerate(self.rules, start=1):
            if rule.covers(table) and rule.is_meant_for(caller):
                allow = ALL_OPERATIONS if Operation.ADMIN in rule.allow else rule.allow
                restriction = rule.restriction(caller)
                return Decision(
                    allow=allow,
                    restriction=None if restriction.is_nothing else restriction,
                    rule=number,
                )
        return _about_oneself(caller, table)

    def has_all(self, caller: Caller) -> bool:
        """Whether the caller keeps the server: the first rule for it about all tables gives
        ``admin``, and none before it takes anything away."""
        for rule in self.rules_for(caller):
            if Operation.ADMIN not in rule.allow:
                return False
            if rule.covers_all:
                return True
        return False


OF_CALLERS = ("_callers", "_subscriptions")
"""Tables about the server with a row for each caller or stream, which has columns ``user`` and
``proof``. Where no rule says otherwise, a caller sees its own."""


def _about_oneself(caller: Caller, table: str) -> Decision:
    """What may be done where no rule decides."""
    if table not in OF_CALLERS:
        return UNKNOWN
    own = f"user = caller() and proof = '{caller.proof.value}'"
    return Decision(
        allow=frozenset({Operation.READ}), restriction=Restriction(rows=_condition(own, caller))
    )


@lru_cache(4096)
def _pattern(text: str) -> Pattern[str]:
    return compiled(translate(text))


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(_pattern(pattern).match(name) for pattern in patterns)


def _condition(text: str, caller: Caller | None) -> Expression:
    """The condition for one caller. What names the caller becomes a constant, so that no name is
    ever read as a part of a condition."""
    try:
        parsed = Expression.parse(text)
        root = _named(parsed.root, caller)
    except ExpressionError as error:
        raise ConfigError(f"rows: {error}") from None
    if root is parsed.root:
        return parsed
    known = "" if caller is None else repr((caller.name, sorted(caller.roles)))
    return Expression(parsed.text, root, f"caller {known}")


def _named(node: Node, caller: Caller | None) -> Node:
    if isinstance(node, Membership):
        operand = _named(node.operand, caller)
        same = operand is node.operand
        return node if same else Membership(node.position, operand, node.values)
    if not isinstance(node, Call):
        return node
    if node.name == CALLER:
        if node.operands:
            raise ExpressionError(f"{CALLER}() takes nothing")
        return Literal(node.position, "" if caller is None else caller.name)
    if node.name == HAS_ROLE:
        (role,) = node.operands if len(node.operands) == 1 else (None,)
        if not isinstance(role, Literal) or not isinstance(role.value, str):
            raise ExpressionError(f"{HAS_ROLE}('name') takes the name of a role")
        return Literal(node.position, caller is not None and role.value in caller.roles)
    operands = tuple(_named(operand, caller) for operand in node.operands)
    same = all(new is old for new, old in zip(operands, node.operands, strict=True))
    return node if same else Call(node.position, node.name, operands)
