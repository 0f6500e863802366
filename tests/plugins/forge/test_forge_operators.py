"""Operators make small, valid, different faults."""

from __future__ import annotations

import ast

import pytest

from rollenv.plugins.forge.mutants import diff_digest, functions_in, mutants_of, normal_form
from rollenv.plugins.forge.operators import OPERATORS

EVERYTHING = '''\
import os
from base import Base, cached

LIMIT = 3


class Child(Base, object):
    """A class."""

    @cached
    def first(self, a, b=None):
        """A method."""
        if a < b <= 3 and not a:
            return [x for x in range(a, len(b)) if x % 2 == 0][1:a]
        elif a:
            raise ValueError("no")
        else:
            a = -b
        return self.call(a, b, key=True)

    def second(self, a, b=None):
        total = 0
        for item in a:
            if item is None:
                continue
            total += item * 2
        with open(b) as file:
            file.write(total)
        try:
            os.remove(b)
        except OSError:
            pass
        while total > 0:
            total -= 1
        return total if b else None


if __name__ == "__main__":
    print(1 + 2)
'''

EXAMPLES = [
    ("invert_condition", "if a < b:\n    c = 1", "if a >= b:\n    c = 1"),
    ("invert_condition", "c = 1 if a and b else 2", "c = 1 if not (a and b) else 2"),
    ("change_operator", "c = a + b", "c = a - b"),
    ("change_operator", "c = a <= b", "c = a < b"),
    ("swap_operands", "c = a - (b + 1)", "c = (b + 1) - a"),
    ("break_chain", "c = 0 < a < b", "c = 0 < a"),
    ("remove_unary", "c = not a", "c = a"),
    ("change_constant", "c = 4", "c = 5"),
    ("off_by_one", "c = a[b:]", "c = a[b + 1:]"),
    ("swap_arguments", "f(a, b, c)", "f(b, a, c)"),
    ("drop_argument", "f(a, key=b)", "f(a)"),
    ("change_default", "def f(a=None): pass", "def f(a=False): pass"),
    ("remove_decorator", "@wrapped\ndef f(): pass", "def f(): pass"),
    ("remove_base", "class A(B, C): pass", "class A(C): pass"),
    ("remove_assignment", "def f():\n    a = 1", "def f():\n    pass"),
    ("remove_loop", "def f():\n    for a in b: c\n    d", "def f():\n    d"),
    ("remove_return", "def f():\n    a\n    return b", "def f():\n    a"),
    ("remove_jump", "for a in b:\n    c\n    break", "for a in b:\n    c"),
    ("remove_call", "def f():\n    a()\n    b", "def f():\n    b"),
    ("remove_conditional", "def f():\n    if a: b\n    c", "def f():\n    b\n    c"),
    ("remove_branch", "if a: b\nelif c: d\nelse: e", "if a: b\nelse: e"),
    ("remove_wrapper", "def f():\n    with a: b", "def f():\n    b"),
    ("swap_statements", "def f():\n    a = 1\n    b = 2", "def f():\n    b = 2\n    a = 1"),
    ("remove_method", "class A:\n    def f(self): b\n    c = 1", "class A:\n    c = 1"),
    (
        "swap_methods",
        "class A:\n    def f(self): b\n    def g(self): c",
        "class A:\n    def f(self): c\n    def g(self): b",
    ),
]


def every_mutant(text, seed="0"):
    return mutants_of({"m.py": text}, {("m.py", function.start) for function in functions_in("m.py", text)}, seed)


@pytest.mark.parametrize(("name", "before", "after"), EXAMPLES)
def test_an_operator_makes_the_fault_that_it_is_named_for(name, before, after):
    made = [normal_form(mutant.source) for mutant in every_mutant(before) if mutant.operator == name]
    assert normal_form(after) in made


def test_every_operator_has_an_example():
    assert {name for name, _, _ in EXAMPLES} == set(OPERATORS)


def test_every_fault_is_valid_python_and_changes_something():
    mutants = every_mutant(EVERYTHING)
    assert {mutant.operator for mutant in mutants} == set(OPERATORS)
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        form = normal_form(mutant.source)
        assert form is not None, mutant
        assert form != normal_form(EVERYTHING), mutant


def test_scripts_and_imports_are_left_alone():
    kept = ast.unparse(ast.parse(EVERYTHING).body[-1])
    for mutant in every_mutant(EVERYTHING):
        tree = ast.parse(mutant.source)
        assert ast.unparse(tree.body[-1]) == kept
        assert ast.unparse(tree.body[1]) == "from base import Base, cached"


def test_a_seed_decides_the_order_and_operators_take_turns():
    keys = [mutant.key for mutant in every_mutant(EVERYTHING)]
    assert keys == [mutant.key for mutant in every_mutant(EVERYTHING)]
    assert keys != [mutant.key for mutant in every_mutant(EVERYTHING, "1")]
    assert sorted(keys) == sorted(mutant.key for mutant in every_mutant(EVERYTHING, "1"))
    assert len({key.split()[0] for key in keys[: len(OPERATORS)]}) == len(OPERATORS)


def test_only_functions_that_are_reached_are_changed():
    start = functions_in("m.py", EVERYTHING)[0].start
    mutants = mutants_of({"m.py": EVERYTHING}, {("m.py", start)}, "0")
    assert {mutant.function.start for mutant in mutants if mutant.function} == {start}


def test_what_is_no_python_has_no_faults():
    assert mutants_of({"template.py": "class {{ name }}:\n  pass", "empty.py": ""}, set(), "0") == []


def test_the_same_change_elsewhere_has_the_same_digest():
    text = "def f(a):\n    return a + 1\n\ndef g(a):\n    return a + 1\n"
    first, second = text.replace("+", "-", 1), text[::-1].replace("+", "-", 1)[::-1]
    assert diff_digest(text, first) == diff_digest(text, second) != diff_digest(text, text.replace("+", "*", 1))


def test_a_fault_whose_lines_are_in_another_file_is_noticed():
    found, whole = every_mutant(EVERYTHING), EVERYTHING.encode()
    older = b"\n".join(b"    " + line for line in whole.splitlines())
    assert [mutant for mutant in found if mutant.is_revealed_by(EVERYTHING, {"older.txt": older})]
    assert not [mutant for mutant in found if mutant.is_revealed_by(EVERYTHING, {"a.py": b"x = 1", "copy.txt": whole})]
