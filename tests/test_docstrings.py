"""Docstrings of public functions give the shapes of what comes back and the errors that are raised."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("rollenv", "agents", "envs", "sandbox", "trainers")
#: GEM's signatures are its own, sandbox/inside is only run, and the parameters of commands carry help.
APART = ("rollenv/compat/gem", "sandbox/inside", "rollenv/cli")
#: Arrays and tensors have shapes to tell, tuples have parts.
SHAPED = re.compile(r"\b(tuple|Tensor|ndarray|NDArray)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Public(NamedTuple):
    """A public function, or a method of a public class."""

    name: str
    function: Function
    owner: ast.ClassDef | None

    @property
    def parameters(self) -> list[str]:
        a = self.function.args
        plain = [*a.posonlyargs, *a.args]
        if self.owner and "staticmethod" not in decorators(self.function):
            plain = plain[1:]
        named = [*plain, a.vararg, *a.kwonlyargs, a.kwarg]
        return [one.arg for one in named if one is not None and not one.arg.startswith("_")]


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The trees of all modules; links are not followed, so that each file counts once."""
    found = {}
    for folder in FOLDERS:
        for where, _, names in os.walk(ROOT / folder):
            for path in sorted(Path(where, name) for name in names if name.endswith(".py")):
                found[str(path.relative_to(ROOT))] = ast.parse(path.read_text())
    return found


@functools.cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].split("(")[0].rsplit(".", 1)[-1]


@functools.cache
def ancestors(name: str) -> frozenset[str]:
    """The names of all classes above one, as far as they are the project's."""
    above = {last_name(base) for one in classes().get(name, []) for base in one.bases} - {name}
    return frozenset(above.union(*(ancestors(one) for one in above)))


@functools.cache
def protocols() -> frozenset[str]:
    return frozenset(name for name in classes() if "Protocol" in ancestors(name))


def decorators(function: Function) -> set[str]:
    return {last_name(one) for one in function.decorator_list}


def inherits_documentation(owner: ast.ClassDef, method: Function) -> bool:
    """Whether a class above documents a method, or a protocol does that has one with the same parameters."""
    if ast.get_docstring(method):
        return False
    names = ancestors(owner.name) | protocols()
    return any(
        isinstance(member, Function)
        and member.name == method.name
        and ast.get_docstring(member)
        and (name in ancestors(owner.name) or ast.unparse(member.args) == ast.unparse(method.args))
        for name in names
        for base in classes().get(name, [])
        for member in base.body
    )


def public_functions(tree: ast.Module) -> Iterator[Public]:
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_") and "overload" not in decorators(node):
            yield Public(node.name, node, None)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for member in node.body:
                if (
                    isinstance(member, Function)
                    and not member.name.startswith("_")
                    and not decorators(member) & {"property", "setter", "overload", "cached_property"}
                    and not inherits_documentation(node, member)
                ):
                    yield Public(f"{node.name}.{member.name}", member, node)


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """What is in a function, but not in functions or classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def raised(function: Function) -> set[str]:
    """The errors of the project that a function itself raises."""
    names = {last_name(n.exc) for n in own_nodes(function) if isinstance(n, ast.Raise) and n.exc is not None}
    return {name for name in names if name == "RollenvError" or "RollenvError" in ancestors(name)}


def section(docstring: str, title: str) -> str | None:
    match = re.search(rf"^{title}:\n((?:[ \t]+.*\n?|\n)*)", docstring, re.MULTILINE)
    return match and match[1]


def entries(text: str) -> set[str]:
    """The names that a section explains: ``rows, cols: of the board.``"""
    lines = re.findall(r"^ {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?:", text, re.MULTILINE)
    return {name.strip("* ") for line in lines for name in line.split(",")}


def shortfalls(public: Public) -> list[str]:
    """List what the docstring of a function lacks, or says of arguments that it does not take."""
    if len(public.parameters) < 2:
        return []
    docstring = ast.get_docstring(public.function) or ""
    if not docstring:
        return ["no docstring"]
    short = []
    if unknown := entries(section(docstring, "Args") or "") - set(public.parameters):
        short.append(f"Args that it does not take: {', '.join(sorted(unknown))}")
    returns = public.function.returns
    if returns and SHAPED.search(ast.unparse(returns)) and not re.search("^(Returns|Yields):", docstring, re.MULTILINE):
        short.append("Returns")
    if errors := raised(public.function) - entries(section(docstring, "Raises") or ""):
        short.append(f"Raises: {', '.join(sorted(errors))}")
    return short


def documented_modules() -> list[str]:
    return [path for path in modules() if not path.startswith(APART) and not Path(path).name.startswith("_")]


@pytest.mark.integration
def test_it_looks_at_what_is_public():
    names = {public.name for path in documented_modules() for public in public_functions(modules()[path])}
    assert {"make", "check_env", "Env.reset", "collect", "Sandbox.exec", "train"} & names
    assert len(names) > 500


@pytest.mark.combinations
@pytest.mark.parametrize("folder", FOLDERS)
def test_public_functions_document_shapes_and_errors(folder):
    short = {
        f"{path}: {public.name}": found
        for path in documented_modules()
        if path.startswith(f"{folder}/")
        for public in public_functions(modules()[path])
        if (found := shortfalls(public))
    }
    assert not short, "\n".join(f"{name} lacks {'; '.join(what)}" for name, what in short.items())
