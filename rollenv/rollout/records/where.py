"""Expressions that choose stored episodes, such as ``success and turns < 8``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from rollenv.core.errors import UsageError
from rollenv.rollout.types import Trajectory

#: The names of expressions; every other name is one of the episode's metrics.
NAMES: dict[str, Callable[[Trajectory], Any]] = {
    "success": lambda t: t.success,
    "reward": lambda t: t.reward if t.failure != "reward" else None,
    "own_reward": lambda t: t.own_reward if t.failure != "reward" else None,
    "turns": lambda t: len(t.turns),
    "tokens": lambda t: sum(len(turn.response_ids) for turn in t.turns),
    "status": lambda t: t.status,
    "complete": lambda t: t.complete,
    "truncated": lambda t: t.status == "truncated",
    "failed": lambda t: t.status == "failed",
    "failure": lambda t: t.failure,
    "valid": lambda t: all(turn.valid for turn in t.turns),
    "env_id": lambda t: t.task.env_id,
    "seed": lambda t: t.task.seed,
    "index": lambda t: t.task.options.get("index"),
    "group": lambda t: t.group,
    "member": lambda t: t.member,
    "version": lambda t: t.oldest_version,
    "seconds": lambda t: t.seconds,
    "answer": lambda t: t.turns[-1].text if t.turns else None,
}
#: Names whose value the trajectory does not hold.
OUTSIDE = ("iteration",)

_LONGEST = 2000
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_PARTS = (ast.Constant, ast.Name, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Tuple, ast.List)


class Where:
    """A condition on episodes: names, constants, comparisons, ``in``, ``and``, ``or``, ``not`` and arithmetic.

    A comparison with a missing value, such as a metric that the episode lacks, is false. The empty text chooses all.

    Raises:
        UsageError: the text is something else, such as a call.
    """

    def __init__(self, text: str = ""):
        self.text = text.strip()
        self._unmet: set[str] = set()
        """Names that no episode had so far."""
        self._metrics: set[str] = set()
        self._tree: ast.expr | None = None
        if not self.text:
            return
        try:
            if len(self.text) > _LONGEST:
                raise ValueError(f"it has {len(self.text)} characters; the most are {_LONGEST}")
            self._tree = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._error(getattr(error, "msg", None) or str(error) or type(error).__name__) from None
        todo: list[ast.expr] = [self._tree]
        while todo:
            todo += self._inner(todo.pop())

    def __call__(self, trajectory: Trajectory, iteration: int | None = None) -> bool:
        """Return whether an episode is chosen.

        Raises:
            UsageError: values of different kinds are compared.
        """
        if self._tree is None:
            return True
        self._metrics |= trajectory.metrics.keys()
        try:
            return bool(self._value(self._tree, trajectory, iteration))
        except RecursionError:
            raise self._error("it is nested too deeply") from None

    def check_names(self) -> None:
        """Check, after the last episode, that every name was one of a metric.

        Raises:
            UsageError: no episode had a metric of a name.
        """
        if unknown := sorted(self._unmet - self._metrics):
            known = ", ".join(sorted([*NAMES, *OUTSIDE, *self._metrics]))
            raise self._error(f"no episode has a {unknown[0]!r}; the names are {known}")

    def _error(self, why: str) -> UsageError:
        return UsageError(f"the condition {self.text[:100]!r} cannot be used: {why}")

    def _inner(self, node: ast.expr) -> list[ast.expr]:
        """Check one part of the expression, and return the parts inside it."""
        operators: list[Any] = []
        if isinstance(node, ast.Compare):
            operators = [op for op in node.ops if type(op) not in _COMPARE]
        elif isinstance(node, ast.BinOp):
            operators = [node.op] if type(node.op) not in _ARITHMETIC else []
        elif isinstance(node, ast.UnaryOp):
            operators = [node.op] if type(node.op) not in _UNARY else []
        constant = not isinstance(node, ast.Constant) or isinstance(node.value, str | int | float)
        if not isinstance(node, _PARTS) or operators or not constant:
            part = ast.get_source_segment(self.text, node) or type(node).__name__
            raise self._error(f"{part[:60]!r} is no comparison, name, number, text or arithmetic")
        if isinstance(node, ast.Name) and node.id not in NAMES and node.id not in OUTSIDE:
            self._unmet.add(node.id)
        return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]

    def _value(self, node: ast.expr, t: Trajectory, iteration: int | None) -> Any:
        """Return the value of a part; None if it is missing."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in OUTSIDE:
                return iteration
            return NAMES[node.id](t) if node.id in NAMES else t.metrics.get(node.id)
        if isinstance(node, ast.Tuple | ast.List):
            return [self._value(each, t, iteration) for each in node.elts]
        if isinstance(node, ast.BoolOp):
            values = (bool(self._value(each, t, iteration)) for each in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, t, iteration)
            if isinstance(node.op, ast.Not):
                return not value
            return self._apply(_UNARY[type(node.op)], value)
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, t, iteration), self._value(node.right, t, iteration)
            if isinstance(left, str | list) or isinstance(right, str | list):
                raise self._error("texts and lists have no arithmetic")
            return self._apply(_ARITHMETIC[type(node.op)], left, right)
        assert isinstance(node, ast.Compare)
        left = self._value(node.left, t, iteration)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self._value(part, t, iteration)
            if not self._apply(_COMPARE[type(op)], left, right):
                return False
            left = right
        return True

    def _apply(self, function: Callable[..., Any], *values: Any) -> Any:
        """Return the result of an operator; None if a value is missing or the result is no number."""
        if any(value is None for value in values):
            return None
        try:
            return function(*values)
        except (ZeroDivisionError, OverflowError):
            return None
        except TypeError:
            kinds = " with ".join("text" if isinstance(v, str) else type(v).__name__ for v in values)
            raise self._error(f"it compares or computes {kinds}") from None
