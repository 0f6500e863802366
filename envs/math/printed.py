"""LaTeX of expressions printed by Python and sympy, which models copy from tools."""

from __future__ import annotations

import ast
import re

_GREEK = "alpha beta gamma delta epsilon theta mu rho sigma tau phi omega"
_NAMES = {"oo": "\\infty", "inf": "\\infty", "I": "i", "E": "e", "pi": "\\pi"}
_NAMES |= {name: f"\\{name}" for name in _GREEK.split()} | {"S.Reals": "\\mathbb{R}", "Reals": "\\mathbb{R}"}
_SAME = "sin cos tan cot sec csc sinh cosh tanh log ln gcd max min"
_FUNCTIONS = {name: f"\\{name}(%s)" for name in _SAME.split()}
_FUNCTIONS |= {f"a{name}": f"\\arc{name}(%s)" for name in ("sin", "cos", "tan")}
_FUNCTIONS |= {
    "sqrt": "\\sqrt{%s}",
    "cbrt": "\\sqrt[3]{%s}",
    "exp": "e^{%s}",
    "Abs": "|%s|",
    "abs": "|%s|",
    "factorial": "(%s)!",
    "log 2": "\\frac{\\ln(%s)}{\\ln(%s)}",
    "binomial 2": "\\binom{%s}{%s}",
    "Rational 2": "\\frac{%s}{%s}",
    "Fraction 2": "\\frac{%s}{%s}",
    "Interval 2": "[%s,%s]",
    "Interval.open 2": "(%s,%s)",
    "Interval.Lopen 2": "(%s,%s]",
    "Interval.Ropen 2": "[%s,%s)",
    "Eq 2": "%s=%s",
}
_JOINED = {"Union": "\\cup ", "Intersection": "\\cap ", "Complement": "\\setminus "}
_BINARY: dict[type, str] = {
    ast.Add: "%s+%s",
    ast.Sub: "%s-%s",
    ast.Mult: "%s\\cdot %s",
    ast.Div: "\\frac{%s}{%s}",
    ast.Pow: "%s^{%s}",
    ast.BitAnd: "%s and %s",
    ast.BitOr: "%s or %s",
}
_RELATIONS: dict[type, str] = {ast.Lt: "<", ast.LtE: "\\leq ", ast.Gt: ">", ast.GtE: "\\geq ", ast.NotEq: "\\neq "}

_CALLED = "|".join({re.escape(name.split()[0]) for name in (*_FUNCTIONS, *_JOINED, "Matrix", "FiniteSet")})
#: Notation that occurs neither in plain text nor in LaTeX.
_PRINTED = re.compile(
    rf"\*|&|\)\s*\|\s*\(|\dj\)$|(?<![a-zA-Z])(?:pi|oo|inf|{_GREEK.replace(' ', '|')})(?![a-zA-Z])|(?:{_CALLED})\("
)
_FACTOR = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)(?=\(|(?![eEjxX])[a-zA-Z]|x(?!\w)|exp)")


def latex_of_printed(text: str) -> str:
    r"""Convert Python expressions in a text, such as ``2*sqrt(3)/x**2``, to LaTeX, without evaluating them."""
    if "\\" in text or not text.isascii() or not _PRINTED.search(text):
        return text
    return "=".join(map(_side, re.split(r"(?<![<>!=])=(?!=)", text)))


def _side(text: str) -> str:
    source = _FACTOR.sub(r"\1*", text.strip().replace("^", "**"))
    try:
        return _Printer(source).latex(ast.parse(source, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


class _Printer:
    def __init__(self, source: str):
        self.source = source

    def latex(self, node: ast.expr) -> str:
        """Convert a node; raise ValueError for what sympy would not print."""
        match node:
            case ast.Constant(value=int() | float() | complex()) if not isinstance(node.value, bool):
                return self._text(node).replace("j", "i")
            case ast.Name() | ast.Attribute():
                name = self._text(node)
                if name in _NAMES or re.fullmatch(r"[a-zA-Z](?:_?\d)?", name):
                    return _NAMES.get(name) or re.sub(r"_?(\d)", r"_\1", name)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return ("-" if isinstance(node.op, ast.USub) else "") + self._inner(node.operand, ast.Add, ast.Sub)
            case ast.BinOp() if type(node.op) in _BINARY:
                return self._binary(node)
            case ast.BoolOp():
                word = " and " if isinstance(node.op, ast.And) else " or "
                return word.join(map(self.latex, node.values))
            case ast.Compare() if all(type(op) in _RELATIONS for op in node.ops):
                rest = zip(node.ops, node.comparators, strict=True)
                return self.latex(node.left) + "".join(_RELATIONS[type(op)] + self.latex(side) for op, side in rest)
            case ast.Tuple():
                inner = self._list(node.elts)
                return f"({inner})" if self._text(node)[0] == "(" else inner
            case ast.List():
                return f"[{self._list(node.elts)}]"
            case ast.Set():
                return f"\\{{{self._list(node.elts)}\\}}"
            case ast.Call(keywords=[]):
                return self._call(self._text(node.func), node.args)
        raise ValueError(self._text(node))

    def _text(self, node: ast.expr) -> str:
        return self.source[node.col_offset : node.end_col_offset]

    def _list(self, nodes: list[ast.expr]) -> str:
        return ",".join(map(self.latex, nodes))

    def _binary(self, node: ast.BinOp) -> str:
        left, right = node.left, node.right
        sums = (ast.Add, ast.Sub)
        match node.op:
            case ast.Mult():
                sides = self._inner(left, *sums), self._inner(right, *sums, ast.USub)
            case ast.Sub() | ast.Add():
                sides = self.latex(left), self._inner(right, *sums, ast.USub)
            case ast.Pow():
                plain = isinstance(left, ast.Name) or (isinstance(left, ast.Constant) and "e" not in self._text(left))
                sides = self.latex(left) if plain else f"({self.latex(left)})", self.latex(right)
            case _:
                sides = self.latex(left), self.latex(right)
        return _BINARY[type(node.op)] % sides

    def _inner(self, node: ast.expr, *loose: type) -> str:
        """Convert an operand, in brackets if it is an operation of these kinds."""
        latex = self.latex(node)
        if isinstance(node, ast.BinOp | ast.UnaryOp) and isinstance(node.op, loose):
            return f"({latex})"
        return latex

    def _call(self, name: str, args: list[ast.expr]) -> str:
        given = tuple(map(self.latex, args))
        if name in _JOINED:
            return _JOINED[name].join(given)
        if name == "FiniteSet":
            return f"\\{{{','.join(given)}\\}}"
        if name == "Matrix" and len(args) == 1 and isinstance(args[0], ast.List):
            rows = args[0].elts
            return (
                given[0] if isinstance(rows[0], ast.List) else f"[{','.join(f'[{self.latex(row)}]' for row in rows)}]"
            )
        form = _FUNCTIONS.get(name if len(args) == 1 else f"{name} {len(args)}")
        if form is None or form.count("%s") != len(args):
            raise ValueError(name)
        return form % given
