"""What a condition on rows may say of the caller: ``caller()`` is its name, ``has_role('x')``
whether it has that role. Both become constants, so that no name is ever read as a part of a
condition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.expressions.expression import Expression
from barrage.engine.expressions.expression_text import Call, Literal, Membership
from barrage.errors import ExpressionError

if TYPE_CHECKING:
    from barrage.engine.expressions.expression_text import Node
    from barrage.server.identity.caller import Caller

CALLER, HAS_ROLE = "caller", "has_role"


def told_of_caller(condition: Expression, caller: Caller | None) -> Expression:
    """The condition for one caller, or for one who is nobody. Callers of whom it says the same have
    the same condition. ExpressionError."""
    told: list[object] = []
    root = _rewritten(condition.root, caller, told)
    if not told:
        return condition
    return Expression(condition.text, root, f"caller {told!r}")


def _rewritten(root: Node, caller: Caller | None, told: list[object]) -> Node:
    """Post-order without recursion: conditions nest as deep as they are long."""
    waiting: list[tuple[Node, bool]] = [(root, False)]
    done: list[Node] = []
    while waiting:
        node, is_ready = waiting.pop()
        operands = _operands(node)
        if isinstance(node, Call) and node.name in (CALLER, HAS_ROLE):
            constant = _constant(node, caller)
            told.append(constant.value)
            done.append(constant)
        elif not operands:
            done.append(node)
        elif not is_ready:
            waiting.append((node, True))
            waiting.extend((operand, False) for operand in reversed(operands))
        else:
            new = tuple(done[len(done) - len(operands) :])
            del done[len(done) - len(operands) :]
            done.append(_with(node, operands, new))
    return done[0]


def _operands(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Call):
        return node.operands
    return (node.operand,) if isinstance(node, Membership) else ()


def _with(node: Node, old: tuple[Node, ...], new: tuple[Node, ...]) -> Node:
    if all(one is other for one, other in zip(old, new, strict=True)):
        return node
    if isinstance(node, Membership):
        return Membership(node.position, new[0], node.values)
    assert isinstance(node, Call)
    return Call(node.position, node.name, new)


def _constant(node: Call, caller: Caller | None) -> Literal:
    if node.name == CALLER:
        if node.operands:
            raise ExpressionError(f"{CALLER}() takes nothing")
        return Literal(node.position, "" if caller is None else caller.name)
    (role,) = node.operands if len(node.operands) == 1 else (None,)
    if not isinstance(role, Literal) or not isinstance(role.value, str):
        raise ExpressionError(f"{HAS_ROLE}('name') takes the name of a role")
    return Literal(node.position, caller is not None and role.value in caller.roles)
