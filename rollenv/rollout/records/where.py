"""Expressions that choose stored episodes, such as ``success and turns < 8``."""

from __future__ import annotations

import ast
import operator as op
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
_LONGEST = 2000
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Eq: op.eq, ast.NotEq: op.ne, ast.Lt: op.lt, ast.LtE: op.le, ast.Gt: op.gt, ast.GtE: op.ge,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b, ast.And: all, ast.Or: any, ast.Not: op.not_,
    ast.Add: op.add, ast.Sub: op.sub, ast.Mult: op.mul, ast.Div: op.truediv, ast.FloorDiv: op.floordiv, ast.Mod: op.mod,
    ast.USub: op.neg, ast.UAdd: op.pos,
}  # fmt: skip
_PARTS = (*_OPERATORS, ast.Name, ast.Load, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Tuple, ast.List)


class Where:
    """A condition on episodes: names, constants, comparisons, ``in``, ``and``, ``or``, ``not`` and arithmetic.

    A comparison with a missing value, such as a metric that the episode lacks, is false. The empty text chooses all.

    Raises:
        UsageError: the text is something else, such as a call.
    """

    def __init__(self, text: str = ""):
        self.text = text.strip()
        self._metrics: set[str] = set()
        """The names of metrics so far."""
        try:
            if len(self.text) > _LONGEST:
                raise ValueError(f"it has {len(self.text)} characters; the most are {_LONGEST}")
            self._tree = ast.parse(self.text or "True", mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._error(getattr(error, "msg", None) or str(error) or type(error).__name__) from None
        for node in ast.walk(self._tree):
            constant = isinstance(node, ast.Constant) and isinstance(node.value, str | int | float)
            if not constant and not isinstance(node, _PARTS):
                part = (isinstance(node, ast.expr) and ast.get_source_segment(self.text, node)) or type(node).__name__
                raise self._error(f"{part[:60]!r} is no comparison, name, number, text or arithmetic")

    def __call__(self, trajectory: Trajectory, iteration: int | None = None) -> bool:
        """Return whether an episode is chosen.

        Raises:
            UsageError: values of different kinds are compared.
        """
        self._metrics |= trajectory.metrics.keys()

        def look_up(name: str) -> Any:
            if name == "iteration":
                return iteration
            return NAMES[name](trajectory) if name in NAMES else trajectory.metrics.get(name)

        try:
            return bool(self._value(self._tree, look_up))
        except RecursionError:
            raise self._error("it is nested too deeply") from None

    def check_names(self) -> None:
        """Check, after the last episode, that every other name was one of a metric.

        Raises:
            UsageError: no episode had a metric of a name.
        """
        known = sorted({*NAMES, "iteration", *self._metrics})
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and node.id not in known:
                raise self._error(f"no episode has a {node.id!r}; the names are {', '.join(known)}")

    def _error(self, why: str) -> UsageError:
        return UsageError(f"the condition {self.text[:100]!r} cannot be used: {why}")

    def _value(self, node: ast.expr, look_up: Callable[[str], Any]) -> Any:
        """Return the value of a part; None if it is missing."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return look_up(node.id)
        if isinstance(node, ast.Tuple | ast.List):
            return [self._value(each, look_up) for each in node.elts]
        if isinstance(node, ast.BoolOp):
            return _OPERATORS[type(node.op)](bool(self._value(each, look_up)) for each in node.values)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, look_up)
            return not value if isinstance(node.op, ast.Not) else self._apply(node.op, value)
        if isinstance(node, ast.BinOp):
            values = self._value(node.left, look_up), self._value(node.right, look_up)
            if any(isinstance(value, str | list) for value in values):
                raise self._error("texts and lists have no arithmetic")
            return self._apply(node.op, *values)
        assert isinstance(node, ast.Compare)
        each = [self._value(part, look_up) for part in (node.left, *node.comparators)]
        return all(self._apply(*step) for step in zip(node.ops, each, each[1:], strict=False))

    def _apply(self, operator: ast.AST, *values: Any) -> Any:
        """Return the result of an operator; None if a value is missing or the result is no number."""
        if any(value is None for value in values):
            return None
        try:
            return _OPERATORS[type(operator)](*values)
        except (ZeroDivisionError, OverflowError):
            return None
        except TypeError:
            kinds = " with ".join("text" if isinstance(v, str) else type(v).__name__ for v in values)
            raise self._error(f"it compares or computes {kinds}") from None
