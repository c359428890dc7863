"""Rules: values that say who may do what. Nothing here looks at a table.

For a caller and the name of a table the *first* rule decides that is meant for both; where there is
none, the table does not exist for that caller. The rule says which operations are allowed, and for
reading which rows and columns are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from barrage.engine.expressions.expression import Expression, check_functions
from barrage.errors import ConfigError, ExpressionError
from barrage.server.policy.caller_terms import told_of_caller
from barrage.server.policy.patterns import PatternIndex, compiled_patterns

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Set

    from barrage.server.identity.caller import Caller

SYSTEM = "_"
"""Names that begin so are tables about the server; only patterns that begin so are meant for
them."""

ABOUT_USERS = frozenset(("_callers", "_subscriptions"))
"""Tables about the server with a column ``user``."""

ABOUT_TABLES = MappingProxyType(
    {
        "_alerts": "table",
        "_connectors": "program",
        "_journal": "table",
        "_journal_consumers": "table",
        "_relayed": "table",
        "_streams": "table",
    }
)
"""Tables about the server whose rows are each about a table, with the column that names it; a
program of connectors writes the table of its name."""

PATTERN_LENGTH_MAX = 256
RULES_MAX = 10_000
CALLER_KINDS_KEPT = 4_096
"""Kinds of callers (for whom the same rules are meant) whose rules are kept at hand."""

Kind: TypeAlias = "tuple[int, ...]"
"""Of callers: the rules that name them."""

Constant: TypeAlias = "bool | int | float | str | None"


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
class Concern:
    """Of a table about the server, the rows that concern a caller."""

    column: str
    is_shown: Callable[[str], bool]
    """Whether rows with this text in the column are."""
    identity: Hashable
    """Equal for what shows the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """What is shown of a table to those a rule is meant for."""

    rows: Expression | None = None
    """Which rows."""
    concern: Concern | None = None
    """Which rows besides."""
    show: tuple[str, ...] = ()
    """The columns there are; none for all of them."""
    hide: tuple[str, ...] = ()
    """Columns that are left out. One the table does not have is not there anyway."""
    mask: tuple[tuple[str, Constant], ...] = ()
    """Columns that show a constant."""
    hash: tuple[str, ...] = ()
    """Columns that show a keyed hash of each cell's text, 16 hexadecimal digits: equal for equal
    cells, and telling nothing else without the key."""

    @property
    def has_rows(self) -> bool:
        """Whether rows are left out."""
        return self.rows is not None or self.concern is not None

    @property
    def is_nothing(self) -> bool:
        return not (self.has_rows or self.show or self.hide or self.mask or self.hash)


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
    """A condition on rows, as in ``where``, which may call ``caller()`` and ``has_role('x')``."""
    show: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    mask: Mapping[str, Constant] = field(default_factory=dict)
    hash: tuple[str, ...] = ()
    _condition: Expression | None = field(default=None, init=False, repr=False, compare=False)

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
        if self.rows is not None:
            object.__setattr__(self, "_condition", _parsed(self.rows))
        if not self.restriction().is_nothing:
            self._check_restricted()

    def _check_restricted(self) -> None:
        if Operation.READ not in self.allow:
            raise ConfigError(
                "rows, show, hide, mask and hash are about reading: allow must have 'read'"
            )
        unfit = self.allow - {Operation.READ}
        if unfit:
            told = ", ".join(sorted(operation.value for operation in unfit))
            raise ConfigError(
                f"who sees a part of a table only may not have {told}: a write can replace rows it "
                "does not see, and hashes of what somebody writes tell what others are hashes of"
            )

    def restriction(self, caller: Caller | None = None) -> Restriction:
        """What is shown to ``caller``, or to one who is nobody."""
        condition = self._condition
        return Restriction(
            rows=None if condition is None else told_of_caller(condition, caller),
            show=self.show,
            hide=self.hide,
            mask=tuple(self.mask.items()),
            hash=self.hash,
        )

    @property
    def covers_all(self) -> bool:
        """Whether it names all tables but those about the server."""
        return "*" in self.tables


def _parsed(text: str) -> Expression:
    try:
        parsed = Expression.parse(text)
        check_functions(told_of_caller(parsed, None))
    except ExpressionError as error:
        raise ConfigError(f"rows: {error}") from None
    return parsed


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
    _index: _RuleIndex = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.rules) > RULES_MAX:
            raise ConfigError(f"{len(self.rules)} rules are more than {RULES_MAX}")
        if self.hash_key and len(self.hash_key) != 16:
            raise ConfigError(f"the key of hashes must have 16 bytes, not {len(self.hash_key)}")
        object.__setattr__(self, "_index", _RuleIndex(self.rules))

    @classmethod
    def of(cls, *rules: Rule, hash_key: bytes = b"") -> Policy:
        """A policy of these rules."""
        return cls(rules, hash_key)

    def kind_of(self, caller: Caller) -> Kind:
        """What kind of caller it is: the same rules are meant for all of a kind."""
        return self._index.kind_of(caller)

    def rules_of(self, kind: Kind) -> tuple[Rule, ...]:
        """The rules for callers of a kind, in order: all that decides what they may do. Those
        behind others that decide first are none of them."""
        seen: set[str] = set()
        found = []
        for number in self._index.numbers_for(kind):
            rule = self.rules[number]
            if not _is_behind(rule, seen):
                found.append(rule)
                seen.update(rule.tables)
        return tuple(found)

    def decide(self, caller: Caller, table: str) -> Decision:
        """What a caller may do with the table of that name, whether there is one or not."""
        number = self._index.deciding(caller, table)
        if number is None:
            return UNKNOWN
        rule = self.rules[number]
        is_admin = Operation.ADMIN in rule.allow
        restriction = rule.restriction(caller)
        if not is_admin and Operation.READ in rule.allow:
            restriction = self._of_concern(caller, table, restriction)
        return Decision(
            allow=ALL_OPERATIONS if is_admin else rule.allow,
            restriction=None if restriction.is_nothing else restriction,
            rule=number + 1,
        )

    def _of_concern(self, caller: Caller, table: str, restriction: Restriction) -> Restriction:
        """Of tables about the server, callers see the rows about themselves, and about tables they
        may read; those who have ``admin`` see all."""
        if table in ABOUT_USERS:
            concern = Concern(
                column="user", is_shown=partial(_is_same, caller.name), identity=caller.name
            )
        elif table in ABOUT_TABLES:
            concern = Concern(
                column=ABOUT_TABLES[table],
                is_shown=lambda name: self.decide(caller, name).may_read,
                identity=(id(self), caller.name, caller.roles),
            )
        else:
            return restriction
        return Restriction(
            rows=restriction.rows,
            concern=concern,
            show=restriction.show,
            hide=restriction.hide,
            mask=restriction.mask,
            hash=restriction.hash,
        )

    def shadowed(self) -> list[int]:
        """Rules, from 1, that can never decide, because those before them do: for the same users
        and roles, or for everybody, and for the same patterns, or for ``*``. Not all there are."""
        told: dict[tuple[frozenset[str], frozenset[str]], set[str]] = {}
        everybody = told.setdefault((frozenset(), frozenset()), set())
        found = []
        for number, rule in enumerate(self.rules, start=1):
            seen = told.setdefault((frozenset(rule.users), frozenset(rule.roles)), set())
            if _is_behind(rule, seen | everybody):
                found.append(number)
            seen.update(rule.tables)
        return found

    def has_all(self, caller: Caller) -> bool:
        """Whether the caller keeps the server: the first rule for it about all tables gives
        ``admin``, and none before it takes anything away."""
        for rule in self.rules_of(self.kind_of(caller)):
            if Operation.ADMIN not in rule.allow:
                return False
            if rule.covers_all:
                return True
        return False


def _is_behind(rule: Rule, before: Set[str]) -> bool:
    """Whether rules with the patterns ``before`` decide about all tables that it names."""
    return all(
        each in before or ("*" in before and not each.startswith(SYSTEM)) for each in rule.tables
    )


def _is_same(name: str, other: str) -> bool:
    return name == other


class _RuleIndex:
    """Finds the rules for a caller, and among them the one for a table, without looking at each.
    Any thread."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        numbered = list(enumerate(rules))
        self._expressions = compiled_patterns(each for rule in rules for each in rule.tables)
        """Made now: a policy is made where there is time, and asked where there is none."""
        self._everybody = [number for number, rule in numbered if not rule.users and not rule.roles]
        users = [(number, each) for number, rule in numbered for each in rule.users]
        roles = [(number, each) for number, rule in numbered for each in rule.roles]
        self._users = PatternIndex(users, compiled_patterns(each for _, each in users))
        self._roles = PatternIndex(roles, compiled_patterns(each for _, each in roles))
        self._tables = lru_cache(CALLER_KINDS_KEPT)(self._tables_of)

    def kind_of(self, caller: Caller) -> Kind:
        """What kind of caller it is: the same for all for whom the same rules are meant."""
        found = self._users.fitting(caller.name)
        found.update(*map(self._roles.fitting, caller.roles))
        return tuple(sorted(found))

    def numbers_for(self, kind: Kind) -> list[int]:
        """Of the rules meant for callers of a kind, ascending."""
        return sorted(chain(kind, self._everybody))

    def deciding(self, caller: Caller, table: str) -> int | None:
        """The number of the first rule for both."""
        plain, about_server = self._tables(self.kind_of(caller))
        return (about_server if table.startswith(SYSTEM) else plain).first(table)

    def _tables_of(self, kind: Kind) -> tuple[PatternIndex, PatternIndex]:
        """The patterns for names, and those for names of tables about the server."""
        numbers = self.numbers_for(kind)
        entries = [(number, each) for number in numbers for each in self._rules[number].tables]
        about_server = [(n, each) for n, each in entries if each.startswith(SYSTEM)]
        known = self._expressions
        return PatternIndex(entries, known), PatternIndex(about_server, known)
