"""The mutants of a module: every possible fault, and the module with one of them."""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rollenv.core import syntax
from rollenv.core.needs import extra
from rollenv.plugins.forge.operators import OPERATORS

with extra("forge", "Forging tasks"):
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider


#: Minimum length of lines whose occurrence in two files is no coincidence.
_TELLING = 40


@dataclass(frozen=True)
class Function:
    """The lines of a function, from its first decorator to its last line."""

    path: str
    start: int
    end: int


@dataclass(frozen=True)
class Mutant:
    """One fault in one module.

    Args:
        operator: the kind of fault, a key of :data:`~rollenv.plugins.forge.operators.OPERATORS`.
        path: path of the module in the project.
        number: index among the faults of this operator at this position.
        function: the innermost function around it; None in the body of a module or class.
    """

    operator: str
    path: str
    line: int
    column: int
    number: int
    function: Function | None
    _module: cst.Module = field(repr=False, compare=False)
    _old: cst.CSTNode = field(repr=False, compare=False)
    _new: cst.CSTNode = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """Identifier of the mutant within a package, stable while the package and the operator are the same."""
        return f"{self.operator} {self.path}:{self.line}:{self.column}#{self.number}"

    def is_revealed_by(self, original: str, files: Mapping[str, bytes]) -> bool:
        """Return whether another file, such as an older copy, has the lines that the fault replaces."""
        was, now = ([line.strip() for line in text.splitlines()] for text in (original, self.source))
        parts = difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes()
        lost = "\n".join("\n".join(was[i:j]) for kind, i, j, _, _ in parts if kind != "equal").strip()
        if len(lost) < _TELLING:
            return False
        whole = original.encode()  # full copies are left out of tasks anyway
        others = (
            data.decode("utf-8", "replace") for path, data in files.items() if path != self.path and data != whole
        )
        return any(lost in "\n".join(map(str.strip, text.splitlines())) for text in others)

    @cached_property
    def source(self) -> str:
        """Return the module with the fault."""
        return self._module.visit(_Replace(self._old, self._new)).code


class _Replace(cst.CSTTransformer):
    def __init__(self, old: cst.CSTNode, new: cst.CSTNode):
        self.old, self.new = old, new

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node is not self.old

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        return self.new if original_node is self.old else updated_node


def mutants_of(sources: Mapping[str, str], reached: Collection[tuple[str, int]], seed: str) -> list[Mutant]:
    """Return the mutants of a package in the order to try them.

    Operators take turns, so that a few tasks already have many kinds of fault. Faults in functions come before those in
    the bodies of modules and classes, which require a run of all tests.

    Args:
        reached: functions that tests call, as module and first line.
    """
    found: dict[str, list[Mutant]] = {}
    for path, text in sorted(sources.items()):
        for mutant in _mutants_in(path, text):
            if mutant.function is None or (path, mutant.function.start) in reached:
                found.setdefault(mutant.operator, []).append(mutant)
    rng = random.Random(seed)
    for several in found.values():
        rng.shuffle(several)
        several.sort(key=lambda mutant: mutant.function is None)
    turns = list(found.values())
    rng.shuffle(turns)
    longest = max(map(len, turns), default=0)
    return [several[number] for number in range(longest) for several in turns if number < len(several)]


def _mutants_in(path: str, text: str) -> Iterator[Mutant]:
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError:  # a template, or code for another Python
        return
    finder = _Finder(path, functions_in(path, text), wrapper.module)
    wrapper.visit(finder)
    yield from finder.found


def functions_in(path: str, text: str) -> list[Function]:
    """Return the functions of a module, outer ones first."""
    nodes = [n for n in ast.walk(syntax.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    starts = ((min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.end_lineno or n.lineno) for n in nodes)
    return [Function(path, start, end) for start, end in sorted(starts, key=lambda span: (span[0], -span[1]))]


class _Finder(cst.CSTVisitor):
    """Collects every fault, except in annotations, imports and ``if __name__``."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: str, functions: list[Function], module: cst.Module):
        super().__init__()
        self.path, self.functions, self.module = path, functions, module
        self.found: list[Mutant] = []
        self.seen: dict[tuple[str, int, int], int] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Import | cst.ImportFrom) or _is_script(node):
            return False
        for name, (kinds, faults) in OPERATORS.items():
            if isinstance(node, kinds):
                for fault in faults(node):
                    self._add(name, node, fault.about, fault.replacement)
        return True

    def _add(self, name: str, node: cst.CSTNode, about: cst.CSTNode, replacement: cst.CSTNode) -> None:
        start = self.get_metadata(PositionProvider, about).start
        start_of = (name, start.line, start.column)
        number = self.seen[start_of] = self.seen.get(start_of, -1) + 1
        inside = [f for f in self.functions if f.start <= start.line <= f.end]
        function = inside[-1] if inside else None
        self.found.append(
            Mutant(name, self.path, start.line, start.column, number, function, self.module, node, replacement)
        )


def _is_script(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.If) and cst.Module([]).code_for_node(node.test).startswith(("__name__", "TYPE_CHECK"))


def normal_form(text: str) -> str | None:
    """Return a module without comments and layout, for comparisons; None if it is not Python."""
    try:
        return ast.unparse(syntax.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None


def diff_digest(before: str, after: str) -> str:
    """Return a hash of the change between two normal forms, regardless of its position."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
    changed = (re.sub(r"\s+", " ", line) for line in lines if not line.startswith("@@"))
    return hashlib.sha256("\n".join(changed).encode()).hexdigest()
