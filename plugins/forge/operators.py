"""Small faults that a programmer could have made, as changes of a syntax tree (libcst).

An operator is a generator of the faulty versions of one node. The kinds of fault are those of mutation testing
(DeMillo, Lipton and Sayward, 1978) and of SWE-smith's procedural modifiers (arXiv 2504.21798).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rollenv.core.needs import extra

with extra("forge", "Forging tasks"):
    import libcst as cst
    import libcst.matchers as m


class Fault(NamedTuple):
    """A faulty version of a node, and the node with the fault (the same, or one inside it)."""

    about: cst.CSTNode
    replacement: cst.CSTNode


#: The result of an operator for a node.
Faults = Iterator[Fault]
Operator = Callable[[Any], Faults]

#: The operators by name, with the types of their nodes.
OPERATORS: dict[str, tuple[tuple[type[cst.CSTNode], ...], Operator]] = {}


def operator(*kinds: type[cst.CSTNode]) -> Callable[[Operator], Operator]:
    """Register a generator of faults under its own name."""

    def register(function: Operator) -> Operator:
        OPERATORS[function.__name__] = (kinds, function)
        return function

    return register


# -- conditions and operations ----------------------------------------------------------------------------------------

_OPPOSITES: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.Equal: cst.NotEqual,
    cst.LessThan: cst.GreaterThanEqual,
    cst.GreaterThan: cst.LessThanEqual,
    cst.In: cst.NotIn,
    cst.Is: cst.IsNot,
}
_OPPOSITES |= {new: old for old, new in _OPPOSITES.items()}

_CONFUSED: dict[type[cst.CSTNode], type[cst.CSTNode]] = {
    cst.LessThan: cst.LessThanEqual,
    cst.GreaterThan: cst.GreaterThanEqual,
    cst.Add: cst.Subtract,
    cst.Multiply: cst.Add,
    cst.FloorDivide: cst.Modulo,
    cst.Divide: cst.FloorDivide,
    cst.LeftShift: cst.RightShift,
    cst.BitAnd: cst.BitOr,
    cst.And: cst.Or,
    cst.AddAssign: cst.SubtractAssign,
}
_CONFUSED |= {new: old for old, new in _CONFUSED.items() if new not in _CONFUSED}

_COMMUTE = (cst.Multiply, cst.BitAnd, cst.BitOr, cst.BitXor)


def _negated(test: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return test.expression
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        part = test.comparisons[0]
        if opposite := _OPPOSITES.get(type(part.operator)):
            return test.with_changes(comparisons=[part.with_changes(operator=opposite())])
    simple = isinstance(test, cst.Name | cst.Attribute | cst.Call | cst.Subscript | cst.Comparison) or test.lpar
    inner = test if simple else test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return cst.UnaryOperation(cst.Not(), inner)


@operator(cst.If, cst.While, cst.IfExp, cst.CompIf, cst.Assert)
def invert_condition(node: Any) -> Faults:
    """``if x`` becomes ``if not x``."""
    inverted = _negated(node.test)
    if isinstance(inverted, cst.UnaryOperation) and isinstance(node, cst.If | cst.While) and not node.test.lpar:
        name = "whitespace_before_test" if isinstance(node, cst.If) else "whitespace_after_while"
        yield Fault(node.test, node.with_changes(test=inverted, **{name: cst.SimpleWhitespace(" ")}))
    else:
        yield Fault(node.test, node.with_changes(test=inverted))


@operator(cst.BinaryOperation, cst.BooleanOperation, cst.ComparisonTarget, cst.AugAssign)
def change_operator(node: Any) -> Faults:
    """An operator becomes one that is easily confused with it: ``<`` and ``<=``, ``+`` and ``-``."""
    if changed := _CONFUSED.get(type(node.operator)):
        yield Fault(node, node.with_changes(operator=changed()))


@operator(cst.BinaryOperation, cst.Comparison)
def swap_operands(node: Any) -> Faults:
    """``a - b`` becomes ``b - a``."""
    if isinstance(node, cst.BinaryOperation):
        if not isinstance(node.operator, _COMMUTE):
            yield Fault(node, node.with_changes(left=_grouped(node.right), right=_grouped(node.left)))
    elif len(node.comparisons) == 1 and isinstance(node.comparisons[0].operator, _ORDERED):
        part = node.comparisons[0]
        turned = part.with_changes(comparator=node.left)
        yield Fault(node, node.with_changes(left=part.comparator, comparisons=[turned]))


_ORDERED = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual, cst.In, cst.NotIn)


def _grouped(value: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(value, cst.BinaryOperation | cst.UnaryOperation) and not value.lpar:
        return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return value


@operator(cst.Comparison, cst.BooleanOperation, cst.BinaryOperation)
def break_chain(node: Any) -> Faults:
    """A part of a chain is lost: ``a < b < c`` becomes ``a < b``, and ``a and b`` becomes ``a``."""
    if isinstance(node, cst.Comparison):
        if len(node.comparisons) > 1:
            yield Fault(node, node.with_changes(comparisons=node.comparisons[:-1]))
            yield Fault(node, node.with_changes(left=node.comparisons[0].comparator, comparisons=node.comparisons[1:]))
    elif not node.lpar:
        yield Fault(node, node.left)
        yield Fault(node, node.right)


@operator(cst.UnaryOperation)
def remove_unary(node: cst.UnaryOperation) -> Faults:
    """``-x`` and ``not x`` become ``x``."""
    if not isinstance(node.operator, cst.Plus) and not node.lpar:
        yield Fault(node, _grouped(node.expression))


@operator(cst.Integer, cst.Name)
def change_constant(node: Any) -> Faults:
    """A number is one more or one less; True becomes False."""
    if isinstance(node, cst.Name):
        if node.value in ("True", "False"):
            yield Fault(node, node.with_changes(value="False" if node.value == "True" else "True"))
    elif node.value.isdecimal():
        number = int(node.value)
        yield Fault(node, node.with_changes(value=str(number + 1)))
        if number > 0:
            yield Fault(node, node.with_changes(value=str(number - 1)))


@operator(cst.Slice, cst.Call)
def off_by_one(node: Any) -> Faults:
    """A slice or a range begins or ends one too early or too late."""
    if isinstance(node, cst.Slice):
        for side in ("lower", "upper"):
            if (bound := getattr(node, side)) is not None:
                for shifted in _shifted(bound):
                    yield Fault(node, node.with_changes(**{side: shifted}))
    elif m.matches(node, m.Call(func=m.Name("range"))) and all(not a.star and not a.keyword for a in node.args):
        for number, argument in enumerate(node.args[:2]):
            for shifted in _shifted(argument.value):
                changed = argument.with_changes(value=shifted)
                yield Fault(node, node.with_changes(args=[*node.args[:number], changed, *node.args[number + 1 :]]))


def _shifted(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if not isinstance(value, cst.Integer):  # change_constant has those
        inner = value if isinstance(value, cst.Name | cst.Attribute | cst.Call) else _grouped(value)
        yield cst.BinaryOperation(inner, cst.Add(), cst.Integer("1"))
        yield cst.BinaryOperation(inner, cst.Subtract(), cst.Integer("1"))


# -- calls and definitions --------------------------------------------------------------------------------------------


@operator(cst.Call)
def swap_arguments(node: cst.Call) -> Faults:
    """Two neighbouring arguments change places."""
    for number, (first, second) in enumerate(itertools.pairwise(node.args)):
        if not (first.star or second.star or first.keyword or second.keyword) and not _same(first.value, second.value):
            pair = [first.with_changes(value=second.value), second.with_changes(value=first.value)]
            yield Fault(node, node.with_changes(args=[*node.args[:number], *pair, *node.args[number + 2 :]]))


def _same(first: cst.CSTNode, second: cst.CSTNode) -> bool:
    return first.deep_equals(second)


@operator(cst.Call)
def drop_argument(node: cst.Call) -> Faults:
    """A named argument is forgotten, so that its default counts."""
    for number, argument in enumerate(node.args):
        if argument.keyword is not None:
            yield Fault(node, node.with_changes(args=_without(node.args, number)))


def _without(args: Any, number: int) -> list[Any]:
    left = [*args[:number], *args[number + 1 :]]
    if left and number == len(args) - 1:
        left[-1] = left[-1].with_changes(comma=args[number].comma)
    return left


@operator(cst.Param)
def change_default(node: cst.Param) -> Faults:
    """A default of None, True or False becomes another."""
    turned = {"None": "False", "True": "False", "False": "True"}
    if isinstance(node.default, cst.Name) and node.default.value in turned:
        yield Fault(node, node.with_changes(default=cst.Name(turned[node.default.value])))


@operator(cst.FunctionDef)
def remove_decorator(node: cst.FunctionDef) -> Faults:
    """A function or method loses one of its wrappers."""
    for number in range(len(node.decorators)):
        left = [*node.decorators[:number], *node.decorators[number + 1 :]]
        yield Fault(node, node.with_changes(decorators=left))


@operator(cst.ClassDef)
def remove_base(node: cst.ClassDef) -> Faults:
    """A class no longer inherits from one of its bases."""
    for number in range(len(node.bases)):
        left = _without(node.bases, number)
        parens = {} if left else {"lpar": cst.MaybeSentinel.DEFAULT, "rpar": cst.MaybeSentinel.DEFAULT}
        yield Fault(node, node.with_changes(bases=left, **parens))


# -- statements -------------------------------------------------------------------------------------------------------


def _blocks(kind: type[cst.CSTNode] | tuple[type[cst.CSTNode], ...], name: str, why: str) -> None:
    """Register an operator that removes statements of a kind from their block."""

    def remove(block: cst.IndentedBlock) -> Faults:
        for number, statement in enumerate(block.body):
            if isinstance(_core(statement), kind):
                yield Fault(statement, block.with_changes(body=_replaced(block.body, number, [])))

    remove.__name__, remove.__doc__ = name, why
    operator(cst.IndentedBlock)(remove)


def _core(statement: cst.CSTNode) -> cst.CSTNode:
    """Return the statement on a line; the line itself if it has several."""
    if isinstance(statement, cst.SimpleStatementLine):
        return statement.body[0] if len(statement.body) == 1 else statement
    return statement


def _replaced(body: Any, number: int, by: Any) -> list[Any]:
    changed = [*body[:number], *by, *body[number + 1 :]]
    return changed or [cst.SimpleStatementLine([cst.Pass()])]


_blocks((cst.Assign, cst.AugAssign), "remove_assignment", "A variable or attribute is not set.")
_blocks((cst.For, cst.While), "remove_loop", "A loop is gone.")
_blocks(cst.Return, "remove_return", "A result is not returned.")
_blocks((cst.Raise, cst.Break, cst.Continue), "remove_jump", "An exception is not raised, or a loop not left.")


@operator(cst.IndentedBlock)
def remove_call(block: cst.IndentedBlock) -> Faults:
    """A statement that only calls something is gone."""
    for number, statement in enumerate(block.body):
        if m.matches(_core(statement), m.Expr(value=m.Call())):
            yield Fault(statement, block.with_changes(body=_replaced(block.body, number, [])))


@operator(cst.IndentedBlock)
def remove_conditional(block: cst.IndentedBlock) -> Faults:
    """A conditional is gone with what it guards, or what it guards always happens."""
    for number, statement in enumerate(block.body):
        if isinstance(statement, cst.If):
            yield Fault(statement, block.with_changes(body=_replaced(block.body, number, [])))
            yield Fault(statement, block.with_changes(body=_replaced(block.body, number, _inner(statement.body))))


@operator(cst.If)
def remove_branch(node: cst.If) -> Faults:
    """The else, or one elif, of a conditional is gone."""
    if isinstance(node.orelse, cst.Else):
        yield Fault(node.orelse, node.with_changes(orelse=None))
    elif isinstance(node.orelse, cst.If):
        yield Fault(node.orelse, node.with_changes(orelse=node.orelse.orelse))


@operator(cst.IndentedBlock)
def remove_wrapper(block: cst.IndentedBlock) -> Faults:
    """Replace ``with`` or ``try`` by its body."""
    for number, statement in enumerate(block.body):
        if isinstance(statement, cst.With | cst.Try):
            yield Fault(statement, block.with_changes(body=_replaced(block.body, number, _inner(statement.body))))


def _inner(body: cst.BaseSuite) -> list[Any]:
    if isinstance(body, cst.IndentedBlock):
        return list(body.body)
    return [cst.SimpleStatementLine([one]) for one in body.body if isinstance(one, cst.BaseSmallStatement)]


@operator(cst.IndentedBlock)
def swap_statements(block: cst.IndentedBlock) -> Faults:
    """Two neighbouring statements change places."""
    for number, (first, second) in enumerate(itertools.pairwise(block.body)):
        if all(not isinstance(one, cst.FunctionDef | cst.ClassDef) and not _is_text(one) for one in (first, second)):
            body = [*block.body[:number], second, first, *block.body[number + 2 :]]
            yield Fault(first, block.with_changes(body=body))


def _is_text(statement: cst.CSTNode) -> bool:
    return m.matches(_core(statement), m.Expr(value=m.SimpleString() | m.ConcatenatedString()))


@operator(cst.ClassDef)
def remove_method(node: cst.ClassDef) -> Faults:
    """A class lacks one of its methods."""
    if isinstance(node.body, cst.IndentedBlock):
        for number, method in enumerate(node.body.body):
            if isinstance(method, cst.FunctionDef):
                body = node.body.with_changes(body=_replaced(node.body.body, number, []))
                yield Fault(method, node.with_changes(body=body))


@operator(cst.ClassDef)
def swap_methods(node: cst.ClassDef) -> Faults:
    """Two methods with the same parameters exchange their bodies."""
    if not isinstance(node.body, cst.IndentedBlock):
        return
    methods = [(number, one) for number, one in enumerate(node.body.body) if isinstance(one, cst.FunctionDef)]
    for (i, first), (j, second) in itertools.pairwise(methods):
        if _same(first.params, second.params) and not _same(first.body, second.body):
            body = list(node.body.body)
            body[i], body[j] = first.with_changes(body=second.body), second.with_changes(body=first.body)
            yield Fault(first, node.with_changes(body=node.body.with_changes(body=body)))
